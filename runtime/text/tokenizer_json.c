/* tokenizer_json.c - tokenizer.json as the library `tokenizers` writes it, of the families
 * of GPT-2, GPT-NeoX, Llama 2 and 3, Mistral and Qwen2. Each member is looked at: what is
 * not built in is refused where it stands. */
#include "runtime/text/bpe_load.h"
#include "runtime/text/nfc.h"

/* What a member may be. */
typedef struct Allowed {
    const char *key;
    const char *values; /* raw values, ' ' between; "*": read elsewhere, or no effect */
    bool needed;
} Allowed;

static bool value_allowed(const char *values, const char *raw) {
    size_t n = strlen(raw);
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
            if (m->key_length == strlen(allowed[i].key) &&
                !strcmp(allowed[i].key, m->key))
                a = &allowed[i];
        if (!a)
            json_fail(m, "this member is not known here", "'%.100s' is not understood",
                      m->key);
        if (!strcmp(a->values, "*")) continue;
        bool plain = m->kind != JSON_OBJECT && m->kind != JSON_ARRAY;
        if (!plain || !value_allowed(a->values, json_raw(mem, m)))
            json_fail(m, "anything else is not built in", "'%.100s' may only be: %s",
                      m->key, a->values);
    }
}
#define CHECK_MEMBERS(mem, v, allowed)                                                   \
    check_members(mem, v, allowed, (int)(sizeof(allowed) / sizeof *(allowed)))

/* What a tokenizer.json asks for. */
typedef struct Reading {
    Arena *mem;
    Tokenizer *t;
    TextRule rule;
    bool byte_level;
    bool decodes_bytes; /* the decoder seen so far has ByteFallback */
    bool decodes_meta;
    bool fused;
} Reading;

typedef void Reader(Reading *r, const Json *v);

typedef struct Kind {
    const char *type;
    Reader *read;
} Kind;

/* Calls the reader of v's "type". */
static void read_kind(Reading *r, const Json *v, const char *what, const Kind *kind,
                      int n) {
    json_want(v, JSON_OBJECT);
    const Json *type = json_need(v, "type");
    const char *name = json_string(type);
    for (int i = 0; i < n; i++)
        if (!strcmp(kind[i].type, name)) {
            kind[i].read(r, v);
            return;
        }
    Text known = text_new(r->mem);
    for (int i = 0; i < n; i++) text_add(&known, "%s%s", i ? ", " : "", kind[i].type);
    json_fail(type, arena_printf(r->mem, "there are: %s", known.s),
              "the %s '%.100s' is not built in", what, name);
}
#define READ_KIND(r, v, what, kinds)                                                     \
    read_kind(r, v, what, kinds, (int)(sizeof(kinds) / sizeof *(kinds)))

/* The elements of a Sequence. */
static const Json *sequence(Reading *r, const Json *v, const char *key) {
    const Allowed members[] = {{"type", "*", true}, {key, "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    const Json *list = json_get(v, key);
    json_want(list, JSON_ARRAY);
    return list->first;
}

/* v is a text, and one of those that are built in. */
static void want_text(const Json *v, const char *text) {
    if (strcmp(json_string(v), text) != 0)
        json_fail(v, NULL, "'%.100s' may only be \"%s\"", v->key, text);
}

/* {"String": text}, as patterns are written. */
static void want_pattern(Reading *r, const Json *v, const char *text) {
    static const Allowed members[] = {{"String", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    want_text(json_get(v, "String"), text);
}

/* ---- normalizer ---- */

static void read_nfc(Reading *r, const Json *v) {
    static const Allowed members[] = {{"type", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    if (!r->rule.nfc) r->rule.nfc = nfc_new(r->mem);
}

static void read_prepend(Reading *r, const Json *v) {
    static const Allowed members[] = {{"type", "*", true}, {"prepend", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    want_text(json_get(v, "prepend"), META);
    if (r->rule.prepend) json_fail(v, NULL, "a second Prepend");
    r->rule.prepend = true;
}

static void read_replace(Reading *r, const Json *v) {
    static const Allowed members[] = {
        {"type", "*", true}, {"pattern", "*", true}, {"content", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    want_pattern(r, json_get(v, "pattern"), " ");
    want_text(json_get(v, "content"), META);
    r->rule.underline = true;
}

static const Kind normalizers[] = {
    {"NFC", read_nfc}, {"Prepend", read_prepend}, {"Replace", read_replace}};

static void read_normalizers(Reading *r, const Json *v) {
    for (const Json *e = sequence(r, v, "normalizers"); e; e = e->next)
        READ_KIND(r, e, "normalizer", normalizers);
}

static void read_normalizer(Reading *r, const Json *v) {
    static const Kind kinds[] = {{"NFC", read_nfc},
                                 {"Prepend", read_prepend},
                                 {"Replace", read_replace},
                                 {"Sequence", read_normalizers}};
    if (!v || v->kind == JSON_NULL) return;
    READ_KIND(r, v, "normalizer", kinds);
    if (r->rule.prepend && !r->rule.underline)
        json_fail(v, NULL, "Prepend is built in beside a Replace of \" \" alone");
    if (r->rule.nfc && r->rule.underline)
        json_fail(v, NULL, "NFC beside a Replace is not built in");
}

/* ---- pre-tokenizer ---- */

static void read_byte_level(Reading *r, const Json *v) {
    static const Allowed members[] = {{"type", "*", true},
                                      {"add_prefix_space", "false", true},
                                      {"trim_offsets", "true false", false},
                                      {"use_regex", "true false", false}};
    CHECK_MEMBERS(r->mem, v, members);
    bool regex = json_get_bool(v, "use_regex", true), split = r->rule.split != SPLIT_NONE;
    if (regex && split)
        json_fail(v, NULL, "'use_regex' may only be false behind another splitter");
    if (!regex && !split)
        json_fail(v, NULL, "'use_regex' may only be true without a Split before");
    if (regex) r->rule.split = SPLIT_GPT2;
    r->byte_level = true;
}

static void read_split(Reading *r, const Json *v) {
    static const Allowed members[] = {{"type", "*", true},
                                      {"pattern", "*", true},
                                      {"behavior", "\"Isolated\"", true},
                                      {"invert", "false", true}};
    static const Allowed pattern[] = {{"Regex", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    CHECK_MEMBERS(r->mem, json_get(v, "pattern"), pattern);
    const Json *regex = json_get(json_get(v, "pattern"), "Regex");
    int rule = bpe_rule_of(json_string(regex));
    if (rule < 0)
        json_fail(regex,
                  "built in are the expressions of GPT-2, Llama 3 (cl100k) and Qwen2, in "
                  "just the letters of their files",
                  "the regular expression '%.200s' is not known", json_string(regex));
    if (r->rule.split != SPLIT_NONE || r->byte_level)
        json_fail(v, NULL, "Split may only be the first of a Sequence");
    r->rule.split = (SplitRule)rule;
}

/* Also the decoder of that name. */
static MetaPrefix check_metaspace(Reading *r, const Json *v) {
    static const Allowed members[] = {
        {"type", "*", true},
        {"replacement", "*", true},
        {"str_rep", "*", false},
        {"prepend_scheme", "\"first\" \"never\" \"always\"", false},
        {"add_prefix_space", "true false", false},
        {"split", "true false", false}};
    CHECK_MEMBERS(r->mem, v, members);
    want_text(json_get(v, "replacement"), META);
    bool prefix = json_get_bool(v, "add_prefix_space", true);
    const char *scheme =
        json_get_string(v, "prepend_scheme", prefix ? "always" : "never");
    if (!prefix && strcmp(scheme, "never") != 0)
        json_fail(v, NULL, "'add_prefix_space' and 'prepend_scheme' disagree");
    return !strcmp(scheme, "first")   ? META_FIRST
           : !strcmp(scheme, "never") ? META_NEVER
                                      : META_ALWAYS;
}

static void read_metaspace(Reading *r, const Json *v) {
    r->rule.meta = check_metaspace(r, v);
    r->rule.metaspace = true;
    if (r->rule.underline || r->rule.nfc)
        json_fail(v, NULL, "Metaspace beside a normalizer is not built in");
    if (json_get_bool(v, "split", true)) r->rule.split = SPLIT_META;
}

static void read_pre_tokenizers(Reading *r, const Json *v) {
    static const Kind kinds[] = {{"Split", read_split}, {"ByteLevel", read_byte_level}};
    for (const Json *e = sequence(r, v, "pretokenizers"); e; e = e->next)
        READ_KIND(r, e, "pre-tokenizer", kinds);
    if (!r->byte_level) json_fail(v, NULL, "the Sequence ends without ByteLevel");
}

static void read_pre_tokenizer(Reading *r, const Json *v) {
    static const Kind kinds[] = {{"ByteLevel", read_byte_level},
                                 {"Metaspace", read_metaspace},
                                 {"Sequence", read_pre_tokenizers}};
    r->rule.split = SPLIT_NONE;
    if (v->kind != JSON_NULL) READ_KIND(r, v, "pre-tokenizer", kinds);
}

/* ---- decoder ---- */

static void check_byte_level(Reading *r, const Json *v) {
    static const Allowed members[] = {{"type", "*", true},
                                      {"add_prefix_space", "true false", false},
                                      {"trim_offsets", "true false", false},
                                      {"use_regex", "true false", false}};
    CHECK_MEMBERS(r->mem, v, members);
}

static void decode_byte_level(Reading *r, const Json *v) {
    check_byte_level(r, v);
    if (!r->byte_level)
        json_fail(v, NULL, "the decoder ByteLevel needs the pre-tokenizer ByteLevel");
    r->decodes_bytes = r->decodes_meta = true;
}

static void decode_replace(Reading *r, const Json *v) {
    static const Allowed members[] = {
        {"type", "*", true}, {"pattern", "*", true}, {"content", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    want_pattern(r, json_get(v, "pattern"), META);
    want_text(json_get(v, "content"), " ");
    r->decodes_meta = true;
}

static void decode_metaspace(Reading *r, const Json *v) {
    if (check_metaspace(r, v) != META_NEVER) r->t->first = FIRST_SPACES_OFF;
    r->decodes_meta = true;
}

static void decode_bytes(Reading *r, const Json *v) {
    static const Allowed members[] = {{"type", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    if (r->fused) json_fail(v, NULL, "ByteFallback must come before Fuse");
    r->decodes_bytes = true;
}

static void decode_fuse(Reading *r, const Json *v) {
    static const Allowed members[] = {{"type", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    if (!r->decodes_meta || !r->decodes_bytes)
        json_fail(v, NULL, "Fuse must come behind Replace and ByteFallback");
    r->fused = true;
}

static void decode_strip(Reading *r, const Json *v) {
    static const Allowed members[] = {{"type", "*", true},
                                      {"content", "*", true},
                                      {"start", "0 1", true},
                                      {"stop", "0", true}};
    CHECK_MEMBERS(r->mem, v, members);
    want_text(json_get(v, "content"), " ");
    if (!r->fused) json_fail(v, NULL, "Strip must come behind Fuse");
    if (r->t->first != FIRST_WHOLE) json_fail(v, NULL, "a second Strip");
    if (json_i64(json_get(v, "start"), 0, 1)) r->t->first = FIRST_SPACE_OFF;
}

static void read_decoders(Reading *r, const Json *v) {
    static const Kind kinds[] = {{"Replace", decode_replace},
                                 {"Metaspace", decode_metaspace},
                                 {"ByteFallback", decode_bytes},
                                 {"Fuse", decode_fuse},
                                 {"Strip", decode_strip}};
    if (r->byte_level) json_fail(v, NULL, "the decoder of ByteLevel is ByteLevel");
    for (const Json *e = sequence(r, v, "decoders"); e; e = e->next)
        READ_KIND(r, e, "decoder", kinds);
}

static void read_decoder(Reading *r, const Json *v) {
    static const Kind kinds[] = {{"ByteLevel", decode_byte_level},
                                 {"Sequence", read_decoders}};
    READ_KIND(r, v, "decoder", kinds);
    if (!r->decodes_bytes || !r->decodes_meta)
        json_fail(v, NULL,
                  "a decoder of bytes has Replace (or Metaspace) and "
                  "ByteFallback");
}

/* ---- post-processor ---- */

/* {"id": ..., "type_id": ...} */
static const char *piece_id(Reading *r, const Json *v) {
    static const Allowed members[] = {{"id", "*", true}, {"type_id", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    return json_string(json_get(v, "id"));
}

static void add_special(Reading *r, const Json *template, const Json *piece,
                        bool before) {
    static const Allowed members[] = {
        {"id", "*", true}, {"ids", "*", true}, {"tokens", "*", false}};
    const char *id = piece_id(r, piece);
    const Json *known = json_get(json_need(template, "special_tokens"), id);
    if (!known)
        json_fail(piece, NULL, "'%.100s' is not among the special_tokens of the template",
                  id);
    CHECK_MEMBERS(r->mem, known, members);
    const Json *ids = json_get(known, "ids");
    json_want(ids, JSON_ARRAY);
    Tokenizer *t = r->t;
    int32_t **list = before ? &t->prefix : &t->suffix;
    int *n = before ? &t->nprefix : &t->nsuffix;
    for (const Json *e = ids->first; e; e = e->next) {
        if (*n == MAX_SPECIALS) json_fail(e, NULL, "too many tokens around a text");
        if (!*list) *list = NEW_ARRAY(r->mem, int32_t, MAX_SPECIALS);
        (*list)[(*n)++] = (int32_t)json_i64(e, 0, t->vocab - 1);
    }
}

static void read_template(Reading *r, const Json *v) {
    static const Allowed members[] = {{"type", "*", true},
                                      {"single", "*", true},
                                      {"pair", "*", false},
                                      {"special_tokens", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    const Json *single = json_get(v, "single");
    json_want(single, JSON_ARRAY);
    if (r->t->nprefix || r->t->nsuffix) json_fail(v, NULL, "a second template");
    bool text = false;
    for (const Json *e = single->first; e; e = e->next) {
        json_want(e, JSON_OBJECT);
        const Json *piece = e->first;
        if (e->n != 1)
            json_fail(e, NULL,
                      "a part of a template is one of SpecialToken "
                      "and Sequence");
        if (!strcmp(piece->key, "SpecialToken")) {
            add_special(r, v, piece, !text);
            continue;
        }
        if (strcmp(piece->key, "Sequence") != 0)
            json_fail(piece, NULL, "'%.100s' is not understood", piece->key);
        if (text || strcmp(piece_id(r, piece), "A") != 0)
            json_fail(piece, NULL, "a template of one text has the Sequence A once");
        text = true;
    }
    if (!text) json_fail(single, NULL, "the template has no Sequence A");
}

static void read_processors(Reading *r, const Json *v) {
    static const Kind kinds[] = {{"ByteLevel", check_byte_level},
                                 {"TemplateProcessing", read_template}};
    for (const Json *e = sequence(r, v, "processors"); e; e = e->next)
        READ_KIND(r, e, "post-processor", kinds);
}

static void read_post_processor(Reading *r, const Json *v) {
    static const Kind kinds[] = {{"ByteLevel", check_byte_level},
                                 {"TemplateProcessing", read_template},
                                 {"Sequence", read_processors}};
    if (!v || v->kind == JSON_NULL) return;
    READ_KIND(r, v, "post-processor", kinds);
}

/* ---- model and added tokens ---- */

static const Json *check_root(Reading *r, const Json *root) {
    /* truncation and padding are set anew by whoever makes batches. */
    static const Allowed top[] = {
        {"version", "\"1.0\"", false},  {"truncation", "*", false},
        {"padding", "*", false},        {"added_tokens", "*", false},
        {"normalizer", "*", false},     {"pre_tokenizer", "*", true},
        {"post_processor", "*", false}, {"decoder", "*", true},
        {"model", "*", true},
    };
    static const Allowed truncation[] = {{"direction", "\"Right\" \"Left\"", false},
                                         {"max_length", "*", true},
                                         {"strategy", "*", false},
                                         {"stride", "*", false}};
    static const Allowed padding[] = {
        {"strategy", "*", true},     {"direction", "\"Right\" \"Left\"", true},
        {"pad_id", "*", true},       {"pad_to_multiple_of", "*", false},
        {"pad_type_id", "*", false}, {"pad_token", "*", true},
    };
    /* unk_token and fuse_unk have no effect: every byte has a token. */
    static const Allowed model[] = {
        {"type", "\"BPE\"", false},
        {"dropout", "null 0.0 0", false},
        {"unk_token", "*", false},
        {"continuing_subword_prefix", "null \"\"", false},
        {"end_of_word_suffix", "null \"\"", false},
        {"fuse_unk", "true false", false},
        {"byte_fallback", "true false", false},
        {"ignore_merges", "true false", false},
        {"vocab", "*", true},
        {"merges", "*", true},
    };
    CHECK_MEMBERS(r->mem, root, top);
    const Json *v = json_get(root, "truncation");
    if (v && v->kind != JSON_NULL) CHECK_MEMBERS(r->mem, v, truncation);
    v = json_get(root, "padding");
    if (v && v->kind != JSON_NULL) CHECK_MEMBERS(r->mem, v, padding);
    const Json *m = json_need(root, "model");
    CHECK_MEMBERS(r->mem, m, model);
    return m;
}

/* Checks the added tokens; returns how many of them the vocabulary does not have. */
static int64_t check_added(Arena *mem, const Json *added, const Json *vocab) {
    static const Allowed members[] = {
        {"id", "*", true},
        {"content", "*", true},
        {"single_word", "true false", false},
        {"lstrip", "true false", false},
        {"rstrip", "true false", false},
        {"normalized", "true false", false},
        {"special", "true false", true},
    };
    if (!added || added->kind == JSON_NULL) return 0;
    json_want(added, JSON_ARRAY);
    if (added->n > MAX_SPECIALS)
        json_fail(added, NULL, "%d added tokens; at most %d are read", added->n,
                  MAX_SPECIALS);
    int64_t extra = 0;
    for (const Json *v = added->first; v; v = v->next) {
        CHECK_MEMBERS(mem, v, members);
        const char *s = json_string(json_need(v, "content"));
        if (!s[0]) json_fail(v, NULL, "an added token is empty");
        for (const Json *w = added->first; w != v; w = w->next)
            if (!strcmp(json_string(json_need(w, "content")), s))
                json_fail(v, NULL, "this token is added twice");
        extra += !json_get(vocab, s);
    }
    return extra;
}

static void read_added(Reading *r, Loader *l, const Json *added) {
    AddedToken list[2][MAX_SPECIALS]; /* looked for before and after normalization */
    int32_t n[2] = {0};
    for (const Json *v = added ? added->first : NULL; v; v = v->next) {
        const Json *content = json_need(v, "content");
        const char *s = json_string(content);
        size_t size = content->length;
        int64_t id = json_i64(json_need(v, "id"), 0, l->t->vocab - 1);
        int32_t known = load_find(l, s);
        if (known >= 0 && known != id)
            json_fail(v, NULL, "this token has id %d in the vocabulary", known);
        AddedToken k = {.name = s,
                        .id = (int32_t)id,
                        .special = json_bool(json_get(v, "special")),
                        .lstrip = json_get_bool(v, "lstrip", false),
                        .rstrip = json_get_bool(v, "rstrip", false),
                        .single_word = json_get_bool(v, "single_word", false)};
        bool after = json_get_bool(v, "normalized", !k.special);
        k.s = after ? bpe_normalize(r->mem, &r->rule, s, &size) : s;
        k.n = (uint32_t)size;
        load_added(l, v, &k);
        list[after][n[after]++] = k;
    }
    l->t->added = added_set_new(r->mem, list[0], n[0]);
    l->t->added_after = added_set_new(r->mem, list[1], n[1]);
}

/* For ignore_merges: the vocabulary by text. */
static void index_words(Loader *l) {
    Tokenizer *t = l->t;
    t->words = id_table_new(l->mem, (size_t)l->vocab->n);
    for (const Json *v = l->vocab->first; v; v = v->next) {
        const Token *k = &t->token[v->i];
        IdSlot slot = {.s = v->key, .n = v->key_length, .id = (int32_t)v->i};
        if (!t->byte_fallback) { /* a pre-token is made of bytes */
            if (k->kind != TOKEN_BYTES) continue;
            slot.s = k->s;
            slot.n = k->n;
        }
        id_table_add(&t->words, slot);
    }
}

Tokenizer *tokenizer_of_json(Arena *mem, const char *name, const char *json, size_t n) {
    const Json *root =
        json_parse(mem, name, json, n, TOKENIZER_MAX_FILE_BYTES, EXIT_DATA);
    Reading r = {.mem = mem, .t = NEW(mem, Tokenizer)};
    Loader l = {.mem = mem, .t = r.t};
    const Json *model = check_root(&r, root), *added = json_get(root, "added_tokens");
    const Json *vocab = json_need(model, "vocab");
    read_normalizer(&r, json_get(root, "normalizer"));
    read_pre_tokenizer(&r, json_need(root, "pre_tokenizer"));
    r.t->byte_fallback = json_get_bool(model, "byte_fallback", false);
    if (r.t->byte_fallback == r.byte_level)
        json_fail(model,
                  "a BPE of bytes has the pre-tokenizer ByteLevel, or byte_fallback",
                  "%s",
                  r.byte_level ? "byte_fallback beside ByteLevel is not built in"
                               : "neither byte_fallback nor ByteLevel");
    if (r.byte_level && r.rule.underline)
        json_fail(json_get(root, "normalizer"), NULL,
                  "a Replace beside ByteLevel is not built in");
    r.t->rule = r.rule;
    read_decoder(&r, json_need(root, "decoder"));
    json_want(vocab, JSON_OBJECT);
    load_vocab(&l, vocab, check_added(mem, added, vocab));
    load_merges(&l, json_need(model, "merges"));
    if (json_get_bool(model, "ignore_merges", false)) index_words(&l);
    read_added(&r, &l, added);
    for (int64_t i = 0; i < r.t->vocab; i++)
        if (!r.t->token[i].s)
            json_fail(vocab, "ids must be 0, 1, 2, ... without a gap",
                      "no token has the id %lld", (long long)i);
    read_post_processor(&r, json_get(root, "post_processor"));
    bpe_finish(mem, r.t);
    r.t->json = json;
    r.t->json_n = n;
    return r.t;
}
