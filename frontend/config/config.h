/* config.h - the configuration of a command: YAML files and flags, checked against the
 * one key table in keys.def, as one typed struct.
 *
 * A field is named after its path with '_' for '.': parallel_config.micro_batch_num is
 * cfg->parallel_config_micro_batch_num. Two long sections are shortened:
 * model.model_config.X is cfg->model_X, callbacks.CheckpointMonitor.X is
 * cfg->checkpoint_X. Enumerations carry the constants that keys.def lists. */
#ifndef STATOR_CONFIG_H
#define STATOR_CONFIG_H
#include "base/base.h"

typedef struct IntList {
    const int64_t *items;
    int n;
} IntList;

typedef struct IntTable {
    const int64_t *items; /* row by row */
    int rows, columns;
} IntTable;

typedef struct TextList {
    const char *const *items;
    int n;
} TextList;

#define ENUM(type, values, ...) typedef enum type { __VA_ARGS__ } type;
#include "frontend/config/keys.def"

typedef bool KeyBool;
typedef int64_t KeyInt;
typedef double KeyFloat;
typedef const char *KeyText; /* never NULL; "" when nothing is set */
typedef int64_t KeyMemory;   /* bytes */
typedef IntList KeyIntList;
typedef IntTable KeyIntTable;
typedef TextList KeyTextList;

typedef struct Config {
#define KEY(path, field, type, ...)      Key##type field;
#define KEY_ENUM(path, field, type, ...) type field;
#include "frontend/config/keys.def"
    const char **notes; /* one line each: keys without effect, mapped or changed */
    int n_notes, cap_notes;
    struct ConfigState *state; /* values as written and where: config_where */
} Config;

/* The file of a configuration at `path` (NULL: none), with the others that it names: each is read
 * once, when it is asked for first, and belongs to `mem`. */
typedef struct ConfigFiles ConfigFiles;
ConfigFiles *config_files(Arena *mem, const char *path);
const char *config_files_path(const ConfigFiles *f);

/* Reads the YAML file of f with its base_config files, then the flags `--a.b.c VALUE`, `--a.b.c=VALUE` (a bare `--a.b.c` sets a boolean), fills defaults and
 * derived values, and checks every value and combination. Relative paths in values are
 * kept as written: they count from the working directory; base_config counts from the
 * including file. Fails with EXIT_CONFIG at the position of the mistake. */
Config *config_load_of(Arena *a, ConfigFiles *f, int nflags, char **flags);
/* The same of files that nothing else is read of. */
Config *config_load(Arena *a, const char *path, int nflags, char **flags);

/* The same from a text of n bytes that must not name base files. */
Config *config_parse(Arena *a, const char *name, const char *text, size_t n);

/* Sets one key as a flag would and derives and checks everything again. */
void config_set_flag(Config *cfg, const char *path, const char *value);
/* The same for what is written elsewhere, in a file or in an option of a command (`at.file`, without
 * a line): messages about the value say where, and it is of no flag. */
void config_set_from(Config *cfg, const char *path, const char *value, SourcePos at);

/* Where the value that applies was written; line 0 and file "default" when nowhere. Both
 * take a path of the table or an alias; an unknown path is our bug. */
SourcePos config_where(const Config *cfg, const char *path);
/* The file that the value of a key names: beside the YAML file that says it, where there is
 * one of that name, else as it is written. */
const char *config_file_beside(const Config *cfg, Arena *mem, const char *path,
                               const char *name);
/* Makes whole paths of the files that are found so (context.machine, model.file, the .csv of a
 * schedule), unless a YAML file in that folder finds them by what the keys say. To be called
 * before cfg is written there. */
void config_keep_files(Config *cfg, const char *folder);
bool config_given(const Config *cfg, const char *path);
/* The text of a value that is given; NULL: none is, or it is a list or a map. */
const char *config_written(const Config *cfg, const char *path);

/* The value that applies, as text (an enumeration by its name, memory as "30GB"). */
const char *config_value(const Config *cfg, Arena *a, const char *path);

/* Does a run go on with all of a checkpoint that is named, and take not its weights alone? */
bool config_resumes(const Config *cfg);
/* What a run with `resume: auto` goes on from while its own folder has no checkpoint:
 * load_checkpoint, where config_resumes; "": nothing. */
const char *config_resume_else(const Config *cfg);

/* context.max_device_memory as it is written, and in the steps of 1000 that messages count in:
 * "31GB (33.3 GB in steps of 1000)". */
const char *config_memory_limit(const Config *cfg);
/* The product of all degrees of parallelism, and of all but data_parallel; INT32_MAX where it is
 * more. */
int64_t config_ranks(const Config *cfg);
int64_t config_replica_ranks(const Config *cfg);
/* Steps of warm-up that lr_schedule.warmup_ratio makes of `total`: rounded down, as in
 * MindFormers. */
int64_t config_warmup_of(const Config *cfg, int64_t total);

/* The merged configuration as YAML: given keys as they are, the rest as comments with
 * their values. config_load of it gives the same values and the same config_given. */
void config_print(const Config *cfg, Text *out);

/* Given keys alone. */
void config_print_given(const Config *cfg, Text *out);

/* The same as config_print for the folder of a run, where it goes on when it is started again: with resume auto,
 * and with load_checkpoint `from`, which it has begun with; NULL: as it is. */
void config_print_run(const Config *cfg, const char *from, Text *out);

/* Help on the keys of one section ("run" for keys outside of any); or on the keys that
 * are called so, by any of their names and with as many of their sections as are given; or the
 * list of sections when NULL. False if there is nothing of that name. */
bool config_help(FILE *out, const char *word);

#endif
