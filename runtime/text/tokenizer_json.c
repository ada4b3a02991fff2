/* tokenizer_json.c - tokenizer.json as the library `tokenizers` writes it, of the families
 * of GPT-2, GPT-NeoX, Llama 2 and 3, Mistral and Qwen2: its model and added tokens, and all of
 * it together. Each member is looked at: what is not built in is refused where it stands. */
#include "runtime/text/tokenizer_steps.h"

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
    tokenizer_read_normalizer(&r, json_get(root, "normalizer"));
    tokenizer_read_pre_tokenizer(&r, json_need(root, "pre_tokenizer"));
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
    tokenizer_read_decoder(&r, json_need(root, "decoder"));
    json_want(vocab, JSON_OBJECT);
    load_vocab(&l, vocab, check_added(mem, added, vocab));
    load_merges(&l, json_need(model, "merges"));
    if (json_get_bool(model, "ignore_merges", false)) index_words(&l);
    read_added(&r, &l, added);
    for (int64_t i = 0; i < r.t->vocab; i++)
        if (!r.t->token[i].s)
            json_fail(vocab, "ids must be 0, 1, 2, ... without a gap",
                      "no token has the id %lld", (long long)i);
    tokenizer_read_post_processor(&r, json_get(root, "post_processor"));
    bpe_finish(mem, r.t);
    r.t->json = json;
    r.t->json_n = n;
    return r.t;
}
