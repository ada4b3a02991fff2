/* data_webtext.c - texts of loose JSON, one sample each: cut or padded to seq tokens,
 * tokenized once and kept in a cache (next to the file if no folder is given).
 *
 * After the WebtextDataset of Colossal-AI's GPT examples: a text has the tokens that its
 * tokenizer gives, no end mark is added, and a short text is filled up with the pad
 * token. There each row is as long as the longest text at most; here always seq. A label
 * counts when it is a token of the text, with pad_in_loss as there when it is any token
 * of the row. A text without a label that counts is left out.
 *
 * Data of the cache: i64 texts, i64 begin [texts + 1], i32 tokens [begin[texts]]. */
#include "base/utf8.h"
#include "runtime/data/data_reader.h"
#include "runtime/data/prepared.h"
#include "runtime/data/text_read.h"
#include "runtime/data/text_tokens.h"
#include "runtime/text/json_line.h"

typedef struct WebText {
    FileMap json, held;
    Buffer begin, tokens;
    JsonLine line;
    TokenizerCache *words;
    int64_t texts, first;            /* in the file; the first one of the split */
    const char *begin_at, *token_at; /* tables, maybe unaligned */
    int64_t pad;
    bool pad_in_loss;
} WebText;

/* ---- tokenizing ---- */

static _Noreturn void fail_line(const Data *d, int64_t line, size_t at, const char *key,
                                const char *what) {
    fail(EXIT_DATA, "%s, line %lld, column %zu: %s%s%s%s", d->path, (long long)line,
         at + 1, key ? "key '" : "", key ? key : "", key ? "': " : "", what);
}

/* The text of a line of loose JSON, as `stator preprocess` reads it; it stays until the next. */
static const char *parse_line(WebText *w, const Data *d, int64_t line, const char *text,
                              size_t n, size_t *length) {
    JsonLine *j = &w->line;
    const char *key = d->gpt->text_key && d->gpt->text_key[0] ? d->gpt->text_key : "text";
    if (n > TEXT_RECORD_MAX) fail_line(d, line, 0, NULL, TEXT_RECORD_TOO_LONG);
    if (!json_line_read(j, text, n, &key, 1))
        fail_line(d, line, j->wrong_at, j->wrong_key >= 0 ? key : NULL, j->wrong);
    if (j->key[0].n != 1)
        fail_line(d, line, 0, key,
                  "a sample is one text, and this is an array of others");
    return json_line_piece(j, 0, 0, length);
}

static void add_text(WebText *w, const Data *d, const Tokenizer *t, const char *text,
                     size_t length, int32_t *room) {
    size_t seq = (size_t)d->seq;
    size_t n = tokenizer_encode(t, w->words, text, length, false, room, seq, NULL);
    n = MIN(n, seq);
    if (n < 2 && !d->gpt->pad_in_loss) return;
    buffer_add(&w->tokens, room, n * sizeof *room);
    int64_t end = (int64_t)(w->tokens.n / sizeof *room);
    buffer_add(&w->begin, &end, sizeof end);
    w->texts++;
}

static void tokenize(Arena *mem, const Data *d, WebText *w) {
    TokenizerSpec spec = tokenizer_of_data(d);
    const Tokenizer *t = tokenizer_open(mem, &spec);
    int32_t *room = NEW_ARRAY(mem, int32_t, (size_t)d->seq);
    int64_t zero = 0, line = 0;
    w->words = tokenizer_cache_new();
    buffer_add(&w->begin, &zero, sizeof zero);
    const char *rest = (const char *)w->json.bytes, *end = rest + w->json.n;
    size_t n;
    rest += utf8_mark(rest, w->json.n);
    for (const char *p; (p = line_next(&rest, end, &n));) {
        line++;
        if (text_line_is_blank(p, n)) continue;
        size_t length;
        const char *text = parse_line(w, d, line, p, n, &length);
        add_text(w, d, t, text, length, room);
    }
}

/* ---- the cache ---- */

static Prepared cache_of(Arena *mem, Data *d, const WebText *w) {
    const DataGptSpec *gpt = d->gpt;
    TokenizerSpec spec = tokenizer_of_data(d);
    Prepared file = {.what = "token cache", .note = d->note};
    Text t = text_new(mem);
    text_add(&t, "webtext 1\nfile %016llx\nseq %lld\nkey %s\npad_in_loss %d\n",
             (unsigned long long)hash64(w->json.bytes, w->json.n), (long long)d->seq,
             gpt->text_key ? gpt->text_key : "", gpt->pad_in_loss);
    text_add(&t, "%s", tokenizer_key(mem, &spec));
    hash_hex(t.s, t.n, file.key);
    if (gpt->cache_path && gpt->cache_path[0]) file.folder = gpt->cache_path;
    const char *name =
        arena_printf(mem, "gpt_webtext_%lld_%s.cache", (long long)d->seq, file.key);
    file.path =
        path_join(mem, file.folder ? file.folder : path_folder(mem, d->path), name);
    return file;
}

/* Points into the data of a cache; false if it is not what it should be. */
static bool use_data(void *context, const void *data, uint64_t n) {
    const Data *d = context;
    WebText *w = d->state;
    const char *bytes = data;
    if (n < 16) return false;
    int64_t texts = i64_at(bytes, 0);
    if (texts < 0 || (uint64_t)texts > (n - 16) / 8) return false;
    const char *begin = bytes + 8;
    uint64_t room = (n - 16 - 8 * (uint64_t)texts) / 4;
    if (i64_at(begin, 0) != 0) return false;
    for (int64_t i = 0; i < texts; i++) {
        int64_t from = i64_at(begin, i), to = i64_at(begin, i + 1);
        if (to < from || to - from > d->seq || (uint64_t)to > room) return false;
    }
    if (n != 16 + 8 * (uint64_t)texts + 4 * (uint64_t)i64_at(begin, texts)) return false;
    w->texts = texts;
    w->begin_at = begin;
    w->token_at = begin + 8 * (texts + 1);
    return true;
}

static void build(Arena *mem, WebText *w, Data *d, const Prepared *file) {
    tokenize(mem, d, w);
    uint64_t n = 8 + (uint64_t)w->begin.n + (uint64_t)w->tokens.n;
    char *data = prepared_buffer(mem, n);
    memcpy(data, &w->texts, 8);
    memcpy(data + 8, w->begin.p, w->begin.n);
    if (w->tokens.n) memcpy(data + 8 + w->begin.n, w->tokens.p, w->tokens.n);
    buffer_free(&w->begin);
    buffer_free(&w->tokens);
    check(use_data(d, data, n));
    prepared_write(file, data, n);
}

/* ---- the source ---- */

static int64_t texts_of(const WebText *w) {
    const char *rest = (const char *)w->json.bytes, *end = rest + w->json.n;
    int64_t texts = 0;
    size_t n;
    rest += utf8_mark(rest, w->json.n);
    for (const char *p; (p = line_next(&rest, end, &n));)
        texts += !text_line_is_blank(p, n);
    return texts;
}

static void note_left_out(Data *d, const WebText *w) {
    int64_t left = texts_of(w) - w->texts;
    if (left && !d->note[0])
        snprintf(
            d->note, sizeof d->note,
            "%s: %lld of its texts have less than two tokens, so nothing to learn, and "
            "are left out (pad_in_loss True keeps them)",
            d->path, (long long)left);
}

/* The token that ends a text, of the tokenizer; -1: it has none. */
static int64_t end_token(const Data *d) {
    TokenizerSpec spec = tokenizer_of_data(d);
    Arena *scratch = arena_new();
    int64_t end = tokenizer_eod(tokenizer_open(scratch, &spec));
    arena_free(scratch);
    return end;
}

static void choose_pad(const Data *d, WebText *w) {
    const DataGptSpec *gpt = d->gpt;
    long long limit = data_token_limit(d);
    if (gpt->reset_position_ids || gpt->reset_attention_mask || gpt->eod_mask_loss)
        fail(EXIT_CONFIG, "WebtextDataset has one text in a sample: reset_position_ids, "
                          "reset_attention_mask and eod_mask_loss do not apply");
    w->pad = gpt->pad >= 0 ? gpt->pad : gpt->eod >= 0 ? gpt->eod : end_token(d);
    w->pad_in_loss = gpt->pad_in_loss;
    if (w->pad < 0)
        fail(EXIT_CONFIG,
             "WebtextDataset needs a token that fills up a text, and neither the model "
             "nor the tokenizer has one that ends a text: give one below the vocabulary "
             "of %lld, --train_dataset.data_loader.pad_token N",
             limit);
    if (w->pad >= limit)
        fail(EXIT_CONFIG,
             "WebtextDataset fills up a text with token %lld, which is not below the "
             "vocabulary of %lld: give another one, "
             "--train_dataset.data_loader.pad_token N",
             (long long)w->pad, limit);
}

static void webtext_open(Arena *mem, Data *d) {
    WebText *w = NEW(mem, WebText);
    d->state = w;
    choose_pad(d, w);
    file_map(&w->json, d->path);
    text_refuse_packed(d->path, w->json.bytes, w->json.n);
    Prepared file = cache_of(mem, d, w);
    if (!prepared_read(&file, use_data, d, &w->held)) build(mem, w, d, &file);
    note_left_out(d, w);
    file_unmap(&w->json);
    w->first = data_take_split(d, w->texts, "text");
    d->tokens = i64_at(w->begin_at, w->texts);
}

static int64_t length_of(const WebText *w, int64_t text) {
    return i64_at(w->begin_at, text + 1) - i64_at(w->begin_at, text);
}

static void webtext_read(const Data *d, int64_t sample, int64_t from, int64_t n,
                         int32_t *out) {
    const WebText *w = d->state;
    int64_t text = w->first + sample, length = length_of(w, text);
    const char *tokens = w->token_at + 4 * i64_at(w->begin_at, text);
    int64_t limit = data_token_limit(d);
    for (int64_t i = 0; i < n; i++) {
        int32_t token = (int32_t)w->pad;
        if (from + i < length) memcpy(&token, tokens + 4 * (from + i), sizeof token);
        if (token < 0 || token >= limit)
            data_fail_token(d, "%s: text %lld, token %lld: token %d", d->path,
                            (long long)text, (long long)(from + i), token);
        out[i] = token;
    }
}

static void webtext_mask(const Data *d, int64_t sample, const DataBatch *row) {
    const WebText *w = d->state;
    int64_t counted = w->pad_in_loss ? d->seq : length_of(w, w->first + sample);
    for (int64_t i = MAX(counted - 1, 0); i < d->seq; i++) {
        if (row->loss_mask) row->loss_mask[i] = 0;
        if (row->labels && !row->keep_labels) row->labels[i] = -1;
    }
}

static void webtext_close(Data *d) {
    WebText *w = d->state;
    if (!w) return;
    file_unmap(&w->json);
    file_unmap(&w->held);
    buffer_free(&w->begin);
    buffer_free(&w->tokens);
    buffer_free(&w->line.text);
    buffer_free(&w->line.pieces);
    if (w->words) tokenizer_cache_free(w->words);
    w->words = NULL;
}

const DataReader data_webtext = {"WebtextDataset", false,         webtext_open,
                                 webtext_read,     webtext_close, webtext_mask};
