/* bpe.c - byte-level BPE: the table of merges, and text to ids. A pre-token starts as
 * its bytes; the pair of lowest rank, the leftmost of equals, becomes one id until no
 * pair has a rank. Frequent short words are remembered. */
#define _GNU_SOURCE
#include "runtime/text/bpe.h"
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
typedef struct WordSlot {
    uint64_t key[3];
    int32_t count;
    int32_t id[WORD_IDS];
} WordSlot;
_Static_assert(sizeof(WordSlot) == 64, "a word slot is one cache line");

typedef struct Room {
    void *p;
    size_t bytes;
} Room;

struct TokenizerCache {
    WordSlot *slot;  /* [CACHE_SLOTS] */
    uint64_t serial; /* of the tokenizer that the words belong to */
    Room word, text; /* of a long word; of a text with U+FFFD put in */
};

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
    free(c->text.p);
    free(c);
}

/* At least `bytes` of room; what was in it is gone. */
static void *room_get(Room *r, size_t bytes) {
    if (bytes <= r->bytes) return r->p;
    free(r->p);
    r->p = malloc(bytes);
    r->bytes = r->p ? bytes : 0;
    if (!r->p) fail(EXIT_MEMORY, "out of memory: %zu bytes wanted", bytes);
    return r->p;
}

static void room_trim(Room *r) {
    if (r->bytes <= KEPT_ROOM_BYTES) return;
    free(r->p);
    *r = (Room){0};
}

/* ---- words ---- */

typedef struct Out {
    int32_t *id;
    size_t n, cap; /* n counts on above cap */
} Out;

static void out_add(Out *o, const int32_t *id, size_t n) {
    if (o->n < o->cap) memcpy(o->id + o->n, id, MIN(n, o->cap - o->n) * sizeof *id);
    o->n += n;
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
                        Out *o) {
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
    for (size_t i = 0; i < n; i++) w.id[i] = t->byte_id[(unsigned char)p[i]];
    merge_long(&t->table, &w, (int32_t)n);
    for (int32_t at = 0; at >= 0; at = w.after[at]) out_add(o, &w.id[at], 1);
}

static int encode_short(const Tokenizer *t, const char *p, size_t n, int32_t *id) {
    for (size_t i = 0; i < n; i++) id[i] = t->byte_id[(unsigned char)p[i]];
    return merge_short(&t->table, id, (int)n);
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
                                               const uint64_t key[3], Out *o) {
    int32_t id[SHORT_SYMBOLS];
    int count = encode_short(t, p, n, id);
    out_add(o, id, (size_t)count);
    if (count > WORD_IDS) return;
    uint32_t at = key_slot(key);
    WordSlot *s = &c->slot[at];
    if (s->count) c->slot[at ^ 1] = *s;
    memcpy(s->key, key, KEY_BYTES);
    memcpy(s->id, id, (size_t)count * sizeof *id);
    s->count = count;
}

static inline void encode_word(const Tokenizer *t, TokenizerCache *c, const char *p,
                               size_t n, const char *limit, Out *o) {
    if (n >= KEY_BYTES) {
        int32_t id[SHORT_SYMBOLS];
        if (n > SHORT_SYMBOLS)
            encode_long(t, c, p, n, o);
        else
            out_add(o, id, (size_t)encode_short(t, p, n, id));
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
        out_add(o, s->id, (size_t)s->count);
    }
}

/* ---- texts ---- */

/* Words of [p, end); up to `limit` may be read. */
static void encode_part(const Tokenizer *t, TokenizerCache *c, const char *p,
                        const char *end, const char *limit, Out *o) {
    while (p < end) {
        const char *next = bpe_word_end(t->char_class, p, end);
        encode_word(t, c, p, (size_t)(next - p), limit, o);
        p = next;
    }
}

/* The special token that begins at p, the longest if there are several, or -1. */
static int32_t special_at(const Tokenizer *t, const char *p, const char *end) {
    int b = (unsigned char)*p;
    for (int32_t i = t->special_from[b]; i < t->special_from[b + 1]; i++) {
        const Token *k = &t->token[t->special[i]];
        if (k->n <= (size_t)(end - p) && !memcmp(p, k->s, k->n)) return t->special[i];
    }
    return -1;
}

static void encode_special(const Tokenizer *t, TokenizerCache *c, const char *p,
                           const char *end, Out *o) {
    const char *from = p;
    while (p < end) {
        int32_t id = special_at(t, p, end);
        if (id < 0) {
            p++;
            continue;
        }
        encode_part(t, c, from, p, end, o);
        out_add(o, &id, 1);
        from = p += t->token[id].n;
    }
    encode_part(t, c, from, end, end, o);
}

static size_t encode_bytes(const char *text, size_t n, int32_t *out, size_t cap) {
    for (size_t i = 0; i < MIN(n, cap); i++) out[i] = (unsigned char)text[i];
    return n;
}

size_t tokenizer_encode(const Tokenizer *t, TokenizerCache *c, const char *text, size_t n,
                        bool allow_special, int32_t *out, size_t cap,
                        uint64_t *bad_utf8) {
    if (n > TOKENIZER_MAX_TEXT_BYTES)
        fail(EXIT_DATA, "a text of %zu bytes; at most %d are encoded at once", n,
             TOKENIZER_MAX_TEXT_BYTES);
    if (t->bytes) return encode_bytes(text, n, out, cap);
    if (!n) return 0;
    if (c->serial != t->serial) memset(c->slot, 0, CACHE_SLOTS * sizeof(WordSlot));
    c->serial = t->serial;
    if (!bpe_utf8_valid(text, n)) {
        uint64_t bad = 0;
        char *fixed = room_get(&c->text, bpe_utf8_replace(text, n, NULL, &bad));
        bad = 0;
        n = bpe_utf8_replace(text, n, fixed, &bad);
        text = fixed;
        if (bad_utf8) *bad_utf8 += bad;
    }
    Out o = {.id = out, .cap = cap};
    if (allow_special)
        encode_special(t, c, text, text + n, &o);
    else
        encode_part(t, c, text, text + n, text + n, &o);
    room_trim(&c->word);
    room_trim(&c->text);
    return o.n;
}

size_t tokenizer_max_tokens(const Tokenizer *t, size_t n) {
    return n * (size_t)t->max_char_tokens;
}

/* ---- making one ---- */

static int compare_specials(const void *a, const void *b, void *context) {
    const Tokenizer *t = context;
    const Token *x = &t->token[*(const int32_t *)a], *y = &t->token[*(const int32_t *)b];
    int first = (unsigned char)x->s[0] - (unsigned char)y->s[0];
    if (first) return first;
    if (x->n != y->n) return x->n > y->n ? -1 : 1;
    return memcmp(x->s, y->s, x->n);
}

static void sort_specials(Arena *mem, Tokenizer *t) {
    int32_t n = 0;
    for (int64_t i = 0; i < t->vocab; i++) n += t->token[i].kind == TOKEN_SPECIAL;
    t->special = NEW_ARRAY(mem, int32_t, (size_t)n + 1);
    n = 0;
    for (int64_t i = 0; i < t->vocab; i++) {
        const Token *k = &t->token[i];
        if (k->kind != TOKEN_SPECIAL) continue;
        t->special[n++] = (int32_t)i;
        t->special_from[(unsigned char)k->s[0] + 1]++;
        if (k->n == strlen(EOD_TEXT) && !memcmp(k->s, EOD_TEXT, k->n)) t->eod = i;
    }
    qsort_r(t->special, (size_t)n, sizeof *t->special, compare_specials, t);
    for (int b = 0; b < 256; b++) t->special_from[b + 1] += t->special_from[b];
}

void bpe_finish(Arena *mem, Tokenizer *t) {
    t->serial = tokenizer_next_serial();
    t->eod = -1;
    bpe_fill_classes(t->char_class);
    memset(t->byte_id, -1, sizeof t->byte_id);
    for (int64_t i = 0; i < t->vocab; i++)
        if (t->token[i].kind == TOKEN_BYTES && t->token[i].n == 1)
            t->byte_id[(unsigned char)t->token[i].s[0]] = (int32_t)i;
    for (int b = 0; b < 256; b++) check(t->byte_id[b] >= 0);
    sort_specials(mem, t);
    /* One invalid byte becomes the three bytes of U+FFFD. */
    t->max_char_tokens = 3;
    t->describe = arena_printf(mem, "byte-level BPE, %lld ids, %d merges, %d special%s",
                               (long long)t->vocab, t->merges, t->special_from[256],
                               t->eod >= 0 ? ", " EOD_TEXT : "");
}
