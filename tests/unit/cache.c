/* cache.c - the object cache: what is kept, what is refused, what is removed. */
#define _GNU_SOURCE
#include "codegen/cache.h"
#include "../test.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[512];

static void use_folder(const char *name) {
    snprintf(folder, sizeof folder, "%s/%s", temp_dir(), name);
    setenv("STATOR_CACHE", folder, 1);
}

/* Everything the code says on stderr from here on goes to this file. */
static char said_path[512];
static void catch_stderr(void) {
    snprintf(said_path, sizeof said_path, "%s/said", temp_dir());
    EXPECT(freopen(said_path, "w+", stderr));
    setvbuf(stderr, NULL, _IONBF, 0);
}

static int times_said(Arena *a, const char *part) {
    char *text = file_read(a, said_path, 1 << 20, NULL, 1);
    int n = 0;
    for (char *p = text; (p = strstr(p, part)); p++) n++;
    return n;
}

static void key_of(const char *text, char key[CACHE_KEY_CHARS]) {
    cache_key(text, strlen(text), key);
}

static char *path_of(Arena *a, const char *key) {
    return arena_printf(a, "%s/%s.o", folder, key);
}

static void expect_object(const char *key, const void *want, size_t n) {
    Arena *a = arena_new();
    size_t got_n = 0;
    void *got = cache_get(a, key, &got_n);
    if (!want)
        EXPECT(!got);
    else
        EXPECT(got && got_n == n && memcmp(got, want, n) == 0);
    arena_free(a);
}

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    EXPECT(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

TEST(keeps_objects) {
    Arena *a = arena_new();
    char x[CACHE_KEY_CHARS], y[CACHE_KEY_CHARS];
    use_folder("deep/er/cache");
    key_of("first", x);
    key_of("second", y);
    EXPECT(strlen(x) == 32 && strcmp(x, y));
    expect_object(x, NULL, 0);
    cache_put(x, "abc\0def", 7);
    cache_put(y, "", 0);
    expect_object(x, "abc\0def", 7);
    expect_object(y, "", 0);
    cache_put(x, "other", 5);
    expect_object(x, "other", 5);
    struct stat st;
    EXPECT(stat(folder, &st) == 0 && (st.st_mode & 0777) == 0700);
    EXPECT(stat(path_of(a, x), &st) == 0 && (st.st_mode & 0777) == 0600);
    arena_free(a);
}

/* Every byte of a file changed, and every length of it: a miss, a word, a removed file.
 */
TEST(damage_is_a_miss) {
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS], object[40];
    use_folder("c");
    catch_stderr();
    key_of("k", key);
    for (int i = 0; i < 40; i++) object[i] = (char)(i * 7);
    cache_put(key, object, sizeof object);
    size_t n;
    char *path = path_of(a, key), *whole = file_read(a, path, 1 << 20, &n, 1);
    EXPECT_INT(n, 80 + sizeof object);
    for (size_t i = 0; i < n; i++) {
        whole[i] ^= 0x10;
        write_file(path, whole, n);
        whole[i] ^= 0x10;
        expect_object(key, NULL, 0);
        EXPECT(!file_exists(path));
    }
    for (size_t i = 0; i < n; i++) {
        write_file(path, whole, i);
        expect_object(key, NULL, 0);
        EXPECT(!file_exists(path));
    }
    EXPECT_INT(times_said(a, "compiling again"), (int)(2 * n));
    write_file(path, whole, n);
    expect_object(key, object, sizeof object);
    EXPECT_INT(times_said(a, "warning"), (int)(2 * n));
    arena_free(a);
}

TEST(lying_size_is_a_miss) {
    static const uint64_t sizes[] = {0,
                                     1,
                                     INT32_MAX,
                                     (uint64_t)1 << 31,
                                     (uint64_t)1 << 32,
                                     INT64_MAX,
                                     (uint64_t)1 << 63,
                                     UINT64_MAX};
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS];
    use_folder("c");
    catch_stderr();
    key_of("k", key);
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        size_t n;
        cache_put(key, "0123456789", 10);
        char *path = path_of(a, key), *whole = file_read(a, path, 1 << 20, &n, 1);
        memcpy(whole + 8, &sizes[i], 8);
        write_file(path, whole, n);
        expect_object(key, NULL, 0);
    }
    arena_free(a);
}

TEST(other_things_in_place_of_a_file) {
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS];
    use_folder("c");
    catch_stderr();
    key_of("k", key);
    cache_put(key, "good", 4);
    char *path = path_of(a, key), *aside = arena_printf(a, "%s/aside", temp_dir());
    EXPECT(rename(path, aside) == 0 && symlink(aside, path) == 0);
    expect_object(key, NULL, 0); /* a link is not followed */
    EXPECT(mkfifo(path, 0600) == 0);
    expect_object(key, NULL, 0); /* and a pipe does not block */
    EXPECT(!file_exists(path) && file_exists(aside));
    cache_put(key, "good", 4);
    expect_object(key, "good", 4);
    arena_free(a);
}

/* Whole, sealed and the user's own, but of other code: it would run and give other
 * numbers. */
TEST(the_object_of_another_key_is_a_miss) {
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS], other[CACHE_KEY_CHARS];
    use_folder("c");
    catch_stderr();
    key_of("k", key);
    key_of("other", other);
    cache_put(key, "good", 4);
    EXPECT(link(path_of(a, key), path_of(a, other)) == 0);
    expect_object(other, NULL, 0);
    EXPECT_INT(times_said(a, "it is the object of another key; compiling again"), 1);
    EXPECT(!file_exists(path_of(a, other)));
    expect_object(key, "good", 4);
    arena_free(a);
}

TEST(a_file_that_others_may_write_is_a_miss) {
    static const mode_t unsafe[] = {0620, 0602, 0666};
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS];
    use_folder("c");
    catch_stderr();
    key_of("k", key);
    for (int i = 0; i < ARRAY_LEN(unsafe); i++) {
        cache_put(key, "good", 4);
        EXPECT(chmod(path_of(a, key), unsafe[i]) == 0);
        expect_object(key, NULL, 0);
        EXPECT(!file_exists(path_of(a, key)));
    }
    EXPECT_INT(times_said(a, "others may write to it; compiling again"), 3);
    cache_put(key, "good", 4);
    EXPECT(chmod(path_of(a, key), 0644) == 0);
    expect_object(key, "good", 4);
    arena_free(a);
}

/* Processes of two containers may have one pid and write at once: what is half written
 * under any name that a pid gives stays as it is. */
TEST(temporary_files_of_others_stay) {
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS];
    use_folder("c");
    key_of("k", key);
    cache_put(key, "first", 5);
    for (int i = 0; i < 100; i++)
        write_file(arena_printf(a, "%s/tmp-%ld-%d", folder, (long)getpid(), i), "half",
                   4);
    cache_put(key, "good", 4);
    expect_object(key, "good", 4);
    for (int i = 0; i < 100; i++)
        EXPECT(file_exists(arena_printf(a, "%s/tmp-%ld-%d", folder, (long)getpid(), i)));
    arena_free(a);
}

TEST(unsafe_or_missing_folder_warns_once) {
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS];
    use_folder("c");
    catch_stderr();
    key_of("k", key);
    cache_put(key, "good", 4);
    EXPECT(chmod(folder, 0777) == 0);
    for (int i = 0; i < 3; i++) {
        expect_object(key, NULL, 0);
        cache_put(key, "evil", 4);
    }
    EXPECT_INT(times_said(a, "others may write to it"), 1);
    EXPECT(chmod(folder, 0700) == 0);
    expect_object(key, "good", 4);
    char *file = arena_printf(a, "%s/file", temp_dir());
    write_file(file, "", 0);
    setenv("STATOR_CACHE", arena_printf(a, "%s/below", file), 1);
    cache_put(key, "x", 1);
    expect_object(key, NULL, 0);
    setenv("STATOR_CACHE", "/proc/stator", 1);
    cache_put(key, "x", 1);
    expect_object(key, NULL, 0);
    EXPECT_INT(times_said(a, "warning"), 1);
    arena_free(a);
}

TEST(another_users_folder) {
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS];
    if (geteuid() != 0) test_skip("needs root to give a folder away");
    use_folder("c");
    catch_stderr();
    key_of("k", key);
    cache_put(key, "x", 1);
    EXPECT_INT(chown(folder, 65534, 65534), 0);
    expect_object(key, NULL, 0);
    EXPECT_INT(times_said(a, "belongs to another user"), 1);
    arena_free(a);
}

TEST(which_folder) {
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS];
    const char *base = temp_dir();
    key_of("k", key);
    unsetenv("STATOR_CACHE");
    setenv("HOME", arena_printf(a, "%s/home", base), 1);
    setenv("XDG_CACHE_HOME", arena_printf(a, "%s/xdg", base), 1);
    cache_put(key, "x", 1);
    EXPECT(file_exists(arena_printf(a, "%s/xdg/stator/%s.o", base, key)));
    setenv("XDG_CACHE_HOME", "relative", 1); /* the standard: ignore it */
    cache_put(key, "x", 1);
    EXPECT(file_exists(arena_printf(a, "%s/home/.cache/stator/%s.o", base, key)));
    setenv("STATOR_CACHE", "off", 1);
    catch_stderr();
    expect_object(key, NULL, 0);
    cache_put(key, "x", 1);
    EXPECT(times_said(a, "warning") == 0 && !file_exists("off"));
    arena_free(a);
}

static void set_used(const char *path, time_t second) {
    struct timespec at[2] = {{.tv_sec = second}, {.tv_sec = second}};
    EXPECT(utimensat(AT_FDCWD, path, at, 0) == 0);
}

/* A file that is as large, but not on the disk, and last used at that second. */
static void write_large(Arena *a, const char *text, off_t bytes, time_t used) {
    char key[CACHE_KEY_CHARS];
    key_of(text, key);
    write_file(path_of(a, key), "", 0);
    EXPECT(truncate(path_of(a, key), bytes) == 0);
    set_used(path_of(a, key), used);
}

static bool is_there(Arena *a, const char *text) {
    char key[CACHE_KEY_CHARS];
    key_of(text, key);
    return file_exists(path_of(a, key));
}

TEST(trims_the_longest_unused) {
    enum { FILES = 5 };
    static const char *const large[FILES] = {"1", "2", "3", "4", "5"};
    Arena *a = arena_new();
    char used[CACHE_KEY_CHARS], added[CACHE_KEY_CHARS], object[1000] = "";
    use_folder("c");
    key_of("used", used);
    key_of("added", added);
    if (fork() == 0) { /* the first object of this process is to be another */
        cache_put(used, object, sizeof object);
        _exit(0);
    }
    wait(NULL);
    char *mine = arena_printf(a, "%s/notes.txt", folder);
    char *stale = arena_printf(a, "%s/tmp-1-1", folder);
    write_file(mine, object, sizeof object);
    write_file(stale, object, sizeof object);
    set_used(mine, 1000);
    set_used(stale, 1000);
    set_used(path_of(a, used), 1000);
    expect_object(used, object, sizeof object); /* the newest now */
    for (int i = 0; i < FILES; i++)
        write_large(a, large[i], CACHE_LIMIT_BYTES / 4, 1001 + i);
    cache_put(added, object, sizeof object);
    for (int i = 0; i < FILES; i++) EXPECT(is_there(a, large[i]) == (i >= 2));
    EXPECT(is_there(a, "used") && is_there(a, "added"));
    EXPECT(file_exists(mine) && !file_exists(stale));
    arena_free(a);
}

/* The first object that is added makes room, and so does one that comes when what was free may
 * be full: after an eighth of it. */
TEST(looks_for_room_at_times) {
    enum { OBJECT = 1 << 20, SHARES = 8 };
    const off_t limit = CACHE_LIMIT_BYTES, free_bytes = limit / SHARES;
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS], *object = arena_alloc(a, OBJECT);
    use_folder("c");
    EXPECT(mkdir(folder, 0700) == 0);
    key_of("k", key);
    write_large(a, "oldest", limit, 1000);
    write_large(a, "others", limit - free_bytes - 2 * OBJECT, 2000);
    cache_put(key, object, OBJECT);
    EXPECT(!is_there(a, "oldest") && is_there(a, "others") && is_there(a, "k"));
    write_large(a, "oldest", limit, 1000);
    int puts = 0;
    for (; is_there(a, "oldest") && puts < 100; puts++) cache_put(key, object, OBJECT);
    EXPECT(puts > 1 && puts <= free_bytes / SHARES / OBJECT + 2);
    EXPECT(is_there(a, "others") && is_there(a, "k"));
    arena_free(a);
}

/* Several processes write and read one key; a reader sees one whole object or none. */
TEST_LABEL_OF(writers_at_once, RELEASED);
TEST(writers_at_once) {
    enum { WRITERS = 4, ROUNDS = 200, BYTES = 30000 };
    Arena *a = arena_new();
    char key[CACHE_KEY_CHARS];
    static char object[BYTES];
    use_folder("c");
    catch_stderr();
    key_of("k", key);
    cache_put(key, object, BYTES);
    for (int w = 0; w < WRITERS; w++)
        if (fork() == 0) {
            for (int i = 0; i < ROUNDS; i++) {
                memset(object, w * 50 + i % 50, BYTES);
                cache_put(key, object, BYTES);
            }
            _exit(0);
        }
    for (int running = WRITERS; running;) {
        size_t n = 0;
        char *got = cache_get(a, key, &n);
        EXPECT(got && n == BYTES);
        for (int i = 1; i < BYTES; i++) EXPECT_INT(got[i], got[0]);
        int status;
        while (waitpid(-1, &status, WNOHANG) > 0) {
            EXPECT_INT(status, 0);
            running--;
        }
    }
    EXPECT_INT(times_said(a, "warning"), 0);
    int files = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) files += e->d_name[0] != '.';
    closedir(d);
    EXPECT_INT(files, 1);
    arena_free(a);
}
