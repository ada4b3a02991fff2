/* options.c - see options.h. */
#include "frontend/config/options.h"
#include "frontend/config/key.h"
#include "frontend/config/options_print.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

/* name[n] is a row's, but for '-' and '_'. */
static bool same_name(const char *row, const char *name, size_t n) {
    if (strlen(row) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (row[i] != name[i] && !(strchr("-_", row[i]) && strchr("-_", name[i])))
            return false;
    return true;
}

static int row_find(CommandId command, const char *name, size_t n) {
    char one[64];
    for (int r = 0; r < n_options; r++) {
        const char *at = option_table[r].names;
        if (option_table[r].command != command) continue;
        while (option_next_name(&at, one))
            if (same_name(one, name, n)) return r;
    }
    return -1;
}

static int row_of(CommandId command, const char *name) {
    int r = row_find(command, name, strlen(name));
    if (r < 0) die("%s has no option %s", command_table[command].name, name);
    return r;
}

bool option_has_key(CommandId command, const char *key) {
    for (int r = 0; r < n_options; r++)
        if (option_table[r].command == command && option_table[r].key &&
            !strcmp(option_table[r].key, key))
            return true;
    return false;
}

static bool takes_value(const OptionRow *row) {
    return row->value[0] != 0;
}

/* ---- values ---- */

static int64_t check_int(const OptionRow *row, const char *said_as, const char *text) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    bool good = !errno && end != text && !*end && n >= row->low && n <= row->high;
    if (!good && row->high == INT64_MAX)
        fail(EXIT_CONFIG, "%s %.100s: write a whole number from %lld up", said_as, text,
             (long long)row->low);
    if (!good)
        fail(EXIT_CONFIG, "%s %.100s: write a whole number from %lld to %lld", said_as,
             text, (long long)row->low, (long long)row->high);
    return n;
}

static double check_number(const OptionRow *row, const char *said_as, const char *text) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v > (double)row->low) || v > (double)row->high)
        fail(EXIT_CONFIG, "%s %.100s: write a number above %lld and up to %lld", said_as,
             text, (long long)row->low, (long long)row->high);
    return v;
}

static int check_choice(const OptionRow *row, const char *said_as, const char *text) {
    int i = 0;
    for (const char *s = row->value;; s++, i++) {
        size_t n = strcspn(s, "|");
        if (strlen(text) == n && !memcmp(s, text, n)) return i;
        s += n;
        if (!*s) break;
    }
    char all[256];
    const char *s = row->value;
    for (size_t k = 0, n, used = 0; k <= (size_t)i && used < sizeof all;
         k++, s += n + 1) {
        n = strcspn(s, "|");
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%.*s",
                                 choice_joint((int)k, i + 1), (int)n, s);
    }
    fail(EXIT_CONFIG, "%s %.60s: write %s", said_as, text, all);
}

/* Wrong values are said when the words are read, in their order. */
static void check_value(const OptionRow *row, const char *name, const char *text) {
    if (row->kind == OPTION_INT) check_int(row, name, text);
    if (row->kind == OPTION_NUMBER) check_number(row, name, text);
    if (row->kind == OPTION_CHOICE) check_choice(row, name, text);
    if (row->kind == OPTION_LAST && (!*text || *text == '-'))
        fail(EXIT_CONFIG, "%s needs a program", name);
}

/* ---- words ---- */

typedef struct Reader {
    Options *o;
    const CommandRow *command;
    int argc, at; /* argv[at] is read next */
    char **argv;
    int cap_words, cap_flags;
    bool ended; /* nothing that follows is an option */
} Reader;

static bool is_backslash(const char *word) {
    return !strcmp(word, "\\") || !strcmp(word, "\\ ");
}

/* Has the command an option of one dash? Else "-x" is a word as others. */
static bool has_short(CommandId command) {
    for (int r = 0; r < n_options; r++)
        if (option_table[r].command == command && option_table[r].names[1] != '-')
            return true;
    return false;
}

static bool is_option(const Reader *x, const char *word) {
    if (begins_with(word, "--")) return isalpha((unsigned char)word[2]);
    return word[0] == '-' && isalpha((unsigned char)word[1]) && has_short(x->o->command);
}

static bool is_end_of_values(const Reader *x, const char *word) {
    return is_option(x, word) || !strcmp(word, "--") || is_backslash(word);
}

static const char *next_value(Reader *x, const OptionRow *row, const char *name) {
    const char *next = x->at < x->argc ? x->argv[x->at] : NULL;
    if (!next || is_end_of_values(x, next))
        fail(EXIT_CONFIG, "%s needs a value: %s %s%s", name, name, row->value,
             next ? "; one that looks like an option is written after a ="
                  : " (was a bash array expanded without [@]?)");
    x->at++;
    return next;
}

static void add_value(Reader *x, int r, const char *value) {
    OptionValues *v = &x->o->value[r];
    PUSH(x->o->mem, v->s, v->n, v->cap, value);
}

static void add_flag(Reader *x, const char *path, const char *value) {
    Options *o = x->o;
    char *flag = value ? arena_printf(o->mem, "--%s=%s", path, value)
                       : arena_printf(o->mem, "--%s", path);
    PUSH(o->mem, o->flag, o->nflags, x->cap_flags, flag);
}

/* A list goes up to the next option, or to the backslash of a broken line. */
static void read_list(Reader *x, int r, const char *name, const char *inside) {
    add_value(x, r, inside ? inside : next_value(x, &option_table[r], name));
    while (!inside && x->at < x->argc && !is_end_of_values(x, x->argv[x->at]))
        add_value(x, r, x->argv[x->at++]);
}

static void read_row(Reader *x, int r, const char *name, const char *inside) {
    const OptionRow *row = &option_table[r];
    if (row->kind == OPTION_REFUSED) fail(EXIT_CONFIG, "%s %s", name, row->help);
    if (row->kind == OPTION_LIST) {
        read_list(x, r, name, inside);
        return;
    }
    if (inside && !takes_value(row)) fail(EXIT_CONFIG, "%s takes no value", name);
    const char *value = inside             ? inside
                        : takes_value(row) ? next_value(x, row, name)
                                           : "";
    if (row->kind == OPTION_KEY) {
        add_flag(x, row->key, value);
        return;
    }
    if (row->kind == OPTION_IDLE) {
        fprintf(stderr, "note: %s has no effect: %s\n", name, row->help);
        return;
    }
    if (x->o->value[r].n && takes_value(row) && row->kind != OPTION_MANY)
        fail(EXIT_CONFIG, "%s is given twice; keep one", name);
    check_value(row, name, value);
    add_value(x, r, value);
    if (row->kind == OPTION_LAST) x->ended = true;
}

enum { MAX_NAMES = 256 };

/* Those of the command's options; returns how many. */
static int option_names(const Reader *x, const char *names[MAX_NAMES]) {
    char one[64];
    int n = 0;
    for (int r = 0; r < n_options; r++) {
        const char *at = option_table[r].names;
        if (option_table[r].command != x->o->command) continue;
        while (option_next_name(&at, one) && n < MAX_NAMES)
            names[n++] = arena_strdup(x->o->mem, one);
    }
    return n;
}

static _Noreturn void unknown(const Reader *x, const char *name) {
    const char *names[MAX_NAMES];
    int n = option_names(x, names);
    const char *near = nearest_name(name, names, n);
    fail(EXIT_CONFIG,
         "unknown option %.100s of stator %s%s%s%s; stator help %s lists all%s", name,
         x->command->name, near ? ": did you mean " : "", near ? near : "",
         near ? "?" : "", x->command->name,
         x->command->flags & COMMAND_FIRST
             ? "; options of the command that is started come after its name"
             : "");
}

/* As other spellings of it are compared: without dashes in front. */
static const char *plain_name(Arena *mem, const char *name) {
    return key_of_word(mem, name + strspn(name, "-"));
}

/* Is a word that is neither an option nor a key more like one of the command's options than
 * like the end of any key? */
static bool is_like_option(const Reader *x, const char *path) {
    Arena *mem = x->o->mem;
    const char *names[MAX_NAMES + N_KEYS], *word = plain_name(mem, path);
    if (strchr(path, '.') || key_find(word) >= 0 || key_is_section(word) ||
        key_foreign(word))
        return false;
    int options = option_names(x, names), n = options;
    for (int i = 0; i < options; i++) names[i] = plain_name(mem, names[i]);
    for (int k = 0; k < N_KEYS; k++) {
        const char *dot = strrchr(key_table[k].path, '.');
        names[n++] = dot ? dot + 1 : key_table[k].path;
    }
    const char *near = nearest_name(word, names, n);
    for (int i = 0; near && i < options; i++)
        if (names[i] == near) return true;
    return false;
}

static bool is_bool_key(const char *path) {
    int k = key_find(path);
    return k >= 0 && key_table[k].kind == KIND_Bool;
}

/* A key of the configuration. One that is True or False may stand alone, also before the
 * file: "--profile conf.yaml". */
static void read_key(Reader *x, const char *path, const char *value) {
    const char *next = x->at < x->argc ? x->argv[x->at] : NULL;
    bool taken = !value && next && !begins_with(next, "--") && !is_backslash(next);
    if (taken && is_bool_key(path) && strpbrk(next, "./")) taken = false;
    if (taken) value = next, x->at++;
    add_flag(x, path, value);
}

/* The option of the word just read. */
static void read_option(Reader *x, const char *word) {
    const char *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    char *name = arena_strndup(x->o->mem, word, n);
    int r = row_find(x->o->command, name, n);
    const char *value = equals ? equals + 1 : NULL;
    if (r >= 0 && option_table[r].key && is_bool_key(option_table[r].key)) {
        read_key(x, option_table[r].key, value);
        return;
    }
    if (r >= 0) {
        char first[64];
        const char *at = option_table[r].names;
        bool other = strchr(at, ' ') != NULL; /* said as it was written */
        read_row(x, r, other ? name : option_next_name(&at, first), value);
        return;
    }
    if (!(x->command->flags & COMMAND_KEYS) || !begins_with(word, "--") ||
        is_like_option(x, name + 2))
        unknown(x, name);
    read_key(x, key_of_word(x->o->mem, name + 2), value);
}

static void read_word(Reader *x, char *word) {
    Options *o = x->o;
    if (is_backslash(word) && !x->ended)
        fail(EXIT_CONFIG, "a word of the command is a lone backslash: remove the "
                          "blank after the \\ at the end of the line");
    bool ranks = (x->command->flags & COMMAND_RANKS) && !strcmp(word, "-n");
    if (o->nwords == x->command->max_words && ranks)
        fail(EXIT_CONFIG,
             "stator %s takes no -n: stator launch -n RANKS %s ... starts so many ranks",
             x->command->name, x->command->name);
    if (o->nwords == x->command->max_words)
        fail(EXIT_CONFIG, "'%.200s' is one word too many; stator help %s", word,
             x->command->name);
    PUSH(o->mem, o->word, o->nwords, x->cap_words, word);
    x->ended |= (x->command->flags & COMMAND_FIRST) != 0;
}

Options *options_read(Arena *mem, CommandId command, int argc, char **argv) {
    Options *o = NEW(mem, Options);
    *o = (Options){.mem = mem, .command = command};
    o->value = NEW_ARRAY(mem, OptionValues, (size_t)n_options);
    Reader x = {o, &command_table[command], argc, 1, argv, 0, 0, false};
    while (x.at < argc) {
        char *word = argv[x.at++];
        if (!x.ended && (!strcmp(word, "--help") || !strcmp(word, "-h"))) {
            options_usage(stdout, command);
            return NULL;
        }
        if (!x.ended && !strcmp(word, "--"))
            x.ended = true;
        else if (!x.ended && is_option(&x, word))
            read_option(&x, word);
        else
            read_word(&x, word);
    }
    return o;
}

Options *options_take(CommandId command, int argc, char **argv) {
    Arena *mem = arena_new();
    Options *o = options_read(mem, command, argc, argv);
    if (!o) arena_free(mem);
    return o;
}

/* ---- what was given ---- */

bool option_given(const Options *o, const char *name) {
    return o->value[row_of(o->command, name)].n > 0;
}

const char *option_text(const Options *o, const char *name) {
    int r = row_of(o->command, name);
    return o->value[r].n ? o->value[r].s[0] : NULL;
}

const char **option_list(const Options *o, const char *name, int *n) {
    int r = row_of(o->command, name);
    *n = o->value[r].n;
    return o->value[r].s;
}

int64_t option_int(const Options *o, const char *name, int64_t otherwise) {
    const char *text = option_text(o, name);
    const OptionRow *row = &option_table[row_of(o->command, name)];
    return text ? check_int(row, name, text) : otherwise;
}

double option_number(const Options *o, const char *name) {
    const char *text = option_text(o, name);
    const OptionRow *row = &option_table[row_of(o->command, name)];
    return text ? check_number(row, name, text) : 0;
}

int option_choice(const Options *o, const char *name, int otherwise) {
    const char *text = option_text(o, name);
    const OptionRow *row = &option_table[row_of(o->command, name)];
    return text ? check_choice(row, name, text) : otherwise;
}
