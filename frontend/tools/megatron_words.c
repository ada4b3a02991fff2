/* megatron_words.c - flags of Megatron-LM by their names, and the words that are given them; see
 * megatron.h. */
#include "frontend/tools/megatron.h"
#include <ctype.h>
#include <stdlib.h>

#define TO   MEGATRON_TO
#define OWN  MEGATRON_OWN
#define IDLE MEGATRON_IDLE
#define ONLY MEGATRON_ONLY
#define NOT  MEGATRON_NOT
#define MANY MEGATRON_MANY
const MegatronFlag megatron_flag[MEGATRON_FLAGS] = {
#define FLAG(name, words, kind, what, value)                                             \
    [MEGATRON_##name] = {#name, words, kind, what, value},
#include "frontend/config/megatron.def"
};

/* "--num-layers" and "num_layers" are one name. */
static bool is_named(const char *row, const char *word, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!row[i] || row[i] != (word[i] == '-' ? '_' : word[i])) return false;
    return !row[n];
}

int megatron_find(const char *word, size_t n) {
    for (int i = 0; i < MEGATRON_FLAGS; i++)
        if (is_named(megatron_flag[i].name, word, n)) return i;
    return -1;
}

const char *megatron_name(Arena *mem, int id) {
    char *name = arena_printf(mem, "--%s", megatron_flag[id].name);
    for (char *p = name; *p; p++)
        if (*p == '_') *p = '-';
    return name;
}

static void check_words(Arena *mem, int id, int n) {
    const MegatronFlag *f = &megatron_flag[id];
    const char *name = megatron_name(mem, id);
    if (f->words == MEGATRON_MANY ? n > 0 : n == f->words) return;
    if (n < 1)
        fail(EXIT_CONFIG,
             "%s has no value; in a shell script \"${ARRAY[@]}\" expands to all words, "
             "$ARRAY "
             "to the first",
             name);
    fail(EXIT_CONFIG, "%s takes %s, and has %d behind it", name,
         f->words ? "one word" : "no word", n);
}

/* 1.0 is 1. */
static bool is_value(const char *word, const char *value) {
    char *end;
    double is = strtod(word, &end), wanted = strtod(value, NULL);
    bool number = end != word && !*end && isdigit((unsigned char)value[0]);
    return number ? !(is < wanted || is > wanted) : !strcmp(word, value);
}

static void refuse_missing(Arena *mem, int id, int n, char **word) {
    const MegatronFlag *f = &megatron_flag[id];
    const char *name = megatron_name(mem, id);
    if (f->kind == MEGATRON_NOT)
        fail(EXIT_CONFIG, "%s asks for what is not there: %s", name, f->what);
    if (f->kind != MEGATRON_ONLY) return;
    Text other = text_new(mem);
    for (int i = 0; i < n; i++)
        if (!is_value(word[i], f->value)) text_add(&other, " %s", word[i]);
    if (other.n)
        fail(EXIT_CONFIG, "%s%.60s asks for what is not there: %s; only %s is", name,
             other.s, f->what, f->value);
}

/* A folder that is "" is none, as a script has it that says "$CKPT" and does not set it. */
static bool is_no_folder(int id, int n, char **word) {
    return (id == MEGATRON_load || id == MEGATRON_save) && n == 1 && !word[0][0];
}

void megatron_give(Megatron *m, int id, int n, char **word) {
    check_words(m->mem, id, n);
    if (is_no_folder(id, n, word)) return;
    refuse_missing(m->mem, id, n, word);
    m->flag[id].given = true;
    m->flag[id].word = word;
    m->flag[id].n = n;
}
