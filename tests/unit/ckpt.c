/* Checkpoints: what is saved comes back bit for bit; after a kill at any instant, a full
 * disk or a flipped bit the newest good one is loaded, and the damage is told. */
#define _GNU_SOURCE
#include "../test.h"
#include "runtime/store/ckpt_files.h"
#include "runtime/store/safetensors.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A model whose every number follows from the step. */
typedef struct Model {
    float w[6], m[6];
    uint16_t b[3];
    int64_t count;
    float large[2000];
    CkptTensor t[5];
} Model;

static Model *model_new(void) {
    Model *m = calloc(1, sizeof *m);
    m->t[0] = (CkptTensor){"wte.weight", DT_F32, 2, {2, 3}, m->w, CKPT_MODEL};
    m->t[1] = (CkptTensor){"wte.weight", DT_F32, 2, {2, 3}, m->m, CKPT_OPTIMIZER};
    m->t[2] = (CkptTensor){"ln.bias", DT_BF16, 1, {3}, m->b, CKPT_MODEL};
    m->t[3] = (CkptTensor){"count", DT_I64, 0, {0}, &m->count, CKPT_OPTIMIZER};
    m->t[4] = (CkptTensor){"large", DT_F32, 1, {2000}, m->large, CKPT_MODEL};
    return m;
}

/* Without the large one, for tests that visit every byte. */
enum { SMALL = 4, ALL = 5 };

static void model_fill(Model *m, int64_t step) {
    for (int i = 0; i < 6; i++) m->w[i] = (float)(step * 10 + i), m->m[i] = -m->w[i];
    m->w[5] = NAN;
    for (int i = 0; i < 3; i++) m->b[i] = (uint16_t)(step * 3 + i);
    m->count = step;
    for (int i = 0; i < 2000; i++) m->large[i] = (float)(step + i);
}

static bool model_is(const Model *m, int64_t step, int n) {
    Model *want = model_new();
    model_fill(want, step);
    bool same = !memcmp(m->w, want->w, sizeof m->w) &&
                !memcmp(m->m, want->m, sizeof m->m) &&
                !memcmp(m->b, want->b, sizeof m->b) && m->count == want->count &&
                (n == SMALL || !memcmp(m->large, want->large, sizeof m->large));
    free(want);
    return same;
}

static int save(const char *dir, int64_t step, int n, int keep, char why[256]) {
    Model *m = model_new();
    char state[64];
    model_fill(m, step);
    snprintf(state, sizeof state, "{\"consumed\": %lld}", (long long)step * 100);
    int error = ckpt_save(dir, &(CkptSave){step, m->t, n, state, keep, -1}, why, 256);
    free(m);
    return error;
}

static void save_ok(const char *dir, int64_t step, int n, int keep) {
    char why[256];
    if (save(dir, step, n, keep, why)) test_fail(__FILE__, __LINE__, "%s", why);
}

/* Loads the newest, checks that all of it is of one step, and returns that (-1: none). */
static int64_t load(const char *dir, int n, Text *log) {
    Model *m = model_new();
    Arena *mem = arena_new();
    char *state, want[64];
    int64_t step = -1;
    if (!ckpt_load_latest(mem, dir, m->t, n, &state, &step, log)) return -1;
    EXPECT(model_is(m, step, n));
    snprintf(want, sizeof want, "{\"consumed\": %lld}", (long long)step * 100);
    EXPECT_STR(state, want);
    arena_free(mem);
    free(m);
    return step;
}

static void remove_leftovers(const char *dir) {
    Arena *mem = arena_new();
    ckpt_remove_leftovers(mem, dir);
    arena_free(mem);
}

static bool without_locks;

/* In the place of libc's. */
int flock(int fd, int how) {
    if (without_locks) errno = ENOLCK;
    return without_locks ? -1 : (int)syscall(SYS_flock, fd, how);
}

static bool without_exchange, without_dir_sync;
static int exchange_error;

/* In the place of libc's. */
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned how) {
    if (without_exchange && how) errno = exchange_error;
    return without_exchange && how
               ? -1
               : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, how);
}

/* In the place of libc's. */
int fsync(int fd) {
    struct stat st;
    bool refused = without_dir_sync && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    if (refused) errno = EINVAL;
    return refused ? -1 : (int)syscall(SYS_fsync, fd);
}

/* Names in dir, sorted, with a space behind each. */
static char *listing(const char *dir) {
    struct dirent **e;
    Text t = text_new(arena_new());
    int n = scandir(dir, &e, NULL, alphasort);
    EXPECT(n >= 0);
    for (int i = 0; i < n; i++)
        if (e[i]->d_name[0] != '.') text_add(&t, "%s ", e[i]->d_name);
    return t.s;
}

static const char *in(const char *dir, const char *name) {
    return path_join(arena_new(), dir, name);
}

TEST(round_trip) {
    const char *dir = in(temp_dir(), "a/b");
    EXPECT_INT(load(dir, ALL, NULL), -1);
    save_ok(dir, 12, ALL, 0);
    EXPECT_STR(listing(dir), "latest step_00000012 ");
    EXPECT_STR(listing(in(dir, "step_00000012")),
               "manifest.json model.safetensors optimizer.safetensors ");
    EXPECT_INT(load(dir, ALL, NULL), 12);
    save_ok(dir, 123456789012, ALL, 0);
    EXPECT_INT(load(dir, ALL, NULL), 123456789012);
    size_t n;
    EXPECT_STR(file_read(arena_new(), in(dir, "latest"), 100, &n, EXIT_DATA),
               "step_123456789012\n");
    /* Outside tools can read the files. */
    Safetensors *s = safetensors_open(arena_new(), in(dir, "step_00000012"), EXIT_DATA);
    EXPECT_INT(s->n, 3);
    float w[6];
    safetensors_read(s, safetensors_need(s, "wte.weight"), DT_F32, w, sizeof w);
    EXPECT(w[0] == 120 && w[4] == 124);
    char why[256];
    Model *m = model_new();
    EXPECT_INT(ckpt_save(dir, &(CkptSave){13, m->t, ALL}, why, sizeof why), 0);
    char *state;
    ckpt_load_dir(arena_new(), in(dir, "step_00000013"), m->t, ALL, &state, NULL);
    EXPECT_STR(state, "{}");
}

TEST(model_only) {
    const char *dir = temp_dir();
    save_ok(dir, 3, ALL, 0);
    Model *m = model_new();
    CkptTensor only[3] = {m->t[0], m->t[2], m->t[4]};
    int64_t step;
    EXPECT(ckpt_load_latest(arena_new(), dir, only, 3, NULL, &step, NULL) && step == 3);
    EXPECT(m->w[0] == 30 && m->large[5] == 8 && m->m[0] == 0 && m->count == 0);
}

TEST(keeps_the_newest) {
    const char *dir = temp_dir();
    for (int i = 1; i <= 3; i++) save_ok(dir, i, SMALL, 0);
    EXPECT_STR(listing(dir), "latest step_00000001 step_00000002 step_00000003 ");
    save_ok(dir, 4, SMALL, 2);
    EXPECT_STR(listing(dir), "latest step_00000003 step_00000004 ");
    /* A damaged one does not count, a later step is not touched. */
    EXPECT(truncate(in(dir, "step_00000004/model.safetensors"), 5) == 0);
    save_ok(dir, 9, SMALL, 0);
    save_ok(dir, 5, SMALL, 2);
    EXPECT_STR(listing(dir),
               "latest step_00000003 step_00000004 step_00000005 step_00000009 ");
    save_ok(dir, 6, SMALL, 1);
    EXPECT_STR(listing(dir), "latest step_00000006 step_00000009 ");
    /* Foreign things stay. */
    EXPECT(dir_make(in(dir, "step_7")) == 0 && dir_make(in(dir, "step_000000008")) == 0 &&
           dir_make(in(dir, "other")) == 0);
    save_ok(dir, 10, SMALL, 1);
    EXPECT_STR(listing(dir), "latest other step_000000008 step_00000010 step_7 ");
}

static int deletes;

static void see_delete(const char *where) {
    if (strcmp(where, "delete")) return;
    deletes++;
    EXPECT_STR(listing(temp_dir()), "latest step_00000001.tmp step_00000002 ");
    EXPECT_STR(listing(in(temp_dir(), "step_00000001.tmp")),
               "manifest.json model.safetensors optimizer.safetensors ");
}

/* So that a kill while deleting leaves nothing that looks like a checkpoint. */
TEST(renames_before_deleting) {
    save_ok(temp_dir(), 1, SMALL, 1);
    ckpt_failpoint = see_delete;
    save_ok(temp_dir(), 2, SMALL, 1);
    EXPECT_INT(deletes, 1);
    EXPECT_STR(listing(temp_dir()), "latest step_00000002 ");
}

/* Also on a file system that cannot exchange two names, or cannot sync a folder. */
TEST(saves_a_step_again) {
    static const int errors[] = {0, EINVAL, ENOSYS};
    const char *dir = temp_dir();
    Model *m = model_new();
    char why[256];
    model_fill(m, 77);
    const CkptSave what = {5, m->t, SMALL, "{\"consumed\": 1}"};
    for (int i = 0; i < 2 * ARRAY_LEN(errors); i++) {
        exchange_error = errors[i / 2];
        without_exchange = i / 2;
        without_dir_sync = i % 2;
        EXPECT_INT(ckpt_save(dir, &what, why, sizeof why), 0);
        save_ok(dir, 5, SMALL, 1);
        EXPECT_STR(listing(dir), "latest step_00000005 ");
        EXPECT_INT(load(dir, SMALL, NULL), 5);
    }
    exchange_error = EACCES;
    EXPECT_INT(ckpt_save(dir, &what, why, sizeof why), EACCES);
    EXPECT_PART(why, "cannot rename a complete checkpoint to");
    EXPECT_INT(load(dir, SMALL, NULL), 5);
}

/* Damage. */

static char *slurp(const char *path, size_t *n) {
    return file_read(arena_new(), path, 1 << 20, n, EXIT_DATA);
}

static void spit(const char *path, const void *bytes, size_t n) {
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0644);
    EXPECT(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && close(fd) == 0);
}

static const char *const files[] = {"manifest.json", "model.safetensors",
                                    "optimizer.safetensors"};

/* The newest is damaged in `file`: the one before must be used, the file be named. */
static void expect_fallback(const char *dir, const char *file, size_t at) {
    Text log = text_new(arena_new());
    int64_t step = load(dir, SMALL, &log);
    if (step != 1 || !strstr(log.s, "step_00000002 is damaged: ") || !strstr(log.s, file))
        test_fail(__FILE__, __LINE__, "%s byte %zu: step %lld, log: %s", file, at,
                  (long long)step, log.s);
    arena_free(log.mem);
}

TEST(every_byte_flipped) {
    const char *dir = temp_dir();
    save_ok(dir, 1, SMALL, 0);
    save_ok(dir, 2, SMALL, 0);
    int flips = 0;
    for (int f = 0; f < 3; f++) {
        size_t n;
        const char *path = in(in(dir, "step_00000002"), files[f]);
        char *bytes = slurp(path, &n);
        for (size_t i = 0; i < n; i++, flips++) {
            char bit = (char)(1 << (i * 5 % 8));
            bytes[i] ^= bit;
            spit(path, bytes, n);
            expect_fallback(dir, files[f], i);
            bytes[i] ^= bit;
        }
        spit(path, bytes, n);
        EXPECT_INT(load(dir, SMALL, NULL), 2);
    }
    EXPECT(flips > 600);
}

TEST(truncated_and_missing) {
    const char *dir = temp_dir();
    save_ok(dir, 1, SMALL, 0);
    save_ok(dir, 2, SMALL, 0);
    for (int f = 0; f < 3; f++) {
        size_t n;
        const char *path = in(in(dir, "step_00000002"), files[f]);
        char *bytes = slurp(path, &n);
        for (size_t i = 0; i < n; i += 7) {
            spit(path, bytes, i);
            expect_fallback(dir, files[f], i);
        }
        EXPECT(unlink(path) == 0);
        expect_fallback(dir, files[f], 0);
        spit(path, bytes, n);
        char *longer = malloc(n + 1);
        memcpy(longer, bytes, n);
        longer[n] = ' ';
        spit(path, longer, n + 1);
        expect_fallback(dir, files[f], n);
        spit(path, bytes, n);
    }
    EXPECT_INT(load(dir, SMALL, NULL), 2);
    /* Both damaged: nothing to go on with, and both are named. */
    EXPECT(truncate(in(dir, "step_00000001/model.safetensors"), 5) == 0);
    EXPECT(truncate(in(dir, "step_00000002/manifest.json"), 0) == 0);
    EXPECT_FAIL(load(dir, SMALL, NULL), EXIT_CHECKPOINT, "step_00000002: manifest.json");
    EXPECT_FAIL(load(dir, SMALL, NULL), EXIT_CHECKPOINT,
                "step_00000001: model.safetensors has 5 bytes");
}

/* It says nothing of what is in the file, so nobody goes back to the one before, here or when
 * checkpoints are counted to delete the oldest. */
TEST(a_file_that_may_not_be_read_is_not_damaged) {
    const char *dir = temp_dir();
    if (geteuid() != 0) test_skip("needs root to become somebody else");
    save_ok(dir, 1, SMALL, 0);
    save_ok(dir, 2, SMALL, 0);
    EXPECT(chdir(dir) == 0 && chmod(".", 0777) == 0);
    EXPECT(chmod("step_00000001", 0755) == 0 && chmod("step_00000002", 0755) == 0);
    for (int f = 0; f < 3; f++) {
        const char *file = in("step_00000002", files[f]);
        EXPECT(chmod(file, 0) == 0 && seteuid(65534) == 0);
        EXPECT_FAIL(load(".", SMALL, NULL), EXIT_CHECKPOINT,
                    in(".", arena_printf(arena_new(),
                                         "%s: Permission denied; it is not taken for "
                                         "damaged",
                                         file)));
        EXPECT(seteuid(0) == 0 && chmod(file, 0644) == 0);
    }
    EXPECT(chmod("step_00000002", 0700) == 0 && seteuid(65534) == 0);
    EXPECT_FAIL(load(".", SMALL, NULL), EXIT_CHECKPOINT,
                "manifest.json: Permission denied; it is not taken for damaged");
    save_ok(".", 3, SMALL, 2);
    EXPECT_STR(listing("."), "latest step_00000001 step_00000002 step_00000003 ");
    EXPECT(seteuid(0) == 0 && rename("step_00000003", "moved") == 0);
    EXPECT_INT(load(".", SMALL, NULL), 2);
}

/* None of these is a manifest, and no later look makes one of them. */
TEST(manifests_that_are_something_else) {
    const char *dir = temp_dir(), *path = in(dir, "step_00000002/manifest.json");
    save_ok(dir, 1, SMALL, 0);
    save_ok(dir, 2, SMALL, 0);
    EXPECT(unlink(path) == 0 && mkdir(path, 0755) == 0);
    expect_fallback(dir, "manifest.json: its own checksum differs", 0);
    EXPECT(rmdir(path) == 0 && symlink("manifest.json", path) == 0);
    expect_fallback(dir, "manifest.json: Too many levels of symbolic links", 0);
    EXPECT(unlink(path) == 0 && mkfifo(path, 0644) == 0);
    expect_fallback(dir, "manifest.json: its own checksum differs", 0);
    EXPECT(unlink(path) == 0 && symlink("latest/x", path) == 0);
    expect_fallback(dir, "manifest.json is missing", 0);
}

TEST(renamed_folder) {
    const char *dir = temp_dir();
    save_ok(dir, 1, SMALL, 0);
    EXPECT(rename(in(dir, "step_00000001"), in(dir, "step_00000003")) == 0);
    EXPECT_FAIL(load(dir, SMALL, NULL), EXIT_CHECKPOINT, "of another step");
    Model *m = model_new();
    int64_t step;
    EXPECT(rename(in(dir, "step_00000003"), in(dir, "best")) == 0);
    ckpt_load_dir(arena_new(), in(dir, "best"), m->t, SMALL, NULL, &step);
    EXPECT(step == 1 && model_is(m, 1, SMALL));
    EXPECT_FAIL(ckpt_load_dir(arena_new(), in(dir, "no"), m->t, SMALL, NULL, &step),
                EXIT_CHECKPOINT, "no cannot be used: manifest.json is missing");
}

TEST(another_model) {
    const char *dir = temp_dir();
    Arena *mem = arena_new();
    save_ok(dir, 1, SMALL, 0);
    Model *m = model_new();
    m->t[0].dim[1] = 4;
    EXPECT_FAIL(
        ckpt_load_latest(mem, dir, m->t, SMALL, NULL, NULL, NULL), EXIT_CHECKPOINT,
        "'wte.weight' is f32[2,3] in model.safetensors and f32[2,4] in the model");
    m = model_new();
    m->t[2].dtype = DT_F32;
    EXPECT_FAIL(ckpt_load_latest(mem, dir, m->t, SMALL, NULL, NULL, NULL),
                EXIT_CHECKPOINT,
                "'ln.bias' is bf16[3] in model.safetensors and f32[3] in the model");
    m = model_new();
    EXPECT_FAIL(ckpt_load_latest(mem, dir, m->t, ALL, NULL, NULL, NULL), EXIT_CHECKPOINT,
                "model.safetensors has no tensor 'large'");
    for (int i = 0; i < 6; i++) EXPECT(m->w[i] == 0);
    EXPECT_FAIL(ckpt_load_latest(mem, dir, m->t, 3, NULL, NULL, NULL), EXIT_CHECKPOINT,
                "optimizer.safetensors has a tensor 'count' (i64[])");
}

TEST(bad_arguments) {
    char why[256];
    Model *m = model_new();
    const char *dir = in(temp_dir(), "c");
    CkptSave what = {1, m->t, ALL, "{\"a\":NaN}"};
    EXPECT_INT(ckpt_save(dir, &what, why, sizeof why), EINVAL);
    EXPECT_PART(why, "state to save is not valid JSON");
    what.state_json = "[]";
    EXPECT_INT(ckpt_save(dir, &what, why, sizeof why), EINVAL);
    m->t[1].file = CKPT_MODEL;
    what.state_json = "{}";
    EXPECT_INT(ckpt_save(dir, &what, why, sizeof why), EINVAL);
    EXPECT_PART(why, "two tensors of one name");
    EXPECT(!file_exists(dir));
    spit(dir, "x", 1);
    EXPECT(save(dir, 1, ALL, 0, why) == ENOTDIR || save(dir, 1, ALL, 0, why) == EEXIST);
    EXPECT_PART(why, "cannot create ");
}

/* Full disks. */

static void expect_full(const char *dir, int error, const char *before) {
    char why[256];
    EXPECT_INT(save(dir, 3, ALL, 1, why), error);
    EXPECT_PART(why, strerror(error));
    EXPECT_PART(why, "/step_00000003.tmp/model.safetensors: ");
    EXPECT_STR(listing(dir), before);
    EXPECT_INT(load(dir, ALL, NULL), 2);
}

TEST(file_size_limit) {
    const char *dir = temp_dir();
    save_ok(dir, 1, ALL, 0);
    save_ok(dir, 2, ALL, 0);
    signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = {0, 100, 1000, 5000, 8000};
    for (int i = ARRAY_LEN(limits) - 1; i >= 0; i--) {
        struct rlimit limit = {limits[i], limits[i]};
        EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        expect_full(dir, EFBIG, "latest step_00000001 step_00000002 ");
    }
}

TEST(full_disk) {
    const char *dir = in(temp_dir(), "disk");
    EXPECT_INT(dir_make(dir), 0);
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
        test_skip("no right to mount a small file system (%s)", strerror(errno));
    save_ok(dir, 1, ALL, 0);
    save_ok(dir, 2, ALL, 0);
    /* 8 kB and less free, in steps of a page, so that it fills up at different places. */
    char page[4096] = {1};
    int fd = open(in(dir, "filler"), O_WRONLY | O_CREAT, 0644), pages = 0, refused = 0;
    for (; write(fd, page, sizeof page) == sizeof page; pages++) {
        char why[256];
        if (save(dir, 3, ALL, 0, why) == 0) {
            EXPECT_INT(load(dir, ALL, NULL), 3);
            continue;
        }
        EXPECT_PART(why, "No space left");
        EXPECT(!strstr(listing(dir), ".tmp"));
        EXPECT(load(dir, ALL, NULL) >= 2);
        refused++;
    }
    EXPECT(errno == ENOSPC && pages > 2 && refused > 2);
    close(fd);
    EXPECT_INT(umount(dir), 0);
}

/* Leftovers and kills. */

TEST(leftovers) {
    const char *dir = temp_dir();
    save_ok(dir, 1, SMALL, 0);
    EXPECT_INT(dir_make(in(dir, "step_00000002.tmp")), 0);
    EXPECT_INT(dir_make(in(dir, "step_00000002.old.tmp")), 0);
    spit(in(dir, "step_00000002.tmp/model.safetensors"), "half", 4);
    EXPECT_INT(load(dir, SMALL, NULL), 1);
    EXPECT_STR(listing(dir),
               "latest step_00000001 step_00000002.old.tmp step_00000002.tmp ");
    remove_leftovers(dir);
    EXPECT_STR(listing(dir), "latest step_00000001 ");
    /* One that a running save holds is left alone. */
    EXPECT_INT(dir_make(in(dir, "step_00000002.tmp")), 0);
    int fd = open(in(dir, "step_00000002.tmp"), O_RDONLY | O_DIRECTORY);
    EXPECT_INT(flock(fd, LOCK_EX), 0);
    remove_leftovers(dir);
    EXPECT_STR(listing(dir), "latest step_00000001 step_00000002.tmp ");
    char why[256];
    EXPECT_INT(save(dir, 2, SMALL, 0, why), EBUSY);
    close(fd);
    save_ok(dir, 2, SMALL, 0);
    EXPECT_STR(listing(dir), "latest step_00000001 step_00000002 ");
}

/* Such a disk has no locks, and who saves there has it for itself. */
TEST(leftovers_without_locks) {
    const char *dir = temp_dir();
    without_locks = true;
    for (int step = 1; step <= 3; step++) save_ok(dir, step, SMALL, 1);
    save_ok(dir, 3, SMALL, 1);
    EXPECT_STR(listing(dir), "latest step_00000003 ");
    EXPECT_INT(dir_make(in(dir, "step_00000004.tmp")), 0);
    EXPECT_INT(dir_make(in(dir, "step_00000005.tmp")), 0);
    save_ok(dir, 4, SMALL, 1);
    EXPECT_STR(listing(dir), "latest step_00000004 step_00000005.tmp ");
    remove_leftovers(dir);
    EXPECT_STR(listing(dir), "latest step_00000004 ");
    without_locks = false;
}

static int hits_left;

static void kill_here(const char *where) {
    (void)where;
    if (--hits_left == 0) kill(getpid(), SIGKILL);
}

static int went_back; /* kills of a save over step 3 that left no step 3 */

/* Kills a save of step 3 (over an older step 3 if `again`) at its nth named instant. */
static bool kill_at(const char *dir, int nth, bool again) {
    save_ok(dir, 1, ALL, 0);
    save_ok(dir, 2, ALL, 0);
    if (again) save_ok(dir, 3, ALL, 0);
    pid_t pid = fork();
    if (pid == 0) {
        char why[256];
        hits_left = nth;
        ckpt_failpoint = kill_here;
        _exit(save(dir, 3, ALL, 1, why) != 0);
    }
    int status;
    waitpid(pid, &status, 0);
    bool killed = WIFSIGNALED(status);
    EXPECT(killed || WEXITSTATUS(status) == 0);
    int64_t step = load(dir, ALL, NULL);
    EXPECT(step == 3 || (killed && (!again || without_exchange) && step == 2));
    went_back += again && step == 2;
    remove_leftovers(dir);
    EXPECT(!strstr(listing(dir), ".tmp ") || strstr(listing(dir), "latest.tmp "));
    save_ok(dir, 4, ALL, 1);
    EXPECT_STR(listing(dir), "latest step_00000004 ");
    EXPECT_INT(system(arena_printf(arena_new(), "rm -rf '%s'", dir)), 0);
    return killed;
}

TEST(killed_at_every_named_instant) {
    for (int again = 0; again < 3; again++) {
        int nth = 1;
        without_exchange = again == 2;
        exchange_error = EINVAL;
        while (kill_at(in(temp_dir(), "k"), nth, again)) nth++;
        EXPECT(nth > 10);
    }
    EXPECT_INT(went_back, 1);
}

TEST_LABEL_OF(killed_at_random, SLOW);
TEST_LIMIT(killed_at_random, 300) {
    const char *dir = in(temp_dir(), "k");
    volatile int64_t *saved =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(saved != MAP_FAILED);
    uint64_t random = 88172645463325252u;
    int64_t step = 0;
    int midway = 0;
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            for (int64_t next = step + 1;; next++) {
                save_ok(dir, next, ALL, 2);
                *saved = next;
            }
        }
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        usleep((useconds_t)(random % 40000));
        kill(pid, SIGKILL);
        int status;
        waitpid(pid, &status, 0);
        EXPECT(WIFSIGNALED(status));
        midway += file_exists(dir) && strstr(listing(dir), ".tmp") != NULL;
        Text log = text_new(arena_new());
        if (file_exists(dir)) remove_leftovers(dir);
        int64_t got = load(dir, ALL, &log);
        /* Never less than what had been reported as saved, and nothing looks damaged. */
        if (got == -1) got = 0;
        EXPECT(got >= *saved && got <= *saved + 1);
        EXPECT_STR(log.s, "");
        step = *saved = got;
    }
    EXPECT(step > 10 && midway > 10);
}
