/* gpt_data.c - Megatron-LM's data set over files: order and masks, compared with what its
 * own code made; blends; caches. */
#include "../test.h"
#include "base/json.h"
#include "only_file.h"
#include "runtime/data/data.h"
#include "runtime/data/data_reader.h"
#include "runtime/data/gpt_index.h"
#include "runtime/data/prepared.h"
#include "sha256.h"
#include <sys/stat.h>
#include <unistd.h>

static Arena *mem;

/* ---- Megatron-LM's results ---- */

typedef struct Given {
    const char *path; /* of the pair, without suffix */
    const Json *order, *masks;
} Given;

static Given given_data(void) {
    mem = arena_new();
    if (!shared_dir()) test_skip("no shared reference data");
    char *dir = path_join(mem, shared_dir(), "golden/megatron_data");
    if (!file_exists(dir)) test_skip("no golden/megatron_data");
    Given g;
    g.path = path_join(mem, dir, "shakespeare_text_document");
    g.order = json_read(mem, path_join(mem, dir, "order.json"), 1 << 24, EXIT_DATA);
    g.masks = json_read(mem, path_join(mem, dir, "masks.json"), 1 << 24, EXIT_DATA);
    return g;
}

static Data *open_gpt(const char *path, const DataGptSpec *gpt, int64_t batch,
                      int64_t seq, int64_t seed) {
    DataSpec spec = {.type = "GPTDataset",
                     .path = path,
                     .batch = batch,
                     .seq = seq,
                     .seed = (uint64_t)seed,
                     .vocab = 50257,
                     .gpt = gpt};
    return data_open(mem, &spec);
}

static void expect_array(const Json *want, const int32_t *have) {
    int i = 0;
    for (const Json *e = want->first; e; e = e->next, i++)
        if (json_i64(e, 0, INT32_MAX) != have[i])
            test_fail(__FILE__, __LINE__, "%s[%d] is %d", want->key, i, have[i]);
}

static void expect_index(const Json *want, const DataGptSpec *gpt, const char *path,
                         int64_t seq, int64_t seed) {
    IndexedFile file;
    GptIndex x;
    int64_t bound[4];
    indexed_file_open(mem, &file, path);
    gpt_split(gpt->split, file.table.sequences, bound);
    GptIndexSpec s = {
        path,         &file.table, bound[gpt->which], bound[gpt->which + 1], seq,
        gpt->samples, 1,           (uint32_t)seed};
    gpt_index_build(mem, &s, &x);
    EXPECT(x.samples == json_i64(json_need(want, "samples_available"), 0, 1 << 30));
    EXPECT(x.documents == json_i64(json_need(want, "document_index_len"), 0, 1 << 30));
    expect_array(json_need(want, "first_documents"), x.document);
    expect_array(json_need(want, "shuffle_index_first"), (const int32_t *)x.shuffle);
    indexed_file_close(&file);
}

static void expect_samples(const Json *want, Data *d) {
    size_t seq = (size_t)d->seq;
    int32_t *tokens = NEW_ARRAY(mem, int32_t, seq);
    int32_t *labels = NEW_ARRAY(mem, int32_t, seq);
    Sha256 sha;
    char hex[65];
    sha256_begin(&sha);
    for (int64_t i = 0; i < d->samples; i++) {
        data_batch(d, i, &(DataBatch){tokens, labels});
        sha256_add(&sha, tokens, seq * sizeof *tokens);
        EXPECT(!memcmp(tokens + 1, labels, (seq - 1) * sizeof *tokens));
    }
    sha256_end(&sha, hex);
    EXPECT_STR(hex, json_string(json_need(want, "sha256_of_all_tokens_as_int32le")));
    const Json *samples = json_need(want, "samples");
    EXPECT(samples->n >= 5);
    for (const Json *s = samples->first; s; s = s->next) {
        data_batch(d, atoi(s->key), &(DataBatch){tokens, labels});
        expect_array(json_need(s, "tokens"), tokens);
        expect_array(json_need(s, "labels"), labels);
    }
}

TEST(order_of_megatron) {
    Given g = given_data();
    static const char *const names[] = {"train", "valid", "test"};
    int checked = 0;
    for (const Json *c = g.order->first; c; c = c->next) {
        int64_t seq = json_i64(json_need(c, "sequence_length"), 1, 1 << 20);
        int64_t seed = json_i64(json_need(c, "random_seed"), 0, UINT32_MAX);
        const Json *asked = json_need(c, "requested")->first;
        for (int which = 0; which < 3; which++, asked = asked->next) {
            const Json *want = json_get(json_need(c, "splits"), names[which]);
            if (!want) continue;
            DataGptSpec gpt = {.which = (DataSplit)which,
                               .split = json_string(json_need(c, "split")),
                               .samples = json_i64(asked, 0, 1 << 30),
                               .epochs = 1,
                               .pad = -1,
                               .eod = -1};
            expect_index(want, &gpt, g.path, seq, seed);
            Data *d = open_gpt(g.path, &gpt, 1, seq, seed);
            expect_samples(want, d);
            data_close(d);
            checked++;
        }
    }
    EXPECT_INT(checked, 6);
}

TEST(masks_of_megatron) {
    Given g = given_data();
    int32_t tokens[128], labels[128], plain[128], positions[128], from[128];
    float mask[128];
    int checked = 0;
    for (const Json *c = g.masks->first; c; c = c->next, checked++) {
        DataGptSpec gpt = {
            .split = "949,50,1", .samples = 50, .epochs = 1, .pad = -1, .eod = 50256};
        gpt.reset_position_ids = json_bool(json_need(c, "reset_position_ids"));
        gpt.reset_attention_mask = json_bool(json_need(c, "reset_attention_mask"));
        gpt.eod_mask_loss = json_bool(json_need(c, "eod_mask_loss"));
        Data *d = open_gpt(g.path, &gpt, 1, 128, 1234);
        DataBatch all = {tokens, labels, positions, from, mask, false};
        data_batch(d, 3, &all);
        expect_array(json_need(c, "tokens"), tokens);
        expect_array(json_need(c, "position_ids"), positions);
        expect_array(json_need(c, "attends_from"), from);
        DataBatch kept = {.tokens = tokens, .labels = plain, .keep_labels = true};
        data_batch(d, 3, &kept);
        const Json *e = json_need(c, "loss_mask")->first;
        for (int i = 0; i < 128; i++, e = e->next) {
            EXPECT(mask[i] == (float)json_f64(e));
            EXPECT(labels[i] == (mask[i] == 0 ? -1 : plain[i]) && plain[i] >= 0);
        }
        int32_t only[128];
        data_batch(d, 3, &(DataBatch){tokens, only});
        EXPECT(!memcmp(only, labels, sizeof only));
        data_close(d);
    }
    EXPECT_INT(checked, 4);
}

TEST(prefetch_carries_everything) {
    Given g = given_data();
    DataGptSpec gpt = {.split = "949,50,1",
                       .samples = 50,
                       .epochs = 1,
                       .pad = -1,
                       .eod = 50256,
                       .reset_position_ids = true,
                       .reset_attention_mask = true,
                       .eod_mask_loss = true};
    Data *d = open_gpt(g.path, &gpt, 2, 64, 1234);
    int32_t tokens[128], labels[128], positions[128], from[128];
    float mask[128];
    DataBatch want = {tokens, labels, positions, from, mask, false}, have;
    Prefetch *p = prefetch_start(d, 1, 6, 2, true);
    for (int64_t step = 1; step <= 6; step++) {
        data_batch(d, step, &want);
        EXPECT(prefetch_next(p, &have));
        EXPECT(!memcmp(have.tokens, tokens, sizeof tokens));
        EXPECT(!memcmp(have.labels, labels, sizeof labels));
        EXPECT(!memcmp(have.positions, positions, sizeof positions));
        EXPECT(!memcmp(have.attends_from, from, sizeof from));
        EXPECT(!memcmp(have.loss_mask, mask, sizeof mask));
    }
    EXPECT(!prefetch_next(p, &have));
    prefetch_stop(p);
    data_close(d);
}

/* ---- data made here ---- */

/* A pair of documents; token t of document i of pair `tag` is tag * 1000 + 10 i + t. */
static char *make_pair(const char *name, int tag, const int32_t *lengths, int n) {
    Text bin = text_new(mem), idx = text_new(mem);
    int64_t count = n, entries = n + 1, version = 1, at = 0;
    text_add_bytes(&idx, "MMIDIDX\0\0", 9);
    text_add_bytes(&idx, &version, 8);
    text_add_bytes(&idx, "\4", 1);
    text_add_bytes(&idx, &count, 8);
    text_add_bytes(&idx, &entries, 8);
    text_add_bytes(&idx, lengths, 4 * (size_t)n);
    for (int i = 0; i < n; i++) {
        text_add_bytes(&idx, &at, 8);
        for (int32_t t = 0; t < lengths[i]; t++) {
            int32_t token = tag * 1000 + 10 * i + t;
            text_add_bytes(&bin, &token, 4);
        }
        at += 4 * lengths[i];
    }
    for (int64_t i = 0; i <= n; i++) text_add_bytes(&idx, &i, 8);
    char *stem = path_join(mem, temp_dir(), name);
    EXPECT(!file_write_atomic(arena_printf(mem, "%s.bin", stem), bin.s, bin.n));
    EXPECT(!file_write_atomic(arena_printf(mem, "%s.idx", stem), idx.s, idx.n));
    return stem;
}

static const int32_t eight[20] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8,
                                  8, 8, 8, 8, 8, 8, 8, 8, 8, 8};

TEST(blend_of_files) {
    mem = arena_new();
    char *a = make_pair("a", 1, eight, 20), *b = make_pair("b", 2, eight, 10);
    const char *words[] = {"3", a, "1", b};
    DataGptSpec gpt = {.paths = words,
                       .n_paths = 4,
                       .split = "1",
                       .samples = 40,
                       .epochs = 1,
                       .pad = -1,
                       .eod = -1};
    Data *d = open_gpt(NULL, &gpt, 1, 4, 7), *pure;
    EXPECT(d->samples == 40 && d->steps_available == 40);
    /* ceil(30 * 1.005) = 31 samples of a, 11 of b: each source in its own order */
    DataGptSpec alone = {.split = "1", .samples = 31, .epochs = 1, .pad = -1, .eod = -1};
    pure = open_gpt(a, &alone, 1, 4, 7);
    int count[3] = {0};
    int32_t tokens[4], labels[4], want[4];
    for (int64_t i = 0; i < 40; i++) {
        data_batch(d, i, &(DataBatch){tokens, labels});
        int tag = tokens[0] / 1000;
        EXPECT(tag == 1 || tag == 2);
        if (tag == 1) {
            data_batch(pure, count[1], &(DataBatch){want, labels});
            EXPECT(!memcmp(want, tokens, sizeof want));
        }
        count[tag]++;
    }
    EXPECT(count[1] == 30 && count[2] == 10);
    data_close(pure);
    data_close(d);
    /* one text with blanks is the same blend; without weights all samples are taken */
    const char *text = arena_printf(mem, "3 %s 1 %s", a, b);
    gpt.paths = &text, gpt.n_paths = 1;
    d = open_gpt(NULL, &gpt, 1, 4, 7);
    EXPECT_INT(d->samples, 40);
    data_close(d);
    const char *both[] = {a, b};
    gpt.paths = both, gpt.n_paths = 2, gpt.samples = -1;
    d = open_gpt(NULL, &gpt, 1, 4, 7);
    EXPECT_INT(d->samples, 39 + 19);
    data_close(d);
    gpt.samples = 30;
    d = open_gpt(NULL, &gpt, 1, 4, 7);
    EXPECT_INT(d->samples, 30);
    data_close(d);
}

static Data *open_words(int n, const char **words, int64_t samples) {
    DataGptSpec gpt = {.paths = words,
                       .n_paths = n,
                       .split = "1",
                       .samples = samples,
                       .epochs = 1,
                       .pad = -1,
                       .eod = -1};
    return open_gpt(NULL, &gpt, 1, 4, 7);
}

static bool is_refused(const Data *d, int64_t step) {
    int32_t tokens[64], labels[64];
    Catch c;
    if (CATCH(c)) {
        data_batch(d, step, &(DataBatch){tokens, labels});
        catch_end(&c);
        return false;
    }
    EXPECT_PART(c.message, "token 50257 is outside the vocabulary of 50257");
    return true;
}

/* Of samples whose only token above the vocabulary fills up: no other one changes. */
TEST(padding_does_not_count) {
    enum { PAD = 50257, DOCUMENTS = 26, SEQ = 6 };
    mem = arena_new();
    int32_t lengths[DOCUMENTS];
    for (int i = 0; i < DOCUMENTS; i++) lengths[i] = 8;
    const char *path = make_pair("padded", 50, lengths, DOCUMENTS);
    DataGptSpec gpt = {.split = "1", .samples = 60, .epochs = 1, .pad = -1, .eod = -1};
    DataSpec wide = {.type = "GPTDataset",
                     .path = path,
                     .batch = 1,
                     .seq = SEQ,
                     .seed = 5,
                     .vocab = PAD + 1,
                     .gpt = &gpt};
    Data *whole = data_open(mem, &wide), *refused = open_gpt(path, &gpt, 1, SEQ, 5);
    DataGptSpec filled = gpt;
    filled.pad = PAD;
    Data *padded = open_gpt(path, &filled, 1, SEQ, 5);
    int32_t want[SEQ], next[SEQ], tokens[SEQ], labels[SEQ], kept[SEQ];
    float mask[SEQ];
    int tokens_found = 0, labels_found = 0, failed = 0;
    for (int64_t step = 0; step < whole->steps_available; step++) {
        data_batch(whole, step, &(DataBatch){want, next});
        data_batch(padded, step, &(DataBatch){.tokens = tokens, .labels = labels});
        data_batch(padded, step,
                   &(DataBatch){.tokens = tokens,
                                .labels = kept,
                                .loss_mask = mask,
                                .keep_labels = true});
        bool has = false;
        for (int i = 0; i < SEQ; i++) {
            bool token = want[i] == PAD, label = next[i] == PAD;
            EXPECT_INT(tokens[i], token ? 0 : want[i]);
            EXPECT_INT(labels[i], label ? -1 : next[i]);
            EXPECT_INT(kept[i], label ? 0 : next[i]);
            EXPECT(mask[i] == (label ? 0 : 1));
            tokens_found += token, labels_found += label, has |= token || label;
        }
        failed += is_refused(refused, step);
        EXPECT(failed > 0 || !has);
    }
    EXPECT(tokens_found > 0 && labels_found > 0 && failed > 0);
    data_close(whole);
    data_close(refused);
    data_close(padded);
}

TEST(wrong_specifications) {
    mem = arena_new();
    const char *a = make_pair("a", 1, eight, 20);
    const char *half[] = {"1", a, a, a}, *zero[] = {"0", a}, *weighted[] = {"1", a};
    EXPECT_FAIL(open_words(4, half, 5), EXIT_CONFIG, "some sources have weights");
    EXPECT_FAIL(open_words(2, zero, 5), EXIT_CONFIG, "must be above 0");
    EXPECT_FAIL(open_words(2, weighted, -1), EXIT_CONFIG, "needs num_samples");
    DataGptSpec gpt = {.split = "1", .samples = 5, .epochs = 1, .pad = -1, .eod = -1};
    EXPECT_FAIL(open_gpt(a, &gpt, 1, 4, (int64_t)1 << 32), EXIT_CONFIG, "seed");
    EXPECT_FAIL(open_gpt(a, &gpt, 64, 4, 1), EXIT_DATA, "a batch needs 64");
    EXPECT_FAIL(open_gpt("/nowhere/x", &gpt, 1, 4, 1), EXIT_DATA, "/nowhere/x.idx");
    gpt.eod_mask_loss = true;
    EXPECT_FAIL(open_gpt(a, &gpt, 1, 4, 1), EXIT_CONFIG, "need eod");
    gpt.eod_mask_loss = false;
    gpt.which = SPLIT_TEST;
    EXPECT_FAIL(open_gpt(a, &gpt, 1, 4, 1), EXIT_DATA, "split test");
    gpt.which = SPLIT_TRAIN;
    Data *d = open_gpt(a, &gpt, 2, 4, 1);
    int32_t tokens[8], labels[8];
    EXPECT_FAIL(data_batch(d, d->steps_available, &(DataBatch){tokens, labels}),
                EXIT_DATA, "train at most");
    data_close(d);
}

/* ---- caches ---- */

typedef struct Cached {
    char *pair, *dir;
    int32_t want[8];
} Cached;

/* Opens with the cache: the same samples whatever lies there; the note has `part`. */
static void expect_cached(const Cached *c, const char *part) {
    DataGptSpec gpt = {.split = "1",
                       .samples = 40,
                       .epochs = 1,
                       .pad = -1,
                       .eod = -1,
                       .cache_path = c->dir};
    Data *d = open_gpt(c->pair, &gpt, 2, 4, 7);
    int32_t tokens[8], labels[8];
    data_batch(d, 3, &(DataBatch){tokens, labels});
    EXPECT(!memcmp(tokens, c->want, sizeof tokens));
    if (!strstr(d->note, part) || (!part[0] && d->note[0]))
        test_fail(__FILE__, __LINE__, "note '%s', wanted '%s'", d->note, part);
    data_close(d);
}

static Cached make_cached(void) {
    mem = arena_new();
    Cached c = {make_pair("a", 1, eight, 20), path_join(mem, temp_dir(), "cache/x"), {0}};
    DataGptSpec gpt = {.split = "1", .samples = 40, .epochs = 1, .pad = -1, .eod = -1};
    Data *d = open_gpt(c.pair, &gpt, 2, 4, 7);
    int32_t labels[8];
    data_batch(d, 3, &(DataBatch){c.want, labels});
    data_close(d);
    return c;
}

TEST_LABEL_OF(cache_is_used_and_repaired, SLOW);
TEST(cache_is_used_and_repaired) {
    Cached c = make_cached();
    expect_cached(&c, "");
    char *path = only_file(mem, c.dir);
    struct stat before, after;
    EXPECT(stat(path, &before) == 0);
    expect_cached(&c, "");
    EXPECT(stat(path, &after) == 0 && before.st_ino == after.st_ino);
    size_t n;
    char *good = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    char *bad = arena_alloc(mem, n + 1);
    for (size_t at = 0; at < n; at++) { /* each byte of the file, once */
        memcpy(bad, good, n);
        bad[at] ^= 0x10;
        EXPECT(!file_write_atomic(path, bad, n));
        expect_cached(&c, "is made again");
    }
    for (size_t size = 0; size <= n + 1; size += size < 80 ? 1 : 37) {
        if (size == n) continue;
        memcpy(bad, good, n);
        EXPECT(!file_write_atomic(path, bad, size));
        expect_cached(&c, "is made again");
    }
    char *again = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    EXPECT(!memcmp(again, good, n));
    expect_cached(&c, "");
}

TEST(cache_of_other_data) {
    Cached c = make_cached();
    expect_cached(&c, "");
    char *path = only_file(mem, c.dir);
    char note[PREPARED_NOTE] = "";
    Prepared file = {.what = "cache", .path = path, .note = note};
    memset(file.key, '0', 32);
    char *data = prepared_buffer(mem, 64);
    prepared_write(&file, data, 64);
    expect_cached(&c, "made from other data");
    memcpy(file.key, path + strlen(path) - strlen(".gptindex") - 32, 32);
    prepared_write(&file, data, 64); /* right frame, wrong content */
    expect_cached(&c, "contradicts itself");
    EXPECT_STR(note, "");
    expect_cached(&c, "");
    EXPECT(!unlink(path) && !mkdir(path, 0700));
    expect_cached(&c, "cannot be written"); /* built, but nowhere to go */
    EXPECT(!rmdir(path));
    expect_cached(&c, "");
}

TEST(cache_that_cannot_be_written) {
    Cached c = make_cached();
    EXPECT(!file_write_atomic(path_join(mem, temp_dir(), "file"), "x", 1));
    c.dir = path_join(mem, temp_dir(), "file/below");
    expect_cached(&c, "going on without");
}
