/* train_best.c - the checkpoint of the step with the lowest validation loss, in a folder of
 * its own: which of the others are deleted does not concern it, and no run goes on from it
 * by itself. */
#include "frontend/config/commands.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/store/ckpt_files.h"
#include <math.h>

static const char *best_folder(const Train *t) {
    return path_join(t->mem, t->run_dir, RUN_BEST);
}

/* Of the newest checkpoint in the folder; -1: there is none. */
static int64_t newest_step(const Train *t) {
    CkptEntry *entry;
    int n;
    int64_t step = -1;
    if (ckpt_list(t->mem, best_folder(t), &entry, &n) != 0) return -1;
    for (int i = 0; i < n; i++)
        if (!entry[i].tmp) step = MAX(step, entry[i].step);
    return step;
}

static double loss_at(const Train *t, int64_t at) {
    double *step, *loss, found = INFINITY;
    int n = valid_points(t, t->mem, &step, &loss);
    for (int i = 0; i < n; i++)
        if ((int64_t)step[i] == at && isfinite(loss[i])) found = loss[i];
    return found;
}

double best_start(Train *t) {
    double best = INFINITY;
    if (!t->job.cfg->checkpoint_save_best) return best;
    if (comm_rank() == 0) {
        int64_t step = newest_step(t);
        if (step > t->start_step)
            aside_move(t, best_folder(t));
        else if (step >= 0)
            best = loss_at(t, step);
    }
    comm_broadcast(&best, sizeof best, 0);
    return best;
}

void best_save(Train *t, double loss, double *best) {
    if (!t->job.cfg->checkpoint_save_best || !(loss < *best)) return;
    if (train_state_save_best(t, best_folder(t))) *best = loss;
}
