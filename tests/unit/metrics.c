/* metrics.c - metrics.jsonl across resumes and full disks, and the terminal. */
#define _GNU_SOURCE
#include "runtime/run/metrics.h"
#include "../test.h"
#include "base/json.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static Arena *mem;

static MetricsRow row_of(int64_t step) {
    return (MetricsRow){.step = step,
                        .loss = 4.5 - 0.25 * (double)step,
                        .grad_norm = 1.3628,
                        .lr = 7.5e-4,
                        .tokens = 128,
                        .seconds = 0.5,
                        .tokens_per_second = 256,
                        .mfu = 0.612};
}

static char *new_path(const char *name) {
    mem = mem ? mem : arena_new();
    return path_join(mem, temp_dir(), name);
}

static void write_steps(const char *path, int64_t resumed, int64_t last) {
    Metrics *m = metrics_open(mem, path, 10, resumed, NULL);
    for (int64_t s = resumed + 1; s <= last; s++) {
        MetricsRow r = row_of(s);
        metrics_write(m, &r);
    }
    metrics_close(m);
}

static void expect_steps(const char *path, int want) {
    int n;
    MetricsRow *rows = metrics_read(mem, path, &n);
    EXPECT_INT(n, want);
    for (int i = 0; i < n; i++) {
        char got[512], wanted[512];
        metrics_format(&rows[i], got, sizeof got);
        MetricsRow r = row_of(i + 1);
        metrics_format(&r, wanted, sizeof wanted);
        EXPECT_STR(got, wanted);
    }
    size_t size;
    const char *text = file_read(mem, path, 1 << 20, &size, EXIT_DATA);
    int lines = 0;
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    EXPECT(lines == want && (!size || text[size - 1] == '\n'));
}

TEST(durations) {
    char s[32];
    EXPECT_STR(duration_format(0, s), "0:00:00");
    EXPECT_STR(duration_format(59.5, s), "0:01:00");
    EXPECT_STR(duration_format(83.2, s), "0:01:23");
    EXPECT_STR(duration_format(86399, s), "23:59:59");
    EXPECT_STR(duration_format(3 * 86400 + 4 * 3600 + 306, s), "3 d 04:05:06");
    EXPECT_STR(duration_format(-1, s), "?");
    EXPECT_STR(duration_format(NAN, s), "?");
    EXPECT_STR(duration_format(INFINITY, s), "?");
    EXPECT_STR(duration_format(1e300, s), "?");
}

TEST(line_format) {
    char line[512];
    MetricsRow r = row_of(12);
    r.loss = 4.689100196330612;
    EXPECT_INT(metrics_format(&r, line, sizeof line), (int)strlen(line));
    EXPECT_STR(line,
               "{\"step\":12,\"loss\":4.689100196,\"grad_norm\":1.3628,\"lr\":0.00075,"
               "\"tokens\":128,\"seconds\":0.5,\"tokens_per_second\":256,"
               "\"mfu\":0.612}\n");
    r.loss = NAN, r.grad_norm = -INFINITY, r.mfu = -1;
    metrics_format(&r, line, sizeof line);
    EXPECT_STR(line, "{\"step\":12,\"loss\":null,\"loss_is\":\"nan\",\"grad_norm\":null,"
                     "\"grad_norm_is\":\"-inf\",\"lr\":0.00075,\"tokens\":128,"
                     "\"seconds\":0.5,\"tokens_per_second\":256,\"mfu\":null}\n");
    r.skipped = true;
    metrics_format(&r, line, sizeof line);
    EXPECT_STR(line, "{\"step\":12,\"loss\":null,\"loss_is\":\"nan\",\"grad_norm\":null,"
                     "\"grad_norm_is\":\"-inf\",\"skipped\":true,\"lr\":0.00075,"
                     "\"tokens\":128,\"seconds\":0.5,\"tokens_per_second\":256,"
                     "\"mfu\":null}\n");
    MetricsRow scaled = row_of(3);
    scaled.loss = 2, scaled.loss_scale = 4294967296;
    metrics_format(&scaled, line, sizeof line);
    EXPECT_STR(line,
               "{\"step\":3,\"loss\":2,\"grad_norm\":1.3628,\"loss_scale\":4294967296,"
               "\"lr\":0.00075,\"tokens\":128,\"seconds\":0.5,"
               "\"tokens_per_second\":256,\"mfu\":0.612}\n");
    MetricsRow wide = {
        .step = INT64_MIN, .tokens = INT64_MIN, .mfu = 1.234567891234e-300};
    wide.loss = wide.grad_norm = wide.lr = wide.seconds = wide.tokens_per_second =
        -1.234567891234e-300;
    metrics_format(&wide, line, sizeof line);
    mem = arena_new();
    EXPECT_INT(json_parse(mem, "line", line, strlen(line), 1000, EXIT_DATA)->n, 8);
}

TEST(values_survive) {
    char *path = new_path("m.jsonl");
    double losses[] = {1e-7, 10.82490511970208, INFINITY, 1.23456789e-12, NAN};
    Metrics *m = metrics_open(mem, path, 5, 0, NULL);
    for (int i = 0; i < 5; i++) {
        MetricsRow r = row_of(i + 1);
        r.loss = losses[i], r.mfu = i == 1 ? -1 : 0.5;
        r.skipped = !isfinite(losses[i]);
        r.loss_scale = i == 3 ? 0 : 0x1p60 / (i + 1);
        metrics_write(m, &r);
    }
    metrics_close(m);
    int n;
    MetricsRow *rows = metrics_read(mem, path, &n);
    EXPECT(n == 5 && rows[1].mfu == -1 && isinf(rows[2].loss) && isnan(rows[4].loss));
    for (int i = 0; i < 5; i++) EXPECT(rows[i].skipped == (i == 2 || i == 4));
    for (int i = 0; i < 5; i++) {
        double want = i == 3 ? 0 : 0x1p60 / (i + 1);
        EXPECT(fabs(rows[i].loss_scale - want) <= 1e-9 * want);
    }
    for (int i = 0; i < 4; i++)
        EXPECT(i == 2 || fabs(rows[i].loss - losses[i]) <= 1e-9 * losses[i]);
}

TEST(resume_has_each_step_once) {
    char *path = new_path("m.jsonl");
    write_steps(path, 0, 7);
    expect_steps(path, 7);
    write_steps(path, 4, 9); /* back to the checkpoint of step 4 */
    expect_steps(path, 9);
    write_steps(path, 9, 10);
    expect_steps(path, 10);
    write_steps(path, 0, 2); /* a new run */
    expect_steps(path, 2);
}

/* Whatever instant a kill left behind: a resume mends it. */
TEST(resume_after_a_cut_at_any_byte) {
    char *path = new_path("m.jsonl");
    write_steps(path, 0, 3);
    size_t size;
    char *text = file_read(mem, path, 1 << 20, &size, EXIT_DATA);
    for (size_t n = 0; n <= size; n++) {
        EXPECT_INT(file_write_atomic(path, text, n), 0);
        int whole = 0;
        for (size_t i = 0; i < n; i++) whole += text[i] == '\n';
        write_steps(path, whole, whole);
        expect_steps(path, whole);
        EXPECT(!file_exists(arena_printf(mem, "%s.damaged-1", path)));
    }
}

/* The file as it was stays, and the run can say so. */
TEST(a_damaged_file_is_kept_aside) {
    char *path = new_path("m.jsonl");
    const char *aside[] = {arena_printf(mem, "%s.damaged-1", path),
                           arena_printf(mem, "%s.damaged-2", path)};
    write_steps(path, 0, 3);
    for (int i = 0; i < 2; i++) {
        size_t size, n;
        char *text = file_read(mem, path, 1 << 20, &size, EXIT_DATA);
        text[size - 5] = 1; /* within the last line */
        EXPECT_INT(file_write_atomic(path, text, size), 0);
        Metrics *m = metrics_open(mem, path, 9, 3 - i, NULL);
        EXPECT_PART(metrics_note(m), arena_printf(mem, "m.jsonl:%d: the line", 3 - i));
        EXPECT_PART(metrics_note(m), aside[i]);
        metrics_close(m);
        EXPECT(!memcmp(file_read(mem, aside[i], 1 << 20, &n, EXIT_DATA), text, size));
        EXPECT_INT(n, size);
        m = metrics_open(mem, path, 9, 2 - i, NULL);
        EXPECT_STR(metrics_note(m), "");
        metrics_close(m);
        expect_steps(path, 2 - i);
    }
}

TEST(resume_drops_broken_lines) {
    char *path = new_path("m.jsonl");
    write_steps(path, 0, 3);
    size_t size;
    char *text = file_read(mem, path, 1 << 20, &size, EXIT_DATA);
    char *second = strchr(text, '\n') + 1;
    Text t = text_new(mem);
    text_add_bytes(&t, text, (size_t)(second - text));
    text_add_bytes(&t, "\0\0\0\n{\"step\":2}\n{\"step\":-5,\"loss\":1}\n[]\n\n", 40);
    text_add_bytes(&t, text, (size_t)(second - text)); /* step 1 again */
    text_add_bytes(&t, second, size - (size_t)(second - text));
    EXPECT_INT(file_write_atomic(path, t.s, t.n), 0);
    write_steps(path, 3, 4);
    expect_steps(path, 4);
}

TEST(files_refused) {
    char *path = new_path("m.jsonl");
    EXPECT_INT(file_write_atomic(path, "dear diary\n", 11), 0);
    EXPECT_FAIL(metrics_open(mem, path, 1, 0, NULL), EXIT_DATA, "holds no metrics");
    char *link = new_path("link"), *missing = new_path("none/m.jsonl");
    EXPECT(symlink(new_path("target"), link) == 0);
    EXPECT_FAIL(metrics_open(mem, link, 1, 0, NULL), EXIT_DATA, "cannot write");
    EXPECT_FAIL(metrics_open(mem, missing, 1, 0, NULL), EXIT_DATA, "cannot write");
    EXPECT_FAIL(metrics_open(mem, temp_dir(), 1, 0, NULL), EXIT_DATA, "is a folder");
    int n;
    EXPECT_FAIL(metrics_read(mem, missing, &n), EXIT_DATA, "cannot open");
}

/* A year of quick steps is more than a GiB: here a line without its end is as long. */
TEST_LIMIT(a_file_of_more_than_a_gib, 120) {
    char *path = new_path("m.jsonl");
    write_steps(path, 0, 7);
    struct stat whole, st;
    EXPECT(stat(path, &whole) == 0);
    EXPECT(truncate(path, (off_t)5 << 30 >> 2) == 0);
    int n;
    metrics_read(mem, path, &n);
    EXPECT_INT(n, 7);
    write_steps(path, 7, 7);
    EXPECT(stat(path, &st) == 0 && st.st_size == whole.st_size);
    EXPECT(truncate(path, (off_t)5 << 30 >> 2) == 0);
    write_steps(path, 4, 9);
    expect_steps(path, 9);
}

static char *terminal_text(FILE *f) {
    fflush(f);
    char *text = arena_alloc(mem, 1 << 16);
    rewind(f);
    text[fread(text, 1, (1 << 16) - 1, f)] = 0;
    return text;
}

TEST(full_disk) {
    char *path = new_path("m.jsonl"), shown[4096];
    signal(SIGXFSZ, SIG_IGN);
    int ends[2];
    EXPECT(pipe(ends) == 0); /* a terminal that the limit does not reach */
    FILE *terminal = fdopen(ends[1], "w");
    Metrics *m = metrics_open(mem, path, 0, 0, terminal);
    MetricsRow r = row_of(1);
    metrics_write(m, &r);
    struct stat st, now;
    EXPECT(stat(path, &st) == 0);
    struct rlimit room = {(rlim_t)st.st_size + 20, RLIM_INFINITY}, all = room;
    all.rlim_cur = RLIM_INFINITY;
    EXPECT(setrlimit(RLIMIT_FSIZE, &room) == 0);
    for (int64_t step = 2; step < 5; step++) {
        r = row_of(step);
        metrics_write(m, &r);
        EXPECT(stat(path, &now) == 0 && now.st_size == st.st_size);
    }
    EXPECT(setrlimit(RLIMIT_FSIZE, &all) == 0);
    r = row_of(5);
    metrics_write(m, &r);
    metrics_close(m);
    fclose(terminal);
    ssize_t got = read(ends[0], shown, sizeof shown - 1);
    EXPECT(got > 0);
    shown[got] = 0;
    char *warning = strstr(shown, "warning: cannot write ");
    EXPECT(warning && strstr(warning, "training goes on"));
    EXPECT(!strstr(warning + 1, "warning: "));
    int n;
    MetricsRow *rows = metrics_read(mem, path, &n);
    EXPECT(n == 2 && rows[0].step == 1 && rows[1].step == 5);
}

TEST(plain_lines) {
    FILE *f = fopen(new_path("terminal"), "w+");
    Metrics *m = metrics_open(mem, NULL, 200, 11, f);
    MetricsRow r = row_of(12);
    r.loss = 4.689100196, r.tokens_per_second = 12345.4, r.seconds = 83.0 / 188;
    metrics_write(m, &r);
    r.step = 200, r.mfu = -1, r.loss = NAN;
    metrics_write(m, &r);
    metrics_say(m, "saved %d", 3);
    metrics_close(m);
    EXPECT_STR(terminal_text(f),
               "step 12/200 | loss 4.6891 | norm 1.363 | lr 7.50e-04 | 12345 tok/s | "
               "mfu 61.2 % | 0:01:23 left\n"
               "step 200/200 | loss nan | norm 1.363 | lr 7.50e-04 | 12345 tok/s | "
               "0:00:00 left\nsaved 3\n");
}

TEST(samples_have_a_unit_of_their_own) {
    FILE *f = fopen(new_path("terminal"), "w+");
    Metrics *m = metrics_open(mem, NULL, 2, 0, f);
    MetricsRow r = row_of(1);
    r.of_samples = true, r.tokens_per_second = 40;
    metrics_write(m, &r);
    metrics_close(m);
    EXPECT_PART(terminal_text(f), " | 40 samples/s | ");
}

/* What a terminal shows: \r goes back, ESC [ K clears to the end of the line. */
static char *screen(const char *bytes) {
    char *shown = arena_alloc(mem, strlen(bytes) + 1);
    size_t line = 0, at = 0;
    for (const char *p = bytes; *p; p++) {
        if (*p == '\r')
            at = line;
        else if (!strncmp(p, "\033[K", 3))
            shown[at] = 0, p += 2;
        else if (*p == '\n')
            at = strlen(shown), shown[at++] = '\n', shown[line = at] = 0;
        else {
            bool end = !shown[at];
            shown[at++] = *p;
            if (end) shown[at] = 0;
        }
    }
    return shown;
}

/* Reads what the terminal gets until it shows `want`; a second of silence fails. */
static void expect_screen(int master, const char *want) {
    static char bytes[1 << 14];
    static size_t n;
    struct pollfd wait = {.fd = master, .events = POLLIN};
    while (strcmp(screen(bytes), want)) {
        if (poll(&wait, 1, 1000) != 1) EXPECT_STR(screen(bytes), want);
        ssize_t got = read(master, bytes + n, sizeof bytes - 1 - n);
        EXPECT(got > 0);
        n += (size_t)got;
    }
}

TEST(bar_never_mixes_with_lines) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) || unlockpt(master))
        test_skip("no pseudo-terminal");
    FILE *f = fopen(ptsname(master), "w");
    EXPECT(f != NULL);
    mem = arena_new();
    Metrics *m = metrics_open(mem, NULL, 10, 0, f);
    Text lines = text_new(mem);
    for (int s = 1; s <= 5; s++) {
        MetricsRow r = row_of(s);
        metrics_write(m, &r);
        if (s == 3) metrics_say(m, "saved");
        text_add(&lines,
                 "step %d/10 | loss %.4f | norm 1.363 | lr 7.50e-04 | 256 tok/s | "
                 "mfu 61.2 %% | 0:00:0%d left\n%s",
                 s, 4.5 - 0.25 * s, (10 - s + 1) / 2, s == 3 ? "saved\n" : "");
        char bar[51];
        for (int i = 0; i < 50; i++) bar[i] = i < 5 * s ? '#' : '.';
        expect_screen(master, arena_printf(mem, "%s[%.50s] %3d %% of 10 steps, %d done",
                                           lines.s, bar, 10 * s, s));
    }
    metrics_close(m);
    expect_screen(master, lines.s);
}

/* A line is of its interval: the mean loss, the tokens over the seconds. */
TEST(lines_of_several_steps) {
    FILE *f = fopen(new_path("terminal"), "w+"), *log = fopen(new_path("log"), "w+");
    Metrics *m = metrics_open(mem, NULL, 5, 0, f);
    metrics_show(m, 2, log, -1);
    for (int s = 1; s <= 5; s++) {
        MetricsRow r = row_of(s);
        r.loss = s == 3 ? NAN : s;
        r.mfu = -1;
        r.tokens = 100;
        r.seconds = s == 1 ? 4 : 1;
        r.tokens_per_second = 100 / r.seconds;
        metrics_write(m, &r);
    }
    metrics_close(m);
    static const char want[] =
        "step 2/5 | loss 1.5000 | norm 1.363 | lr 7.50e-04 | 40 tok/s | "
        "0:00:12 left\n"
        "step 4/5 | loss 4.0000 | norm 1.363 | lr 7.50e-04 | 100 tok/s | "
        "0:00:04 left\n"
        "step 5/5 | loss 5.0000 | norm 1.363 | lr 7.50e-04 | 100 tok/s | "
        "0:00:00 left\n";
    EXPECT_STR(terminal_text(log), want);
    EXPECT_STR(terminal_text(f), want);
}

/* Steps without a line of their own move the bar; no bar where it is said that the
 * terminal is none. */
static void expect_bars(int columns, const char *const *bar) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) || unlockpt(master))
        test_skip("no pseudo-terminal");
    FILE *f = fopen(ptsname(master), "w");
    mem = arena_new();
    Metrics *m = metrics_open(mem, NULL, 10, 0, f);
    metrics_show(m, 1000, NULL, columns);
    for (int s = 1; s <= 3; s++) {
        MetricsRow r = row_of(s);
        metrics_write(m, &r);
        expect_screen(master, bar[s - 1]);
        usleep(60000);
    }
}

TEST(bar_moves_every_step) {
    static const char *const bar[] = {"[........]  10 % of 10 steps, 1 done",
                                      "[#.......]  20 % of 10 steps, 2 done",
                                      "[##......]  30 % of 10 steps, 3 done"};
    expect_bars(37, bar);
}

TEST(no_bar_where_no_terminal_is) {
    static const char *const none[] = {"", "", ""};
    expect_bars(0, none);
}
