/* base.h - what every part uses: arenas, strings, growable arrays, checked arithmetic,
 * and the two kinds of failure (the user's and ours). */
#ifndef STATOR_BASE_H
#define STATOR_BASE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define ARRAY_LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define MIN(a, b)    ((a) < (b) ? (a) : (b))
#define MAX(a, b)    ((a) > (b) ? (a) : (b))

/* Memory by lifetime: everything in an arena is freed at once. Memory comes zeroed and
 * 16-byte aligned, the first piece of each block 64-byte aligned. Never returns NULL. */
typedef struct Arena Arena;
Arena *arena_new(void);
/* The same, for a function that frees it before it returns: a failure that unwinds through the
 * function frees it too. */
Arena *arena_scratch(void);
void *arena_alloc(Arena *a, size_t bytes);
/* Not zeroed: for what is written at once. */
void *arena_room(Arena *a, size_t bytes);
void arena_free(Arena *a);
char *arena_strdup(Arena *a, const char *s);
char *arena_strndup(Arena *a, const char *s, size_t n);
char *arena_printf(Arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(Arena *a, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));
/* "prefixN", n >= 0: a name that is made often. */
char *arena_numbered(Arena *a, const char *prefix, int n);
#define NEW(arena, T)          ((T *)arena_alloc((arena), sizeof(T)))
#define NEW_ARRAY(arena, T, n) ((T *)arena_alloc((arena), array_bytes((n), sizeof(T))))
size_t array_bytes(size_t n, size_t size); /* n * size, dies on overflow */

/* Growable array in an arena: `T *items; int n, cap;` side by side.
 * PUSH(arena, s->items, s->n, s->cap, value) */
void *array_grow(Arena *a, void *items, int n, int *cap, size_t size);
#define PUSH(arena, items, n, cap, value)                                                \
    ((items) = (n) < (cap)                                                               \
                   ? (items)                                                             \
                   : array_grow((arena), (items), (n), &(cap), sizeof(*(items))),        \
     (items)[(n)++] = (value))

/* Growable text. The bytes live in the arena; `s` is always terminated. */
typedef struct Text {
    Arena *mem;
    char *s;
    size_t n, cap;
} Text;
Text text_new(Arena *mem);
void text_add(Text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A word of a line for a shell, with quotes where it needs them. */
void text_add_word(Text *t, const char *word);
void text_add_bytes(Text *t, const void *p, size_t n);
/* To stdout, at once. Fails with EXIT_DATA. */
void text_print(const Text *t);
/* Numbers, with `between` between them. */
void text_add_ints(Text *t, const char *between, const int64_t *v, int n);

/* Checked arithmetic for sizes that come from input. False on overflow. */
static inline bool mul_size(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool add_size(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

/* The same of numbers that are not negative: the largest there is on overflow. */
static inline int64_t times_capped(int64_t a, int64_t b) {
    int64_t out;
    return __builtin_mul_overflow(a, b, &out) ? INT64_MAX : out;
}
static inline int64_t plus_capped(int64_t a, int64_t b) {
    int64_t out;
    return __builtin_add_overflow(a, b, &out) ? INT64_MAX : out;
}

static inline int64_t divided_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
/* The greatest number that divides both; a + b > 0. */
static inline int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The product of n sizes, 1 of none. */
static inline int64_t sizes_product(const int64_t *size, int n) {
    int64_t product = 1;
    for (int i = 0; i < n; i++) product *= size[i];
    return product;
}

/* n rounded up to a multiple of `to`; both are at least 0 and far from overflow. */
static inline int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}
/* Buffers start aligned for vectors and cache lines. */
enum { BUFFER_ALIGN_BYTES = 64 };
static inline int64_t align_up(int64_t bytes) {
    return round_up(bytes, BUFFER_ALIGN_BYTES);
}

/* What spaces and line ends of a text are. */
static inline bool is_blank_char(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
/* The next line of [*at, end) without its '\n', *n bytes; NULL: there is none left. */
const char *line_next(const char **at, const char *end, size_t *n);
/* What stands before the i-th of n names in "a, b or c". */
static inline const char *choice_joint(int i, int n) {
    return !i ? "" : i < n - 1 ? ", " : " or ";
}

/* Is `start` all of s, or what it begins with? */
static inline bool begins_with(const char *s, const char *start) {
    return !strncmp(s, start, strlen(start));
}
/* Is `end` all of s, or what it ends with? */
bool ends_with(const char *s, const char *end);
bool is_yaml_name(const char *path); /* it ends with .yaml or .yml */
/* Does s match the pattern [p, end), in which `*` stands for any letters? */
bool text_matches(const char *s, const char *p, const char *end);
/* Equal? Most names in a table differ in the first letter, which saves the call. */
static inline bool text_equal(const char *a, const char *b) {
    return *a == *b && !strcmp(a, b);
}

/* A number for people, three digits and a prefix of 1000s: "123", "4.56 k", "78.9 MB".
 * The one form for counts (unit "") and bytes; printf("%s", human(n, "B").s). */
typedef struct Human {
    char s[32];
} Human;
Human human(double v, const char *unit);

/* The user's failures: a message that says what to do, and a documented exit code. */
enum { EXIT_CONFIG = 2, EXIT_DATA = 3, EXIT_CHECKPOINT = 4, EXIT_MEMORY = 5 };
enum { EXIT_HUNG = 6 };       /* a rank could not go on, and the others were ended */
enum { EXIT_NETWORK = 7 };    /* a message between ranks failed, or a host is gone */
enum { EXIT_INTERNAL = 134 }; /* a bug of stator; abort() gives the same, 128 + SIGABRT */
extern const char *program_name; /* "stator": failures without a place begin with it */

/* A position in an input text. `text` is the whole source (for the quoted line) or NULL;
 * line and col count from 1; line 0 means the file as a whole, col 0 the first word of the
 * line. */
typedef struct SourcePos {
    const char *file;
    const char *text;
    int line, col;
    int before; /* lines of the file before `text` */
    int alias;  /* line that repeats by name what stands here; 0: none */
} SourcePos;

/* Ends the command with `code` (or unwinds to the innermost Catch). fail_at prints
 * file:line:col, the line with a caret, and `hint` (may be NULL):
 * what to write instead. */
_Noreturn void fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same of one of the values that a function got: `what` is its name there, for a Catch. */
_Noreturn void fail_about(const char *what, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void fail_at(int code, SourcePos at, const char *hint, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Replaces what a terminal would obey instead of show by '?', since names come from
 * files. Returns text. The lines of a message behind its first one are indented, so a name
 * with a line end in it cannot begin what looks like another message; fail and fail_at make
 * their messages printable in this way. */
typedef enum LinesKept { LINES_NONE, LINES_INDENTED, LINES_ALL } LinesKept;
char *make_printable(char *text, LinesKept lines);

/* A line on stderr that is no failure, printable. */
void say_aside(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Fails again with a failure that was caught; `message` is the whole of it. */
_Noreturn void fail_again(int code, const char *message);

/* Our failures: prints file:line of the source and aborts. Never unwinds. */
_Noreturn void die_at(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define die(...) die_at(__FILE__, __LINE__, __VA_ARGS__)
#define check(cond)                                                                      \
    do {                                                                                 \
        if (!(cond)) die("check failed: %s", #cond);                                     \
    } while (0)

/* Catching a user failure, for callers that can go on (and for tests and fuzzers):
 *     Catch c;
 *     if (CATCH(c)) { parse(...); catch_end(&c); } else { use c.code, c.message }
 * Only memory of arenas may be held across a failure. One chain per thread. */
typedef struct Catch {
    jmp_buf jump;
    int code;
    char message[8192];
    SourcePos at;      /* set by fail_at; zeros after fail */
    const char *about; /* set by fail_about; else NULL */
    struct Catch *outer;
    Arena *scratch; /* to be freed by a failure */
} Catch;
/* What it says inside of another message: without "stator: error: ". */
const char *catch_text(const Catch *c);
void catch_begin(Catch *c);
void catch_end(Catch *c);
#define CATCH(c) (catch_begin(&(c)), setjmp((c).jump) == 0)

/* Fails again with what was caught, and what that is about. */
_Noreturn void catch_again(const Catch *c);
/* Fails again, at this place if the failure named none of its own. */
_Noreturn void catch_fail_at(const Catch *c, SourcePos at);

/* Called once before the process ends by fail() or die(); the runtime of several ranks
 * hooks in here to end the others. */
extern void (*exit_hook)(int code);
/* Called before exit_hook with the whole message. True: it has delivered the message to
 * where the user reads it, so it is not printed. */
extern bool (*failure_hook)(int code, const char *message);

/* Which of the n names s is equal to, -1: none; and whether it is one. */
int name_index(const char *s, const char *const *names, int n);
bool is_one_of(const char *s, const char *const *names, int n);
/* The name in names[n] nearest to `s` by edit distance, or NULL if none is near. */
const char *nearest_name(const char *s, const char *const *names, int n);

enum { LINES_FILE_MAX_BYTES = 1 << 30 }; /* a cap for files of lines */
/* Whole file into the arena, terminated by a zero byte that size does not count.
 * Fails with `code` when it cannot be read, is no regular file (a pipe would wait without
 * end) or is larger than max_bytes. */
char *file_read(Arena *a, const char *path, uint64_t max_bytes, size_t *size, int code);
/* The same of anything that can be read to an end: a pipe, /dev/stdin. */
char *file_read_to_end(Arena *a, const char *path, uint64_t max_bytes, size_t *size,
                       int code);
/* Writes all n bytes; returns 0 or an errno value. */
int fd_write(int fd, const void *bytes, size_t n);
/* Room for n bytes, so that a full disk is found before anything is written; where the file
 * system cannot reserve, writing finds it. Returns 0 or an errno value. */
int fd_reserve(int fd, uint64_t n);
/* Syncs the open folder. Returns 0, also where the file system allows no such sync, or errno. */
int dir_sync(int fd);
/* Syncs the folder that what is at the path lies in, so that a power cut does not take its name.
 * Returns 0, also where file system or rights allow no such sync, or an errno value. */
int dir_sync_of(const char *path);

/* A file that is written under the name `tmp`, in the same folder, until it is whole. The names must
 * stay. All return 0 or an errno value; but for a failed aside_open, `tmp` is gone after an error. */
typedef struct Aside {
    const char *path, *tmp;
    int fd;
} Aside;
int aside_open(Aside *a, const char *path, const char *tmp);
/* Syncs and closes it; `error` is that of writing it, or 0. */
int aside_close(Aside *a, int error);
/* Gives it its name, in place of an older file, and syncs the folder. */
int aside_publish(const Aside *a);

/* Writes path.tmp, syncs it, renames it to path, syncs the folder. Returns 0 or an errno value; on an
 * error nothing is left behind and an older file of that name stays as it was, unless it was the sync
 * of the folder that failed. */
int file_write_atomic(const char *path, const void *bytes, size_t n);
/* The same; fails with `code` on an error. */
void file_write(const char *path, const void *bytes, size_t n, int code);
/* The same of n files that belong together, at least one: all are written aside before the first takes
 * its place. Fails with `code` and leaves nothing aside. */
typedef struct FileBytes {
    const char *path;
    const void *bytes;
    size_t n;
} FileBytes;
void files_write(const FileBytes *file, int n, int code);
/* To be called before long work whose result file_write will write: fails with EXIT_DATA where the
 * folder is missing or cannot be written to, or the path is a folder. */
void file_check_written(const char *path);
/* Adds all n bytes at the end of the file, which is made if it is not there, and syncs it.
 * Returns 0 or an errno value; on an error the file is as long as it was. */
int file_append(const char *path, const void *bytes, size_t n);
bool file_exists(const char *path);
bool folder_has(Arena *a, const char *folder, const char *file);
/* Where what is at the path may be kept beside it: the first of "path.why-1", -2, ... that is not
 * there. Fails with `code` where 9,999 are. */
char *file_aside(Arena *a, const char *path, const char *why, int code);
bool dir_exists(const char *path);
/* mkdir -p. Returns 0 or an errno value. */
int dir_make(const char *path);
char *path_join(Arena *a, const char *dir, const char *name);
/* The folder that what is at the path lies in; "." where the path names none. */
const char *path_folder(Arena *a, const char *path);
const char *path_name(const char *path); /* what is behind its last '/' */
/* Is what fd has open still at the path, and not another file? */
bool fd_is_at(int fd, const char *path);
/* The letter of /proc/PID/stat: T for one that a signal has stopped, ? where it cannot be read; 0:
 * it is gone. */
char process_state(int pid, int *parent);

double clock_seconds(void);               /* monotonic */
void sort_doubles(double *x, size_t n);   /* ascending */
uint64_t hash64(const void *p, size_t n); /* XXH3 */
/* XXH3-128 as 32 hex digits and a zero. */
enum { HASH_HEX_BYTES = 33 };
void hash_hex(const void *p, size_t n, char out[HASH_HEX_BYTES]);

#endif
