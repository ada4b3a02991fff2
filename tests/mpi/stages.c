/* stages.c - two ranks of two stages, where a long message between stages is on its way while its
 * sender waits for a collective that, by way of all other ranks, waits for that message:
 *     mpirun -n 4 mpi_stages BYTES
 * Rank 0 sends it to 2 and meets 1 in a sum; 1 first receives from 3, which first meets 2, which
 * first receives from 0. Ends with 0 once all are through and the numbers are right. */
#include "runtime/comm/comm.h"
#include <stdlib.h>

static float sum_of(float mine) {
    CommPart p = {&mine, &mine, .before = 1, .each = 1, .after = 1, .dtype = DT_F32};
    void *space = malloc((size_t)comm_workspace_bytes(COMM_ALL_REDUCE, 2, &p, 1));
    check(space);
    comm_run(COMM_ALL_REDUCE, 1, &p, 1, space);
    free(space);
    return mine;
}

static void send_to(int stage, char *data, int64_t bytes) {
    memset(data, 1 + comm_rank(), (size_t)bytes);
    int64_t ticket = comm_send(stage, 0, data, bytes);
    if (comm_rank() == 0) check(sum_of(1) == 3);
    comm_sent(ticket);
}

static void receive_from(int stage, char *data, int64_t bytes, int rank) {
    comm_receive(stage, 0, data, bytes);
    for (int64_t i = 0; i < bytes; i++) check(data[i] == 1 + rank);
}

int main(int argc, char **argv) {
    const int two = 2;
    int64_t bytes = argc == 2 ? atoll(argv[1]) : 0;
    char *data = malloc((size_t)bytes + 1);
    comm_start();
    check(comm_size() == 4 && bytes > 0 && data);
    comm_mesh(2, 1, &two);
    if (comm_rank() == 1) receive_from(1, data, bytes, 3);
    if (comm_rank() == 2) receive_from(0, data, bytes, 0);
    if (comm_rank() > 0) check(sum_of(comm_rank() == 2 ? 1 : 2) == 3);
    if (comm_rank() == 0) send_to(1, data, bytes);
    if (comm_rank() == 3) send_to(0, data, bytes);
    comm_end();
    free(data);
    return 0;
}
