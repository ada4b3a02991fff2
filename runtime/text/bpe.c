/* bpe.c - the table of merges, and pre-tokens to ids. A pre-token starts as its bytes or
 * characters; the pair of lowest rank, the leftmost of equals, becomes one id until no
 * pair has a rank. Frequent short words are remembered. */
#define _GNU_SOURCE
#include "runtime/text/bpe.h"
#include "base/utf8.h"
#include <stdatomic.h>
#include <stdlib.h>

uint64_t tokenizer_next_serial(void) {
    static _Atomic uint64_t last;
    return atomic_fetch_add(&last, 1) + 1;
}

enum {
    KEY_BYTES = 24, /* a remembered word: its length in the last byte */
    WORD_IDS = 9,   /* that a remembered word may have */
    CACHE_SLOTS = 1 << 15,
    SHORT_SYMBOLS = 48,        /* up to here a plain scan finds the next pair */
    MAX_WORD_BYTES = 64 << 20, /* a pre-token; working room is 32 bytes a byte */
    KEPT_ROOM_BYTES = 4 << 20  /* working room a cache keeps between texts */
};

/* One cache line. count 0: free. */
struct WordSlot {
    uint64_t key[3];
    int32_t count;
    int32_t id[WORD_IDS];
};
_Static_assert(sizeof(WordSlot) == 64, "a word slot is one cache line");

/* ---- the table of merges ---- */

static uint64_t pair_slot(const MergeTable *t, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return key * 0x9E3779B97F4A7C15u >> t->shift;
}

MergeTable merge_table_new(Arena *mem, size_t merges) {
    int bits = 4;
    while ((size_t)1 << bits < 2 * merges) bits++;
    MergeTable t = {.mask = ((uint64_t)1 << bits) - 1, .shift = 64 - bits};
    t.slot = NEW_ARRAY(mem, MergeSlot, t.mask + 1);
    for (uint64_t i = 0; i <= t.mask; i++) t.slot[i].left = -1;
    return t;
}

static inline const MergeSlot *merge_find(const MergeTable *t, int32_t left,
                                          int32_t right) {
    for (uint64_t i = pair_slot(t, left, right);; i = (i + 1) & t->mask) {
        const MergeSlot *s = &t->slot[i];
        if (s->left == left && s->right == right) return s;
        if (s->left < 0) return NULL;
    }
}

bool merge_table_add(MergeTable *t, MergeSlot merge) {
    uint64_t i = pair_slot(t, merge.left, merge.right);
    for (; t->slot[i].left >= 0; i = (i + 1) & t->mask)
        if (t->slot[i].left == merge.left && t->slot[i].right == merge.right)
            return false;
    t->slot[i] = merge;
    return true;
}

static inline uint32_t pair_rank(const MergeTable *t, int32_t left, int32_t right) {
    const MergeSlot *s = merge_find(t, left, right);
    return s ? s->rank : NO_RANK;
}

/* ---- ids of characters and words ---- */

IdTable id_table_new(Arena *mem, size_t most) {
    size_t size = 16;
    while (size < 2 * most) size *= 2;
    IdTable t = {NEW_ARRAY(mem, IdSlot, size), size - 1};
    for (size_t i = 0; i < size; i++) t.slot[i].id = -1;
    return t;
}

static uint64_t id_slot(const IdTable *t, uint64_t key) {
    return (key * 0x9E3779B97F4A7C15u >> 20) & t->mask;
}

void id_table_add(IdTable *t, IdSlot entry) {
    if (entry.s) entry.key = hash64(entry.s, entry.n);
    uint64_t i = id_slot(t, entry.key);
    while (t->slot[i].id >= 0) i = (i + 1) & t->mask;
    t->slot[i] = entry;
}

/* -1: none, as of the next. */
static int32_t id_of_char(const IdTable *t, uint32_t code_point) {
    for (uint64_t i = id_slot(t, code_point);; i = (i + 1) & t->mask)
        if (t->slot[i].id < 0 || t->slot[i].key == code_point) return t->slot[i].id;
}

static int32_t id_of_text(const IdTable *t, const char *s, size_t n) {
    uint64_t key = hash64(s, n);
    for (uint64_t i = id_slot(t, key);; i = (i + 1) & t->mask) {
        const IdSlot *e = &t->slot[i];
        if (e->id < 0 || (e->key == key && e->n == n && !memcmp(e->s, s, n)))
            return e->id;
    }
}

/* ---- the cache ---- */

TokenizerCache *tokenizer_cache_new(void) {
    TokenizerCache *c = calloc(1, sizeof *c);
    size_t bytes = CACHE_SLOTS * sizeof(WordSlot);
    WordSlot *slot = c ? aligned_alloc(sizeof(WordSlot), bytes) : NULL;
    if (!slot) {
        free(c);
        fail(EXIT_MEMORY, "out of memory: %zu bytes wanted", bytes);
    }
    c->slot = memset(slot, 0, bytes);
    return c;
}

void tokenizer_cache_free(TokenizerCache *c) {
    if (!c) return;
    free(c->slot);
    free(c->word.p);
    free(c->valid.p);
    free(c->norm[0].p);
    free(c->norm[1].p);
    free(c);
}

void *room_get(Room *r, size_t bytes) {
    if (bytes <= r->bytes) return r->p;
    free(r->p);
    r->p = malloc(bytes);
    r->bytes = r->p ? bytes : 0;
    if (!r->p) fail(EXIT_MEMORY, "out of memory: %zu bytes wanted", bytes);
    return r->p;
}

void room_trim(Room *r) {
    if (r->bytes <= KEPT_ROOM_BYTES) return;
    free(r->p);
    *r = (Room){0};
}

void cache_begin(TokenizerCache *c, const Tokenizer *t) {
    if (c->serial != t->serial) memset(c->slot, 0, CACHE_SLOTS * sizeof(WordSlot));
    c->serial = t->serial;
}

/* ---- words ---- */

/* The symbols that p[n] starts as, at most n; returns how many. */
static size_t word_symbols(const Tokenizer *t, const char *p, size_t n, int32_t *id) {
    size_t count = 0;
    if (!t->byte_fallback) {
        for (; count < n; count++) id[count] = t->byte_id[(unsigned char)p[count]];
        return n;
    }
    for (size_t i = 0; i < n;) {
        size_t size = (size_t)utf8_check(p + i, n - i);
        int32_t one = id_of_char(&t->characters, utf8_get(p + i, size));
        if (one >= 0) id[count++] = one;
        for (size_t b = 0; one < 0 && b < size; b++)
            id[count++] = t->byte_id[(unsigned char)p[i + b]];
        i += size;
    }
    return count;
}

/* The token that the word p[n] is without merges, or -1. */
static int32_t whole_word(const Tokenizer *t, const char *p, size_t n) {
    return t->words.mask ? id_of_text(&t->words, p, n) : -1;
}

/* Merges id[n], n <= SHORT_SYMBOLS, in place; returns how many are left. */
static int merge_short(const MergeTable *t, int32_t *id, int n) {
    uint32_t rank[SHORT_SYMBOLS]; /* of the pair (i, i+1) */
    for (int i = 0; i + 1 < n; i++) rank[i] = pair_rank(t, id[i], id[i + 1]);
    while (n > 1) {
        int best = 0;
        for (int i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        id[best] = merge_find(t, id[best], id[best + 1])->result;
        n--;
        for (int i = best + 1; i < n; i++) id[i] = id[i + 1];
        for (int i = best + 1; i + 1 < n; i++) rank[i] = rank[i + 1];
        if (best + 1 < n) rank[best] = pair_rank(t, id[best], id[best + 1]);
        if (best > 0) rank[best - 1] = pair_rank(t, id[best - 1], id[best]);
    }
    return n;
}

/* A long word: symbols in a list, and a heap of (rank, index), lowest first. An entry
 * whose rank is no longer the one at its index is left over from before a merge. */
typedef struct LongWord {
    int32_t *id, *before, *after; /* by index; id < 0: merged into the one before */
    uint32_t *rank;               /* of the pair that begins there */
    uint64_t *heap;
    size_t heap_n;
} LongWord;

static void heap_push(LongWord *w, uint64_t entry) {
    size_t i = w->heap_n++;
    for (; i > 0 && w->heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = entry;
}

static uint64_t heap_pop(LongWord *w) {
    uint64_t top = w->heap[0], last = w->heap[--w->heap_n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->heap_n; i = child) {
        if (child + 1 < w->heap_n && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= last) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

static void rank_pair(const MergeTable *t, LongWord *w, int32_t at) {
    int32_t right = w->after[at];
    w->rank[at] = right < 0 ? NO_RANK : pair_rank(t, w->id[at], w->id[right]);
    if (w->rank[at] != NO_RANK) heap_push(w, (uint64_t)w->rank[at] << 32 | (uint32_t)at);
}

static void merge_long(const MergeTable *t, LongWord *w, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        w->before[i] = i - 1;
        w->after[i] = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i < n; i++) rank_pair(t, w, i);
    while (w->heap_n) {
        uint64_t entry = heap_pop(w);
        int32_t at = (int32_t)(uint32_t)entry;
        if (w->id[at] < 0 || w->rank[at] != entry >> 32) continue;
        int32_t gone = w->after[at], next = w->after[gone];
        w->id[at] = merge_find(t, w->id[at], w->id[gone])->result;
        w->id[gone] = -1;
        w->after[at] = next;
        if (next >= 0) w->before[next] = at;
        rank_pair(t, w, at);
        if (w->before[at] >= 0) rank_pair(t, w, w->before[at]);
    }
}

static void encode_long(const Tokenizer *t, TokenizerCache *c, const char *p, size_t n,
                        IdsOut *o) {
    int32_t whole = whole_word(t, p, n);
    if (whole >= 0) {
        ids_add(o, &whole, 1);
        return;
    }
    if (n > MAX_WORD_BYTES)
        fail(EXIT_DATA,
             "a word of %zu bytes without a space or a change between letters, digits "
             "and signs; at most %d are encoded: is this text?",
             n, MAX_WORD_BYTES);
    /* The heap holds at most the n first pairs and one more a merge. */
    char *room = room_get(
        &c->word, n * (3 * sizeof(int32_t) + sizeof(uint32_t) + 2 * sizeof(uint64_t)));
    LongWord w = {.heap = (uint64_t *)room};
    w.id = (int32_t *)(w.heap + 2 * n);
    w.before = w.id + n;
    w.after = w.before + n;
    w.rank = (uint32_t *)(w.after + n);
    merge_long(&t->table, &w, (int32_t)word_symbols(t, p, n, w.id));
    for (int32_t at = 0; at >= 0; at = w.after[at]) ids_add(o, &w.id[at], 1);
}

static int encode_short(const Tokenizer *t, const char *p, size_t n, int32_t *id) {
    id[0] = whole_word(t, p, n);
    if (id[0] >= 0) return 1;
    return merge_short(&t->table, id, (int)word_symbols(t, p, n, id));
}

/* The key of a word of n < KEY_BYTES bytes; [p, limit) may be read. */
static inline void word_key(const char *p, size_t n, const char *limit, uint64_t key[3]) {
    static const uint64_t all = ~(uint64_t)0;
    if (limit - p >= KEY_BYTES) {
        memcpy(key, p, KEY_BYTES);
        if (n < 8) {
            key[0] &= ~(all << 8 * n);
            key[1] = key[2] = 0;
        } else if (n < 16) {
            key[1] &= ~(all << 8 * (n - 8));
            key[2] = 0;
        } else {
            key[2] &= ~(all << 8 * (n - 16));
        }
    } else {
        key[0] = key[1] = key[2] = 0;
        memcpy(key, p, n);
    }
    key[2] |= (uint64_t)n << 56;
}

static inline uint32_t key_slot(const uint64_t key[3]) {
    uint64_t h = (key[0] * 0x9E3779B97F4A7C15u) ^ (key[1] * 0xC2B2AE3D27D4EB4Fu) ^
                 (key[2] * 0x165667B19E3779F9u);
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 49);
}
_Static_assert(CACHE_SLOTS == 1 << (64 - 49), "key_slot has as many bits");

static inline bool slot_holds(const WordSlot *s, const uint64_t key[3]) {
    return s->key[0] == key[0] && s->key[1] == key[1] && s->key[2] == key[2];
}

/* A word that is not remembered: encoded, and put where its key looks first; what was
 * there moves to where its key looks second. */
static __attribute__((noinline)) void word_add(const Tokenizer *t, TokenizerCache *c,
                                               const char *p, size_t n,
                                               const uint64_t key[3], IdsOut *o) {
    int32_t id[SHORT_SYMBOLS];
    int count = encode_short(t, p, n, id);
    ids_add(o, id, (size_t)count);
    if (count > WORD_IDS) return;
    uint32_t at = key_slot(key);
    WordSlot *s = &c->slot[at];
    if (s->count) c->slot[at ^ 1] = *s;
    memcpy(s->key, key, KEY_BYTES);
    memcpy(s->id, id, (size_t)count * sizeof *id);
    s->count = count;
}

static inline void encode_word(const Tokenizer *t, TokenizerCache *c, const char *p,
                               size_t n, const char *limit, IdsOut *o) {
    if (n >= KEY_BYTES) {
        int32_t id[SHORT_SYMBOLS];
        if (n > SHORT_SYMBOLS)
            encode_long(t, c, p, n, o);
        else
            ids_add(o, id, (size_t)encode_short(t, p, n, id));
        return;
    }
    uint64_t key[3];
    word_key(p, n, limit, key);
    uint32_t at = key_slot(key);
    const WordSlot *s = &c->slot[at];
    if (!slot_holds(s, key)) s = &c->slot[at ^ 1];
    if (!slot_holds(s, key)) {
        word_add(t, c, p, n, key, o);
    } else if (o->n + WORD_IDS <= o->cap) {
        memcpy(o->id + o->n, s->id, sizeof s->id);
        o->n += (size_t)s->count;
    } else {
        ids_add(o, s->id, (size_t)s->count);
    }
}

/* End of the word at p: before the next U+2581, or only before one behind another
 * character (`runs`). */
static const char *meta_end(const char *p, const char *end, bool runs) {
    for (const char *from = p; p < end;) {
        bool meta = end - p >= META_BYTES && !memcmp(p, META, META_BYTES);
        bool behind_meta =
            p - from >= META_BYTES && !memcmp(p - META_BYTES, META, META_BYTES);
        if (meta && p > from && !(runs && behind_meta)) return p;
        const char *next = memchr(p + 1, META[0], (size_t)(end - p - 1));
        p = next ? next : end;
    }
    return end;
}

static inline const char *word_end(const Tokenizer *t, SplitRule rule, const char *p,
                                   const char *end) {
    switch (rule) {
    case SPLIT_GPT2:
        return bpe_word_end(t->char_class, p, end);
    case SPLIT_CL100K:
        return bpe_cl100k_end(t->char_class, 3, p, end);
    case SPLIT_QWEN2:
        return bpe_cl100k_end(t->char_class, 1, p, end);
    case SPLIT_META:
        return meta_end(p, end, false);
    case SPLIT_NONE:
        return t->cut_at_meta ? meta_end(p, end, true) : end;
    }
    die("split rule %d", (int)rule);
}

static inline __attribute__((always_inline)) void
encode_by_rule(const Tokenizer *t, TokenizerCache *c, SplitRule rule, const char *p,
               const char *end, const char *limit, IdsOut *out) {
    IdsOut o = *out; /* in registers */
    while (p < end) {
        const char *next = word_end(t, rule, p, end);
        encode_word(t, c, p, (size_t)(next - p), limit, &o);
        p = next;
    }
    *out = o;
}

void encode_words(const Tokenizer *t, TokenizerCache *c, const char *p, const char *end,
                  const char *limit, IdsOut *o) {
    if (t->rule.split == SPLIT_GPT2)
        encode_by_rule(t, c, SPLIT_GPT2, p, end, limit, o);
    else
        encode_by_rule(t, c, t->rule.split, p, end, limit, o);
}
