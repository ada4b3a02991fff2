/* watch.c - see watch.h. Seconds are counted in rounds of the thread, so that time in
 * which this process itself was stopped does not count as waiting. */
#define _GNU_SOURCE
#include "runtime/comm/watch.h"
#include "ir/ir.h"
#include "runtime/comm/comm.h"
#include "runtime/core/stop_signal.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 384, SHOWN_RANKS = 6 };
#define TICK_SECONDS_MOST  1.0
#define TICK_SECONDS_LEAST 0.02
#define TICKS_OF_DEADLINE  20

static WatchState own_state = {.number = -1, .stage = -1, .bytes = -1};
WatchState *watch_state = &own_state;

/* What a rank of this host does. Written by its watching thread alone; a reader may see
 * a text half written, which is only shown. */
typedef struct Slot {
    atomic_llong beat; /* 0: not watching; counts rounds, for ever */
    atomic_int pid, rank, waits, peer;
    atomic_llong still_ms; /* since it got further */
    char text[TEXT_BYTES];
} Slot;

typedef struct Board {
    atomic_int speaker; /* 1 + local rank of who reports; 0: nobody */
    Slot slot[];
} Board;

/* What this one sees of another. */
typedef struct Seen {
    long long beat;
    double silent;
} Seen;

static struct {
    Board *board;
    int me, n; /* local */
    Slot alone_slot[1];
    Seen *seen;
    WatchSay say;
    void (*end_all)(int code);
    pthread_t thread;
    bool running;
    _Atomic double seconds; /* 0: nothing is reported */
    atomic_bool ends, bounded;
    pthread_mutex_t lock; /* of file and stop */
    pthread_cond_t wake;
    bool stop;
    char file[256];
    /* of the thread */
    long long progress;
    double still, next_report;
    bool spoke, told;
} w = {.n = 1,
       .seconds = 60,
       .ends = true,
       .end_all = _exit,
       .lock = PTHREAD_MUTEX_INITIALIZER};

size_t watch_board_bytes(int local_size) {
    return sizeof(Board) + array_bytes((size_t)local_size, sizeof(Slot));
}

void watch_board(void *shared, int local_rank, int local_size) {
    w.board = shared;
    w.me = shared ? local_rank : 0;
    w.n = shared ? local_size : 1;
}

static Slot *slot_of(int local) {
    return w.board ? &w.board->slot[local] : &w.alone_slot[0];
}

void watch_share(WatchState *memory) {
    *memory = *watch_state;
    watch_state = memory;
}

void watch_at(int kind, int chunk, int micro) {
    WATCH_PUT(kind, kind);
    WATCH_PUT(chunk, chunk);
    WATCH_PUT(micro, micro);
}

void watch_task(const char *what, int64_t number, bool bounded) {
    WATCH_PUT(task, what);
    WATCH_PUT(number, number);
    WATCH_PUT(stage, comm_stage_ranks() < comm_size() ? comm_stage() : -1);
    watch_at(TASK_NONE, 0, 0);
    w.bounded = bounded;
    watch_progress();
}

void watch_file(const char *path) {
    pthread_mutex_lock(&w.lock);
    snprintf(w.file, sizeof w.file, "%s", path ? path : "");
    pthread_mutex_unlock(&w.lock);
    watch_progress();
}

/* ---- what this rank does ---- */

static void add(char *text, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void add(char *text, size_t size, const char *fmt, ...) {
    size_t n = strlen(text);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + n, size - n, fmt, ap);
    va_end(ap);
}

static bool add_file(char *text, size_t size) {
    pthread_mutex_lock(&w.lock);
    bool in_file = w.file[0];
    if (in_file) add(text, size, "in the file %s", w.file);
    pthread_mutex_unlock(&w.lock);
    return in_file;
}

static void add_task(char *text, size_t size) {
    const char *task = WATCH_GET(task);
    long long number = WATCH_GET(number);
    if (!task) return;
    add(text, size, " (%s", task);
    if (number >= 0) add(text, size, " %lld", number);
    add(text, size, ")");
}

/* Of a pipeline: " of stage 1, task 0F3". */
static void add_place(char *text, size_t size, const char *of) {
    int stage = WATCH_GET(stage), kind = WATCH_GET(kind);
    if (stage >= 0) add(text, size, " %s stage %d", of, stage);
    if (stage >= 0 && kind)
        add(text, size, ", task %d%c%d", WATCH_GET(chunk), task_letter[kind],
            WATCH_GET(micro));
}

static void add_op(char *text, size_t size) {
    const char *op = WATCH_GET(op), *label = WATCH_GET(label);
    long long bytes = WATCH_GET(bytes);
    add(text, size, "in %s", op ? op : "a message");
    if (label) add(text, size, " %s", label);
    if (bytes >= 0) add(text, size, ", %lld bytes", bytes);
}

static void add_peer(char *text, size_t size, int waits, int peer) {
    if (waits == WATCH_FOR_ALL || peer < 0)
        add(text, size, " for the other ranks");
    else
        add(text, size, " for rank %d on %s", peer, comm_host_of(peer));
}

/* Does it wait, for others or for a file? What it does is in `text`. */
static bool describe(char *text, size_t size, int waits, int peer) {
    bool stands = false;
    text[0] = 0;
    if (waits != WATCH_WORKS) {
        add_op(text, size);
        add_peer(text, size, waits, peer);
        stands = true;
    } else {
        stands = add_file(text, size);
        if (!stands) {
            add(text, size, "at work");
            add_place(text, size, "in");
        }
    }
    add_task(text, size);
    return stands;
}

/* Of all pointers only those to texts of this program are valid in both processes. */
void watch_last(char text[WATCH_LAST_BYTES]) {
    const char *op = WATCH_GET(beside) ? NULL : WATCH_GET(op);
    text[0] = 0;
    if (!WATCH_GET(task)) return;
    add(text, WATCH_LAST_BYTES, "%s%s", op ? "in " : "at work", op ? op : "");
    add_place(text, WATCH_LAST_BYTES, op ? "of" : "in");
    add_task(text, WATCH_LAST_BYTES);
}

/* ---- what the others do ---- */

static void look_at_others(double passed) {
    for (int i = 0; i < w.n; i++) {
        long long beat = slot_of(i)->beat;
        bool alive = i == w.me || !beat || beat != w.seen[i].beat;
        w.seen[i].silent = alive ? 0 : w.seen[i].silent + passed;
        w.seen[i].beat = beat;
    }
}

static bool is_silent(int local, double seconds) {
    return w.seen[local].silent >= seconds;
}

static int local_of(int rank) {
    for (int i = 0; i < w.n; i++)
        if (slot_of(i)->beat && slot_of(i)->rank == rank) return i;
    return -1;
}

/* Whom the others wait for, though it is alive: the end of the chain of who waits for
 * whom. -1: none that is here. *rank: the global one, -1: unknown. */
static int end_of_chain(int *rank) {
    int at = w.me;
    for (int hops = 0; hops < w.n && slot_of(at)->waits == WATCH_FOR_RANK; hops++) {
        *rank = slot_of(at)->peer;
        at = local_of(*rank);
        if (at < 0) return -1;
    }
    for (int i = 0; i < w.n; i++) { /* waits for all: for any that does not */
        if (slot_of(at)->waits == WATCH_WORKS) break;
        if (slot_of(i)->beat && slot_of(i)->waits == WATCH_WORKS) at = i;
    }
    if (slot_of(at)->waits != WATCH_WORKS) return -1;
    *rank = slot_of(at)->rank;
    return at;
}

static bool process_is_stopped(char state) {
    return !state || strchr("TtZX", state);
}

static void add_silent(char *text, size_t size, int local) {
    int pid = slot_of(local)->pid;
    char state = process_state(pid, &(int){0});
    add(text, size, "has given no sign of life for %.0f s: process %d ",
        w.seen[local].silent, pid);
    if (!state)
        add(text, size, "is gone");
    else if (state == 'T' || state == 't')
        add(text, size, "is stopped by a signal (kill -CONT %d lets it go on)", pid);
    else
        add(text, size, "is in state %c", state);
}

/* ---- the report ---- */

static void add_line(char *text, size_t size, int local, double limit) {
    const Slot *s = slot_of(local);
    char what[TEXT_BYTES];
    memcpy(what, s->text, sizeof what);
    what[sizeof what - 1] = 0;
    add(text, size, "\n  rank %d: ", (int)s->rank);
    if (is_silent(local, limit))
        add(text, size, "silent for %.0f s%s%s", w.seen[local].silent,
            *what ? ", last seen " : "", what);
    else
        add(text, size, "%s%.0f s %s", s->waits ? "waits " : "",
            (double)s->still_ms / 1e3, what);
}

typedef struct Verdict {
    int local, rank; /* who it is; -1: unknown */
    bool silent;
    bool stopped; /* and for good: its process is gone, or a signal holds it */
} Verdict;

/* A silent rank whose process runs may only be held up: its watching thread writes to the
 * log too, and a file system can stand still. */
static Verdict judge(double limit) {
    Verdict v = {-1, -1, false, false};
    for (int i = 0; i < w.n && !v.stopped; i++) {
        if (!is_silent(i, limit) || slot_of(i)->beat == 0) continue;
        bool stopped = process_is_stopped(process_state(slot_of(i)->pid, &(int){0}));
        if (stopped || !v.silent) v = (Verdict){i, slot_of(i)->rank, true, stopped};
    }
    if (v.local < 0) v.local = end_of_chain(&v.rank);
    return v;
}

static void add_head(char *text, size_t size, const Verdict *v) {
    if (v->rank < 0) {
        add(text, size, "every rank of %s waits for others: none can go on", comm_host());
        return;
    }
    add(text, size, "rank %d of %d on %s ", v->rank, comm_size(), comm_host_of(v->rank));
    if (v->silent)
        add_silent(text, size, v->local);
    else if (v->local == w.me)
        add(text, size, "gets no further: %s", slot_of(v->local)->text);
    else if (v->local >= 0)
        add(text, size, "is alive, but the others wait for it: %s",
            slot_of(v->local)->text);
    else
        add(text, size, "is waited for; what it does is not seen from %s", comm_host());
}

static void speak(double limit) {
    char text[WATCH_REPORT_BYTES] = "";
    Verdict v = judge(limit);
    double patience = v.stopped ? 1 : WATCH_PATIENCE;
    bool ends = w.ends && comm_size() > 1 && (v.stopped || w.bounded) &&
                w.still >= patience * w.seconds;
    add_head(text, sizeof text, &v);
    for (int i = 0; i < MIN(w.n, SHOWN_RANKS); i++)
        if (slot_of(i)->beat) add_line(text, sizeof text, i, limit);
    if (w.n > SHOWN_RANKS) add(text, sizeof text, "\n  and %d more", w.n - SHOWN_RANKS);
    int rank = v.rank < 0 ? comm_rank() : v.rank;
    w.say(rank, comm_host_of(rank), text, ends);
    w.spoke = true;
    if (ends) w.end_all(EXIT_HUNG);
}

/* This rank's own line, into its log. */
static void tell_log(const char *what) {
    char line[TEXT_BYTES + 64];
    int n = snprintf(line, sizeof line, "stator: waits for %.0f s %s\n", w.still, what);
    ssize_t put = write(STDERR_FILENO, line, (size_t)MIN(n, (int)sizeof line - 1));
    (void)put;
    w.told = true;
}

/* One of a host speaks; another one only when that one is silent. */
static bool may_speak(double limit) {
    int free = 0;
    if (!w.board) return true;
    int speaker = w.board->speaker;
    if (speaker == w.me + 1) return true;
    if (speaker && is_silent(speaker - 1, limit)) free = speaker;
    return atomic_compare_exchange_strong(&w.board->speaker, &free, w.me + 1);
}

static void over(void) {
    if (w.spoke) w.say(comm_rank(), comm_host(), "the run goes on", false);
    if (w.spoke && w.board) w.board->speaker = 0;
    w.spoke = w.told = false;
    w.next_report = 0;
}

/* Is a report due? As soon as it is known that a rank is stopped, that ends the run. */
static bool report_due(double limit) {
    if (w.seconds <= 0 || w.still < w.seconds) return false;
    return w.still >= w.next_report || (w.ends && judge(limit).stopped);
}

static void plan_next_report(void) {
    double end = WATCH_PATIENCE * w.seconds;
    w.next_report = w.still < end ? MIN(2 * w.still, end) : 2 * w.still;
}

/* Publishes what this rank does; false: nothing is waited for. */
static bool look_at_self(double passed, char *text, size_t size) {
    Slot *s = slot_of(w.me);
    int waits = WATCH_GET(beside) ? WATCH_WORKS : WATCH_GET(waits),
        peer = WATCH_GET(peer);
    long long progress = WATCH_GET(progress);
    bool moved = progress != w.progress, stands = describe(text, size, waits, peer);
    w.progress = progress;
    w.still = moved ? 0 : w.still + passed;
    memcpy(s->text, text, sizeof s->text);
    s->peer = peer;
    s->waits = waits;
    s->still_ms = (long long)(w.still * 1e3);
    s->beat++;
    if (moved) over();
    return stands && !moved;
}

static void look(double tick, double passed) {
    char text[TEXT_BYTES] = "";
    double limit = MAX(w.seconds - 3 * tick, tick);
    bool stands = look_at_self(passed, text, sizeof text);
    look_at_others(passed);
    if (!stands || !report_due(limit)) return;
    if (!w.told && comm_rank() > 0) tell_log(text);
    if (!may_speak(limit)) return;
    plan_next_report();
    speak(limit);
}

/* False: it is over. */
static bool nap(double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    double end = (double)until.tv_sec + 1e-9 * (double)until.tv_nsec + seconds;
    until.tv_sec = (time_t)end;
    until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
    pthread_mutex_lock(&w.lock);
    while (!w.stop && pthread_cond_timedwait(&w.wake, &w.lock, &until) != ETIMEDOUT)
        continue;
    bool stop = w.stop;
    pthread_mutex_unlock(&w.lock);
    return !stop;
}

static double tick_seconds(void) {
    double each = w.seconds / TICKS_OF_DEADLINE;
    return each > 0 ? MIN(MAX(each, TICK_SECONDS_LEAST), TICK_SECONDS_MOST)
                    : TICK_SECONDS_MOST;
}

static void *watch(void *unused) {
    double last = clock_seconds();
    (void)unused;
    for (double tick = tick_seconds(); nap(tick); tick = tick_seconds()) {
        double now = clock_seconds(), passed = now - last;
        last = now;
        look(tick, passed > 3 * tick ? tick : passed);
    }
    return NULL;
}

void watch_set(double seconds, bool ends) {
    w.seconds = seconds;
    w.ends = ends;
}

static bool start_thread(void) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w.wake, &attr);
    return thread_without_signals(&w.thread, watch, NULL) == 0;
}

void watch_ends_by(void (*end_all)(int code)) {
    w.end_all = end_all;
}

void watch_start(WatchSay say) {
    check(!w.running);
    w.say = say;
    w.stop = false;
    w.seen = calloc((size_t)w.n, sizeof *w.seen);
    Slot *s = slot_of(w.me);
    s->pid = (int)getpid();
    s->rank = comm_rank();
    s->beat = 1;
    w.running = w.seen && start_thread();
    if (!w.running)
        fail(EXIT_CONFIG, "no thread can be started to watch over the run: this user has "
                          "too many");
}

void watch_stop(void) {
    if (!w.running) return;
    pthread_mutex_lock(&w.lock);
    w.stop = true;
    pthread_cond_signal(&w.wake);
    pthread_mutex_unlock(&w.lock);
    pthread_join(w.thread, NULL);
    slot_of(w.me)->beat = 0;
    free(w.seen);
    w.running = false;
}
