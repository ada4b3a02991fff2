/* bpe_load.c - GPT-2's tokenizer files: vocab.json with merges.txt, and the
 * tokenizer.json that holds the same. What a file asks for beyond that is refused. */
#include "runtime/text/bpe_load.h"
#include "base/json.h"
#include "base/utf8.h"
#include "runtime/text/bpe.h"

enum {
    BYTES = 256,
    PRINTED_BYTES = 188,
    CHARS = 2 * BYTES,
    MAX_SPECIALS = 1024,
    MAX_MERGES = 1 << 22
};

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

typedef struct Loader {
    Arena *mem;
    Tokenizer *t;
    const Json *vocab; /* object: characters -> id */
    bool *made;        /* [vocab]: a byte, or made by a merge read so far */
    int16_t byte_of[CHARS];
    Text joined; /* of the two parts of a merge */
} Loader;

static int32_t vocab_find(const Loader *l, const char *s) {
    const Json *v = json_get(l->vocab, s);
    return v ? (int32_t)v->i : -1;
}

/* Takes one entry of the vocabulary, or an added token, with its id. */
static void add_token(Loader *l, const Json *at, const char *s, size_t n, int64_t id,
                      TokenKind kind) {
    Token *k = &l->t->token[id];
    if (k->s)
        json_fail(at, "give each token an id of its own", "id %lld is taken",
                  (long long)id);
    char *bytes = arena_alloc(l->mem, n + 1);
    size_t bytes_n = n;
    if (kind != TOKEN_BYTES || !map_chars(l->byte_of, s, n, bytes, &bytes_n)) {
        memcpy(bytes, s, n);
        bytes_n = n;
        if (kind == TOKEN_BYTES) kind = TOKEN_LITERAL;
    }
    *k = (Token){.s = bytes, .n = (uint32_t)bytes_n, .kind = kind};
    l->made[id] = kind == TOKEN_BYTES && bytes_n == 1;
}

/* The object `vocab` and `extra` ids beyond it become the vocabulary's size. */
static void start(Loader *l, const Json *vocab, int64_t extra) {
    json_want(vocab, JSON_OBJECT);
    l->vocab = vocab;
    l->t->vocab = vocab->n + extra;
    l->t->token = NEW_ARRAY(l->mem, Token, (size_t)l->t->vocab + 1);
    l->made = NEW_ARRAY(l->mem, bool, (size_t)l->t->vocab + 1);
    fill_byte_of(l->byte_of);
    l->joined = text_new(l->mem);
    for (const Json *v = vocab->first; v; v = v->next) {
        int64_t id = json_i64(v, 0, l->t->vocab - 1);
        if (v->kind != JSON_INT) json_fail(v, NULL, "an id is a whole number");
        if (!v->key_length || memchr(v->key, 0, v->key_length))
            json_fail(v, NULL, "a token is empty or holds a zero byte");
        add_token(l, v, v->key, v->key_length, id, TOKEN_BYTES);
    }
    int found = 0;
    for (int64_t i = 0; i < l->t->vocab; i++) found += l->made[i];
    if (found != BYTES)
        json_fail(vocab,
                  "byte-level BPE needs a token for each byte, as in GPT-2's files",
                  "the vocabulary has %d of the 256 bytes", found);
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
    int32_t id = vocab_find(l, s);
    if (id < 0) merge_fail(at, "not in the vocabulary:", s);
    if (!l->made[id]) merge_fail(at, "no byte, and made by no merge before this one:", s);
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
    m.result = vocab_find(l, l->joined.s);
    if (m.result < 0)
        merge_fail(at, "the merge's result is not in the vocabulary:", l->joined.s);
    if (t->token[m.result].kind != TOKEN_BYTES)
        merge_fail(at, "a merge makes a special token:", l->joined.s);
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
    for (size_t i = 0, next; i < n; i = next, number++) {
        const char *end = memchr(text + i, '\n', n - i);
        size_t size = end ? (size_t)(end - text) - i : n - i;
        next = i + size + (end != NULL);
        if (size && text[i + size - 1] == '\r') size--;
        if (number == 1 && size >= 8 && !memcmp(text, "#version", 8)) continue;
        if (size == 0 && next >= n) break; /* an empty last line */
        MergePlace at = {.line = {.file = name, .text = text, .line = number, .col = 1}};
        memcpy(line, text + i, size);
        add_merge_text(l, &at, line, size);
    }
}

/* Elements are "left right" or ["left", "right"]. */
static void read_merges_json(Loader *l, const Json *merges) {
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
    Loader l = {.mem = mem, .t = NEW(mem, Tokenizer)};
    start(&l,
          json_parse(mem, vocab_name, vocab, vocab_bytes, TOKENIZER_MAX_FILE_BYTES,
                     EXIT_DATA),
          0);
    read_merges(&l, merges_name, arena_strndup(mem, merges, merges_bytes), merges_bytes);
    /* These two files do not say which tokens are special: those that no merge makes. */
    int specials = 0;
    for (const Json *v = l.vocab->first; v; v = v->next) {
        Token *k = &l.t->token[v->i];
        if (l.made[v->i]) continue;
        if (++specials > MAX_SPECIALS)
            fail(
                EXIT_DATA,
                "%s makes no more than %d of the %lld tokens in %s: the two files do not "
                "belong together",
                merges_name, l.t->merges + BYTES, (long long)l.t->vocab, vocab_name);
        *k = (Token){v->key, v->key_length, TOKEN_SPECIAL};
    }
    bpe_finish(mem, l.t);
    return l.t;
}

/* ---- tokenizer.json ---- */

/* What a member may be for the tokenizer to be GPT-2's. */
typedef struct Allowed {
    const char *key;
    const char
        *values; /* raw values, ' ' between; "*": read elsewhere, or without effect */
    bool needed;
} Allowed;

static bool value_allowed(const char *values, const char *raw) {
    size_t n = strlen(raw);
    if (!strcmp(values, "*")) return true;
    for (const char *p = values; *p; p += strspn(p, " ")) {
        size_t one = strcspn(p, " ");
        if (one == n && !memcmp(p, raw, n)) return true;
        p += one;
    }
    return false;
}

static void check_members(Arena *mem, const Json *v, const Allowed *allowed, int n) {
    json_want(v, JSON_OBJECT);
    for (int i = 0; i < n; i++)
        if (allowed[i].needed) json_need(v, allowed[i].key);
    for (const Json *m = v->first; m; m = m->next) {
        const Allowed *a = NULL;
        for (int i = 0; i < n; i++)
            if (!strcmp(allowed[i].key, m->key)) a = &allowed[i];
        if (!a)
            json_fail(m, "only byte-level BPE as GPT-2 has it is built in",
                      "'%.100s' is not understood", m->key);
        bool plain = m->kind != JSON_OBJECT && m->kind != JSON_ARRAY;
        bool fits = !strcmp(a->values, "*") ||
                    (plain && value_allowed(a->values, json_raw(mem, m)));
        if (!fits)
            json_fail(m, "only byte-level BPE as GPT-2 has it is built in",
                      "'%.100s' may only be: %s", m->key, a->values);
    }
}

/* The member `key`, null or a ByteLevel object that works as GPT-2's. */
static void check_byte_level(Arena *mem, const Json *root, const char *key, bool splits) {
    static const Allowed splitter[] = {
        {"type", "\"ByteLevel\"", true},
        {"add_prefix_space", "false", true},
        {"trim_offsets", "true false", false},
        {"use_regex", "true", false},
    };
    static const Allowed other[] = {
        {"type", "\"ByteLevel\"", true},
        {"add_prefix_space", "true false", false},
        {"trim_offsets", "true false", false},
        {"use_regex", "true false", false},
    };
    const Json *v = splits ? json_need(root, key) : json_get(root, key);
    if (!v || (v->kind == JSON_NULL && !splits)) return;
    check_members(mem, v, splits ? splitter : other, ARRAY_LEN(other));
}

static const Json *check_root(Arena *mem, const Json *root) {
    static const Allowed top[] = {
        {"version", "\"1.0\"", false},  {"truncation", "null", false},
        {"padding", "null", false},     {"added_tokens", "*", false},
        {"normalizer", "null", false},  {"pre_tokenizer", "*", true},
        {"post_processor", "*", false}, {"decoder", "*", true},
        {"model", "*", true},
    };
    /* unk_token and fuse_unk have no effect: every byte has a token. */
    static const Allowed model[] = {
        {"type", "\"BPE\"", true},
        {"dropout", "null", false},
        {"unk_token", "*", false},
        {"continuing_subword_prefix", "null \"\"", false},
        {"end_of_word_suffix", "null \"\"", false},
        {"fuse_unk", "true false", false},
        {"byte_fallback", "false", false},
        {"ignore_merges", "false", false},
        {"vocab", "*", true},
        {"merges", "*", true},
    };
    check_members(mem, root, top, ARRAY_LEN(top));
    check_byte_level(mem, root, "pre_tokenizer", true);
    check_byte_level(mem, root, "post_processor", false);
    check_byte_level(mem, root, "decoder", false);
    const Json *m = json_need(root, "model");
    check_members(mem, m, model, ARRAY_LEN(model));
    return m;
}

/* Checks the added tokens; returns how many of them the vocabulary does not have. */
static int64_t check_added(Arena *mem, const Json *added, const Json *vocab) {
    static const Allowed members[] = {
        {"id", "*", true},
        {"content", "*", true},
        {"single_word", "false", false},
        {"lstrip", "false", false},
        {"rstrip", "false", false},
        {"normalized", "true false", false},
        {"special", "true", true},
    };
    if (!added || added->kind == JSON_NULL) return 0;
    json_want(added, JSON_ARRAY);
    if (added->n > MAX_SPECIALS)
        json_fail(added, NULL, "%d added tokens; at most %d are read", added->n,
                  MAX_SPECIALS);
    int64_t extra = 0;
    for (const Json *v = added->first; v; v = v->next) {
        check_members(mem, v, members, ARRAY_LEN(members));
        const char *s = json_string(json_need(v, "content"));
        if (!s[0]) json_fail(v, NULL, "an added token is empty");
        for (const Json *w = added->first; w != v; w = w->next)
            if (!strcmp(json_string(json_need(w, "content")), s))
                json_fail(v, NULL, "this token is added twice");
        extra += !json_get(vocab, s);
    }
    return extra;
}

static void add_specials(Loader *l, const Json *added) {
    for (const Json *v = added ? added->first : NULL; v; v = v->next) {
        const char *s = json_string(json_need(v, "content"));
        int64_t id = json_i64(json_need(v, "id"), 0, l->t->vocab - 1);
        int32_t known = vocab_find(l, s);
        if (known >= 0 && known != id)
            json_fail(v, NULL, "this token has id %d in the vocabulary", known);
        if (known >= 0 && l->made[id])
            json_fail(v, NULL, "a special token cannot be a byte or made by merges too");
        if (known >= 0) l->t->token[id] = (Token){0};
        add_token(l, v, s, strlen(s), id, TOKEN_SPECIAL);
    }
}

Tokenizer *tokenizer_of_json(Arena *mem, const char *name, const char *json, size_t n) {
    const Json *root =
        json_parse(mem, name, json, n, TOKENIZER_MAX_FILE_BYTES, EXIT_DATA);
    const Json *model = check_root(mem, root);
    const Json *added = json_get(root, "added_tokens"),
               *vocab = json_need(model, "vocab");
    json_want(vocab, JSON_OBJECT);
    Loader l = {.mem = mem, .t = NEW(mem, Tokenizer)};
    start(&l, vocab, check_added(mem, added, vocab));
    read_merges_json(&l, json_need(model, "merges"));
    add_specials(&l, added);
    for (int64_t i = 0; i < l.t->vocab; i++)
        if (!l.t->token[i].s)
            json_fail(vocab, "ids must be 0, 1, 2, ... without a gap",
                      "no token has the id %lld", (long long)i);
    bpe_finish(mem, l.t);
    return l.t;
}
