/* bpe_load.c - vocabularies and merges of tokenizer files, and GPT-2's pair vocab.json and
 * merges.txt; tokenizer_json.c has the rest. */
#include "runtime/text/bpe_load.h"
#include "base/utf8.h"

enum { PRINTED_BYTES = 188 };

/* ---- bytes as characters ---- */

/* 33-126, 161-172 and 174-255 are written as themselves. */
static bool prints(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
}

int gpt2_byte(int i) {
    int want_printed = i < PRINTED_BYTES;
    int left = want_printed ? i : i - PRINTED_BYTES;
    for (int b = 0; b < BYTES; b++)
        if (prints(b) == want_printed && left-- == 0) return b;
    die("byte number %d", i);
}

/* Byte of each character up to U+01FF, -1: none. */
static void fill_byte_of(int16_t byte_of[CHARS]) {
    int other = BYTES;
    for (int c = 0; c < CHARS; c++) byte_of[c] = -1;
    for (int b = 0; b < BYTES; b++) byte_of[prints(b) ? b : other++] = (int16_t)b;
}

char *bytes_to_chars(Arena *mem, const char *s, size_t n, size_t *out_n) {
    int16_t byte_of[CHARS];
    uint16_t char_of[BYTES] = {0};
    fill_byte_of(byte_of);
    for (int c = 0; c < CHARS; c++)
        if (byte_of[c] >= 0) char_of[byte_of[c]] = (uint16_t)c;
    char *out = arena_alloc(mem, array_bytes(n, 2) + 1);
    *out_n = 0;
    for (size_t i = 0; i < n; i++)
        *out_n += (size_t)utf8_put(char_of[(unsigned char)s[i]], out + *out_n);
    return out;
}

static bool map_chars(const int16_t byte_of[CHARS], const char *s, size_t n, char *out,
                      size_t *out_n) {
    *out_n = 0;
    for (size_t i = 0; i < n;) {
        int size = utf8_check(s + i, n - i);
        if (size < 1 || size > 2) return false;
        int c = size == 1 ? (unsigned char)s[i] : (s[i] & 0x1F) << 6 | (s[i + 1] & 0x3F);
        if (c >= CHARS || byte_of[c] < 0) return false;
        out[(*out_n)++] = (char)byte_of[c];
        i += (size_t)size;
    }
    return true;
}

/* ---- the vocabulary ---- */

int32_t load_find(const Loader *l, const char *s) {
    const Json *v = json_get(l->vocab, s);
    return v ? (int32_t)v->i : -1;
}

/* The byte of "<0x0A>", or -1. */
static int byte_named(const char *s, size_t n) {
    static const char digits[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>') return -1;
    const char *high = memchr(digits, s[3], 16), *low = memchr(digits, s[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* What s[n] decodes to with byte fallback: U+2581 is a space, <0x0A> a byte. */
static char *fallback_bytes(Arena *mem, const char *s, size_t n, size_t *out_n) {
    char *out = arena_alloc(mem, n + 1);
    int byte = byte_named(s, n);
    *out_n = 0;
    if (byte >= 0) {
        out[(*out_n)++] = (char)byte;
        return out;
    }
    for (size_t i = 0; i < n;) {
        bool meta = n - i >= META_BYTES && !memcmp(s + i, META, META_BYTES);
        out[(*out_n)++] = meta ? ' ' : s[i];
        i += meta ? META_BYTES : 1;
    }
    return out;
}

static void take_id(const Json *at, Token *k, int64_t id) {
    if (k->s)
        json_fail(at, "give each token an id of its own", "id %lld is taken",
                  (long long)id);
}

/* Takes one entry of the vocabulary. */
static void add_token(Loader *l, const Json *at, const char *s, size_t n, int64_t id) {
    Token *k = &l->t->token[id];
    take_id(at, k, id);
    TokenKind kind = TOKEN_BYTES;
    size_t bytes_n = n;
    char *bytes;
    if (l->t->byte_fallback) {
        int byte = byte_named(s, n);
        if (byte >= 0) l->t->byte_id[byte] = (int32_t)id;
        bytes = fallback_bytes(l->mem, s, n, &bytes_n);
        if ((size_t)utf8_check(s, n) == n)
            id_table_add(&l->t->characters,
                         (IdSlot){.key = utf8_get(s, n), .id = (int32_t)id});
    } else {
        bytes = arena_alloc(l->mem, n + 1);
        if (!map_chars(l->byte_of, s, n, bytes, &bytes_n)) {
            memcpy(bytes, s, n);
            bytes_n = n;
            kind = TOKEN_LITERAL;
        }
    }
    *k = (Token){.s = bytes, .n = (uint32_t)bytes_n, .kind = kind};
    l->made[id] = kind == TOKEN_BYTES && bytes_n == 1;
    if (l->made[id] && !l->t->byte_fallback)
        l->t->byte_id[(unsigned char)bytes[0]] = (int32_t)id;
}

void load_added(Loader *l, const Json *at, const AddedToken *added) {
    Token *k = &l->t->token[added->id];
    size_t n = added->n;
    const char *bytes = added->s;
    if (load_find(l, added->name) >= 0) *k = (Token){0};
    take_id(at, k, added->id);
    if (l->t->byte_fallback) bytes = fallback_bytes(l->mem, added->s, n, &n);
    *k = (Token){bytes, (uint32_t)n, added->special ? TOKEN_SPECIAL : TOKEN_LITERAL};
}

static void check_bytes(Loader *l, const Json *vocab) {
    int found = 0;
    for (int64_t i = 0; i < l->t->vocab && !l->t->byte_fallback; i++) found += l->made[i];
    for (int b = 0; b < BYTES && l->t->byte_fallback; b++) found += l->t->byte_id[b] >= 0;
    if (found != BYTES)
        json_fail(vocab,
                  l->t->byte_fallback
                      ? "byte fallback needs the tokens <0x00> to <0xFF>, as in Llama 2's"
                      : "byte-level BPE needs a token for each byte, as in GPT-2's files",
                  "the vocabulary has %d of the 256 bytes", found);
}

void load_vocab(Loader *l, const Json *vocab, int64_t extra) {
    Tokenizer *t = l->t;
    json_want(vocab, JSON_OBJECT);
    l->vocab = vocab;
    t->vocab = vocab->n + extra;
    t->token = NEW_ARRAY(l->mem, Token, (size_t)t->vocab + 1);
    l->made = NEW_ARRAY(l->mem, bool, (size_t)t->vocab + 1);
    memset(t->byte_id, -1, sizeof t->byte_id);
    if (t->byte_fallback) t->characters = id_table_new(l->mem, (size_t)vocab->n);
    fill_byte_of(l->byte_of);
    l->joined = text_new(l->mem);
    for (const Json *v = vocab->first; v; v = v->next) {
        int64_t id = json_i64(v, 0, t->vocab - 1);
        if (v->kind != JSON_INT) json_fail(v, NULL, "an id is a whole number");
        if (!v->key_length || memchr(v->key, 0, v->key_length))
            json_fail(v, NULL, "a token is empty or holds a zero byte");
        add_token(l, v, v->key, v->key_length, id);
    }
    check_bytes(l, vocab);
}

/* ---- merges ---- */

typedef struct MergePlace {
    const Json *json; /* or NULL: */
    SourcePos line;
} MergePlace;

static _Noreturn void merge_fail(const MergePlace *at, const char *what, const char *s) {
    static const char hint[] = "the merges and the vocabulary must belong together; "
                               "merges are in the order of training";
    if (at->json) json_fail(at->json, hint, "%s '%.100s'", what, s);
    fail_at(EXIT_DATA, at->line, hint, "%s '%.100s'", what, s);
}

static int32_t merge_part(const Loader *l, const MergePlace *at, const char *s) {
    int32_t id = load_find(l, s);
    if (id < 0) merge_fail(at, "not in the vocabulary:", s);
    if (l->in_order && !l->made[id])
        merge_fail(at, "no byte, and made by no merge before this one:", s);
    return id;
}

static void add_merge(Loader *l, const MergePlace *at, const char *left,
                      const char *right) {
    Tokenizer *t = l->t;
    MergeSlot m = {.left = merge_part(l, at, left), .right = merge_part(l, at, right)};
    l->joined.n = 0;
    text_add_bytes(&l->joined, left, strlen(left));
    text_add_bytes(&l->joined, right, strlen(right));
    m.rank = (uint32_t)t->merges;
    m.result = load_find(l, l->joined.s);
    if (m.result < 0)
        merge_fail(at, "the merge's result is not in the vocabulary:", l->joined.s);
    if (!merge_table_add(&t->table, m))
        merge_fail(at, "this pair is merged twice:", l->joined.s);
    t->merge[t->merges++] = m;
    l->made[m.result] = true;
}

/* Room for `most` merges of the file `name`. */
static void merges_start(Loader *l, const char *name, size_t most) {
    if (most > MAX_MERGES)
        fail(EXIT_DATA, "%s: %zu merges; at most %d are read", name, most, MAX_MERGES);
    l->t->table = merge_table_new(l->mem, most);
    l->t->merge = NEW_ARRAY(l->mem, MergeSlot, most + 1);
}

/* "left right" of n bytes, in room for n + 1 that is overwritten. */
static void add_merge_text(Loader *l, const MergePlace *at, char *s, size_t n) {
    char *space = memchr(s, ' ', n);
    s[n] = 0;
    if (memchr(s, 0, n)) merge_fail(at, "a zero byte in", s);
    if (!space || space == s || space + 1 == s + n ||
        memchr(space + 1, ' ', (size_t)(s + n - space) - 1))
        merge_fail(at, "a merge is two tokens with one space between, not", s);
    *space = 0;
    add_merge(l, at, s, space + 1);
}

/* Lines of "left right"; the first line may be "#version: ...". */
static void read_merges(Loader *l, const char *name, const char *text, size_t n) {
    size_t lines = 1;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    merges_start(l, name, lines);
    char *line = arena_alloc(l->mem, n + 1);
    int number = 1;
    const char *rest = text, *end = text + n;
    size_t size;
    for (const char *from; (from = line_next(&rest, end, &size)); number++) {
        if (size && from[size - 1] == '\r') size--;
        if (number == 1 && size >= 8 && !memcmp(text, "#version", 8)) continue;
        if (size == 0 && rest == end) break; /* an empty last line */
        MergePlace at = {.line = {.file = name, .text = text, .line = number, .col = 1}};
        memcpy(line, from, size);
        add_merge_text(l, &at, line, size);
    }
}

void load_merges(Loader *l, const Json *merges) {
    json_want(merges, JSON_ARRAY);
    merges_start(l, json_pos(merges).file, (size_t)merges->n);
    for (const Json *v = merges->first; v; v = v->next) {
        MergePlace at = {.json = v};
        if (v->kind == JSON_STRING) {
            add_merge_text(l, &at, arena_strndup(l->mem, v->s, v->length), v->length);
        } else {
            json_want(v, JSON_ARRAY);
            if (v->n != 2)
                merge_fail(&at, "a merge is two tokens, not", json_raw(l->mem, v));
            add_merge(l, &at, json_string(v->first), json_string(v->first->next));
        }
    }
}

Tokenizer *tokenizer_of_vocab(Arena *mem, const char *vocab_name, const char *vocab,
                              size_t vocab_bytes, const char *merges_name,
                              const char *merges, size_t merges_bytes) {
    Loader l = {.mem = mem, .t = NEW(mem, Tokenizer), .in_order = true};
    AddedToken special[MAX_SPECIALS];
    load_vocab(&l,
               json_parse(mem, vocab_name, vocab, vocab_bytes, TOKENIZER_MAX_FILE_BYTES,
                          EXIT_DATA),
               0);
    read_merges(&l, merges_name, arena_strndup(mem, merges, merges_bytes), merges_bytes);
    /* These two files do not say which tokens are special: those that no merge makes. */
    int specials = 0;
    for (const Json *v = l.vocab->first; v; v = v->next) {
        Token *k = &l.t->token[v->i];
        if (l.made[v->i]) continue;
        if (specials == MAX_SPECIALS)
            fail(
                EXIT_DATA,
                "%s makes no more than %d of the %lld tokens in %s: the two files do not "
                "belong together",
                merges_name, l.t->merges + BYTES, (long long)l.t->vocab, vocab_name);
        *k = (Token){v->key, v->key_length, TOKEN_SPECIAL};
        special[specials++] = (AddedToken){
            .s = k->s, .n = k->n, .name = k->s, .id = (int32_t)v->i, .special = true};
    }
    l.t->added = added_set_new(mem, special, specials);
    l.t->added_after = added_set_new(mem, NULL, 0);
    bpe_finish(mem, l.t);
    return l.t;
}
