/* bpe_train.c - learns the merges of a new BPE. Distinct words are counted once; then
 * pairs are counted in them, and each merge changes only the counts of neighbouring
 * pairs. */
#include "runtime/text/bpe.h"
#include "runtime/text/bpe_load.h"

enum { MAX_SYMBOLS = 1 << 30, MIN_COUNT = 2 };

typedef struct Word {
    uint64_t hash;
    int64_t count;
    size_t at; /* of its bytes, and of its symbols */
    int32_t n;
} Word;

struct TokenizerTrainer {
    Arena *mem;
    uint8_t *char_class;
    Text bytes; /* of the words, one after the other */
    Word *word;
    int nword, word_cap;
    int32_t *slot; /* open addressing: number of a word, -1 free */
    uint64_t mask;
};

/* ---- words ---- */

TokenizerTrainer *tokenizer_trainer_new(Arena *mem) {
    TokenizerTrainer *tr = NEW(mem, TokenizerTrainer);
    tr->mem = mem;
    tr->char_class = NEW_ARRAY(mem, uint8_t, BMP_SIZE);
    bpe_fill_classes(tr->char_class);
    tr->bytes = text_new(mem);
    tr->mask = (1 << 12) - 1;
    tr->slot = NEW_ARRAY(mem, int32_t, tr->mask + 1);
    memset(tr->slot, -1, (tr->mask + 1) * sizeof *tr->slot);
    return tr;
}

static void slots_double(TokenizerTrainer *tr) {
    tr->mask = 2 * tr->mask + 1;
    tr->slot = NEW_ARRAY(tr->mem, int32_t, tr->mask + 1);
    memset(tr->slot, -1, (tr->mask + 1) * sizeof *tr->slot);
    for (int i = 0; i < tr->nword; i++) {
        uint64_t at = tr->word[i].hash & tr->mask;
        while (tr->slot[at] >= 0) at = (at + 1) & tr->mask;
        tr->slot[at] = i;
    }
}

static void count_word(TokenizerTrainer *tr, const char *p, size_t n) {
    uint64_t hash = hash64(p, n), at = hash & tr->mask;
    for (; tr->slot[at] >= 0; at = (at + 1) & tr->mask) {
        Word *w = &tr->word[tr->slot[at]];
        if (w->hash == hash && (size_t)w->n == n && !memcmp(tr->bytes.s + w->at, p, n)) {
            w->count++;
            return;
        }
    }
    if (tr->bytes.n + n > MAX_SYMBOLS)
        fail(EXIT_DATA, "the distinct words have more than %d bytes; train on less text",
             MAX_SYMBOLS);
    Word w = {.hash = hash, .count = 1, .at = tr->bytes.n, .n = (int32_t)n};
    text_add_bytes(&tr->bytes, p, n);
    tr->slot[at] = tr->nword;
    PUSH(tr->mem, tr->word, tr->nword, tr->word_cap, w);
    if ((uint64_t)tr->nword * 2 > tr->mask) slots_double(tr);
}

/* A long word counts in parts that end with whole characters. */
static void count_parts(TokenizerTrainer *tr, const char *p, size_t n) {
    while (n > TRAIN_MAX_WORD_BYTES) {
        size_t part = TRAIN_MAX_WORD_BYTES;
        while (((unsigned char)p[part] & 0xC0) == 0x80) part--;
        count_word(tr, p, part);
        p += part;
        n -= part;
    }
    count_word(tr, p, n);
}

void tokenizer_trainer_add(TokenizerTrainer *tr, const char *text, size_t n,
                           uint64_t *bad_utf8) {
    Arena *fixed_mem = NULL;
    if (!bpe_utf8_valid(text, n)) {
        uint64_t bad = 0;
        fixed_mem = arena_new();
        char *fixed = arena_alloc(fixed_mem, bpe_utf8_replace(text, n, NULL, &bad));
        if (bad_utf8) *bad_utf8 += bad;
        n = bpe_utf8_replace(text, n, fixed, &bad);
        text = fixed;
    }
    const char *end = n ? text + n : text;
    for (const char *p = text; p < end;) {
        const char *next = bpe_word_end(tr->char_class, p, end);
        count_parts(tr, p, (size_t)(next - p));
        p = next;
    }
    arena_free(fixed_mem);
}

/* ---- pairs ---- */

typedef struct Pair {
    int32_t left, right;
    int64_t count;
    int32_t *word; /* words that have or had it; one may be there more than once */
    int nword, word_cap;
    bool changed; /* its count, since it was last put on the heap */
} Pair;

/* An entry whose count is not its pair's any more is left over. */
typedef struct HeapEntry {
    int64_t count;
    int32_t left, right, pair;
} HeapEntry;

typedef struct Learner {
    Arena *mem;
    const Word *word;
    int32_t *length; /* of each word, in symbols */
    int32_t *symbol; /* of all words, at word.at */
    Pair *pair;
    int npair, pair_cap;
    int32_t *slot; /* open addressing: number of a pair, -1 free */
    uint64_t mask;
    HeapEntry *heap;
    int nheap, heap_cap;
    int32_t *changed; /* pairs to put on the heap */
    int nchanged, changed_cap;
} Learner;

static uint64_t pair_hash(int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9E3779B97F4A7C15u;
    return key ^ key >> 32;
}

static void pair_slots(Learner *l, uint64_t size) {
    l->mask = size - 1;
    l->slot = NEW_ARRAY(l->mem, int32_t, size);
    memset(l->slot, -1, size * sizeof *l->slot);
    for (int i = 0; i < l->npair; i++) {
        uint64_t at = pair_hash(l->pair[i].left, l->pair[i].right) & l->mask;
        while (l->slot[at] >= 0) at = (at + 1) & l->mask;
        l->slot[at] = i;
    }
}

static int32_t pair_get(Learner *l, int32_t left, int32_t right) {
    uint64_t at = pair_hash(left, right) & l->mask;
    for (; l->slot[at] >= 0; at = (at + 1) & l->mask) {
        const Pair *p = &l->pair[l->slot[at]];
        if (p->left == left && p->right == right) return l->slot[at];
    }
    Pair fresh = {.left = left, .right = right};
    int32_t i = l->slot[at] = l->npair;
    PUSH(l->mem, l->pair, l->npair, l->pair_cap, fresh);
    if ((uint64_t)l->npair * 2 > l->mask) pair_slots(l, 2 * (l->mask + 1));
    return i;
}

/* Adds `count`, that word w has, to a pair. */
static void pair_add(Learner *l, int32_t left, int32_t right, int64_t count, int32_t w) {
    int32_t i = pair_get(l, left, right);
    Pair *p = &l->pair[i];
    p->count += count;
    if (count > 0 && (!p->nword || p->word[p->nword - 1] != w))
        PUSH(l->mem, p->word, p->nword, p->word_cap, w);
    if (p->changed) return;
    p->changed = true;
    PUSH(l->mem, l->changed, l->nchanged, l->changed_cap, i);
}

static bool comes_first(const HeapEntry *a, const HeapEntry *b) {
    if (a->count != b->count) return a->count > b->count;
    if (a->left != b->left) return a->left < b->left;
    return a->right < b->right;
}

static void heap_push(Learner *l, HeapEntry e) {
    PUSH(l->mem, l->heap, l->nheap, l->heap_cap, e);
    int i = l->nheap - 1;
    for (; i > 0 && comes_first(&e, &l->heap[(i - 1) / 2]); i = (i - 1) / 2)
        l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = e;
}

static HeapEntry heap_pop(Learner *l) {
    HeapEntry top = l->heap[0], last = l->heap[--l->nheap];
    int i = 0;
    for (int child; (child = 2 * i + 1) < l->nheap; i = child) {
        if (child + 1 < l->nheap && comes_first(&l->heap[child + 1], &l->heap[child]))
            child++;
        if (!comes_first(&l->heap[child], &last)) break;
        l->heap[i] = l->heap[child];
    }
    l->heap[i] = last;
    return top;
}

static void push_changed(Learner *l) {
    for (int i = 0; i < l->nchanged; i++) {
        Pair *p = &l->pair[l->changed[i]];
        p->changed = false;
        if (p->count >= MIN_COUNT)
            heap_push(l, (HeapEntry){p->count, p->left, p->right, l->changed[i]});
    }
    l->nchanged = 0;
}

/* The pair to merge next, or -1. */
static int32_t best_pair(Learner *l) {
    while (l->nheap) {
        HeapEntry e = heap_pop(l);
        if (l->pair[e.pair].count == e.count) return e.pair;
    }
    return -1;
}

/* Puts `id` for each (left, right) of word w, from the left; counts what changes. */
static void merge_word(Learner *l, int32_t w, int32_t left, int32_t right, int32_t id) {
    int32_t *s = l->symbol + l->word[w].at;
    int32_t n = l->length[w], made = 0;
    int64_t count = l->word[w].count;
    for (int32_t i = 0; i < n; i++) {
        if (i + 1 == n || s[i] != left || s[i + 1] != right) {
            s[made++] = s[i];
            continue;
        }
        if (made) {
            pair_add(l, s[made - 1], left, -count, w);
            pair_add(l, s[made - 1], id, count, w);
        }
        if (i + 2 < n) {
            pair_add(l, right, s[i + 2], -count, w);
            pair_add(l, id, s[i + 2], count, w);
        }
        s[made++] = id;
        i++;
    }
    l->length[w] = made;
}

static void merge_pair(Learner *l, int32_t pair, int32_t id) {
    Pair p = l->pair[pair];
    for (int i = 0; i < p.nword; i++) merge_word(l, p.word[i], p.left, p.right, id);
    l->pair[pair].count = 0;
    push_changed(l);
}

static Learner learner_new(Arena *mem, const TokenizerTrainer *tr,
                           const int32_t byte_id[BYTES]) {
    Learner l = {.mem = mem, .word = tr->word};
    l.length = NEW_ARRAY(mem, int32_t, (size_t)tr->nword + 1);
    l.symbol = NEW_ARRAY(mem, int32_t, tr->bytes.n + 1);
    pair_slots(&l, 1 << 12);
    for (size_t i = 0; i < tr->bytes.n; i++)
        l.symbol[i] = byte_id[(unsigned char)tr->bytes.s[i]];
    for (int32_t w = 0; w < tr->nword; w++) {
        const int32_t *s = l.symbol + tr->word[w].at;
        l.length[w] = tr->word[w].n;
        for (int32_t i = 0; i + 1 < l.length[w]; i++)
            pair_add(&l, s[i], s[i + 1], tr->word[w].count, w);
    }
    push_changed(&l);
    return l;
}

/* ---- the tokenizer ---- */

static Token join(Arena *mem, const Token *a, const Token *b) {
    char *s = arena_alloc(mem, (size_t)a->n + b->n);
    memcpy(s, a->s, a->n);
    memcpy(s + a->n, b->s, b->n);
    return (Token){.s = s, .n = a->n + b->n, .kind = TOKEN_BYTES};
}

/* Merges until there are `most` or no pair is left. No two of them make the same bytes:
 * what becomes a token was never merged across its ends, so that its parts are the same
 * wherever it occurs. */
static void learn(Arena *mem, Learner *l, int32_t most, Tokenizer *t) {
    for (int32_t pair; t->merges < most && (pair = best_pair(l)) >= 0;) {
        int32_t id = BYTES + t->merges;
        MergeSlot m = {l->pair[pair].left, l->pair[pair].right, (uint32_t)t->merges, id};
        t->token[id] = join(mem, &t->token[m.left], &t->token[m.right]);
        t->merge[t->merges++] = m;
        check(merge_table_add(&t->table, m));
        merge_pair(l, pair, id);
    }
}

Tokenizer *tokenizer_train(TokenizerTrainer *tr, int64_t vocab_size) {
    if (vocab_size < TRAIN_MIN_VOCAB || vocab_size > TRAIN_MAX_VOCAB)
        fail(EXIT_CONFIG,
             "a vocabulary of %lld; it holds the 256 bytes and " EOD_TEXT
             ", so it is %d to %d",
             (long long)vocab_size, TRAIN_MIN_VOCAB, TRAIN_MAX_VOCAB);
    int32_t most = (int32_t)(vocab_size - TRAIN_MIN_VOCAB);
    Tokenizer *t = NEW(tr->mem, Tokenizer);
    t->token = NEW_ARRAY(tr->mem, Token, (size_t)vocab_size);
    t->merge = NEW_ARRAY(tr->mem, MergeSlot, (size_t)most + 1);
    t->table = merge_table_new(tr->mem, (size_t)most);
    for (int i = 0; i < BYTES; i++) {
        char byte = (char)gpt2_byte(i);
        t->byte_id[(unsigned char)byte] = i;
        t->token[i] = (Token){arena_strndup(tr->mem, &byte, 1), 1, TOKEN_BYTES};
    }
    Arena *tmp = arena_new();
    Learner l = learner_new(tmp, tr, t->byte_id);
    learn(tr->mem, &l, most, t);
    arena_free(tmp);
    t->vocab = BYTES + t->merges;
    AddedToken eod = {.s = EOD_TEXT,
                      .n = strlen(EOD_TEXT),
                      .name = EOD_TEXT,
                      .id = (int32_t)t->vocab,
                      .special = true};
    t->token[t->vocab++] = (Token){eod.s, eod.n, TOKEN_SPECIAL};
    t->added = added_set_new(tr->mem, &eod, 1);
    t->added_after = added_set_new(tr->mem, NULL, 0);
    bpe_finish(tr->mem, t);
    return t;
}
