/* tokenizer_steps.c - see tokenizer_steps.h. What is not built in is refused where it stands. */
#include "runtime/text/tokenizer_steps.h"
#include "runtime/text/nfc.h"

/* ---- members ---- */

static bool value_allowed(const char *values, const char *raw) {
    size_t n = strlen(raw);
    for (const char *p = values; *p; p += strspn(p, " ")) {
        size_t one = strcspn(p, " ");
        if (one == n && !memcmp(p, raw, n)) return true;
        p += one;
    }
    return false;
}

void members_check(Arena *mem, const Json *v, const Allowed *allowed, int n) {
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
/* ---- kinds ---- */

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

static void want_type_alone(Reading *r, const Json *v) {
    static const Allowed members[] = {{"type", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
}

/* A Replace of `from`, which is {"String": from} as patterns are written. */
static void want_replace(Reading *r, const Json *v, const char *from, const char *to) {
    static const Allowed members[] = {
        {"type", "*", true}, {"pattern", "*", true}, {"content", "*", true}};
    static const Allowed pattern[] = {{"String", "*", true}};
    CHECK_MEMBERS(r->mem, v, members);
    CHECK_MEMBERS(r->mem, json_get(v, "pattern"), pattern);
    want_text(json_get(json_get(v, "pattern"), "String"), from);
    want_text(json_get(v, "content"), to);
}

/* ---- normalizer ---- */

static void read_nfc(Reading *r, const Json *v) {
    want_type_alone(r, v);
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
    want_replace(r, v, " ", META);
    r->rule.underline = true;
}

static const Kind normalizers[] = {
    {"NFC", read_nfc}, {"Prepend", read_prepend}, {"Replace", read_replace}};

static void read_normalizers(Reading *r, const Json *v) {
    for (const Json *e = sequence(r, v, "normalizers"); e; e = e->next)
        READ_KIND(r, e, "normalizer", normalizers);
}

void tokenizer_read_normalizer(Reading *r, const Json *v) {
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

void tokenizer_read_pre_tokenizer(Reading *r, const Json *v) {
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
    want_replace(r, v, META, " ");
    r->decodes_meta = true;
}

static void decode_metaspace(Reading *r, const Json *v) {
    if (check_metaspace(r, v) != META_NEVER) r->t->first = FIRST_SPACES_OFF;
    r->decodes_meta = true;
}

static void decode_bytes(Reading *r, const Json *v) {
    want_type_alone(r, v);
    if (r->fused) json_fail(v, NULL, "ByteFallback must come before Fuse");
    r->decodes_bytes = true;
}

static void decode_fuse(Reading *r, const Json *v) {
    want_type_alone(r, v);
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

void tokenizer_read_decoder(Reading *r, const Json *v) {
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

void tokenizer_read_post_processor(Reading *r, const Json *v) {
    static const Kind kinds[] = {{"ByteLevel", check_byte_level},
                                 {"TemplateProcessing", read_template},
                                 {"Sequence", read_processors}};
    if (!v || v->kind == JSON_NULL) return;
    READ_KIND(r, v, "post-processor", kinds);
}
