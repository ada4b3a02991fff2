/* npy.c - NumPy's files, and tensors by name as samples. */
#include "runtime/store/npy.h"
#include "made_npy.h"
#include "runtime/data/data.h"
#include "runtime/store/element.h"
#include "runtime/store/safetensors.h"
#include <sys/stat.h>

static const char *wrong(Arena *mem, const char *dictionary, size_t bytes) {
    static const char zeros[4096];
    Text t = npy_bytes(mem, dictionary, zeros, bytes);
    Npy x;
    return npy_parse(mem, t.s, t.n, &x);
}

static void expect_wrong(const char *dictionary, size_t bytes, const char *part) {
    Arena *mem = arena_new();
    const char *why = wrong(mem, dictionary, bytes);
    if (!why || !strstr(why, part))
        test_fail(__FILE__, __LINE__, "%s: '%s', wanted '%s'", dictionary,
                  why ? why : "taken", part);
    arena_free(mem);
}

TEST(headers_as_numpy_writes_them) {
    Arena *mem = arena_new();
    float data[6] = {1, 2, 3, 4, 5, 6};
    Text t = npy_bytes(mem, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
                       data, sizeof data);
    Npy x;
    EXPECT(npy_parse(mem, t.s, t.n, &x) == NULL);
    EXPECT(x.kind == 'f' && x.element_bytes == 4 && x.rank == 2);
    EXPECT(x.dim[0] == 2 && x.dim[1] == 3 && !memcmp(x.data, data, sizeof data));
    EXPECT(!wrong(mem, "{'shape': (3,), 'fortran_order': False, 'descr': '|u1'}", 3));
    EXPECT(!wrong(mem, "{'descr':'|b1','fortran_order':False,'shape':()}", 1));
    EXPECT(!wrong(mem, "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 9), }", 0));
    arena_free(mem);
}

TEST(what_is_no_plain_array_is_refused_with_what_to_do) {
#define HEAD(descr, order, shape)                                                        \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }"
    expect_wrong(HEAD("'>f4'", "False", "(2,)"), 8, "astype('<f4')");
    expect_wrong(HEAD("'<f4'", "True", "(2,)"), 8, "numpy.ascontiguousarray");
    expect_wrong(HEAD("'|O'", "False", "(2,)"), 8, "type '|O'");
    expect_wrong(HEAD("'<U4'", "False", "(2,)"), 32, "type '<U4'");
    expect_wrong(HEAD("'<c8'", "False", "(2,)"), 16, "type '<c8'");
    expect_wrong(HEAD("[('a', '<f4')]", "False", "(2,)"), 8, "records");
    expect_wrong(HEAD("'<f4'", "False", "(2,)"), 7, "needs 8 bytes and the file has 7");
    expect_wrong(HEAD("'<f4'", "False", "(2,)"), 9, "needs 8 bytes and the file has 9");
    expect_wrong(HEAD("'<f8'", "False", "(4294967296, 4294967296)"), 8, "too large");
    expect_wrong(HEAD("'<f8'", "False", "(99999999999999999999,)"), 8, "no tuple");
    expect_wrong(HEAD("'<f8'", "False", "(1,1,1,1,1,1,1,1,1)"), 8, "8 dimensions");
    expect_wrong(HEAD("'<f8'", "False", "(-1,)"), 8, "no tuple");
    expect_wrong(HEAD("'<f8'", "False", "(1)"), 8, "no tuple");
    expect_wrong(HEAD("'<f8'", "False", "(01,)"), 8, "no tuple");
    expect_wrong(HEAD("'<f8'", "False", "(1,)") "}", 8, "no NumPy dictionary");
    expect_wrong("{'descr': '<f4', 'shape': (2,), }", 8, "no NumPy dictionary");
    expect_wrong("{'descr': '<f4', 'descr': '<f4'}", 8, "no NumPy dictionary");
    expect_wrong("nothing", 8, "no NumPy dictionary");
}

TEST(versions_that_there_are_not) {
    Arena *mem = arena_new();
    Text t = npy_bytes(mem, HEAD("'|u1'", "False", "(1,)"), "x", 1);
    Npy x;
    EXPECT(!npy_parse(mem, t.s, t.n, &x));
    t.s[7] = 1;
    EXPECT(strstr(npy_parse(mem, t.s, t.n, &x), "a version"));
    arena_free(mem);
}

/* Every cut of a good file is refused; nothing beyond the end is read (sanitizers). */
TEST(a_file_that_was_cut_off) {
    Arena *mem = arena_new();
    Text t = npy_bytes(mem, HEAD("'<i4'", "False", "(2, 2)"), "0123456789abcdef", 16);
    for (size_t n = 0; n < t.n; n++) {
        unsigned char *copy = malloc(n ? n : 1);
        Npy x;
        memcpy(copy, t.s, n);
        EXPECT(npy_parse(mem, copy, n, &x) != NULL);
        free(copy);
    }
    arena_free(mem);
}

TEST(numbers_of_every_type) {
    static const struct {
        const char *name;
        unsigned char bytes[8];
        float f;
    } row[] = {
        {"F64", {0, 0, 0, 0, 0, 0, 0xf8, 0xbf}, -1.5f},
        {"F32", {0, 0, 0xc0, 0xbf}, -1.5f},
        {"F16", {0, 0xbe}, -1.5f},
        {"BF16", {0xc0, 0xbf}, -1.5f},
        {"I64", {0xfe, 255, 255, 255, 255, 255, 255, 255}, -2},
        {"I32", {0xfe, 255, 255, 255}, -2},
        {"I16", {0xfe, 255}, -2},
        {"I8", {0xfe}, -2},
        {"U64", {0, 0, 0, 0, 0, 0, 0, 128}, 0x1p63f},
        {"U32", {0xfe, 255, 255, 255}, 4294967294.0f},
        {"U16", {0xfe, 255}, 65534},
        {"U8", {0xfe}, 254},
        {"BOOL", {1}, 1},
    };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        ElementType t;
        EXPECT(element_type_named(row[i].name, &t));
        if (element_f32(t, row[i].bytes) != row[i].f)
            test_fail(__FILE__, __LINE__, "%s", row[i].name);
        int64_t whole;
        bool integer = element_i64(t, row[i].bytes, &whole);
        bool want = t.kind == ELEMENT_INT || (t.kind == ELEMENT_UINT && t.bytes < 8);
        EXPECT(integer == want && (!want || (float)whole == row[i].f));
    }
    ElementType t;
    EXPECT(!element_type_named("C64", &t));
}

/* ---- samples ---- */

enum { SAMPLES = 10 };

static const DataColumn columns[] = {
    {.name = "x", .is_float = true, .rank = 2, .dim = {2, 3}, .count = 6},
    {.name = "y", .count = 1, .low = 0, .high = 5},
};

/* x of sample s, element i is 100 s + i; y of sample s is s % 5. */
static const char *write_folder(Arena *mem) {
    double x[SAMPLES * 6];
    int64_t y[SAMPLES];
    const char *dir = path_join(mem, temp_dir(), "columns");
    mkdir(dir, 0700);
    for (int s = 0; s < SAMPLES; s++) {
        for (int i = 0; i < 6; i++) x[6 * s + i] = 100 * s + i;
        y[s] = s % 5;
    }
    npy_write(path_join(mem, dir, "x.npy"), "<f8", "(10, 2, 3)", x, sizeof x);
    npy_write(path_join(mem, dir, "y.npy"), "<i8", "(10,)", y, sizeof y);
    return dir;
}

static Data *open_columns(Arena *mem, const char *path, bool shuffle, const char *split,
                          DataSplit which) {
    DataGptSpec gpt = {.split = split, .which = which, .samples = -1, .epochs = 1};
    DataSpec spec = {.type = "Tensors",
                     .path = path,
                     .batch = 4,
                     .seq = 1,
                     .seed = 3,
                     .shuffle = shuffle,
                     .gpt = split ? &gpt : NULL,
                     .column = columns,
                     .ncolumns = ARRAY_LEN(columns)};
    return data_open(mem, &spec);
}

/* Which sample row r of a batch is; its columns must belong together. */
static int sample_of(const DataBatch *b, int r) {
    const float *x = (const float *)b->column[0] + 6 * r;
    int s = (int)x[0] / 100;
    for (int i = 0; i < 6; i++) EXPECT(x[i] == (float)(100 * s + i));
    EXPECT_INT(((const int32_t *)b->column[1])[r], s % 5);
    return s;
}

TEST(an_epoch_has_every_sample_once) {
    Arena *mem = arena_new();
    Data *d = open_columns(mem, write_folder(mem), true, NULL, SPLIT_TRAIN);
    DataBatch b = data_batch_new(mem, d);
    int seen[SAMPLES] = {0}, moved = 0;
    EXPECT(d->samples == SAMPLES && d->steps_available == -1);
    for (int step = 0; step < 5; step++) { /* two epochs of ten */
        data_batch(d, step, &b);
        for (int r = 0; r < 4; r++) {
            int s = sample_of(&b, r);
            seen[s]++;
            moved += s != (4 * step + r) % SAMPLES;
        }
    }
    for (int s = 0; s < SAMPLES; s++) EXPECT_INT(seen[s], 2);
    EXPECT(moved > 5);
    data_close(d);
    arena_free(mem);
}

TEST(splits_share_no_sample) {
    Arena *mem = arena_new();
    const char *dir = write_folder(mem);
    Data *train = open_columns(mem, dir, false, "60,40,0", SPLIT_TRAIN);
    Data *valid = open_columns(mem, dir, false, "60,40,0", SPLIT_VALID);
    EXPECT(train->samples == 6 && valid->samples == 4);
    DataBatch b = data_batch_new(mem, train);
    data_batch(train, 0, &b);
    for (int r = 0; r < 4; r++) EXPECT_INT(sample_of(&b, r), r);
    data_batch(valid, 0, &b);
    for (int r = 0; r < 4; r++) EXPECT_INT(sample_of(&b, r), 6 + r);
    EXPECT_FAIL(open_columns(mem, dir, false, "60,40,0", SPLIT_TEST), EXIT_DATA,
                "leaves no sample for test");
    data_close(train);
    data_close(valid);
    arena_free(mem);
}

/* The thread that reads ahead hands out what data_batch gives. */
TEST(read_ahead) {
    Arena *mem = arena_new();
    Data *d = open_columns(mem, write_folder(mem), true, NULL, SPLIT_TRAIN);
    DataBatch want = data_batch_new(mem, d), have;
    Prefetch *p = prefetch_start(d, 2, 9, 3, false);
    for (int step = 2; step < 11; step++) {
        data_batch(d, step, &want);
        EXPECT(prefetch_next(p, &have));
        EXPECT(!memcmp(have.column[0], want.column[0], 4 * 6 * sizeof(float)));
        EXPECT(!memcmp(have.column[1], want.column[1], 4 * sizeof(int32_t)));
    }
    EXPECT(!prefetch_next(p, &have));
    prefetch_stop(p);
    data_close(d);
    arena_free(mem);
}

TEST(one_safetensors_file_is_the_same) {
    Arena *mem = arena_new();
    const char *dir = write_folder(mem),
               *file = path_join(mem, temp_dir(), "c.safetensors");
    float x[SAMPLES * 6];
    int32_t y[SAMPLES];
    for (int s = 0; s < SAMPLES; s++) {
        for (int i = 0; i < 6; i++) x[6 * s + i] = (float)(100 * s + i);
        y[s] = s % 5;
    }
    SafeTensor t[] = {
        {.name = "y", .dtype = DT_I32, .rank = 1, .dim = {SAMPLES}, .data = y},
        {.name = "other", .dtype = DT_I32, .rank = 1, .dim = {SAMPLES}, .data = y},
        {.name = "x", .dtype = DT_F32, .rank = 3, .dim = {SAMPLES, 2, 3}, .data = x}};
    EXPECT_INT(safetensors_write(file, t, ARRAY_LEN(t), NULL, NULL), 0);
    Data *a = open_columns(mem, dir, true, NULL, SPLIT_TRAIN);
    Data *b = open_columns(mem, file, true, NULL, SPLIT_TRAIN);
    DataBatch one = data_batch_new(mem, a), two = data_batch_new(mem, b);
    for (int step = 0; step < 4; step++) {
        data_batch(a, step, &one);
        data_batch(b, step, &two);
        for (int r = 0; r < 4; r++) EXPECT_INT(sample_of(&one, r), sample_of(&two, r));
    }
    data_close(a);
    data_close(b);
    arena_free(mem);
}

static void expect_refused(const char *name, const char *descr, const char *shape,
                           const void *data, size_t n, const char *part) {
    Arena *mem = arena_new();
    const char *dir = write_folder(mem);
    npy_write(path_join(mem, dir, arena_printf(mem, "%s.npy", name)), descr, shape, data,
              n);
    Catch c;
    if (CATCH(c)) {
        Data *d = open_columns(mem, dir, false, NULL, SPLIT_TRAIN);
        DataBatch b = data_batch_new(mem, d);
        for (int step = 0; step < 3; step++) data_batch(d, step, &b);
        test_fail(__FILE__, __LINE__, "%s %s %s was taken", name, descr, shape);
    }
    if (c.code != EXIT_DATA || !strstr(c.message, part))
        test_fail(__FILE__, __LINE__, "%s\nwanted %s", c.message, part);
    arena_free(mem);
}

TEST(data_that_do_not_fit_the_model) {
    static const int64_t high[SAMPLES] = {0, 1, 2, 3, 4, 4, 4, 5, 0, 0};
    static const int64_t low[SAMPLES] = {0, 1, 2, -1};
    static const int64_t wide[SAMPLES] = {(int64_t)1 << 33};
    static const float zeros[SAMPLES * 6];
    expect_refused("y", "<i8", "(10,)", high, sizeof high,
                   "'y', sample 7, element 0 is 5; the model takes 0 to 4");
    expect_refused("y", "<i8", "(10,)", low, sizeof low, "sample 3, element 0 is -1");
    expect_refused("y", "<i8", "(10,)", wide, sizeof wide, "is 8589934592");
    expect_refused("y", "<f4", "(10,)", zeros, 40, "takes integers");
    expect_refused("y", "<i4", "(10, 1)", zeros, 40,
                   "'y' is [10, 1], the model's argument takes [samples]");
    expect_refused("y", "<i4", "(9,)", zeros, 36, "'y' has 9 samples, 'x' has 10");
    expect_refused("x", "<f4", "(10, 3, 2)", zeros, 240,
                   "[10, 3, 2], the model's argument takes [samples, 2, 3]");
    expect_refused("x", "<f4", "()", zeros, 4, "'x' is one number");
    Arena *mem = arena_new();
    const char *dir = path_join(mem, temp_dir(), "empty");
    mkdir(dir, 0700);
    EXPECT_FAIL(open_columns(mem, dir, false, NULL, SPLIT_TRAIN), EXIT_DATA,
                "x.npy is not there: the model's argument %x");
    arena_free(mem);
}
