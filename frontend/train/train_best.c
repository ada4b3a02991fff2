/* train_best.c - the checkpoint of the step with the lowest validation loss, in a folder of
 * its own: which of the others are deleted does not concern it, and no run goes on from it
 * by itself. */
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/store/ckpt_files.h"
#include <math.h>
#include <stdlib.h>

static const char *best_folder(const Train *t) {
    return path_join(t->mem, t->run_dir, RUN_BEST);
}

/* What a checkpoint of the folder says of its run; NULL: it is damaged. */
static const Json *state_at(const Train *t, int64_t step) {
    char name[CKPT_NAME_BYTES];
    Manifest m;
    ckpt_name(step, name);
    if (manifest_read(t->mem, path_join(t->mem, best_folder(t), name), &m)) return NULL;
    if (m.version > CKPT_VERSION) return NULL;
    return ckpt_state_parse(t->mem, "state of the best checkpoint", m.state_json);
}

/* A checkpoint that has no loss of its own has it in the point of its step. NAN: nowhere. */
static double loss_of(const Train *t, const Json *state, int64_t step) {
    double loss = json_get_f64(state, "valid_loss", NAN);
    if (state && !isfinite(loss)) valid_point_at(t, step, false, &loss);
    return loss;
}

/* Is its loss to be compared, but of other samples or unknown? */
static bool cannot_compare(const Train *t, const Json *state, double loss) {
    if (!t->job.cfg->checkpoint_save_best || t->step >= t->steps) return false;
    bool others = state && train_other_validation(t, state);
    if (isfinite(loss) && !others) return false;
    report_say(t, "note: the loss of the best checkpoint is %s",
               others ? "of other validation samples" : "not known");
    return true;
}

/* Is it of steps that this run has made, and will make again the same? */
static bool comes_again(const Train *t, const Json *state) {
    if (!state || !t->loaded || t->named || t->went_back) return false;
    const char *print = json_get_string(json_get(state, "data"), "fingerprint", "");
    return json_get(state, "valid_loss") && !strcmp(print, t->data_print) &&
           train_same_config(t, state);
}

void best_start(Train *t) {
    double best = INFINITY;
    int64_t step = comm_rank() == 0 ? ckpt_newest(t->mem, best_folder(t)) : -1;
    if (step >= 0) {
        const Json *state = state_at(t, step);
        double loss = loss_of(t, state, step);
        bool is_later = step > t->start_step && !comes_again(t, state);
        if (is_later || cannot_compare(t, state, loss))
            aside_move_best(t);
        else if (isfinite(loss))
            best = loss;
    }
    comm_broadcast(&best, sizeof best, 0);
    t->best_loss = best;
}

/* In the digits of its point: one that is read from there is no lower than itself. */
static double as_point(double loss) {
    char digits[32];
    snprintf(digits, sizeof digits, VALID_DIGITS, loss);
    return strtod(digits, NULL);
}

void best_save(Train *t, double loss) {
    double shown = as_point(loss);
    if (!t->job.cfg->checkpoint_save_best || !(shown < t->best_loss)) return;
    if (train_state_save_best(t, best_folder(t), shown)) t->best_loss = shown;
}
