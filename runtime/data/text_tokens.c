/* text_tokens.c - see text_tokens.h. */
#include "runtime/data/text_tokens.h"
#include "runtime/core/buffer.h"
#include "runtime/data/prepared.h"
#include "runtime/text/text_stream.h"
#include <stdlib.h>

enum { PIECE_BYTES = 4 << 20 };
#define SAY_SECONDS 5.0

TokenizerSpec tokenizer_of_data(const Data *d) {
    if (!d->gpt) return (TokenizerSpec){0};
    TokenizerSpec s = {d->gpt->tokenizer_type, d->gpt->vocab_file, d->gpt->merge_file,
                       d->gpt->tokenizer_file};
    const char **word[] = {&s.type, &s.vocab_file, &s.merge_file, &s.tokenizer_file};
    for (int i = 0; i < ARRAY_LEN(word); i++)
        if (*word[i] && !**word[i]) *word[i] = NULL;
    return s;
}

void text_refuse_packed(const char *path, const void *bytes, size_t n) {
    const char *packing = text_stream_packing(bytes, n);
    if (packing)
        fail(EXIT_DATA,
             "%s is compressed with %s: decompress it, or make a .bin/.idx pair of it "
             "with "
             "'stator preprocess', which reads such files",
             path, packing);
}

static uint64_t hash_of_file(const char *path) {
    FileMap map;
    if (!path) return 0;
    file_map(&map, path);
    uint64_t hash = hash64(map.bytes, map.n);
    file_unmap(&map);
    return hash;
}

const char *tokenizer_key(Arena *mem, const TokenizerSpec *spec) {
    const char *path[TOKENIZER_FILES];
    tokenizer_spec_files(mem, spec, path);
    Text t = text_new(mem);
    text_add(&t, "tokenizer %s", spec->type ? spec->type : "");
    for (int i = 0; i < TOKENIZER_FILES; i++)
        text_add(&t, " %016llx", (unsigned long long)hash_of_file(path[i]));
    text_add(&t, "\n");
    return t.s;
}

/* ---- making tokens ---- */

typedef struct Making {
    const Tokenizer *t;
    TokenizerCache *cache;
    Buffer tokens, room;
    uint64_t done, total, bad;
    double start, said;
} Making;

static void say_progress(Making *m, const char *path) {
    double now = clock_seconds();
    if (now - m->said < SAY_SECONDS) return;
    m->said = now;
    say_aside("tokenizing %s: %.0f %%, %.1f MB/s", path,
              100.0 * (double)m->done / (double)m->total,
              1e-6 * (double)m->done / (now - m->start));
}

static void make_piece(Making *m, const char *s, size_t n) {
    size_t cap = tokenizer_max_tokens(m->t, n);
    m->room.n = 0;
    int32_t *id = (int32_t *)(void *)buffer_room(&m->room, cap * sizeof *id + 1);
    size_t got = tokenizer_encode(m->t, m->cache, s, n, false, id, cap, &m->bad);
    buffer_add(&m->tokens, id, got * sizeof *id);
}

/* Piece by piece, so that memory for work is small; tokenizer_cut changes no token. */
static void make_text(Making *m, const char *path, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t next, piece = tokenizer_cut(m->t, s + i, n - i, PIECE_BYTES, &next);
        make_piece(m, s + i, piece);
        i += next;
        m->done += next;
        say_progress(m, path);
    }
}

static void make_all(Making *m, const Texts *all) {
    uint64_t from = 0;
    int32_t eod = (int32_t)tokenizer_eod(m->t);
    for (int i = 0; i < all->n; from = all->text[i++].end) {
        const TextEnd *text = &all->text[i];
        make_text(m, text->path, (const char *)all->bytes + from, text->end - from);
        if (all->ended && eod >= 0) buffer_add(&m->tokens, &eod, sizeof eod);
    }
}

static void make_free(Making *m) {
    buffer_free(&m->tokens);
    buffer_free(&m->room);
    tokenizer_cache_free(m->cache);
}

static int32_t *make(Arena *mem, Data *d, const Texts *all, int64_t *n) {
    TokenizerSpec spec = tokenizer_of_data(d);
    Making m = {.t = tokenizer_open(mem, &spec),
                .cache = tokenizer_cache_new(),
                .total = all->n ? all->text[all->n - 1].end : 0,
                .start = clock_seconds()};
    m.said = m.start;
    Catch c;
    if (!CATCH(c)) {
        make_free(&m);
        fail_again(c.code, c.message);
    }
    make_all(&m, all);
    catch_end(&c);
    if (m.bad)
        say_aside("stator: warning: %s: %llu sequences are not valid UTF-8 and count as "
                  "U+FFFD",
                  d->path, (unsigned long long)m.bad);
    size_t size = m.tokens.n;
    void *data = prepared_buffer(mem, size);
    if (size) memcpy(data, m.tokens.p, size);
    make_free(&m);
    *n = (int64_t)(size / sizeof(int32_t));
    return data;
}

/* ---- the cache ---- */

typedef struct Use {
    const int32_t *tokens;
    int64_t n;
} Use;

static bool use_data(void *context, const void *data, uint64_t n) {
    *(Use *)context = (Use){data, (int64_t)(n / sizeof(int32_t))};
    return n % sizeof(int32_t) == 0;
}

/* The path of a folder may end in '/', or be '.' or '..'; this one ends in its name. */
static const char *named_path(Arena *mem, const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    const char *plain = arena_strndup(mem, path, n), *name = path_name(plain);
    if (strcmp(name, ".") && strcmp(name, "..")) return plain;
    char *real = realpath(path, NULL);
    if (!real) return plain;
    plain = arena_strdup(mem, real);
    free(real);
    return plain;
}

static const char *cache_path(Arena *mem, const Data *d, const char *folder,
                              const char *key) {
    const char *path = named_path(mem, d->path);
    return path_join(mem, folder[0] ? folder : path_folder(mem, path),
                     arena_printf(mem, "%s.tokens_%s.cache", path_name(path), key));
}

static void cache_key(Arena *mem, const Data *d, const Texts *all,
                      char key[HASH_HEX_BYTES]) {
    TokenizerSpec spec = tokenizer_of_data(d);
    Text t = text_new(mem);
    text_add(&t, "text tokens 1\n%s", tokenizer_key(mem, &spec));
    uint64_t from = 0;
    for (int i = 0; i < all->n; from = all->text[i++].end)
        text_add(&t, "%016llx\n",
                 (unsigned long long)hash64(all->bytes + from, all->text[i].end - from));
    /* Several texts are always those of a folder. */
    if (all->ended && all->n == 1) text_add(&t, "ended\n");
    hash_hex(t.s, t.n, key);
}

const int32_t *text_tokens(Arena *mem, Data *d, const Texts *all, const char *folder,
                           FileMap *held, int64_t *n) {
    if (!folder) return make(mem, d, all, n);
    Use found = {0};
    Prepared file = {.what = "token cache", .note = d->note};
    cache_key(mem, d, all, file.key);
    file.path = cache_path(mem, d, folder, file.key);
    if (folder[0]) file.folder = folder;
    if (prepared_read(&file, use_data, &found, held)) {
        *n = found.n;
        return found.tokens;
    }
    int32_t *made = make(mem, d, all, n);
    prepared_write(&file, made, (uint64_t)*n * sizeof *made);
    return made;
}
