/* data_text.c - text: a file, a folder of files, or the embedded corpus, as bytes or as the
 * tokens of a tokenizer. */
#define _GNU_SOURCE
#include "runtime/data/data_reader.h"
#include "runtime/data/prepared.h"
#include "runtime/data/text_tokens.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* A folder is read into memory as one piece. */
#define FOLDER_BYTES_MAX ((uint64_t)4 << 30)

enum { FOLDER_FILES_MAX = 1 << 20, PATH_BYTES_MAX = 4096 };

typedef struct TextPart {
    const char *path;
    uint64_t begin, n;
} TextPart;

typedef struct TextSource {
    FileMap map;
    const unsigned char *bytes;
    TextPart *parts;
    int n_parts, cap_parts;
    bool folder;
    const int32_t *tokens; /* NULL: bytes are tokens */
    FileMap held;          /* the tokens' cache */
    int64_t first;         /* byte or token of the split */
} TextSource;

/* The first bytes of a file; how many there are, 0 also where it cannot be read. */
static size_t file_head(const char *path, unsigned char head[8]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return 0;
    ssize_t n = read(fd, head, 8);
    close(fd);
    return n > 0 ? (size_t)n : 0;
}

/* Caches of tokens may lie between the texts that they were made from. */
static bool is_cache(const char *path) {
    unsigned char head[8];
    return prepared_begins(head, file_head(path, head));
}

/* Adds the files of one folder to the parts, its folders to the list of what to visit. */
static void folder_list(Arena *mem, TextSource *t, const char *folder,
                        const char ***folders, int *n, int *cap) {
    DIR *dir = opendir(folder);
    if (!dir) fail(EXIT_DATA, "cannot open folder %s: %s", folder, strerror(errno));
    const char *wrong = NULL;
    for (struct dirent *e; !wrong && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *path = path_join(mem, folder, e->d_name);
        struct stat st;
        if (strlen(path) >= PATH_BYTES_MAX)
            wrong = "a path is too long";
        else if (t->n_parts + *n >= FOLDER_FILES_MAX)
            wrong = "there are too many files";
        else if (lstat(path, &st) != 0)
            wrong = "it changed while it was read";
        else if (S_ISDIR(st.st_mode))
            PUSH(mem, *folders, *n, *cap, path);
        else if (S_ISREG(st.st_mode) && !is_cache(path))
            PUSH(mem, t->parts, t->n_parts, t->cap_parts,
                 ((TextPart){path, 0, (uint64_t)st.st_size}));
    }
    closedir(dir);
    if (wrong) fail(EXIT_DATA, "folder %s: %s", folder, wrong);
}

static int part_order(const void *a, const void *b) {
    return strcmp(((const TextPart *)a)->path, ((const TextPart *)b)->path);
}

static void part_read(const TextPart *part, unsigned char *out) {
    int fd = open(part->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) fail(EXIT_DATA, "cannot open %s: %s", part->path, strerror(errno));
    uint64_t have = 0;
    while (have < part->n) {
        ssize_t got = read(fd, out + have, part->n - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        have += (uint64_t)got;
    }
    close(fd);
    if (have != part->n)
        fail(EXIT_DATA, "%s: read %llu of %llu bytes", part->path,
             (unsigned long long)have, (unsigned long long)part->n);
}

static void folder_read(Arena *mem, Data *d, TextSource *t) {
    const char **folders = NULL;
    int n = 0, cap = 0;
    PUSH(mem, folders, n, cap, d->path);
    while (n) {
        const char *folder = folders[--n];
        folder_list(mem, t, folder, &folders, &n, &cap);
    }
    if (t->n_parts) qsort(t->parts, (size_t)t->n_parts, sizeof(TextPart), part_order);
    uint64_t total = 0;
    for (int i = 0; i < t->n_parts; i++) {
        t->parts[i].begin = total;
        if (!add_size(total, t->parts[i].n, &total) || total > FOLDER_BYTES_MAX)
            fail(EXIT_DATA,
                 "folder %s has more than %llu bytes of text; make one file of it, or a "
                 ".bin/.idx pair with 'stator preprocess'",
                 d->path, (unsigned long long)FOLDER_BYTES_MAX);
    }
    unsigned char *bytes = arena_alloc(mem, total);
    for (int i = 0; i < t->n_parts; i++)
        part_read(&t->parts[i], bytes + t->parts[i].begin);
    t->bytes = bytes;
    d->tokens = (int64_t)total;
}

#define PAIRS                                                                            \
    "a .bin/.idx pair is read with --train_dataset.data_loader.type MegatronIndexed or " \
    "GPTDataset"

bool data_is_pair(Arena *mem, const char *path) {
    return !file_exists(path) && file_exists(arena_printf(mem, "%s.idx", path));
}

static void hint_at_pair(Arena *mem, const char *path) {
    if (data_is_pair(mem, path))
        fail(EXIT_DATA, "there is no text %s, but there is %s.idx: " PAIRS, path, path);
}

/* No text has zero bytes, at least not at its beginning. */
static void note_zero_bytes(Data *d, const TextPart *part, const unsigned char *bytes) {
    enum { LOOKED_AT_BYTES = 1 << 20 };
    const unsigned char *zero =
        part->n ? memchr(bytes, 0, MIN(part->n, LOOKED_AT_BYTES)) : NULL;
    if (zero && !d->note[0])
        snprintf(
            d->note, sizeof d->note,
            "%.200s has a zero byte at offset %llu, so it may be no text, and is read "
            "as one; " PAIRS,
            part->path, (unsigned long long)(zero - bytes));
}

static void read_in(Arena *mem, Data *d, TextSource *t) {
    if (!strcmp(d->path, "embedded")) {
        t->bytes = embedded_corpus;
        d->tokens = (int64_t)embedded_corpus_bytes;
    } else if (dir_exists(d->path)) {
        t->folder = true;
        folder_read(mem, d, t);
        return;
    } else {
        hint_at_pair(mem, d->path);
        file_map(&t->map, d->path);
        t->bytes = t->map.bytes;
        d->tokens = (int64_t)t->map.n;
    }
    PUSH(mem, t->parts, t->n_parts, t->cap_parts,
         ((TextPart){d->path, 0, (uint64_t)d->tokens}));
}

static void text_read_in(Arena *mem, Data *d, TextSource *t) {
    read_in(mem, d, t);
    for (int i = 0; i < t->n_parts; i++) {
        const TextPart *part = &t->parts[i];
        text_refuse_packed(part->path, t->bytes + part->begin, part->n);
        note_zero_bytes(d, part, t->bytes + part->begin);
    }
}

/* The texts of files that have bytes, as tokens. */
static void tokenize(Arena *mem, Data *d, TextSource *t) {
    TextEnd *text = NEW_ARRAY(mem, TextEnd, (size_t)t->n_parts + 1);
    int n = 0;
    for (int i = 0; i < t->n_parts; i++)
        if (t->parts[i].n)
            text[n++] = (TextEnd){t->parts[i].path, t->parts[i].begin + t->parts[i].n};
    const char *folder = d->gpt->cache_path ? d->gpt->cache_path : "";
    if (!folder[0] && !strcmp(d->path, "embedded")) folder = NULL;
    Texts all = {t->bytes, text, n, t->folder};
    t->tokens = text_tokens(mem, d, &all, folder, &t->held, &d->tokens);
    file_unmap(&t->map);
    t->map = (FileMap){0};
}

static void text_open(Arena *mem, Data *d) {
    TextSource *t = NEW(mem, TextSource);
    int64_t end;
    d->state = t;
    text_read_in(mem, d, t);
    TokenizerSpec spec = tokenizer_of_data(d);
    if (spec.vocab_file || spec.merge_file || spec.tokenizer_file) tokenize(mem, d, t);
    data_part(d, d->tokens, &t->first, &end);
    d->tokens = end - t->first;
}

/* The part that holds byte `at`; empty parts hold none. */
static const TextPart *part_of(const TextSource *t, uint64_t at) {
    int low = 0, high = t->n_parts;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (t->parts[middle].begin <= at)
            low = middle;
        else
            high = middle;
    }
    return &t->parts[low];
}

static void read_tokens(const Data *d, int64_t at, int64_t n, int32_t *out) {
    const TextSource *t = d->state;
    int64_t limit = data_token_limit(d);
    memcpy(out, t->tokens + at, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        if (out[i] < 0 || out[i] >= limit)
            data_fail_token(d, "%s: token %lld: token %d", d->path, (long long)(at + i),
                            (int)out[i]);
    }
}

static void text_read(const Data *d, int64_t sample, int64_t from, int64_t n,
                      int32_t *out) {
    const TextSource *t = d->state;
    int64_t limit = data_token_limit(d);
    uint64_t at = (uint64_t)(t->first + sample * d->seq + from);
    if (t->tokens) {
        read_tokens(d, (int64_t)at, n, out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = t->bytes[at + (uint64_t)i];
        if (out[i] < limit) continue;
        const TextPart *part = part_of(t, at + (uint64_t)i);
        data_fail_token(d, "%s: offset %llu: token %d (a byte)", part->path,
                        (unsigned long long)(at + (uint64_t)i - part->begin),
                        (int)out[i]);
    }
}

static void text_close(Data *d) {
    TextSource *t = d->state;
    if (!t) return;
    file_unmap(&t->map);
    file_unmap(&t->held);
}

const DataReader data_text = {"TextFile", false, text_open, text_read, text_close, NULL};
