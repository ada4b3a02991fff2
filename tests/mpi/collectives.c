/* collectives.c - every rank runs every collective over every set of axes of a mesh and
 * compares with what it reckons from the members' inputs, which it can make too.
 *     mpirun -n 6 mpi_collectives 2x3
 * Ends with 1 and a line per difference, or 0 and the number of elements compared. */
#include "runtime/comm/comm.h"
#include <math.h>
#include <stdlib.h>

enum { MAX_PARTS = 8, GUARD = 64 };

static int naxes, axis_size[COMM_MAX_AXES];
static int64_t compared, differences;

/* ---- groups, reckoned without comm.h ---- */

static int coord_of(int rank, int axis) {
    for (int a = naxes - 1; a > axis; a--) rank /= axis_size[a];
    return rank % axis_size[axis];
}

static bool same_group(int a, int b, unsigned axes) {
    for (int i = 0; i < naxes; i++) {
        if (!(axes >> i & 1) && coord_of(a, i) != coord_of(b, i)) return false;
    }
    return true;
}

typedef struct Members {
    int n, me;
    int rank[64];
} Members;

static Members members_of(unsigned axes) {
    Members m = {0};
    for (int r = 0; r < comm_size(); r++) {
        if (!same_group(r, comm_rank(), axes)) continue;
        if (r == comm_rank()) m.me = m.n;
        m.rank[m.n++] = r;
    }
    return m;
}

/* ---- cases ---- */

typedef struct Case {
    const char *name;
    int n;
    CommPart part[MAX_PARTS];
    int most_ranks; /* 0: any */
    int least_ranks;
} Case;

/* The joined side of all_to_all holds the same elements in another shape. */
#define PART(b, e, a, t)                                                                 \
    {                                                                                    \
        .before = b, .each = e, .after = a, .join_before = (b) * (e), .join_each = a,    \
        .join_after = 1, .dtype = t                                                      \
    }
static const Case cases[] = {
    {"one element", 1, {PART(1, 1, 1, DT_F32)}, 0},
    {"small", 1, {PART(1, 5, 3, DT_F32)}, 0},
    {"small rows", 2, {PART(7, 3, 2, DT_F32), PART(3, 1, 5, DT_I32)}, 0},
    {"nothing", 2, {PART(0, 3, 2, DT_F32), PART(4, 0, 5, DT_I32)}, 0},
    {"integers", 1, {PART(1, 20011, 1, DT_I32)}, 0},
    {"rows", 1, {PART(13, 67, 41, DT_F32)}, 0},
    {"thin rows", 1, {PART(9001, 1, 3, DT_F32)}, 0},
    {"bucket",
     6,
     {PART(1, 30011, 1, DT_F32), PART(0, 1, 1, DT_F32), PART(5, 701, 3, DT_I32),
      PART(1, 1, 1, DT_F32), PART(1, 2, 4099, DT_F32), PART(101, 1, 17, DT_F32)},
     0},
    {"16 bits", 1, {PART(3, 5, 41, DT_BF16)}, 0},
    {"bucket of 16 bits",
     4,
     {PART(1, 30011, 1, DT_BF16), PART(5, 701, 3, DT_F16), PART(1, 1, 1, DT_BF16),
      PART(101, 1, 17, DT_F16)},
     0},
    {"more than caches have",
     2,
     {PART(3, 1, 1500007, DT_F32), PART(2, 5, 2999, DT_BF16)},
     3,
     2},
    {"many segments", 2, {PART(1, 600011, 1, DT_F32), PART(3, 5, 2999, DT_F32)}, 3},
};

/* Element i of a part's input on this rank. */
static uint32_t hash_of(int rank, int part, int64_t i) {
    uint64_t h = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)(rank * 131 + part + 1);
    h = (h ^ h >> 31) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(h >> 32);
}

static double value(DType t, int rank, int part, int64_t i) {
    uint32_t h = hash_of(rank, part, i);
    if (t == DT_I32) return (double)(h >> 8);
    if (dtype_is_narrow(t)) return (double)(h >> 24) / 128 - 1; /* a number of each */
    return (float)((double)h / 2147483648.0 - 1);
}

/* ---- what the result must be ---- */

/* SourcePos in [before, n * each, after] of element q of piece k. */
static int64_t in_whole(int64_t each, int64_t after, int n, int k, int64_t q) {
    int64_t row = each * after;
    return q / row * row * n + k * row + q % row;
}

/* The inverse: piece and element. */
static int64_t in_piece(int64_t each, int64_t after, int n, int64_t i, int *k) {
    int64_t row = each * after;
    *k = (int)(i / row % n);
    return i / (row * n) * row + i % row;
}

static double wanted(CommKind kind, const Members *m, const CommPart *p, int part,
                     int64_t i) {
    int64_t at = i;
    int k;
    bool max = kind == COMM_ALL_REDUCE_MAX;
    if (kind == COMM_RING_SHIFT) {
        return value(p->dtype, m->rank[(m->me + m->n - 1) % m->n], part, i);
    }
    if (kind == COMM_ALL_GATHER) {
        at = in_piece(p->each, p->after, m->n, i, &k);
        return value(p->dtype, m->rank[k], part, at);
    }
    if (kind == COMM_ALL_TO_ALL) {
        at = in_piece(p->join_each, p->join_after, m->n, i, &k);
        at = in_whole(p->each, p->after, m->n, m->me, at);
        return value(p->dtype, m->rank[k], part, at);
    }
    if (kind == COMM_REDUCE_SCATTER) at = in_whole(p->each, p->after, m->n, m->me, i);
    double sum = value(p->dtype, m->rank[0], part, at);
    for (int j = 1; j < m->n; j++) {
        double v = value(p->dtype, m->rank[j], part, at);
        sum = max ? fmax(sum, v) : sum + v;
    }
    return sum;
}

static double tolerance(CommKind kind, const CommPart *p, int n) {
    bool sums = kind == COMM_ALL_REDUCE || kind == COMM_REDUCE_SCATTER;
    double unit = p->dtype == DT_F32    ? 1.2e-7
                  : p->dtype == DT_BF16 ? 0x1p-8
                  : p->dtype == DT_F16  ? 0x1p-11
                                        : 0;
    return sums ? unit * n * n : 0;
}

/* ---- runs ---- */

/* Elements of input and result, in pieces of before * each * after. */
static const struct {
    const char *name;
    bool from_whole, to_whole;
} kinds[COMM_KINDS] = {
    [COMM_ALL_REDUCE] = {"all_reduce", false, false},
    [COMM_ALL_REDUCE_MAX] = {"all_reduce max", false, false},
    [COMM_REDUCE_SCATTER] = {"reduce_scatter", true, false},
    [COMM_ALL_GATHER] = {"all_gather", false, true},
    [COMM_ALL_TO_ALL] = {"all_to_all", true, true},
    [COMM_RING_SHIFT] = {"ring_shift", false, false},
};

static int64_t count_of(const CommPart *p, bool whole, int n) {
    return p->before * p->each * p->after * (whole ? n : 1);
}

static void *fill(Arena *mem, const CommPart *p, int part, int64_t count) {
    void *data = arena_alloc(mem, (size_t)count * dtype_bytes[p->dtype] + GUARD);
    for (int64_t i = 0; i < count; i++) {
        double v = value(p->dtype, comm_rank(), part, i);
        if (p->dtype == DT_I32)
            ((int32_t *)data)[i] = (int32_t)v;
        else if (dtype_is_narrow(p->dtype))
            ((uint16_t *)data)[i] = f32_to_narrow(p->dtype, (float)v);
        else
            ((float *)data)[i] = (float)v;
    }
    return data;
}

static double element(const CommPart *p, int64_t i) {
    if (p->dtype == DT_I32) return ((int32_t *)p->to)[i];
    if (dtype_is_narrow(p->dtype)) return narrow_to_f32(p->dtype, ((uint16_t *)p->to)[i]);
    return ((float *)p->to)[i];
}

static void expect_part(CommKind kind, const Members *m, const CommPart *p, int part,
                        const char *where) {
    int64_t count = count_of(p, kinds[kind].to_whole, m->n);
    double most = tolerance(kind, p, m->n);
    for (int64_t i = 0; i < count; i++, compared++) {
        double got = element(p, i);
        double want = wanted(kind, m, p, part, i);
        if (fabs(got - want) <= most) continue;
        if (differences++ < 5) {
            fprintf(stderr, "%s, rank %d, part %d, element %lld: %.9g, wanted %.9g\n",
                    where, comm_rank(), part, (long long)i, got, want);
        }
    }
    for (int i = 0; i < GUARD; i++) {
        if (((char *)p->to)[count * dtype_bytes[p->dtype] + i] != 0) differences++;
    }
}

static uint64_t hash_results(CommKind kind, const Members *m, const CommPart *part,
                             int n) {
    uint64_t h = 1;
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)count_of(&part[i], kinds[kind].to_whole, m->n) *
                       dtype_bytes[part[i].dtype];
        h = h * 31 + (bytes ? hash64(part[i].to, bytes) : 0);
    }
    return h;
}

/* One run on fresh inputs; the hash of its results. */
static uint64_t run_once(CommKind kind, unsigned axes, const Case *c, bool in_place,
                         const char *where) {
    Arena *mem = arena_new();
    Members m = members_of(axes);
    CommPart part[MAX_PARTS];
    memcpy(part, c->part, sizeof part);
    for (int i = 0; i < c->n; i++) {
        CommPart *p = &part[i];
        int64_t to = count_of(p, kinds[kind].to_whole, m.n);
        p->from = fill(mem, p, i, count_of(p, kinds[kind].from_whole, m.n));
        p->to = in_place ? (void *)(uintptr_t)p->from
                         : arena_alloc(mem, (size_t)to * dtype_bytes[p->dtype] + GUARD);
    }
    size_t space = (size_t)comm_workspace_bytes(kind, m.n, part, c->n);
    char *workspace = malloc(space + GUARD);
    memset(workspace, 0x5a, space + GUARD);
    comm_run(kind, axes, part, c->n, workspace);
    for (int i = 0; i < c->n; i++) expect_part(kind, &m, &part[i], i, where);
    for (size_t i = 0; i < GUARD; i++) differences += workspace[space + i] != 0x5a;
    free(workspace);
    uint64_t h = hash_results(kind, &m, part, c->n);
    arena_free(mem);
    return h;
}

/* Same bits again, and of all_reduce on every member. */
static void expect_bits(CommKind kind, unsigned axes, uint64_t first, uint64_t second,
                        const char *where) {
    Arena *mem = arena_new();
    uint64_t *all = comm_gather(mem, &first, sizeof first);
    if (first != second) {
        fprintf(stderr, "%s, rank %d: other bits when repeated\n", where, comm_rank());
        differences++;
    }
    bool same = kind == COMM_ALL_REDUCE || kind == COMM_ALL_REDUCE_MAX;
    for (int r = 0; same && r < comm_size(); r++) {
        if (!same_group(r, comm_rank(), axes) || all[r] == first) continue;
        fprintf(stderr, "%s: rank %d and %d differ\n", where, comm_rank(), r);
        differences++;
    }
    arena_free(mem);
}

static void run_case(CommKind kind, unsigned axes, const Case *c) {
    char where[128];
    if (c->most_ranks && comm_size() > c->most_ranks) return;
    if (comm_size() < c->least_ranks) return;
    bool in_place = kind == COMM_ALL_REDUCE || kind == COMM_ALL_REDUCE_MAX;
    snprintf(where, sizeof where, "%s over axes %x, %s", kinds[kind].name, axes, c->name);
    uint64_t first = run_once(kind, axes, c, false, where);
    uint64_t second = run_once(kind, axes, c, in_place, where);
    expect_bits(kind, axes, first, second, where);
}

/* ---- NaN, types that only move, statistics ---- */

static void expect(bool good, const char *what) {
    compared++;
    if (good) return;
    differences++;
    fprintf(stderr, "rank %d: %s\n", comm_rank(), what);
}

static void special_values(unsigned axes) {
    Members m = members_of(axes);
    float some[] = {m.me == m.n - 1 ? NAN : 1, m.me == 0 ? NAN : 1, -INFINITY};
    CommPart p = {some, some, .before = 1, .each = 1, .after = 3, .dtype = DT_F32};
    char space[1 << 14];
    for (CommKind k = COMM_ALL_REDUCE; k <= COMM_ALL_REDUCE_MAX; k++) {
        expect(comm_workspace_bytes(k, m.n, &p, 1) <= (int64_t)sizeof space, "workspace");
        comm_run(k, axes, &p, 1, space);
        expect(isnan(some[0]) && isnan(some[1]), "NaN stays");
        expect(some[2] == -INFINITY, "infinity stays");
        some[0] = m.me == m.n - 1 ? NAN : 1;
        some[1] = m.me == 0 ? NAN : 1;
    }
}

/* Where rounding tells the orders apart. */
static void order_of_small_sums(unsigned axes) {
    Members m = members_of(axes);
    float mine = 0, sum = 0;
    for (int k = 0; k < m.n; k++) {
        float theirs = (float)value(DT_F32, m.rank[k], 0, 7) * (k % 2 ? 1e-6f : 1e2f);
        if (k == m.me) mine = theirs;
        sum = k ? sum + theirs : theirs;
    }
    CommPart p = {&mine, &mine, .before = 1, .each = 1, .after = 1, .dtype = DT_F32};
    char space[1 << 14];
    comm_run(COMM_ALL_REDUCE, axes, &p, 1, space);
    expect(mine == sum, "a small sum is in the order of the members");
}

static void wide_elements(unsigned axes) {
    Members m = members_of(axes);
    int64_t mine = (1ll << 40) + comm_rank(), all[64];
    CommPart p = {&mine, all, .before = 1, .each = 1, .after = 1, .dtype = DT_I64};
    char space[1 << 14];
    expect(comm_workspace_bytes(COMM_ALL_GATHER, m.n, &p, 1) <= (int64_t)sizeof space,
           "workspace");
    comm_run(COMM_ALL_GATHER, axes, &p, 1, space);
    for (int k = 0; k < m.n; k++)
        expect(all[k] == (1ll << 40) + m.rank[k], "i64 gathered");
}

static void statistics(unsigned axes) {
    Members m = members_of(axes);
    enum { N = 1 << 16 };
    static float data[N];
    CommPart p = {data, data, .before = 1, .each = 1, .after = N, .dtype = DT_F32};
    CommStats before = comm_stats(COMM_ALL_REDUCE);
    void *space = malloc((size_t)comm_workspace_bytes(COMM_ALL_REDUCE, m.n, &p, 1) + 1);
    comm_run(COMM_ALL_REDUCE, axes, &p, 1, space);
    free(space);
    CommStats after = comm_stats(COMM_ALL_REDUCE);
    int64_t sent = after.sent_bytes - before.sent_bytes,
            want = 2 * (m.n - 1) * (int64_t)N * 4;
    expect(after.calls == before.calls + 1 && after.seconds > before.seconds,
           "calls counted");
    expect(llabs(sent * m.n - want) <= 4096 * m.n, "bytes sent");
}

/* More collectives in flight than the queue is long, some of another group, with one in
 * between that waits for all; whoever runs them. A sum over the ranks of what rank and
 * number say, so one that ran out of order shows. */
static void beside_other_work(unsigned axes, CommProgress how) {
    enum { N = 150, WAITS = 70 };
    static int32_t data[N];
    static CommPart part[N];
    static int64_t ticket[N];
    static char space[N][1 << 14];
    CommProgress got = comm_progress(how);
    expect(got == (comm_size() > 1 ? how : COMM_AT_ONCE), "who runs collectives");
    for (int i = 0; i < N; i++) {
        unsigned group = i % 3 ? axes : 0;
        CommKind kind = COMM_ALL_REDUCE;
        data[i] = comm_rank() + 1000 * i;
        part[i] = (CommPart){&data[i],  &data[i],   .before = 1,
                             .each = 1, .after = 1, .dtype = DT_I32};
        int64_t need = comm_workspace_bytes(kind, members_of(group).n, &part[i], 1);
        expect(need <= (int64_t)sizeof space[i], "workspace");
        if (i == WAITS)
            comm_run(kind, group, &part[i], 1, space[i]);
        else
            ticket[i] = comm_begin(kind, group, &part[i], 1, space[i]);
    }
    for (int i = 0; i < N; i++) {
        Members m = members_of(i % 3 ? axes : 0);
        int32_t want = 0;
        comm_wait(ticket[i]);
        for (int k = 0; k < m.n; k++) want += m.rank[k] + 1000 * i;
        expect(data[i] == want, "a sum beside other work");
    }
    expect(comm_progress(COMM_AT_ONCE) == COMM_AT_ONCE, "nobody else runs collectives");
}

/* ---- control ---- */

static void coordinates(void) {
    for (int a = 0; a < naxes; a++)
        expect(comm_coord(a) == coord_of(comm_rank(), a), "coord");
    expect(comm_local_size() == comm_size(), "one host, all ranks on it");
    expect(comm_host()[0], "the host has a name");
}

static void control(void) {
    Arena *mem = arena_new();
    int me = comm_rank(), n = comm_size(), root = n - 1;
    char text[32];
    int64_t v = me == root ? 77 : 0;
    comm_broadcast(&v, sizeof v, root);
    expect(v == 77, "broadcast");
    expect(comm_max_i64(1ll << 40 | me) == (1ll << 40 | (n - 1)), "max");
    expect(comm_min_i64(-me) == -(n - 1), "min");
    const char *got = comm_broadcast_text(mem, me == 0 ? "from zero" : "other");
    expect(!strcmp(got, "from zero"), "text");
    expect(!*comm_broadcast_text(mem, me == 0 ? "" : "other"), "empty text");
    int pair[2] = {me, -me};
    const int *all = comm_gather(mem, pair, sizeof pair);
    for (int r = 0; r < n; r++) expect(all[2 * r] == r && all[2 * r + 1] == -r, "gather");
    snprintf(text, sizeof text, "rank %d", me);
    comm_barrier();
    if (n > 1 && me % 2 == 0 && me + 1 < n) comm_send_bytes(me + 1, text, sizeof text);
    if (me % 2 == 1) {
        char other[32], want[32];
        comm_receive_bytes(me - 1, other, sizeof other);
        snprintf(want, sizeof want, "rank %d", me - 1);
        expect(!strcmp(other, want), "message");
    }
    arena_free(mem);
}

/* More than one MPI message can hold in one of ours. */
static void large_message(void) {
    size_t bytes = (256u << 20) + 5;
    if (comm_size() != 2) return;
    unsigned char *data = malloc(bytes);
    memset(data, comm_rank() + 1, bytes);
    data[bytes - 1] = 9;
    if (comm_rank() == 0)
        comm_send_bytes(1, data, bytes);
    else
        comm_receive_bytes(0, data, bytes);
    expect(data[0] == 1 && data[bytes - 2] == 1 && data[bytes - 1] == 9, "large message");
    free(data);
}

int main(int argc, char **argv) {
    char *rest = argc > 1 ? argv[1] : "1";
    comm_start();
    for (; *rest; rest += *rest == 'x') {
        if (naxes == COMM_MAX_AXES) fail(EXIT_CONFIG, "too many axes");
        axis_size[naxes++] = (int)strtol(rest, &rest, 10);
    }
    comm_mesh(1, naxes, axis_size);
    coordinates();
    control();
    large_message();
    for (unsigned axes = 0; axes < 1u << naxes; axes++) {
        for (CommKind k = 0; k < COMM_KINDS; k++) {
            for (int i = 0; i < ARRAY_LEN(cases); i++) run_case(k, axes, &cases[i]);
        }
        special_values(axes);
        order_of_small_sums(axes);
        wide_elements(axes);
        statistics(axes);
        for (CommProgress how = COMM_AT_ONCE; how <= COMM_THREAD; how++) {
            beside_other_work(axes, how);
        }
    }
    int64_t bad = comm_max_i64(differences);
    if (comm_rank() == 0) printf("%lld compared\n", (long long)compared);
    comm_end();
    return bad != 0;
}
