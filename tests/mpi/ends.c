/* ends.c - how the ranks of a run come to their end: the first argument says how. */
#include "runtime/comm/comm.h"
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void orderly(void) {
    if (comm_rank() == 0) printf("%d ranks\n", comm_size());
}

/* The others wait for a message that never comes. */
static void wait_forever(void) {
    comm_barrier();
    sleep(1000);
}

static void user_failure(void) {
    if (comm_rank() == 1) fail(EXIT_DATA, "the data of rank 1 is not there");
    wait_forever();
}

static void caught_failure(void) {
    Catch c;
    if (CATCH(c)) {
        fail(EXIT_DATA, "nobody sees this");
    } else if (comm_rank() == 0) {
        printf("caught %d on %d ranks\n", c.code, comm_size());
    }
    comm_barrier();
}

static void our_failure(void) {
    if (comm_rank() == 1) die("a bug of rank 1");
    wait_forever();
}

static void abort_all(void) {
    if (comm_rank() == 1) comm_abort(7);
    wait_forever();
}

static void killed(void) {
    comm_barrier();
    if (comm_rank() == 1) raise(SIGKILL);
    wait_forever();
}

/* Ranks that disagree about the size of a collective. */
static void other_sizes(int64_t most, CommProgress how) {
    int64_t n = comm_rank() == 1 ? most / 2 : most;
    float *data = calloc((size_t)most, sizeof *data);
    CommPart p = {data, data, .before = 1, .each = 1, .after = n, .dtype = DT_F32};
    int size = comm_size();
    comm_mesh(1, 1, &size);
    void *space = malloc((size_t)comm_workspace_bytes(COMM_ALL_REDUCE, size, &p, 1));
    comm_progress(how);
    comm_wait(comm_begin(COMM_ALL_REDUCE, 1, &p, 1, space));
    wait_forever();
}

static void other_small_sizes(void) {
    other_sizes(100, COMM_AT_ONCE);
}

static void other_large_sizes(void) {
    other_sizes(1 << 20, COMM_AT_ONCE);
}

static void sizes_of_thread(void) {
    other_sizes(1 << 20, COMM_THREAD);
}

static void wrong_message(void) {
    char data[64] = "";
    if (comm_rank() == 1) comm_send_bytes(0, data, 32);
    if (comm_rank() == 0) comm_receive_bytes(1, data, 64);
    wait_forever();
}

static const struct {
    const char *name;
    void (*run)(void);
} ways[] = {
    {"orderly", orderly},         {"fail", user_failure},
    {"catch", caught_failure},    {"die", our_failure},
    {"abort", abort_all},         {"killed", killed},
    {"small", other_small_sizes}, {"large", other_large_sizes},
    {"message", wrong_message},   {"thread", sizes_of_thread},
};

int main(int argc, char **argv) {
    comm_start();
    for (int i = 0; i < ARRAY_LEN(ways); i++) {
        if (argc < 2 || strcmp(argv[1], ways[i].name)) continue;
        ways[i].run();
        comm_end();
        return 0;
    }
    fail(EXIT_CONFIG, "the argument is no way to end");
}
