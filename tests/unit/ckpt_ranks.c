/* Checkpoints of several ranks: whatever mesh and layouts saved a tensor, every other
 * mesh finds its elements. One process plays the ranks here; tests/unit/ckpt_mpi.c has
 * real ones. */
#define _GNU_SOURCE
#include "../ckpt_crowd.h"
#include "../test.h"
#include "runtime/store/ckpt_files.h"
#include "runtime/store/safetensors.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define mem crowd_mem

static void expect_rank(const Crowd *c, int rank, int64_t step, int n) {
    int i = crowd_differs(c, rank, step, n);
    if (i >= 0)
        test_fail(__FILE__, __LINE__, "rank %d tensor %d '%s' differs", rank, i,
                  model[i].name);
}

static void crowd_save(const char *dir, int strategy, int64_t step, int n) {
    Crowd *c = crowd_new(&strategies[strategy]);
    CkptSave of_rank[MAX_PLAYED];
    char why[256];
    crowd_fill(c, step);
    for (int r = 0; r < c->ranks; r++)
        of_rank[r] = (CkptSave){step, c->t[r], n, "{\"a\": 1}"};
    if (ckpt_save_ranks(dir, of_rank, c->ranks, why, sizeof why))
        test_fail(__FILE__, __LINE__, "%s", why);
}

static char *listing(const char *dir) {
    struct dirent **e;
    Text t = text_new(mem());
    int n = scandir(dir, &e, NULL, alphasort);
    EXPECT(n >= 0);
    for (int i = 0; i < n; i++)
        if (e[i]->d_name[0] != '.') text_add(&t, "%s ", e[i]->d_name);
    return t.s;
}

static const char *folder_of(int64_t step) {
    return path_join(mem(), temp_dir(), arena_printf(mem(), "step_%08d", (int)step));
}

/* ---- tests ---- */

TEST_LABEL_OF(saved_under_any_loaded_under_any, SLOW);
TEST_LABEL_OF(saved_under_any_loaded_under_any, RELEASED);
TEST(saved_under_any_loaded_under_any) {
    for (int from = 0; from < STRATEGIES; from++) {
        crowd_save(temp_dir(), from, from, TENSORS);
        for (int to = 0; to < STRATEGIES; to++) {
            Crowd *c = crowd_new(&strategies[to]);
            for (int r = 0; r < c->ranks; r++) {
                ckpt_load_rank(mem(), folder_of(from), r, c->t[r], TENSORS);
                expect_rank(c, r, from, TENSORS);
            }
        }
    }
}

TEST(files_are_of_those_who_hold_something) {
    crowd_save(temp_dir(), 1, 1, SMALL); /* all whole: files that others can read */
    EXPECT_STR(listing(folder_of(1)),
               "manifest.json model.safetensors optimizer.safetensors ");
    crowd_save(temp_dir(), 2, 2, SMALL);
    EXPECT_STR(listing(folder_of(2)),
               "layout.json manifest.json model.rank_00000.safetensors "
               "model.rank_00001.safetensors model.rank_00002.safetensors "
               "model.rank_00003.safetensors optimizer.rank_00000.safetensors "
               "optimizer.rank_00001.safetensors optimizer.rank_00002.safetensors "
               "optimizer.rank_00003.safetensors ");
    crowd_save(temp_dir(), 3, 3, SMALL); /* of the parameters dp has copies */
    EXPECT_STR(listing(folder_of(3)),
               "layout.json manifest.json model.rank_00000.safetensors "
               "model.rank_00001.safetensors model.rank_00002.safetensors "
               "model.rank_00003.safetensors optimizer.rank_00000.safetensors "
               "optimizer.rank_00001.safetensors optimizer.rank_00002.safetensors "
               "optimizer.rank_00003.safetensors ");
    const char *path = path_join(mem(), folder_of(3), "model.rank_00001.safetensors");
    Safetensors *s = safetensors_open(mem(), path, EXIT_CHECKPOINT);
    const SafeTensor *qkv = safetensors_need(s, "qkv");
    EXPECT(s->n == 1 && qkv->rank == 3 && qkv->dim[1] == 4 && qkv->dim[2] == 6);
}

/* Bytes of tensors in the files of a rank; counts each tensor in `times`. */
static uint64_t written_by(int64_t step, int rank, int times[TENSORS]) {
    static const char *const kinds[CKPT_FILES] = {"model", "optimizer"};
    uint64_t bytes = 0;
    for (int k = 0; k < CKPT_FILES; k++) {
        const char *path = arena_printf(mem(), "%s/%s.rank_%05d.safetensors",
                                        folder_of(step), kinds[k], rank);
        if (!file_exists(path)) continue;
        Safetensors *s = safetensors_open(mem(), path, EXIT_CHECKPOINT);
        for (int i = 0; i < s->n; i++) bytes += s->t[i].bytes;
        for (int i = 0; i < TENSORS; i++)
            times[i] += model[i].file == k && safetensors_find(s, model[i].name) != NULL;
    }
    return bytes;
}

/* Three replicas: each tensor is written once, by one of them, and all write about the
 * same. */
TEST(copies_share_the_writing) {
    int times[TENSORS] = {0};
    uint64_t least = UINT64_MAX, most = 0;
    crowd_save(temp_dir(), 7, 1, SMALL);
    for (int r = 0; r < 3; r++) {
        uint64_t bytes = written_by(1, r, times);
        least = MIN(least, bytes);
        most = MAX(most, bytes);
    }
    for (int i = 0; i < SMALL; i++) EXPECT_INT(times[i], 1);
    EXPECT_INT(most, 3 * 4 * 12 * 4); /* the largest tensor alone */
    EXPECT(least > most * 9 / 10);
    crowd_save(temp_dir(), 7, 2, SMALL);
    const char *first = path_join(mem(), folder_of(1), CKPT_LAYOUT);
    const char *second = path_join(mem(), folder_of(2), CKPT_LAYOUT);
    EXPECT_STR(file_read(mem(), first, 1 << 20, NULL, EXIT_DATA),
               file_read(mem(), second, 1 << 20, NULL, EXIT_DATA));
}

TEST(model_only) {
    crowd_save(temp_dir(), 6, 7, SMALL);
    Crowd *c = crowd_new(&strategies[3]);
    ckpt_load_rank(mem(), folder_of(7), 1, c->t[1], 3);
    expect_rank(c, 1, 7, 3);
    /* Alone, as other commands load: the newest of the folder, with its state. */
    c = crowd_new(&strategies[0]);
    char *state;
    int64_t step;
    EXPECT(ckpt_load_latest(mem(), temp_dir(), c->t[0], 3, &state, &step, NULL));
    expect_rank(c, 0, 7, 3);
    EXPECT_INT(step, 7);
    EXPECT_STR(state, "{\"a\": 1}");
}

TEST(another_model) {
    crowd_save(temp_dir(), 3, 1, SMALL);
    Crowd *c = crowd_new(&strategies[0]);
    c->t[0][1].dim[1] = 5;
    EXPECT_FAIL(ckpt_load_rank(mem(), folder_of(1), 0, c->t[0], SMALL), EXIT_CHECKPOINT,
                "'qkv' is f32[3,4,12] in layout.json and f32[3,5,12] in the model");
    c = crowd_new(&strategies[0]);
    EXPECT_FAIL(
        ckpt_load_rank(mem(), folder_of(1), 0, c->t[0] + 1, SMALL - 1), EXIT_CHECKPOINT,
        "layout.json has a tensor 'wte' (f32[10,6]), which the model does not have");
}

static void flip(const char *path, int64_t at) {
    char b;
    int fd = open(path, O_RDWR);
    EXPECT(fd >= 0 && pread(fd, &b, 1, at) == 1);
    b ^= 4;
    EXPECT(pwrite(fd, &b, 1, at) == 1 && close(fd) == 0);
}

TEST_LABEL_OF(every_byte_flipped, SLOW);
/* Every bit of every file counts: the one before is used, and the file is named. */
TEST_LIMIT(every_byte_flipped, 200) {
    const int step_bytes = test_long() ? 1 : 7;
    crowd_save(temp_dir(), 2, 1, SMALL);
    crowd_save(temp_dir(), 3, 2, SMALL);
    struct dirent **e;
    int n = scandir(folder_of(2), &e, NULL, alphasort), files = 0;
    for (int f = 0; f < n; f++) {
        if (e[f]->d_name[0] == '.') continue;
        const char *path = path_join(mem(), folder_of(2), e[f]->d_name);
        size_t bytes;
        file_read(mem(), path, 1 << 20, &bytes, EXIT_DATA);
        files++;
        for (int64_t at = 0; at < (int64_t)bytes; at += step_bytes) {
            Arena *a = arena_new();
            Text log = text_new(a);
            int64_t step = 0;
            Crowd *c = crowd_new(&strategies[0]);
            flip(path, at);
            EXPECT(ckpt_load_latest(a, temp_dir(), c->t[0], SMALL, NULL, &step, &log));
            flip(path, at);
            expect_rank(c, 0, 1, SMALL);
            if (step != 1 || !strstr(log.s, e[f]->d_name))
                test_fail(__FILE__, __LINE__, "%s byte %lld: step %lld, %s", e[f]->d_name,
                          (long long)at, (long long)step, log.s);
            arena_free(a);
        }
        EXPECT(rename(path, arena_printf(mem(), "%s.x", path)) == 0);
        Crowd *c = crowd_new(&strategies[0]);
        int64_t step = 0;
        EXPECT(ckpt_load_latest(mem(), temp_dir(), c->t[0], SMALL, NULL, &step, NULL));
        EXPECT_INT(step, 1);
        EXPECT(rename(arena_printf(mem(), "%s.x", path), path) == 0);
    }
    EXPECT_INT(files, 10);
    Crowd *c = crowd_new(&strategies[0]);
    int64_t step = 0;
    EXPECT(ckpt_load_latest(mem(), temp_dir(), c->t[0], SMALL, NULL, &step, NULL));
    EXPECT_INT(step, 2);
}

/* ---- a layout.json that lies, with sums that are right ---- */

static void write_sealed_bytes(const char *folder, Manifest *m, const char *layout,
                               size_t n) {
    EXPECT(file_write_atomic(path_join(mem(), folder, CKPT_LAYOUT), layout, n) == 0);
    m->file[0].bytes = n;
    hash_hex(layout, n, m->file[0].xxh3);
    Text t = manifest_text(mem(), m);
    EXPECT_INT(file_write_atomic(path_join(mem(), folder, "manifest.json"), t.s, t.n), 0);
}

static void write_sealed(const char *folder, Manifest *m, const char *layout) {
    write_sealed_bytes(folder, m, layout, strlen(layout));
}

static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    EXPECT(at != NULL);
    return arena_printf(mem(), "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

TEST(lying_layouts) {
    static const struct {
        const char *from, *to, *part;
    } lies[] = {
        {"\"size\": 2}]", "\"size\": 3}]", "does not split in 3"},
        {"\"size\": 2}]", "\"size\": 0}]", "0"},
        {"\"size\": 2}]", "\"size\": 1048576}]", "more than 1048576 ranks"},
        {"\"f32[3,4,12:tp]\"", "\"f32[3,4:tp,12]\"", ""}, /* same bytes: another cut */
        {"\"f32[3,4,12:tp]\"", "\"f32[3,4,12]\"", "'qkv' is not what layout.json says"},
        {"\"f32[3,4,12:tp]\"", "\"f32[3,4,14:tp]\"", "not of the tensor's shape"},
        {"\"f32[3,4,12:tp]\"", "\"f32[3,4,12:pp]\"", "mesh axis 'pp' not found"},
        {"\"f32[3,4,12:tp]\"", "\"f32[3,4,99999999999999999:tp]\"", ""},
        {"\"shape\": [3, 4, 12]", "\"shape\": [0, 1125899906842624, 1125899906842624]",
         "too large"},
        {"\"name\": \"qkv\"", "\"name\": \"wte\"", "two tensors 'wte'"},
        {"\"axis\": \"tp\"", "\"axis\": \"dp\"", "'dp' is there twice"},
        {"\"file\": \"model\"", "\"file\": \"Model\"", "model or optimizer"},
        {"\"flat\": \"dp\"", "\"flat\": \"tp\"", "axis of flat splits a dimension"},
        {"\"lead\": 0", "\"lead\": 9", ""},
        {"\"lead\": 0", "\"lead\": 0, \"padded\": 1", "not padded to so many"},
        {"\"lead\": 0", "\"lead\": 0, \"padded\": 4000000000000",
         "not padded to so many"},
        {"\"copy\": 1", "\"copy\": 2", "copy"},
        {"\"copy\": 1", "\"copy\": -1", "copy"},
        {"\"copy\": 1", "\"copy\": 0", "is not what layout.json says"},
    };
    crowd_save(temp_dir(), 3, 1, SMALL);
    Manifest m;
    EXPECT(!manifest_read(mem(), folder_of(1), &m));
    size_t n;
    const char *path = path_join(mem(), folder_of(1), CKPT_LAYOUT);
    const char *good = file_read(mem(), path, 1 << 20, &n, EXIT_DATA);
    for (int i = 0; i < ARRAY_LEN(lies); i++) {
        Crowd *c = crowd_new(&strategies[5]);
        Catch k;
        write_sealed(folder_of(1), &m, replaced(good, lies[i].from, lies[i].to));
        if (CATCH(k)) {
            ckpt_load_rank(mem(), folder_of(1), 2, c->t[2], SMALL);
            catch_end(&k);
            if (lies[i].part[0])
                test_fail(__FILE__, __LINE__, "%s was believed", lies[i].to);
        } else if (k.code != EXIT_CHECKPOINT || !strstr(k.message, lies[i].part)) {
            test_fail(__FILE__, __LINE__, "%s: code %d, %s", lies[i].to, k.code,
                      k.message);
        }
    }
    Crowd *c = crowd_new(&strategies[0]);
    write_sealed_bytes(folder_of(1), &m, good, n + 1);
    EXPECT_FAIL(ckpt_load_rank(mem(), folder_of(1), 0, c->t[0], SMALL), EXIT_CHECKPOINT,
                "a zero byte");
    /* A file fewer in the manifest. */
    write_sealed(folder_of(1), &m, good);
    m.nfiles--;
    write_sealed(folder_of(1), &m, good);
    EXPECT_FAIL(ckpt_load_rank(mem(), folder_of(1), 0, c->t[0], SMALL), EXIT_CHECKPOINT,
                "a file of some rank is missing");
}
