/* megatron_given.c - flags of Megatron-LM by their names, and keys as they are gathered; see
 * megatron_parts.h. */
#include "frontend/tools/megatron_parts.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

const char *megatron_word(const Megatron *m, MegatronId id, const char *otherwise) {
    return m->flag[id].given ? m->flag[id].word[0] : otherwise;
}

int64_t megatron_count(const Megatron *m, MegatronId id, int64_t otherwise) {
    if (!m->flag[id].given) return otherwise;
    const char *text = m->flag[id].word[0];
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < 0 || n > INT64_C(1) << 50)
        fail(EXIT_CONFIG, "%s %.60s: write a whole number, 0 or more",
             megatron_name(m->mem, (int)id), text);
    return n;
}

double megatron_real(const Megatron *m, MegatronId id, double otherwise) {
    if (!m->flag[id].given) return otherwise;
    const char *text = m->flag[id].word[0];
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        fail(EXIT_CONFIG, "%s %.60s: write a number", megatron_name(m->mem, (int)id),
             text);
    return x;
}

void megatron_need(const Megatron *m, MegatronId id) {
    if (!m->flag[id].given)
        fail(EXIT_CONFIG,
             "%s is not there, which Megatron-LM needs; ${ARRAY[@]} of a script that "
             "is not set is nothing",
             megatron_name(m->mem, (int)id));
}

int64_t megatron_degree(const Megatron *m, MegatronId id) {
    int64_t n = megatron_count(m, id, 1);
    if (n < 1 || n > 1 << 20)
        fail(EXIT_CONFIG, "%s %lld: write 1 or more", megatron_name(m->mem, (int)id),
             (long long)n);
    return n;
}

void megatron_add(Megatron *m, const char *key, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *value = arena_vprintf(m->mem, fmt, ap);
    va_end(ap);
    PUSH(m->mem, m->key, m->nkeys, m->cap_keys,
         arena_printf(m->mem, "--%s=%s", key, value));
}

void megatron_add_count(Megatron *m, const char *key, int64_t n) {
    megatron_add(m, key, "%lld", (long long)n);
}

void megatron_note(Megatron *m, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    PUSH(m->mem, m->note, m->nnotes, m->cap_notes, arena_vprintf(m->mem, fmt, ap));
    va_end(ap);
}

void megatron_add_word(Megatron *m, MegatronId id, const char *key,
                       const char *otherwise) {
    if (m->flag[id].given || otherwise)
        megatron_add(m, key, "%s", megatron_word(m, id, otherwise));
}
