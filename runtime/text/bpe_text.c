/* bpe_text.c - texts to ids: added tokens are found, what is between them is normalized
 * and cut into pre-tokens. */
#define _GNU_SOURCE
#include "runtime/text/bpe.h"
#include "runtime/text/nfc.h"
#include <stdlib.h>

/* One text on its way. */
typedef struct Encoding {
    const Tokenizer *t;
    TokenizerCache *c;
    bool special;     /* special tokens are found too */
    const char *text; /* its beginning, for META_FIRST */
    IdsOut *out;
} Encoding;

/* ---- added tokens ---- */

static int compare_added(const void *a, const void *b) {
    const AddedToken *x = a, *y = b;
    int first = (unsigned char)x->s[0] - (unsigned char)y->s[0];
    if (first) return first;
    if (x->n != y->n) return x->n > y->n ? -1 : 1;
    return memcmp(x->s, y->s, x->n);
}

AddedSet added_set_new(Arena *mem, const AddedToken *token, int32_t n) {
    AddedSet set = {.token = NEW_ARRAY(mem, AddedToken, (size_t)n + 1)};
    if (n) memcpy(set.token, token, (size_t)n * sizeof *token);
    for (int32_t i = 0; i < n; i++) {
        set.from[(unsigned char)token[i].s[0] + 1]++;
        set.special += token[i].special;
    }
    for (int b = 0; b < 256; b++) set.from[b + 1] += set.from[b];
    qsort(set.token, (size_t)n, sizeof *token, compare_added);
    return set;
}

/* The token of the set that begins at p, the longest if there are several, or NULL. */
static const AddedToken *added_at(const AddedSet *set, const char *p, const char *end) {
    int b = (unsigned char)*p;
    for (int32_t i = set->from[b]; i < set->from[b + 1]; i++) {
        const AddedToken *k = &set->token[i];
        if (k->n <= (size_t)(end - p) && !memcmp(p, k->s, k->n)) return k;
    }
    return NULL;
}

static bool stands_alone(const AddedToken *k, const char *begin, const char *p,
                         const char *end) {
    return !bpe_word_char(begin, (size_t)(p - begin), true) &&
           !bpe_word_char(p + k->n, (size_t)(end - p) - k->n, false);
}

typedef void Between(Encoding *e, const char *p, const char *end);

/* Ids of the added tokens in [begin, end), in order; `between` does the rest. A token that
 * is found and not taken still keeps others from beginning within it. */
static void find_added(Encoding *e, const AddedSet *set, const char *begin,
                       const char *end, Between *between) {
    const char *from = begin, *p = begin;
    int32_t wanted = set->from[256] - (e->special ? 0 : set->special);
    while (wanted && p < end) {
        const AddedToken *k = added_at(set, p, end);
        if (!k) {
            p++;
            continue;
        }
        const char *start = p, *stop = p += k->n;
        if (k->special && !e->special) continue;
        if (k->single_word && !stands_alone(k, begin, start, end)) continue;
        if (k->lstrip) {
            const char *left = start - bpe_spaces(begin, (size_t)(start - begin), true);
            start = MAX(left, from);
        }
        if (k->rstrip) stop += bpe_spaces(stop, (size_t)(end - stop), false);
        if (from < start) between(e, from, start);
        ids_add(e->out, &k->id, 1);
        from = stop;
    }
    if (from < end) between(e, from, end);
}

/* ---- normalization ---- */

static size_t meta_bytes(const char *p, size_t n) {
    size_t spaces = 0;
    for (size_t i = 0; i < n; i++) spaces += p[i] == ' ';
    return n + (META_BYTES - 1) * spaces + META_BYTES;
}

/* p[n] with U+2581 for each space, and before it with `prepend`, in out[meta_bytes]. */
static size_t put_meta(char *out, const char *p, size_t n, bool prepend) {
    size_t made = prepend ? META_BYTES : 0;
    if (prepend) memcpy(out, META, META_BYTES);
    for (size_t i = 0; i < n; i++) {
        if (p[i] != ' ') {
            out[made++] = p[i];
            continue;
        }
        memcpy(out + made, META, META_BYTES);
        made += META_BYTES;
    }
    return made;
}

static bool begins_with_meta(const char *p, size_t n) {
    return n && (p[0] == ' ' || (n >= META_BYTES && !memcmp(p, META, META_BYTES)));
}

/* A part of a normalized text without added tokens. e->text is NULL where the part is not
 * at the beginning of the text. */
static void encode_part(Encoding *e, const char *p, const char *end) {
    const TextRule *rule = &e->t->rule;
    if (rule->metaspace) {
        size_t n = (size_t)(end - p);
        bool prefix =
            rule->meta == META_ALWAYS || (rule->meta == META_FIRST && p == e->text);
        char *out = room_get(&e->c->norm[1], meta_bytes(p, n));
        end = out + put_meta(out, p, n, prefix && !begins_with_meta(p, n));
        p = out;
    }
    encode_words(e->t, e->c, p, end, end, e->out);
}

/* A part of the text between added tokens. */
static void encode_between(Encoding *e, const char *p, const char *end) {
    const TextRule *rule = &e->t->rule;
    const char *text = e->text, *from = p;
    size_t n = (size_t)(end - p);
    if (rule->nfc && !nfc_is(rule->nfc, p, n)) {
        char *out = room_get(&e->c->norm[0], 3 * n);
        n = nfc_put(rule->nfc, p, n, out, room_get(&e->c->word, NFC_ROOM_BYTES));
        p = out;
    }
    if (rule->underline) {
        check(!rule->nfc && !rule->metaspace);
        char *out = room_get(&e->c->norm[0], meta_bytes(p, n));
        n = put_meta(out, p, n, rule->prepend);
        p = out;
    }
    e->text = from == text ? p : NULL;
    find_added(e, &e->t->added_after, p, p + n, encode_part);
    e->text = text;
}

const char *bpe_normalize(Arena *mem, const TextRule *rule, const char *s, size_t *n) {
    if (rule->nfc) {
        char *out = arena_alloc(mem, 3 * *n + 1);
        *n = nfc_put(rule->nfc, s, *n, out, arena_alloc(mem, NFC_ROOM_BYTES));
        return out;
    }
    if (!rule->underline) return s;
    char *out = arena_alloc(mem, meta_bytes(s, *n));
    *n = put_meta(out, s, *n, rule->prepend);
    return out;
}

/* ---- texts ---- */

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
    cache_begin(c, t);
    if (!bpe_utf8_valid(text, n)) {
        uint64_t bad = 0;
        char *valid = room_get(&c->valid, bpe_utf8_replace(text, n, NULL, &bad));
        bad = 0;
        n = bpe_utf8_replace(text, n, valid, &bad);
        text = valid;
        if (bad_utf8) *bad_utf8 += bad;
    }
    IdsOut o = {.id = out, .cap = cap};
    Encoding e = {.t = t, .c = c, .special = allow_special, .text = text, .out = &o};
    find_added(&e, &t->added, text, text + n, encode_between);
    room_trim(&c->word);
    room_trim(&c->valid);
    room_trim(&c->norm[0]);
    room_trim(&c->norm[1]);
    return o.n;
}

/* Printable ASCII but for the space: neither a space nor a part of a character. */
static bool is_plain(char c) {
    return c > ' ' && c < 0x7F;
}

size_t tokenizer_cut(const Tokenizer *t, const char *text, size_t n, size_t most,
                     size_t *next) {
    check(most >= 4);
    *next = n;
    if (n <= most) return n;
    for (size_t i = most - 1; i > 0; i--) {
        if (text[i] != ' ' || !is_plain(text[i - 1]) || !is_plain(text[i + 1])) continue;
        /* Encoding the second part puts the space there again. */
        *next = i + (t->rule.prepend || t->rule.metaspace);
        if (t->rule.metaspace && t->rule.meta != META_ALWAYS) *next = i;
        return i;
    }
    for (*next = most; *next > most - 4 && (text[*next] & 0xC0) == 0x80;) --*next;
    return *next;
}

size_t tokenizer_max_tokens(const Tokenizer *t, size_t n) {
    return n * (size_t)t->max_char_tokens;
}

/* ---- making one ---- */

/* Does no merge make a token in which U+2581 stands behind another character? Then no
 * merge reaches over the place between the two. */
static bool merges_end_at_meta(const Tokenizer *t) {
    for (int32_t i = 0; i < t->merges; i++) {
        /* Decoded, U+2581 is a space. */
        const Token *k = &t->token[t->merge[i].result];
        const char *first = k->s;
        while (first < k->s + k->n && *first == ' ') first++;
        if (memchr(first, ' ', (size_t)(k->s + k->n - first))) return false;
    }
    return true;
}

static int32_t max_char_tokens(const Tokenizer *t) {
    /* One invalid byte becomes the three bytes of U+FFFD, a space those of U+2581, and NFC
     * makes no text more than three times as long. U+2581 before each part comes on top,
     * and a part has a byte at least. */
    return t->rule.prepend || t->rule.metaspace ? 6 : 3;
}

void bpe_finish(Arena *mem, Tokenizer *t) {
    t->serial = tokenizer_next_serial();
    bpe_fill_classes(t->char_class);
    for (int b = 0; b < 256; b++) check(t->byte_id[b] >= 0);
    t->specials = t->added.special + t->added_after.special;
    t->cut_at_meta = t->byte_fallback && !t->words.mask && merges_end_at_meta(t);
    t->max_char_tokens = max_char_tokens(t);
    bpe_set_ends(mem, t, NULL, NULL);
}

/* The first of the names that is a special token, or -1. */
static int64_t special_named(const Tokenizer *t, const char *const *names, int n) {
    const AddedSet *sets[] = {&t->added, &t->added_after};
    for (int i = 0; i < n; i++)
        for (int s = 0; s < 2; s++)
            for (int32_t k = 0; k < sets[s]->from[256]; k++)
                if (sets[s]->token[k].special &&
                    !strcmp(sets[s]->token[k].name, names[i]))
                    return sets[s]->token[k].id;
    return -1;
}

void bpe_set_ends(Arena *mem, Tokenizer *t, const char *bos, const char *eos) {
    static const char *const begins[] = {"<s>", "<|begin_of_text|>"};
    static const char *const ends[] = {EOD_TEXT, "</s>", "<|end_of_text|>"};
    t->eod = eos ? special_named(t, &eos, 1) : special_named(t, ends, ARRAY_LEN(ends));
    t->bos =
        bos ? special_named(t, &bos, 1) : special_named(t, begins, ARRAY_LEN(begins));
    Text d = text_new(mem);
    text_add(&d, "%s, %lld ids, %d merges, %d special",
             t->byte_fallback ? "BPE with byte fallback" : "byte-level BPE",
             (long long)t->vocab, t->merges, t->specials);
    if (t->eod >= 0) text_add(&d, ", %.*s", (int)t->token[t->eod].n, t->token[t->eod].s);
    t->describe = d.s;
}
