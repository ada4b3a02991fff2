/* comm_mpi.c - processes and messages by MPI, which no other file of runtime uses. MPI is
 * called from the thread that called comm_start, or instead from the one of comm_queue.c,
 * never from two at a time. Every call is checked: a failure is reported with its name,
 * rank and host, and ends all ranks. */
#define _GNU_SOURCE
#include "runtime/comm/comm_launcher.h"
#include "runtime/comm/comm_link.h"
#include "runtime/comm/comm_shared.h"
#include "runtime/comm/comm_wait.h"
#include "runtime/comm/watch.h"
#include "runtime/core/rt.h"
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    TAG_CONTROL = 1,
    TAG_LINK = 2,
    TAG_OF_NONE = 3,
    TAG_STAGE = 4,
    TAG_MOST = 32767 /* MPI promises no larger ones */
};

static MPI_Comm world; /* a copy of MPI_COMM_WORLD: nobody else's messages */
static MPI_Comm local; /* ranks of this host, while comm_start looks at it */
static bool started;
static bool alone;       /* comm_alone */
static CommWorld of_all; /* what comm_world is when this rank is not alone */
static int thread_level; /* that MPI grants */

/* In any thread, so no fail(): its catcher may be another one's. */
static _Noreturn void call_failed(int rc, const char *call) {
    char text[MPI_MAX_ERROR_STRING + 1] = "", message[1024];
    int n = 0;
    if (MPI_Error_string(rc, text, &n) != MPI_SUCCESS) n = 0;
    text[n] = 0;
    snprintf(message, sizeof message,
             "stator: error: %s failed on rank %d (host %.200s): %.600s", call,
             comm_world.rank, comm_world.host, text);
    if (!failure_hook || !failure_hook(EXIT_NETWORK, message))
        fprintf(stderr, "%s\n", message);
    comm_abort(EXIT_NETWORK);
}

#define CALL(name, ...)                                                                  \
    do {                                                                                 \
        int rc_ = name(__VA_ARGS__);                                                     \
        if (rc_ != MPI_SUCCESS) call_failed(rc_, #name);                                 \
    } while (0)

/* ---- start and end ---- */

static void end_others(int code) {
    comm_abort(code);
}

/* From the watching thread, whatever the others are in: no lock is waited for. The alarm
 * ends this process should MPI wait for its other thread. */
static void end_from_watch(int code) {
    const int most_seconds = 3;
    int down = 0;
    alarm(most_seconds);
    MPI_Finalized(&down);
    if (started && !down) MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
}

/* The cores that the processes of this host may use, each counted once, and no more than the
 * least quota; does any belong to two? */
static int shared_cores(bool *overlap) {
    cpu_set_t mine, all;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) {
        CPU_ZERO(&mine);
        for (int i = 0; i < sysconf(_SC_NPROCESSORS_ONLN) && i < CPU_SETSIZE; i++) {
            CPU_SET(i, &mine);
        }
    }
    CALL(MPI_Allreduce, &mine, &all, sizeof all, MPI_BYTE, MPI_BOR, local);
    int mine_n = MAX(1, CPU_COUNT(&mine)), sum, quota = rt_quota_cores(), least;
    CALL(MPI_Allreduce, &mine_n, &sum, 1, MPI_INT, MPI_SUM, local);
    CALL(MPI_Allreduce, &quota, &least, 1, MPI_INT, MPI_MIN, local);
    int cores = MIN(MAX(1, CPU_COUNT(&all)), least);
    *overlap = sum > cores;
    return cores;
}

/* A rank's threads: its host's cores over the ranks there, the least of all hosts, since
 * all run one code; no more than it may use. */
static void share_threads(bool overlap) {
    int mine = MAX(1, comm_world.local_cores / comm_world.local_size), least;
    mine = MIN(mine, rt_cores());
    CALL(MPI_Allreduce, &mine, &least, 1, MPI_INT, MPI_MIN, world);
    rt_share_host(least, overlap);
}

static void tell_local(void *data, int bytes) {
    CALL(MPI_Bcast, data, bytes, MPI_BYTE, 0, local);
}

static bool all_of_local(bool mine) {
    int yes = mine, all;
    CALL(MPI_Allreduce, &yes, &all, 1, MPI_INT, MPI_MIN, local);
    return all;
}

/* comm_world.local_of. */
static void know_local(void) {
    int *of = calloc((size_t)comm_world.local_size, sizeof *of);
    comm_world.local_of = calloc((size_t)comm_world.size, sizeof *of);
    if (!of || !comm_world.local_of) die("no memory for %d ranks", comm_world.size);
    CALL(MPI_Allgather, &comm_world.rank, 1, MPI_INT, of, 1, MPI_INT, local);
    for (int i = 0; i < comm_world.size; i++) comm_world.local_of[i] = -1;
    for (int i = 0; i < comm_world.local_size; i++) comm_world.local_of[of[i]] = i;
    free(of);
}

static void tell_hosts(void) {
    char mine[COMM_HOST_BYTES];
    snprintf(mine, sizeof mine, "%.*s", COMM_HOST_BYTES - 1, comm_world.host);
    comm_world.hosts = calloc((size_t)comm_world.size, sizeof mine);
    if (!comm_world.hosts) die("no memory for %d names of hosts", comm_world.size);
    CALL(MPI_Allgather, mine, sizeof mine, MPI_BYTE, comm_world.hosts, sizeof mine,
         MPI_BYTE, world);
}

static void look_at_host(void) {
    CALL(MPI_Comm_split_type, world, MPI_COMM_TYPE_SHARED, comm_world.rank, MPI_INFO_NULL,
         &local);
    CALL(MPI_Comm_rank, local, &comm_world.local_rank);
    CALL(MPI_Comm_size, local, &comm_world.local_size);
    bool overlap;
    comm_world.local_cores = shared_cores(&overlap);
    share_threads(overlap);
    know_local();
    comm_share_memory(&(HostCalls){tell_local, all_of_local}, comm_world.local_rank,
                      comm_world.local_size);
    tell_hosts();
    CALL(MPI_Comm_free, &local);
}

/* "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\nMPICH Release ...": up to the
 * first comma or end of a line, with single blanks. */
const char *comm_library(void) {
    static char name[64];
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, n = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "unknown";
    for (const char *s = text; n < (int)sizeof name - 1 && s < text + length; s++) {
        if (*s == ',' || *s == '\n') break;
        char c = *s == '\t' ? ' ' : *s;
        if (c != ' ' || (n && name[n - 1] != ' ')) name[n++] = c;
    }
    name[n] = 0;
    return name;
}

/* Has this MPI the PMI of Slurm? An Open MPI has where there is a component for it; without one
 * MPI_Init ends the process, with the code of a run that has diverged. */
static bool speaks_slurm_pmi(void) {
    static const char *const version[] = {
        "pmix_s1_major_version", "pmix_s2_major_version", "pmix_cray_major_version"};
    int provided, index;
    bool any = !begins_with(comm_library(), "Open MPI");
    CALL(MPI_T_init_thread, MPI_THREAD_SINGLE, &provided);
    for (int i = 0; i < ARRAY_LEN(version); i++)
        any |= MPI_T_cvar_get_index(version[i], &index) == MPI_SUCCESS;
    CALL(MPI_T_finalize);
    return any;
}

void comm_start(void) {
    int64_t tasks;
    int provided;
    check(!started);
    if (gethostname(comm_world.host, sizeof comm_world.host - 1) != 0) {
        snprintf(comm_world.host, sizeof comm_world.host, "localhost");
    }
    if (!launcher_started(comm_library(), &tasks)) {
        comm_world.local_cores = rt_cores();
        return;
    }
    if (launcher_slurm_pmi() && !speaks_slurm_pmi()) launcher_fail(comm_library(), tasks);
    launcher_set_mpi();
    sigset_t all, before; /* MPI's helper threads take no signals meant for this one */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    CALL(MPI_Init_thread, NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    started = true;
    CALL(MPI_Comm_set_errhandler, MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CALL(MPI_Comm_set_errhandler, MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (provided < MPI_THREAD_FUNNELED) {
        fail(EXIT_CONFIG,
             "this MPI library does not allow threads beside it; use one built "
             "with MPI_THREAD_FUNNELED or more");
    }
    thread_level = provided;
    CALL(MPI_Comm_dup, MPI_COMM_WORLD, &world); /* error handler too */
    CALL(MPI_Comm_rank, world, &comm_world.rank);
    CALL(MPI_Comm_size, world, &comm_world.size);
    if (comm_world.size == 1 && tasks > 1) launcher_fail(comm_library(), tasks);
    look_at_host();
    watch_ends_by(end_from_watch);
    if (comm_world.size > 1) exit_hook = end_others;
}

bool link_allows_threads(void) {
    return started && thread_level >= MPI_THREAD_SERIALIZED;
}

void link_end(void) {
    if (!started) return;
    fflush(NULL);
    exit_hook = NULL;
    CALL(MPI_Finalize);
    started = false;
    watch_stop();
    free(comm_world.hosts);
    comm_world.hosts = NULL;
    free(comm_world.local_of);
    comm_world.local_of = NULL;
}

_Noreturn void comm_abort(int code) {
    int up = 0, down = 0;
    fflush(NULL);
    MPI_Initialized(&up);
    MPI_Finalized(&down);
    if (up && !down) MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
}

/* ---- control ---- */

static void begin_watch(const char *op, int waits, int peer) {
    WATCH_PUT(beside, false);
    WATCH_PUT(op, op);
    watch_wait(waits, peer);
}

static void end_watch(void) {
    WATCH_PUT(op, NULL);
    watch_go_on();
}

/* Of one call; and of a broadcast that is all waiting, for ranks that others keep from their core. */
enum { CHUNK_BYTES = 256 << 20, SHORT_BYTES = 4096 };

/* MPI's own waits would take a core until the last rank has come. */
static void complete(MPI_Request *request) {
    double start = clock_seconds();
    for (int done = 0;;) {
        CALL(MPI_Test, request, &done, MPI_STATUS_IGNORE);
        if (done) return;
        wait_for_control(start);
    }
}

/* All ranks are here when it returns: what follows transfers and does not wait. */
static void meet(void) {
    MPI_Request request;
    CALL(MPI_Ibarrier, world, &request);
    complete(&request);
}

void comm_alone(bool yes) {
    check(alone != yes);
    if (yes) of_all = comm_world;
    if (yes) comm_world.size = 1, comm_world.rank = 0;
    if (!yes) comm_world = of_all;
    alone = yes;
}

/* Are there others to meet? */
static bool together(void) {
    return started && !alone;
}

void comm_barrier(void) {
    if (!together()) return;
    begin_watch("a barrier", WATCH_FOR_ALL, -1);
    meet();
    end_watch();
}

static void broadcast_short(void *data, size_t bytes, int root) {
    MPI_Request request;
    CALL(MPI_Ibcast, data, (int)bytes, MPI_BYTE, root, world, &request);
    complete(&request);
}

static void broadcast_long(void *data, size_t bytes, int root) {
    for (size_t at = 0; at < bytes; at += CHUNK_BYTES) {
        int n = (int)MIN(bytes - at, (size_t)CHUNK_BYTES);
        CALL(MPI_Bcast, (char *)data + at, n, MPI_BYTE, root, world);
        watch_progress();
    }
}

void comm_broadcast(void *data, size_t bytes, int root) {
    check(root >= 0 && root < comm_world.size);
    if (!together()) return;
    begin_watch("a broadcast", WATCH_FOR_ALL, -1);
    meet();
    (bytes > SHORT_BYTES ? broadcast_long : broadcast_short)(data, bytes, root);
    end_watch();
}

static int64_t reduced_i64(int64_t v, MPI_Op op) {
    MPI_Request request;
    if (!together()) return v;
    begin_watch("an agreement", WATCH_FOR_ALL, -1);
    CALL(MPI_Iallreduce, MPI_IN_PLACE, &v, 1, MPI_INT64_T, op, world, &request);
    complete(&request);
    end_watch();
    return v;
}

int64_t comm_max_i64(int64_t v) {
    return reduced_i64(v, MPI_MAX);
}

int64_t comm_min_i64(int64_t v) {
    return reduced_i64(v, MPI_MIN);
}

void *comm_gather(Arena *mem, const void *mine, size_t bytes) {
    check(bytes <= LINK_MAX_BYTES);
    char *all = arena_alloc(mem, array_bytes((size_t)comm_world.size, bytes));
    if (!together()) return bytes ? memcpy(all, mine, bytes) : all;
    begin_watch("a gather", WATCH_FOR_ALL, -1);
    meet();
    CALL(MPI_Allgather, mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, world);
    end_watch();
    return all;
}

static void check_other(int rank) {
    check(together() && rank >= 0 && rank < comm_world.size && rank != comm_world.rank);
}

void comm_send_bytes(int to, const void *data, size_t bytes) {
    check_other(to);
    begin_watch("a send", WATCH_FOR_RANK, to);
    for (size_t at = 0; at < bytes; at += CHUNK_BYTES) {
        int n = (int)MIN(bytes - at, (size_t)CHUNK_BYTES);
        CALL(MPI_Send, (const char *)data + at, n, MPI_BYTE, to, TAG_CONTROL, world);
        watch_progress();
    }
    end_watch();
}

static void await_message(int from) {
    double start = clock_seconds();
    for (int there = 0;;) {
        CALL(MPI_Iprobe, from, TAG_CONTROL, world, &there, MPI_STATUS_IGNORE);
        if (there) return;
        wait_for_control(start);
    }
}

void comm_receive_bytes(int from, void *data, size_t bytes) {
    check_other(from);
    begin_watch("a receive", WATCH_FOR_RANK, from);
    if (bytes) await_message(from);
    for (size_t at = 0; at < bytes; at += CHUNK_BYTES) {
        int n = (int)MIN(bytes - at, (size_t)CHUNK_BYTES), got;
        MPI_Status status;
        CALL(MPI_Recv, (char *)data + at, n, MPI_BYTE, from, TAG_CONTROL, world, &status);
        CALL(MPI_Get_count, &status, MPI_BYTE, &got);
        if (got != n) die("rank %d sent %d bytes where %d were expected", from, got, n);
        watch_progress();
    }
    end_watch();
}

/* ---- messages of collectives ---- */

static struct Message {
    MPI_Request request;
    bool receives;
    int rank, bytes;
} messages[LINK_SLOTS];
static int unfinished; /* messages of any kind */

void mpi_receive(int slot, int rank, void *to, int64_t bytes) {
    struct Message *m = &messages[slot];
    *m = (struct Message){.receives = true, .rank = rank, .bytes = (int)bytes};
    CALL(MPI_Irecv, to, m->bytes, MPI_BYTE, rank, TAG_LINK, world, &m->request);
    unfinished++;
}

void mpi_send(int slot, int rank, const void *from, int64_t bytes) {
    struct Message *m = &messages[slot];
    *m = (struct Message){.rank = rank, .bytes = (int)bytes};
    CALL(MPI_Isend, from, m->bytes, MPI_BYTE, rank, TAG_LINK, world, &m->request);
    unfinished++;
}

/* Members that run different collectives are our mistake, not the network's. */
static void expect_fit(const struct Message *m, int rc) {
    int class = MPI_SUCCESS;
    if (rc == MPI_SUCCESS) return;
    if (MPI_Error_class(rc, &class) == MPI_SUCCESS && class == MPI_ERR_TRUNCATE) {
        die("rank %d sent more to rank %d in a collective than the %d bytes expected",
            m->rank, comm_world.rank, m->bytes);
    }
    call_failed(rc, "MPI_Test");
}

bool mpi_done(int slot, int64_t *bytes) {
    struct Message *m = &messages[slot];
    MPI_Status status;
    int done, got;
    expect_fit(m, MPI_Test(&m->request, &done, &status));
    *bytes = m->bytes;
    unfinished -= done;
    if (!done || !m->receives) return done;
    CALL(MPI_Get_count, &status, MPI_BYTE, &got);
    *bytes = got;
    return true;
}

/* ---- messages between stages ---- */

static struct Post {
    MPI_Request request;
    int rank;
} * posts;
static int nposts;

void link_posts(int n) {
    struct Post *more = realloc(posts, (size_t)n * sizeof *posts);
    if (!more) die("no memory for %d messages at once", n);
    posts = more;
    nposts = n;
}

/* One that comes round again is told apart by its order. */
static int tag_of(int64_t message) {
    return TAG_STAGE + (int)(message % (TAG_MOST - TAG_STAGE));
}

void link_post(int post, int rank, int64_t message, const void *data, int64_t bytes) {
    check(post >= 0 && post < nposts && bytes <= LINK_MAX_BYTES);
    posts[post].rank = rank;
    CALL(MPI_Isend, data, (int)bytes, MPI_BYTE, rank, tag_of(message), world,
         &posts[post].request);
    unfinished++;
}

void mpi_advance(void) {
    int there;
    if (unfinished)
        CALL(MPI_Iprobe, MPI_ANY_SOURCE, TAG_OF_NONE, world, &there, MPI_STATUS_IGNORE);
}

static void wait_request(MPI_Request *request, int rank, MPI_Status *status) {
    double start = clock_seconds();
    for (int done = 0;;) {
        CALL(MPI_Test, request, &done, status);
        if (done) break;
        watch_wait(WATCH_FOR_RANK, rank);
        wait_for_message(start);
    }
    watch_go_on();
}

void link_unpost(int post) {
    check(post >= 0 && post < nposts);
    wait_request(&posts[post].request, posts[post].rank, MPI_STATUS_IGNORE);
    unfinished--;
}

void link_take(int rank, int64_t message, void *to, int64_t bytes) {
    MPI_Request request;
    MPI_Status status;
    int got;
    check(bytes <= LINK_MAX_BYTES);
    CALL(MPI_Irecv, to, (int)bytes, MPI_BYTE, rank, tag_of(message), world, &request);
    wait_request(&request, rank, &status);
    CALL(MPI_Get_count, &status, MPI_BYTE, &got);
    if (got != bytes)
        die("rank %d sent %d bytes as message %lld, where %lld were expected", rank, got,
            (long long)message, (long long)bytes);
}
