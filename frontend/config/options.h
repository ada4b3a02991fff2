/* options.h - the words of a command, read by the table commands.def. An option is
 * written --name VALUE or --name=VALUE, '-' and '_' alike, at most once unless the row says
 * MANY; options and other words may be in any order, and after "--" nothing is an option. */
#ifndef STATOR_OPTIONS_H
#define STATOR_OPTIONS_H
#include "base/base.h"

typedef enum CommandId {
#define COMMAND(name, ...) COMMAND_##name,
#include "frontend/config/commands.def"
    N_COMMANDS
} CommandId;

typedef enum OptionKind {
    OPTION_SWITCH,
    OPTION_TEXT,
    OPTION_LIST, /* all the words behind it */
    OPTION_MANY, /* one word each time it is given */
    OPTION_LAST,
    OPTION_INT,
    OPTION_NUMBER,
    OPTION_CHOICE,
    OPTION_IDLE,
    OPTION_REFUSED,
    OPTION_KEY
} OptionKind;

enum { COMMAND_KEYS = 1, COMMAND_FIRST = 2, COMMAND_RANKS = 4 };

typedef struct CommandRow {
    const char *name;
    int flags, max_words;
    const char *usage, *line, *text, *end;
} CommandRow;

typedef struct OptionRow {
    CommandId command;
    const char *names; /* "-n -np" */
    OptionKind kind;
    const char *value; /* its name; the values of a choice; "" for a switch */
    int64_t low, high;
    const char *key; /* OPTION_KEY */
    const char *help;
} OptionRow;

extern const CommandRow command_table[N_COMMANDS];
extern const OptionRow option_table[];
extern const int n_options;

typedef struct OptionValues {
    const char **s;
    int n, cap;
} OptionValues;

/* What was given. */
typedef struct Options {
    Arena *mem;
    CommandId command;
    OptionValues *value; /* by row of option_table; a switch has "" */
    char **word;         /* other words */
    int nwords;
    char **flag; /* keys of the configuration, for config_load: "--a.b.c=VALUE" */
    int nflags;
} Options;

/* Reads argv[1..]. Fails with EXIT_CONFIG. NULL: --help or -h was among them, and the usage
 * has been printed. */
Options *options_read(Arena *mem, CommandId command, int argc, char **argv);
/* The same in an arena of its own, the command's to use and to free. */
Options *options_take(CommandId command, int argc, char **argv);

/* By any name of a row of the command; another name is our bug. What was not given is
 * false, NULL, 0 or `otherwise`. */
bool option_given(const Options *o, const char *name);
const char *option_text(const Options *o, const char *name);
const char **option_list(const Options *o, const char *name, int *n);
int64_t option_int(const Options *o, const char *name, int64_t otherwise);
double option_number(const Options *o, const char *name);
/* Number of the value among those of the row. */
int option_choice(const Options *o, const char *name, int otherwise);

/* Does a key of the configuration have a row of the command? */
bool option_has_key(CommandId command, const char *key);
/* The next of the blank-separated names of a row; NULL after the last. *at starts as the
 * row's names. */
const char *option_next_name(const char **at, char name[64]);

#endif
