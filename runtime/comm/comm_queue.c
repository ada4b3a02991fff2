/* comm_queue.c - asynchronous collectives. One thread begins them and waits for them;
 * another runs them, in the order they were begun. A blocking collective first waits
 * until the queue is empty. So every rank runs its collectives in the order of its
 * program, which is the same on all, and one thread at a time is inside MPI. */
#define _GNU_SOURCE
#include "runtime/comm/comm_link.h"
#include "runtime/comm/comm_run.h"
#include "runtime/comm/comm_wait.h"
#include "runtime/comm/watch.h"
#include "runtime/core/op_log.h"
#include "runtime/core/rt.h"
#include "runtime/core/stop_signal.h"
#include <stdatomic.h>
#include <stdlib.h>

enum { QUEUE_LENGTH = 64 };

typedef struct Request {
    void (*run)(const struct Request *);
    const char *label;
    int64_t op; /* that asks for it, for op_log.h */
    /* a collective */
    CommKind kind;
    unsigned axes;
    const CommPart *part;
    int n;
    void *workspace;
    /* a message */
    int post, rank;
    int64_t message, bytes;
    void *data;
} Request;

static void run_collective(const Request *r) {
    comm_run_now(r->kind, r->axes, r->part, r->n, r->workspace, r->label);
}

static void run_send(const Request *r) {
    link_post(r->post, r->rank, r->message, r->data, r->bytes);
}

static void run_sent(const Request *r) {
    watch_enter("send", r->label, r->bytes);
    link_unpost(r->post);
    watch_leave();
}

static void run_receive(const Request *r) {
    watch_enter("receive", r->label, r->bytes);
    link_take(r->rank, r->message, r->data, r->bytes);
    watch_leave();
}

/* Tickets count from 1; a request is in queue[ticket % QUEUE_LENGTH] until it is done. */
static struct {
    Request queue[QUEUE_LENGTH];
    atomic_llong begun, done, wanted; /* wanted: somebody waits for that one */
    bool stop;                        /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t work, ended;
    pthread_t thread;
    CommProgress how;
} q = {.lock = PTHREAD_MUTEX_INITIALIZER,
       .work = PTHREAD_COND_INITIALIZER,
       .ended = PTHREAD_COND_INITIALIZER};

/* Has this host a core for the thread of each of its ranks? */
static bool core_is_free(void) {
    int64_t busy = (int64_t)comm_world.local_size * (rt_threads() + 1);
    return busy <= comm_world.local_cores;
}

/* How a thread waits that has nothing else to do, given what the cores have to run, and whether
 * the user has told Open MPI that others want them. */
static WaitHow idle_alone(void) {
    const char *shared = getenv("OMPI_MCA_mpi_yield_when_idle");
    int64_t busy = (int64_t)comm_world.local_size * rt_threads();
    bool yields = busy > comm_world.local_cores || (shared && !strcmp(shared, "1"));
    return yields ? WAIT_YIELDS : WAIT_SPINS;
}

static const char *next_label;

void comm_label(const char *label) {
    next_label = label;
}

/* The text of the last comm_label, once; else NULL. */
static const char *take_label(void) {
    const char *label = next_label;
    next_label = NULL;
    return label;
}

/* ---- the thread ---- */

/* Somebody waits for what is done now: the core is the message's. */
static void be_waited_for(void) {
    wait_set(idle_alone());
    WATCH_PUT(beside, false);
}

/* Says how to wait for a request that may have nobody waiting for it yet. comm_wait may begin
 * meanwhile, so that is looked at once more when both are said. */
static void be_beside(int64_t ticket) {
    if (q.wanted < ticket) {
        wait_set(core_is_free() ? idle_alone() : WAIT_NAPS);
        WATCH_PUT(beside, true);
        atomic_thread_fence(memory_order_seq_cst);
    }
    if (q.wanted >= ticket) be_waited_for();
}

static void *run_beside(void *unused) {
    (void)unused;
    rt_unbind_thread();
    op_log_thread(LOG_BESIDE);
    for (int64_t ticket = 1;; ticket++) {
        pthread_mutex_lock(&q.lock);
        while (q.begun < ticket && !q.stop) pthread_cond_wait(&q.work, &q.lock);
        bool over = q.begun < ticket;
        pthread_mutex_unlock(&q.lock);
        if (over) return NULL;
        const Request *r = &q.queue[ticket % QUEUE_LENGTH];
        be_beside(ticket);
        rt_op_begin(r->op);
        r->run(r);
        rt_op_end(r->op);
        pthread_mutex_lock(&q.lock);
        q.done = ticket;
        pthread_cond_signal(&q.ended);
        pthread_mutex_unlock(&q.lock);
    }
}

static void begin_thread(void) {
    q.stop = false;
    if (thread_without_signals(&q.thread, run_beside, NULL) != 0) {
        fail(EXIT_CONFIG, "no thread can be started for communication: this user has too "
                          "many; write parallel.overlap off");
    }
}

static void end_thread(void) {
    pthread_mutex_lock(&q.lock);
    q.stop = true;
    pthread_cond_signal(&q.work);
    pthread_mutex_unlock(&q.lock);
    pthread_join(q.thread, NULL);
}

/* ---- what the program calls ---- */

/* Within a host moving bytes takes a core; between hosts something else moves them. */
CommProgress comm_progress_that_pays(void) {
    bool hosts = comm_world.local_size < comm_world.size;
    bool pays = link_allows_threads() && (hosts || core_is_free());
    return pays ? COMM_THREAD : COMM_AT_ONCE;
}

/* Returns when every collective that was begun is done: then no other thread is inside
 * MPI, nor touches the statistics. */
static void drain(void) {
    comm_wait(q.begun);
}

CommProgress comm_progress(CommProgress how) {
    if (comm_world.size == 1) how = COMM_AT_ONCE;
    if (how == COMM_THREAD && !link_allows_threads()) how = COMM_AT_ONCE;
    if (how == q.how) return how;
    drain();
    if (q.how == COMM_THREAD) end_thread();
    q.begun = q.done = q.wanted = 0;
    if (how == COMM_THREAD) begin_thread();
    return q.how = how;
}

void comm_wait(int64_t ticket) {
    if (!ticket || q.done >= ticket) return;
    q.wanted = ticket;
    be_waited_for();
    pthread_mutex_lock(&q.lock);
    while (q.done < ticket) pthread_cond_wait(&q.ended, &q.lock);
    pthread_mutex_unlock(&q.lock);
}

void comm_run(CommKind kind, unsigned axes, const CommPart *part, int n,
              void *workspace) {
    drain();
    be_waited_for();
    comm_run_now(kind, axes, part, n, workspace, take_label());
}

void comm_end(void) {
    comm_progress(COMM_AT_ONCE);
    link_end();
}

/* Returns the ticket, or 0: it is done. */
static int64_t begin(Request r) {
    r.label = take_label();
    r.op = op_log_open();
    if (q.how == COMM_AT_ONCE) {
        wait_set(idle_alone());
        r.run(&r);
        return 0;
    }
    int64_t ticket = q.begun + 1;
    if (ticket > QUEUE_LENGTH) comm_wait(ticket - QUEUE_LENGTH);
    q.queue[ticket % QUEUE_LENGTH] = r;
    pthread_mutex_lock(&q.lock);
    q.begun = ticket;
    pthread_cond_signal(&q.work);
    pthread_mutex_unlock(&q.lock);
    return ticket;
}

int64_t comm_begin(CommKind kind, unsigned axes, const CommPart *part, int n,
                   void *workspace) {
    return begin((Request){.run = run_collective,
                           .kind = kind,
                           .axes = axes,
                           .part = part,
                           .n = n,
                           .workspace = workspace});
}

/* ---- messages between stages ---- */

static int64_t *post_bytes; /* of the message of each post; FREE: none */
static int nposts;
enum { FREE = -1 };

static int take_post(int64_t bytes) {
    int i = 0;
    while (i < nposts && post_bytes[i] != FREE) i++;
    if (i == nposts) {
        drain();
        int more = MAX(64, 2 * nposts);
        int64_t *all = realloc(post_bytes, (size_t)more * sizeof *all);
        if (!all) die("no memory for %d messages at once", more);
        for (int k = nposts; k < more; k++) all[k] = FREE;
        post_bytes = all;
        nposts = more;
        link_posts(more);
    }
    post_bytes[i] = bytes;
    return i;
}

int64_t comm_send(int stage, int64_t message, const void *data, int64_t bytes) {
    int post = take_post(bytes);
    begin((Request){.run = run_send,
                    .post = post,
                    .rank = comm_rank_of_stage(stage),
                    .message = message,
                    .data = (void *)(uintptr_t)data,
                    .bytes = bytes});
    return post;
}

void comm_sent(int64_t post) {
    check(post >= 0 && post < nposts && post_bytes[post] != FREE);
    comm_wait(
        begin((Request){.run = run_sent, .post = (int)post, .bytes = post_bytes[post]}));
    post_bytes[post] = FREE;
}

void comm_receive(int stage, int64_t message, void *to, int64_t bytes) {
    comm_wait(begin((Request){.run = run_receive,
                              .rank = comm_rank_of_stage(stage),
                              .message = message,
                              .data = to,
                              .bytes = bytes}));
}
