/* data_prefetch.c - a thread that makes batches ahead of the trainer; see data.h. */
#include "runtime/core/rt.h"
#include "runtime/core/stop_signal.h"
#include "runtime/data/data.h"

/* Arrays of a batch: tokens and labels, and what else DataBatch has. */
enum { PARTS = 2, PARTS_FULL = 5 };

/* Batches are counted from 0 within the run; batch i is in slot i % slots. The trainer
 * holds batch taken - 1 until it asks for the next one, so `slots` is depth + 1. */
struct Prefetch {
    Arena *mem;
    const Data *data;
    int32_t
        *buffer; /* [slots, parts, batch * seq], or [slots, numbers of a sample, batch] */
    size_t batch_tokens;
    size_t parts;  /* PARTS or PARTS_FULL; of columns the numbers of a sample */
    void **column; /* [slots, columns] */
    int64_t slots, first_step, steps;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t made_one, freed_one;
    int64_t made, taken, freed; /* counts, under the lock */
    bool stop, ended;
    Catch failure; /* code 0: none */
};

static DataBatch slot_of(const Prefetch *p, int64_t batch) {
    size_t nth = (size_t)(batch % p->slots);
    int32_t *at = p->buffer + nth * p->parts * p->batch_tokens;
    if (p->column)
        return (DataBatch){.column = p->column + nth * (size_t)p->data->ncolumns};
    DataBatch slot = {.tokens = at, .labels = at + p->batch_tokens};
    if (p->parts == PARTS) return slot;
    slot.positions = at + 2 * p->batch_tokens;
    slot.attends_from = at + 3 * p->batch_tokens;
    slot.loss_mask = (float *)(at + 4 * p->batch_tokens);
    return slot;
}

static bool make_batch(Prefetch *p, int64_t batch) {
    DataBatch slot = slot_of(p, batch);
    if (CATCH(p->failure)) {
        data_batch(p->data, p->first_step + batch, &slot);
        catch_end(&p->failure);
        return true;
    }
    return false;
}

static void *prefetch_run(void *arg) {
    Prefetch *p = arg;
    rt_unbind_thread();
    bool good = true;
    pthread_mutex_lock(&p->lock);
    while (good && (p->steps < 0 || p->made < p->steps)) {
        while (!p->stop && p->made - p->freed >= p->slots)
            pthread_cond_wait(&p->freed_one, &p->lock);
        if (p->stop) break;
        int64_t batch = p->made;
        pthread_mutex_unlock(&p->lock);
        good = make_batch(p, batch);
        pthread_mutex_lock(&p->lock);
        if (good) p->made++;
        pthread_cond_signal(&p->made_one);
    }
    p->ended = true;
    pthread_cond_signal(&p->made_one);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Assigns the memory of the columns of each slot. */
static void assign_columns(Prefetch *p) {
    size_t n = (size_t)p->data->ncolumns;
    if (!n) return;
    p->column = NEW_ARRAY(p->mem, void *, n *(size_t)p->slots);
    int32_t *at = p->buffer;
    for (size_t i = 0; i < n * (size_t)p->slots; i++) {
        p->column[i] = at;
        at += (size_t)p->data->column[i % n].count * p->batch_tokens;
    }
}

static uint64_t parts_of(const Data *d, bool full) {
    uint64_t sum = d->ncolumns ? 0 : full ? PARTS_FULL : PARTS;
    for (int k = 0; k < d->ncolumns; k++)
        if (__builtin_add_overflow(sum, (uint64_t)d->column[k].count, &sum))
            return UINT64_MAX;
    return sum;
}

uint64_t prefetch_bytes(const Data *d, bool full, int64_t depth) {
    uint64_t bytes;
    return mul_size((uint64_t)d->batch, (uint64_t)d->seq, &bytes) &&
                   mul_size(bytes, parts_of(d, full), &bytes) &&
                   mul_size(bytes, sizeof(int32_t) * ((uint64_t)depth + 1), &bytes)
               ? bytes
               : UINT64_MAX;
}

Prefetch *prefetch_start(const Data *d, int64_t first_step, int64_t steps, int depth,
                         bool full) {
    check(first_step >= 0 && steps >= -1 && depth >= 1);
    const uint64_t bytes = prefetch_bytes(d, full, depth);
    if (bytes > PTRDIFF_MAX / 2)
        fail(EXIT_MEMORY, "%d batches ahead of %lld x %lld %s do not fit into memory",
             depth, (long long)d->batch, (long long)d->seq,
             d->ncolumns ? "samples" : "tokens");
    Arena *mem = arena_new();
    Catch c;
    if (!CATCH(c)) {
        arena_free(mem);
        fail_again(c.code, c.message);
    }
    Prefetch *p = NEW(mem, Prefetch);
    p->buffer = arena_alloc(mem, bytes);
    p->mem = mem;
    p->data = d;
    p->batch_tokens = (size_t)(d->batch * d->seq);
    p->parts = parts_of(d, full);
    p->slots = (int64_t)depth + 1;
    p->first_step = first_step;
    p->steps = steps;
    assign_columns(p);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->made_one, NULL);
    pthread_cond_init(&p->freed_one, NULL);
    int error = thread_without_signals(&p->thread, prefetch_run, p);
    if (error) fail(EXIT_MEMORY, "cannot start the data thread: %s", strerror(error));
    catch_end(&c);
    return p;
}

bool prefetch_next(Prefetch *p, DataBatch *out) {
    pthread_mutex_lock(&p->lock);
    p->freed = p->taken;
    pthread_cond_signal(&p->freed_one);
    while (p->made == p->taken && !p->ended) pthread_cond_wait(&p->made_one, &p->lock);
    bool have = p->made > p->taken;
    if (have) {
        *out = slot_of(p, p->taken);
        p->taken++;
    }
    pthread_mutex_unlock(&p->lock);
    if (!have && p->failure.code) fail_again(p->failure.code, p->failure.message);
    return have;
}

void prefetch_stop(Prefetch *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->freed_one);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->made_one);
    pthread_cond_destroy(&p->freed_one);
    arena_free(p->mem);
}
