/* megatron_unused.c - flags of Megatron-LM that change nothing beside the others that were given, as
 * --num-query-groups without --group-query-attention. None is known by name: keys are made again
 * without the flag, and with other words behind it. */
#include "frontend/tools/megatron_parts.h"
#include <stdlib.h>

typedef struct Again {
    const Megatron *m, *given; /* with keys, and before they were made */
    int64_t ranks;
    void (*make)(Megatron *m, int64_t ranks);
} Again;

static bool same_lines(char *const *a, int n, char *const *b, int m) {
    if (n != m) return false;
    for (int i = 0; i < n; i++)
        if (strcmp(a[i], b[i]) != 0) return false;
    return true;
}

/* So that what is added to them is not added to those of `given`. */
static void copy_lines(Megatron *m) {
    char **key = NEW_ARRAY(m->mem, char *, (size_t)m->nkeys + 1);
    const char **note = NEW_ARRAY(m->mem, const char *, (size_t)m->nnotes + 1);
    for (int i = 0; i < m->nkeys; i++) key[i] = m->key[i];
    for (int i = 0; i < m->nnotes; i++) note[i] = m->note[i];
    m->key = key, m->cap_keys = m->nkeys + 1;
    m->note = note, m->cap_notes = m->nnotes + 1;
}

/* Are keys and notes others, or is there a mistake, with flag `id` so? words: NULL, it is not
 * given. */
static bool differs(const Again *x, int id, char **words) {
    Megatron other = *x->given;
    copy_lines(&other);
    other.flag[id].given = words != NULL;
    if (words) other.flag[id].word = words;
    Catch c;
    if (!CATCH(c)) return true;
    x->make(&other, x->ranks);
    catch_end(&c);
    return !same_lines(other.key, other.nkeys, x->m->key, x->m->nkeys) ||
           !same_lines((char **)other.note, other.nnotes, (char **)x->m->note,
                       x->m->nnotes);
}

/* One that is as without it may have the word that is taken then: so words are tried that are none,
 * which is a mistake where they are read, and another number. */
static bool has_effect(const Again *x, int id) {
    const char *word = x->m->flag[id].n ? x->m->flag[id].word[0] : NULL;
    char *end = NULL, *none[] = {"?"};
    if (differs(x, id, NULL)) return true;
    if (!word) return false;
    double number = strtod(word, &end);
    char *others[] = {arena_printf(x->m->mem, "%g", 2 * number + 2)};
    bool is_number = end != word && !*end;
    return differs(x, id, none) && (!is_number || differs(x, id, others));
}

/* Would the flag have an effect without that other one, on so many ranks? other: -1, with all. */
static bool would_have(const Again *x, int id, int other, int64_t ranks) {
    Megatron given = *x->given, made;
    if (other >= 0) given.flag[other].given = false;
    made = given;
    copy_lines(&made);
    const Again without = {&made, &given, ranks, x->make};
    Catch c;
    if (!CATCH(c)) return false;
    x->make(&made, ranks);
    catch_end(&c);
    return has_effect(&without, id);
}

static const char *reason(const Again *x, int id) {
    for (int other = 0; other < MEGATRON_FLAGS; other++)
        if (other != id && x->given->flag[other].given &&
            would_have(x, id, other, x->ranks))
            return arena_printf(x->m->mem, "beside %s", megatron_name(x->m->mem, other));
    if (x->ranks == 1 && would_have(x, id, -1, 2)) return "on 1 rank";
    return "beside these flags";
}

void megatron_note_unused(Megatron *m, const Megatron *given, int64_t ranks,
                          void (*make)(Megatron *, int64_t)) {
    if (m->file) return; /* nobody wrote its flags */
    Megatron left =
        *given; /* without those that are told: of two that say one thing the other counts */
    const Again x = {m, &left, ranks, make};
    for (int id = 0; id < MEGATRON_FLAGS; id++) {
        const MegatronFlag *f = &megatron_flag[id];
        if (!m->flag[id].given || f->kind != MEGATRON_OWN || m->flag[id].n > 1) continue;
        if (has_effect(&x, id)) continue;
        const char *why = reason(&x, id);
        left.flag[id].given = false;
        PUSH(m->mem, m->idle, m->nidle, m->cap_idle,
             arena_printf(m->mem, "%s has no effect %s: it is for %s",
                          megatron_name(m->mem, id), why, f->what));
    }
}
