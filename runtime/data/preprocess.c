/* preprocess.c - see preprocess.h. */
#include "runtime/data/preprocess.h"
#include "runtime/core/stop_signal.h"

/* A batch is large against the cost of handing it on, small against the caches, and the batches of
 * many workers are not large together. */
enum { BATCH_BYTES = 256 << 10, LEAST_BATCH_BYTES = 32 << 10, ALL_BATCH_BYTES = 4 << 20 };
enum { KEEP_BYTES = 256 << 10 };
/* Text between reader and writer; a single larger record may go through alone. */
#define FLIGHT_BYTES ((size_t)32 << 20)

typedef struct Encoded {
    Buffer tokens, lengths, sequences; /* as IndexedPart */
} Encoded;

typedef struct BadLine {
    TextRecord record;
    const char *what;
    size_t at;
    int key;
} BadLine;

/* A batch in flight. */
typedef struct Slot {
    TextBatch in;
    Encoded out[JSON_LINE_KEYS];
    Buffer bad; /* BadLine[] */
    uint64_t documents, bad_utf8, surrogates;
    bool encoded;
} Slot;

/* Batch i is in slot i % nslots; written <= taken <= filled <= written + nslots. */
typedef struct Pipeline {
    const PreprocessSpec *spec;
    Slot *slot;
    uint64_t nslots, filled, taken, written; /* counts, under the lock */
    size_t batch_bytes, flight_bytes;
    bool ended, interrupted;
    atomic_bool stop; /* is written under the lock, and ends waiting for a pipe */
    int failed;       /* exit code of the first failure */
    char message[sizeof((Catch *)0)->message];
    pthread_mutex_t lock;
    pthread_cond_t changed_filled, changed_encoded, changed_written;
    pthread_t thread[PREPROCESS_MAX_WORKERS + 1];
    int nthreads;
} Pipeline;

/* What a worker has for itself. */
typedef struct Worker {
    Arena *mem; /* of all of it */
    const PreprocessSpec *spec;
    TokenizerCache *cache;
    JsonLine json;
    Buffer ids;
} Worker;

static void pipeline_stop(Pipeline *p, const Catch *why) {
    pthread_mutex_lock(&p->lock);
    if (why && !p->failed) {
        p->failed = why->code;
        snprintf(p->message, sizeof p->message, "%s", why->message);
    }
    p->stop = true;
    pthread_cond_broadcast(&p->changed_filled);
    pthread_cond_broadcast(&p->changed_encoded);
    pthread_cond_broadcast(&p->changed_written);
    pthread_mutex_unlock(&p->lock);
}

/* The reader. */

/* Waits for a free slot; NULL when the work is over. */
static Slot *slot_free(Pipeline *p) {
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->filled > p->written &&
           (p->filled - p->written == p->nslots || p->flight_bytes >= FLIGHT_BYTES))
        pthread_cond_wait(&p->changed_written, &p->lock);
    bool stop = p->stop;
    Slot *s = &p->slot[p->filled % p->nslots];
    pthread_mutex_unlock(&p->lock);
    return stop ? NULL : s;
}

static void read_all(Pipeline *p) {
    const PreprocessSpec *spec = p->spec;
    text_read_stop_at(spec->reader, (TextStop){spec->stop, &p->stop});
    for (Slot *s; (s = slot_free(p));) {
        bool interrupted = spec->stop && *spec->stop;
        bool more = !interrupted && text_read_batch(spec->reader, &s->in, p->batch_bytes);
        pthread_mutex_lock(&p->lock);
        p->filled += more;
        p->flight_bytes += more ? s->in.text.n : 0;
        p->ended = !more;
        p->interrupted = interrupted;
        pthread_cond_broadcast(&p->changed_filled);
        pthread_cond_broadcast(&p->changed_encoded);
        pthread_mutex_unlock(&p->lock);
        if (!more) return;
    }
}

static void *reader_run(void *arg) {
    Pipeline *p = arg;
    Catch c;
    if (CATCH(c)) {
        read_all(p);
        catch_end(&c);
    } else {
        p->interrupted = p->spec->stop && *p->spec->stop;
        pipeline_stop(p, p->interrupted ? NULL : &c);
    }
    return NULL;
}

/* The workers. */

/* Token ids to their element type; -1, or the first id that is none of the vocabulary. */
static int64_t pack(Buffer *out, const int32_t *ids, size_t n, int64_t vocab) {
    size_t size = (size_t)indexed_token_bytes(vocab);
    char *to = buffer_room(out, n * size);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab) return ids[i] < 0 ? INT64_MAX : ids[i];
    if (size == sizeof *ids) {
        memcpy(to, ids, n * size);
    } else {
        for (size_t i = 0; i < n; i++) {
            uint16_t id = (uint16_t)ids[i];
            memcpy(to + 2 * i, &id, sizeof id);
        }
    }
    out->n += n * size;
    return -1;
}

static _Noreturn void fail_token(const Worker *w, const TextRecord *r, int64_t id) {
    fail(EXIT_DATA,
         "%s:%lld: the tokenizer gives token %lld, outside its vocabulary of %lld",
         text_read_path(w->spec->reader, r->file), (long long)r->line, (long long)id,
         (long long)tokenizer_vocab(w->spec->tokenizer));
}

/* Room for so many ids of a text, which has no more than bytes, and a long one fewer. */
static size_t ids_of(size_t bytes) {
    return bytes > KEEP_BYTES ? bytes / 2 : bytes + 1;
}

/* One text as a sequence of the document, if it has tokens at all. */
static void encode_piece(Worker *w, const TextRecord *r, const char *text, size_t n,
                         Slot *s, Encoded *e, int32_t *sequences) {
    const Tokenizer *t = w->spec->tokenizer;
    uint64_t bad = 0;
    w->ids.n = 0;
    int32_t *ids = (int32_t *)(void *)buffer_room(&w->ids, ids_of(n) * sizeof *ids);
    size_t cap = w->ids.cap / sizeof *ids;
    size_t got = tokenizer_encode(t, w->cache, text, n, false, ids, cap, &bad);
    if (got > cap) { /* invalid UTF-8 can have more than there are bytes */
        bad = 0;
        ids = (int32_t *)(void *)buffer_room(&w->ids, got * sizeof *ids);
        cap = got;
        got = tokenizer_encode(t, w->cache, text, n, false, ids, cap, &bad);
        check(got == cap);
    }
    s->bad_utf8 += bad;
    if (got > INT32_MAX - 1) fail_token(w, r, (int64_t)got);
    int64_t wrong = pack(&e->tokens, ids, got, tokenizer_vocab(t));
    if (wrong >= 0) fail_token(w, r, wrong);
    buffer_clear(&w->ids, KEEP_BYTES);
    if (!got) return;
    int32_t length = (int32_t)got;
    buffer_add(&e->lengths, &length, sizeof length);
    ++*sequences;
}

/* The document is whole: the end token goes to its last sequence. */
static void close_document(Worker *w, const TextRecord *r, Encoded *e,
                           int32_t sequences) {
    if (sequences && w->spec->append_eod) {
        int32_t eod = (int32_t)tokenizer_eod(w->spec->tokenizer), length;
        int64_t wrong = pack(&e->tokens, &eod, 1, tokenizer_vocab(w->spec->tokenizer));
        if (wrong >= 0) fail_token(w, r, wrong);
        char *last = e->lengths.p + e->lengths.n - sizeof length;
        memcpy(&length, last, sizeof length);
        length++;
        memcpy(last, &length, sizeof length);
    }
    buffer_add(&e->sequences, &sequences, sizeof sequences);
}

static void encode_record(Worker *w, Slot *s, const TextRecord *r) {
    const PreprocessSpec *spec = w->spec;
    const char *text = s->in.text.p + r->begin;
    JsonLine *j = &w->json;
    if (r->too_long ||
        (!r->plain && !json_line_read(j, text, r->n, spec->keys, spec->nkeys))) {
        BadLine b = {*r, j->wrong, j->wrong_at, j->wrong_key};
        if (r->too_long) b = (BadLine){*r, TEXT_RECORD_TOO_LONG, 0, -1};
        buffer_add(&s->bad, &b, sizeof b);
        return;
    }
    s->documents++;
    for (int k = 0; k < spec->nkeys; k++) {
        int32_t sequences = 0;
        for (size_t i = 0; i < (r->plain ? 1 : j->key[k].n); i++) {
            size_t n = r->n;
            const char *piece = r->plain ? text : json_line_piece(j, k, i, &n);
            encode_piece(w, r, piece, n, s, &s->out[k], &sequences);
        }
        close_document(w, r, &s->out[k], sequences);
    }
}

static void encode_slot(Worker *w, Slot *s) {
    size_t n;
    const TextRecord *r = text_records(&s->in, &n);
    for (int k = 0; k < w->spec->nkeys; k++) {
        buffer_clear(&s->out[k].tokens, KEEP_BYTES);
        buffer_clear(&s->out[k].lengths, KEEP_BYTES);
        buffer_clear(&s->out[k].sequences, KEEP_BYTES);
    }
    buffer_clear(&s->bad, KEEP_BYTES);
    s->documents = s->bad_utf8 = 0;
    w->json.surrogates = 0;
    for (size_t i = 0; i < n; i++) encode_record(w, s, &r[i]);
    s->surrogates = w->json.surrogates;
    buffer_clear(&w->json.text, KEEP_BYTES);
    buffer_clear(&w->json.pieces, KEEP_BYTES);
}

static void encode_all(Pipeline *p, Worker *w) {
    for (;;) {
        pthread_mutex_lock(&p->lock);
        while (!p->stop && p->taken == p->filled && !p->ended)
            pthread_cond_wait(&p->changed_filled, &p->lock);
        bool over = p->stop || p->taken == p->filled;
        Slot *s = over ? NULL : &p->slot[p->taken++ % p->nslots];
        pthread_mutex_unlock(&p->lock);
        if (over) return;
        encode_slot(w, s);
        pthread_mutex_lock(&p->lock);
        s->encoded = true;
        pthread_cond_broadcast(&p->changed_encoded);
        pthread_mutex_unlock(&p->lock);
    }
}

static Worker *worker_new(const PreprocessSpec *spec) {
    Arena *mem = arena_new();
    Worker *w = NEW(mem, Worker);
    w->mem = mem;
    w->spec = spec;
    return w;
}

static void worker_free(Worker *w) {
    if (w->cache) tokenizer_cache_free(w->cache);
    buffer_free(&w->json.text);
    buffer_free(&w->json.pieces);
    buffer_free(&w->ids);
    arena_free(w->mem);
}

static void *worker_run(void *arg) {
    Pipeline *p = arg;
    Worker *volatile w = NULL;
    Catch c;
    if (CATCH(c)) {
        w = worker_new(p->spec);
        w->cache = tokenizer_cache_new();
        encode_all(p, w);
        catch_end(&c);
    } else {
        pipeline_stop(p, &c);
    }
    if (w) worker_free(w);
    return NULL;
}

/* The writer: the thread that called. */

static void write_slot(const PreprocessSpec *spec, const Slot *s, PreprocessCount *n) {
    const BadLine *b = (const BadLine *)(const void *)s->bad.p;
    for (size_t i = 0; i < s->bad.n / sizeof *b; i++) {
        const char *key = b[i].key >= 0 ? spec->keys[b[i].key] : NULL;
        PreprocessBad bad = {text_read_path(spec->reader, b[i].record.file), b[i].what,
                             key, b[i].record.line, b[i].at + 1};
        n->bad_lines++;
        if (spec->bad) spec->bad(spec->context, &bad, n);
    }
    for (int k = 0; k < spec->nkeys; k++) {
        const Encoded *e = &s->out[k];
        IndexedPart part = {.tokens = e->tokens.p,
                            .token_bytes = e->tokens.n,
                            .lengths = (const int32_t *)(const void *)e->lengths.p,
                            .nlengths = e->lengths.n / sizeof(int32_t),
                            .sequences = (const int32_t *)(const void *)e->sequences.p,
                            .nsequences = e->sequences.n / sizeof(int32_t)};
        indexed_write_add(spec->writers[k], &part);
    }
    n->documents += s->documents;
    n->bytes += s->in.bytes;
    n->bad_utf8 += s->bad_utf8;
    n->surrogates += s->surrogates;
    if (spec->progress) spec->progress(spec->context, n);
}

static void write_rest(Pipeline *p, PreprocessCount *count) {
    for (;;) {
        pthread_mutex_lock(&p->lock);
        Slot *s = &p->slot[p->written % p->nslots];
        while (!p->stop && !(p->written < p->filled && s->encoded) &&
               !(p->ended && p->written == p->filled))
            pthread_cond_wait(&p->changed_encoded, &p->lock);
        bool over = p->stop || p->written == p->filled;
        pthread_mutex_unlock(&p->lock);
        if (over) return;
        write_slot(p->spec, s, count);
        pthread_mutex_lock(&p->lock);
        s->encoded = false;
        p->flight_bytes -= s->in.text.n;
        p->written++;
        pthread_cond_broadcast(&p->changed_written);
        pthread_mutex_unlock(&p->lock);
    }
}

static void start_threads(Pipeline *p) {
    int error = 0;
    for (int i = 0; i <= p->spec->workers && !error; i++) {
        error = thread_without_signals(&p->thread[i], i ? worker_run : reader_run, p);
        if (!error) p->nthreads++;
    }
    if (error)
        fail(EXIT_MEMORY, "cannot start %d threads: %s; give fewer --workers",
             p->spec->workers + 1, strerror(error));
}

static void slot_release(Slot *s, int nkeys) {
    buffer_free(&s->in.text);
    buffer_free(&s->in.records);
    buffer_free(&s->bad);
    for (int k = 0; k < nkeys; k++) {
        buffer_free(&s->out[k].tokens);
        buffer_free(&s->out[k].lengths);
        buffer_free(&s->out[k].sequences);
    }
}

PreprocessCount preprocess_run(const PreprocessSpec *spec) {
    check(spec->workers >= 1 && spec->workers <= PREPROCESS_MAX_WORKERS);
    check(spec->nkeys >= 1 && spec->nkeys <= JSON_LINE_KEYS);
    Arena *mem = arena_new();
    Pipeline *p = NEW(mem, Pipeline);
    PreprocessCount *count = NEW(mem, PreprocessCount), result;
    p->spec = spec;
    p->nslots = (uint64_t)spec->workers + MIN(spec->workers, 8) + 2;
    p->batch_bytes =
        MIN(BATCH_BYTES, MAX(LEAST_BATCH_BYTES, ALL_BATCH_BYTES / p->nslots));
    p->slot = NEW_ARRAY(mem, Slot, p->nslots);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed_filled, NULL);
    pthread_cond_init(&p->changed_encoded, NULL);
    pthread_cond_init(&p->changed_written, NULL);
    Catch c;
    if (CATCH(c)) {
        start_threads(p);
        write_rest(p, count);
        catch_end(&c);
    } else {
        pipeline_stop(p, &c);
    }
    for (int i = 0; i < p->nthreads; i++) pthread_join(p->thread[i], NULL);
    for (uint64_t i = 0; i < p->nslots; i++) slot_release(&p->slot[i], spec->nkeys);
    result = *count;
    result.interrupted = p->interrupted;
    int failed = p->failed;
    char message[sizeof p->message];
    memcpy(message, p->message, sizeof message);
    pthread_cond_destroy(&p->changed_filled);
    pthread_cond_destroy(&p->changed_encoded);
    pthread_cond_destroy(&p->changed_written);
    pthread_mutex_destroy(&p->lock);
    arena_free(mem);
    if (failed) fail_again(failed, message);
    return result;
}
