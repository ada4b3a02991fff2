/* ckpt.c - ranks that save and load checkpoints together:
 *   any DIR                    each strategy of that many ranks, loaded under each other
 *   save|load DIR STRATEGY STEP
 *   small DIR STRATEGY RANK    RANK may write only small files
 *   kill DIR STRATEGY RANK N   saves step 2; RANK dies at its Nth named instant
 *   loop DIR STRATEGY          saves steps 1, 2, ... until somebody ends it
 * With "far-" before it the upper half of the ranks stands in DIR.far: no shared disk. */
#define _GNU_SOURCE
#include "../ckpt_crowd.h"
#include "runtime/comm/comm.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define SAVE_STATE "{\"a\": 1}"

static int save(Crowd *c, int64_t step, int keep, char why[1024]) {
    crowd_fill(c, step);
    const CkptSave what = {
        step, c->t[comm_rank()], TENSORS, comm_rank() ? "{}" : SAVE_STATE, keep, -1};
    return ckpt_save("ckpt", &what, why, 1024);
}

static void save_good(Crowd *c, int64_t step, int keep) {
    char why[1024];
    int error = save(c, step, keep, why);
    if (error) die("rank %d: error %d: %s", comm_rank(), error, why);
    if (comm_rank() == 0 && why[0]) printf("note: %s\n", why);
}

static void load_good(const Strategy *s, int64_t want) {
    Crowd *c = crowd_new(s);
    Arena *mem = arena_new();
    Text log = text_new(mem);
    char *state;
    int64_t step = -1;
    if (!ckpt_load_latest(mem, "ckpt", c->t[comm_rank()], TENSORS, &state, &step, &log))
        die("rank %d found nothing", comm_rank());
    if (comm_rank() == 0) fputs(log.s, stdout);
    if (step != want || strcmp(state, SAVE_STATE))
        die("rank %d: step %lld, state %s", comm_rank(), (long long)step, state);
    int i = crowd_differs(c, comm_rank(), want, TENSORS);
    if (i >= 0) die("rank %d, tensor %d differs", comm_rank(), i);
    /* By its folder, and without the optimizer. */
    c = crowd_new(s);
    const char *folder = arena_printf(mem, "ckpt/step_%08d", (int)want);
    ckpt_load_dir(mem, folder, c->t[comm_rank()], 3, NULL, NULL);
    if (crowd_differs(c, comm_rank(), want, 3) >= 0) die("the model differs");
    arena_free(mem);
}

static void any(void) {
    int64_t step = 0;
    int n = 0;
    for (int from = 0; from < STRATEGIES; from++) {
        Crowd *c = crowd_new(&strategies[from]);
        if (c->ranks != comm_size()) continue;
        save_good(c, ++step, 2);
        for (int to = 0; to < STRATEGIES; to++)
            if (crowd_new(&strategies[to])->ranks == comm_size()) {
                load_good(&strategies[to], step);
                n++;
            }
    }
    if (comm_rank() == 0) printf("%d pairs\n", n);
}

/* All ranks must get the same answer. */
static void small(Crowd *c, int rank) {
    char why[1024];
    struct rlimit limit = {5000, 5000};
    if (comm_rank() == rank) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    int error = save(c, 2, 1, why);
    Arena *mem = arena_new();
    const char *first = comm_broadcast_text(mem, why);
    if (strcmp(first, why) || comm_max_i64(error) != comm_min_i64(error))
        die("rank %d: error %d, %s", comm_rank(), error, why);
    if (comm_rank() == 0) printf("error %d: %s\n", error, why);
}

static int hits_left;

static void kill_here(const char *where) {
    (void)where;
    if (--hits_left == 0) kill(getpid(), SIGKILL);
}

static void loop(Crowd *c) {
    FILE *f = fopen(arena_printf(crowd_mem(), "pid_%d", comm_rank()), "w");
    fprintf(f, "%d", (int)getpid());
    fclose(f);
    for (int64_t step = 1;; step++) {
        save_good(c, step, 2);
        if (comm_rank() == 0) {
            char text[32];
            int n = snprintf(text, sizeof text, "%lld", (long long)step);
            check(file_write_atomic("saved", text, (size_t)n) == 0);
        }
    }
}

static void stand_in(const char *dir, bool far) {
    const char *mine = far && comm_rank() >= comm_size() / 2
                           ? arena_printf(crowd_mem(), "%s.far", dir)
                           : dir;
    if (dir_make(mine) || chdir(mine) != 0) die("cannot stand in %s", mine);
}

int main(int argc, char **argv) {
    check(argc >= 3);
    comm_start();
    bool far = !strncmp(argv[1], "far-", 4);
    const char *mode = argv[1] + (far ? 4 : 0);
    int number[3] = {0};
    for (int i = 3; i < argc; i++) number[i - 3] = atoi(argv[i]);
    const Strategy *s = &strategies[number[0]];
    stand_in(argv[2], far);
    if (!strcmp(mode, "any")) any();
    if (!strcmp(mode, "save")) save_good(crowd_new(s), number[1], 2);
    if (!strcmp(mode, "load")) load_good(s, number[1]);
    if (!strcmp(mode, "small")) small(crowd_new(s), number[1]);
    if (!strcmp(mode, "loop")) loop(crowd_new(s));
    if (!strcmp(mode, "kill")) {
        hits_left = number[2];
        if (comm_rank() == number[1]) ckpt_failpoint = kill_here;
        save_good(crowd_new(s), 2, 1);
    }
    comm_end();
    return 0;
}
