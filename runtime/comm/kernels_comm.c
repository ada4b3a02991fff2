/* kernels_comm.c - what generated code calls to talk to other ranks; see rt.def. */
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/fault.h"
#include "runtime/core/rt.h"

int64_t rt_coord(int64_t axis) {
    return comm_coord((int)axis);
}

/* The workspace: addresses, parts, a ticket, staging. */
static int64_t parts_at(int64_t n) {
    return align_up(n * 2 * (int64_t)sizeof(void *));
}

static int64_t ticket_at(int64_t n) {
    return parts_at(n) + align_up(n * (int64_t)sizeof(CommPart));
}

int64_t rt_collective_bytes(int64_t n) {
    return ticket_at(n) + align_up((int64_t)sizeof(int64_t));
}

/* Op `agree` is less the most of the negatives of a number of each rank: with a 0 among
 * them it is 0, and the step changes nothing. So other maxima of it do not matter. */
static void vote_against(CommPart *part) {
    static const float no;
    if (part->dtype == DT_F32 && part->before * part->each * part->after == 1)
        part->from = &no;
}

static CommPart *make_parts(int64_t kind, int64_t n, const int64_t *shape, void *ws) {
    void **address = ws;
    CommPart *part = (void *)((char *)ws + parts_at(n));
    bool against = kind == COMM_ALL_REDUCE_MAX && fault_kept(NULL);
    for (int64_t i = 0; i < n; i++) {
        const int64_t *v = shape + i * RT_PART_NUMBERS;
        part[i] = (CommPart){.from = address[2 * i],
                             .to = address[2 * i + 1],
                             .before = v[0],
                             .each = v[1],
                             .after = v[2],
                             .join_before = v[3],
                             .join_each = v[4],
                             .join_after = v[5],
                             .dtype = (DType)v[6]};
        if (against) vote_against(&part[i]);
    }
    return part;
}

static double program_seconds;

double comm_program_seconds(void) {
    return program_seconds;
}

static void count_since(double start) {
    program_seconds += clock_seconds() - start;
}

/* The numbers of the parts are followed by a text that says where the op is. */
static void label(int64_t n, const int64_t *shape) {
    comm_label((const char *)(shape + n * RT_PART_NUMBERS));
}

void rt_collective(int64_t kind, int64_t axes, int64_t n, const int64_t *shape,
                   void *ws) {
    double start = clock_seconds();
    label(n, shape);
    comm_run((CommKind)kind, (unsigned)axes, make_parts(kind, n, shape, ws), (int)n,
             (char *)ws + rt_collective_bytes(n));
    count_since(start);
}

void rt_collective_begin(int64_t kind, int64_t axes, int64_t n, const int64_t *shape,
                         void *ws) {
    double start = clock_seconds();
    int64_t *ticket = (void *)((char *)ws + ticket_at(n));
    label(n, shape);
    *ticket = comm_begin((CommKind)kind, (unsigned)axes, make_parts(kind, n, shape, ws),
                         (int)n, (char *)ws + rt_collective_bytes(n));
    count_since(start);
}

void rt_collective_wait(int64_t n, const void *ws) {
    double start = clock_seconds();
    const int64_t *ticket = (const void *)((const char *)ws + ticket_at(n));
    comm_wait(*ticket);
    count_since(start);
}

void rt_task(int64_t kind, int64_t chunk, int64_t micro) {
    watch_at((int)kind, (int)chunk, (int)micro);
}

void rt_send(int32_t *ticket, int64_t stage, int64_t message, const void *data,
             int64_t bytes, const int64_t *where) {
    double start = clock_seconds();
    comm_label((const char *)where);
    *ticket = (int32_t)comm_send((int)stage, message, data, bytes);
    count_since(start);
}

void rt_sent(const int32_t *ticket, const int64_t *where) {
    double start = clock_seconds();
    comm_label((const char *)where);
    comm_sent(*ticket);
    count_since(start);
}

void rt_receive(int64_t stage, int64_t message, void *to, int64_t bytes,
                const int64_t *where) {
    double start = clock_seconds();
    comm_label((const char *)where);
    comm_receive((int)stage, message, to, bytes);
    count_since(start);
}
