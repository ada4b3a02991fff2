/* config_state.h - what the files of the configuration share. Inside frontend. */
#ifndef STATOR_CONFIG_STATE_H
#define STATOR_CONFIG_STATE_H
#include "frontend/config/key.h"

/* What files and flags say about one key. An explicit null is a setting with value NULL:
 * it undoes the value of a base file. */
typedef struct Setting {
    const YamlNode *value;
    const char *name; /* path as written: an alias or the key's own */
    bool set;
    int height; /* config_height */
} Setting;

/* A mistake that was found; others may follow. */
typedef struct Problem {
    int code;
    SourcePos at;
    const char *message;
} Problem;

/* A key that is given and has no effect. */
typedef struct Needless {
    int key;
    const char *why;
} Needless;

typedef struct FileText {
    const char *path, *real; /* as named, and without links */
    const char *text;
    size_t bytes;
    struct FileText *next;
} FileText;

struct ConfigFiles {
    Arena *mem;
    const char *path;
    FileText *text;                /* of the configuration and its base files */
    const struct Machine *machine; /* NULL: not yet read */
    const char *machine_from;      /* context.machine, and the file that says it */
};

typedef struct ConfigState {
    Arena *mem;
    ConfigFiles *files;
    const char *file; /* the one that was asked for, above its base files; or NULL */
    Setting settings[N_KEYS];
    Problem *problem;
    int n_problems, cap_problems;
    bool broken[N_KEYS]; /* has no value of its own because of a problem */
    bool follows;        /* from a key that is broken already: does not count */
    Needless *needless;  /* until config_note_needless */
    int n_needless, cap_needless;
} ConfigState;

/* Calls f(context); false when it failed with EXIT_CONFIG or EXIT_DATA, which becomes a problem of
 * s, unless it only follows from another one. Other failures go on. */
bool config_try(ConfigState *s, void (*f)(void *), void *context);
/* Fails with all problems, those of files first, and EXIT_CONFIG, or EXIT_DATA where they are of
 * data alone; nothing without any. Then there are none. */
void config_fail_all(ConfigState *s);

/* Fails with EXIT_CONFIG: there is no such key; says which is near. */
_Noreturn void config_unknown_key(Arena *a, const char *path, SourcePos at);
/* Reads a file (config_read_file) or a text that must not name base files, or flags, over
 * the settings that are there. */
void config_read_file(ConfigState *s, const char *path);
void config_read_text(ConfigState *s, const char *name, const char *text, size_t n);
void config_read_flags(ConfigState *s, int nflags, char **flags);
/* What stands for the file of a place in the flags, and of one in those of a search: nobody wrote
 * these, so there are no notes about them. Is that a place in either? */
extern const char config_flags_file[], config_search_file[];
bool config_of_flag(SourcePos at);
/* A word before a flag, one word, that a program hands over: where its value was written. Without
 * it messages say that it is of the command line. */
char *config_flag_from(Arena *a, SourcePos at);

/* What config.json of a Hugging Face folder says a model is: its model_type, and the one of
 * architectures. */
typedef enum HfType {
    HF_GPT2,
    HF_LLAMA,
    HF_MISTRAL,
    HF_QWEN2,
    HF_QWEN3,
    HF_NEOX,
    HF_TYPES
} HfType;
extern const char *const hf_types[HF_TYPES], *const hf_classes[HF_TYPES];

/* A line about each of the keys that were added since; of many one line that names them. */
void config_add_needless(Config *cfg, int key, const char *why);
void config_note_needless(Config *cfg);
/* The key gets the value where it stands, without anything being derived anew. */
void config_set_given(Config *cfg, const char *path, const char *value);
/* One line for the user about a key; its position is put in front. */
void config_note(Config *cfg, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends with EXIT_CONFIG at the value of `path`, or at that of `other` (may be NULL) when
 * the first is not given. */
_Noreturn void config_refuse(const Config *cfg, const char *path, const char *other,
                             const char *hint, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Why a key cannot change anything in this configuration, by the NEEDS rows of keys.def;
 * NULL: it can. Ranks are those of cfg's strategy, so ask when they are chosen. */
const char *config_idle(const Config *cfg, const char *path);
/* A line for every key that is given and is idle. */
void config_note_idle(Config *cfg);

/* The first of several keys for one thing, as micro_batch_num of grad_accumulation_step; the path
 * itself where it is the only one. */
const char *config_first_name(const char *path);
bool config_by_flag(const Config *cfg, const char *path);
/* Where a key is given: what has its way over others is higher. Base files count 1, 2, ... in their
 * order, each above its own bases; then the file that was asked for, what a search chooses, flags. */
int config_height(const Config *cfg, const char *path);
enum { HEIGHT_SEARCHED = 1 << 20, HEIGHT_FLAG };
/* A flag takes the place of what a file says of the same thing under another name or in other words,
 * and a file that of what its base files say: that is not given any more. To be called when values
 * are stored and nothing is derived from them. */
void config_displace(Config *cfg);

/* Of a key for people: its top-level section, "run" outside of sections; what happens to it; and
 * what it takes, "a whole number, at least 1". */
void config_section_name(const char *path, char name[64]);
const char *config_category_text(Arena *a, const Key *key);
const char *config_values_text(Arena *a, const Key *key);

/* Is ZeRO asked for? optimizer_shard says so; where it is not given, a level of its own does. */
bool config_wants_shards(const Config *c);
/* Does the learning rate go down in the course of the run? */
bool config_decays(const Config *c);

/* Of a key that takes a switch, numbers or names: 1 for the one word True in any spelling, 0 for
 * False and for nothing, -1 for something else. */
int config_switch(const TextList *l);
/* Is the model that of a folder, of weights or of a description? */
bool config_has_source(const Config *cfg);
/* Fills in values that follow from others (config_derive.c), then checks combinations. */
void config_derive(Config *cfg);
void config_check(Config *cfg);
/* Two keys for one thing must agree where both are given. */
void config_check_agree(const Config *cfg, const char *a, const char *b);

#endif
