/* train_state.c - the state of a run: weights and optimizer states at the start, and
 * their checkpoints. Data position, schedule and random numbers follow from the step
 * alone. */
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/model/run_folder.h"
#include "frontend/train/program_tensors.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/store/ckpt_files.h"
#include <math.h>

/* ---- what is saved ---- */

/* The values that count, so that a resumed run can say which are others. */
static void add_config(const Train *t, Arena *mem, Text *s) {
    text_add(s, ",\"steps\":%lld,\"config\":{", (long long)t->steps);
    bool first = true;
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        if (!train_key_counts(key)) continue;
        text_add(s, first ? "" : ",");
        json_write_string(s, key->path);
        text_add(s, ":");
        json_write_string(s, config_value(t->job.cfg, mem, key->path));
        first = false;
    }
    text_add(s, "}");
}

/* A validation loss that is not finite: none is known. */
static char *state_json(const Train *t, Arena *mem, double valid_loss) {
    Text s = text_new(mem);
    text_add(&s, "{\"step\":%lld,\"seed\":%lld,\"config_hash\":\"%s\",\"threads\":%d",
             (long long)t->step, (long long)t->job.cfg->seed, t->config_hash, t->threads);
    text_add(&s, ",\"skipped_steps\":%lld,\"skipped_in_a_row\":%lld",
             (long long)t->skipped, (long long)t->skipped_in_a_row);
    text_add(&s, ",\"good_checkpoint\":%lld,\"updated_step\":%lld",
             (long long)t->good_step, (long long)t->updated_step);
    if (t->began_step >= 0)
        text_add(&s, ",\"began_step\":%lld", (long long)t->began_step);
    if (t->valid_print[0]) text_add(&s, ",\"validation\":\"%s\"", t->valid_print);
    if (isfinite(valid_loss)) text_add(&s, ",\"valid_loss\":%.17g", valid_loss);
    if (isfinite(t->first_loss)) text_add(&s, ",\"first_loss\":%.17g", t->first_loss);
    if (t->scales_loss)
        text_add(&s,
                 ",\"loss_scale\":{\"value\":%.17g,\"good_steps\":%lld,"
                 "\"overflows_left\":%lld}",
                 t->loss_scale.value, (long long)t->loss_scale.good_steps,
                 (long long)t->loss_scale.overflows_left);
    add_config(t, mem, &s);
    text_add(&s, ",\"data\":{\"type\":");
    json_write_string(&s,
                      config_value(t->job.cfg, mem, "train_dataset.data_loader.type"));
    text_add(&s, ",\"path\":");
    json_write_string(&s, t->data->path);
    text_add(&s, ",\"batch\":%lld,\"seq\":%lld,\"tokens\":%lld,\"shuffle\":%s",
             (long long)t->data->batch, (long long)t->data->seq,
             (long long)t->data->tokens, t->data->shuffle ? "true" : "false");
    if (t->job.tokenizer) text_add(&s, ",\"tokenizer\":true");
    text_add(&s, ",\"fingerprint\":\"%s\"", t->data_print);
    text_add(&s, ",\"samples\":%lld",
             (long long)(t->data->moved + t->step * t->data->batch));
    if (t->data->order)
        text_add(&s, ",\"order\":\"%016llx\"", (unsigned long long)t->data->order);
    const Job *j = &t->job;
    text_add(&s, ",\"next_batch\":%lld},\"model\":%s", (long long)t->step,
             j->has_spec ? model_spec_json(mem, &j->spec, false) : "null");
    if (!j->has_spec) {
        text_add(&s, ",\"module\":");
        json_write_bytes(&s, j->module.text, j->module.bytes);
    }
    text_add(&s, "}");
    return s.s;
}

/* Work must not get lost: the checkpoints go to a new folder at the same path. */
static void notice_removed(Train *t) {
    if (t->lock_fd < 0 || t->folder_gone || fd_is_at(t->lock_fd, t->run_dir)) return;
    t->folder_gone = true;
    report_say(t,
               "WARNING: the run folder %s was removed or moved while training: metrics "
               "and logs go with it; checkpoints go to %s, made anew",
               t->run_dir, t->ckpt_dir);
}

/* Behind what has made the folder anew. */
static void make_metrics_anew(Train *t) {
    if (t->metrics && metrics_make_anew(t->metrics))
        report_say(t,
                   "WARNING: %s/" RUN_METRICS
                   " was removed while training: the steps from "
                   "here on are in a new one",
                   t->run_dir);
}

/* As far as sizes tell; on all ranks. */
static bool is_there(Arena *mem, const char *folder, int64_t step) {
    Manifest m;
    bool good = comm_rank() == 0 && !manifest_read(mem, folder, &m) && m.step == step;
    return comm_max_i64(good);
}

static const char *folder_of_step(Arena *mem, const char *dir, int64_t step) {
    char name[CKPT_NAME_BYTES];
    ckpt_name(step, name);
    return path_join(mem, dir, name);
}

/* 0 or errno, and why; on all ranks. */
static int make_folder(const char *dir, char *why, size_t size) {
    int error = comm_rank() == 0 ? dir_make(dir) : 0;
    error = (int)comm_max_i64(error);
    if (error) snprintf(why, size, "cannot make the folder %s: %s", dir, strerror(error));
    return error;
}

bool train_state_save_best(Train *t, const char *dir, double valid_loss) {
    Arena *mem = arena_new();
    char why[1024] = "";
    watch_task("saving the best checkpoint, of step", t->step, false);
    int error = make_folder(dir, why, sizeof why);
    const char *state = state_json(t, mem, valid_loss);
    const CkptSave what = {t->step, t->tensor, t->ntensor, state, .keep = 1, .spare = -1};
    if (!error) error = ckpt_save(dir, &what, why, sizeof why);
    if (error > 0)
        report_say(t, "WARNING: no best checkpoint of step %lld: %s; training goes on",
                   (long long)t->step, why);
    else
        report_say(t, "saved %s/step_%08lld (lowest validation loss)%s%s", dir,
                   (long long)t->step, error ? ", but: " : "", error ? why : "");
    arena_free(mem);
    return error <= 0;
}

void train_state_save(Train *t) {
    Arena *mem = arena_new();
    notice_removed(t);
    char why[1024] = "";
    double start = clock_seconds();
    watch_task("saving the checkpoint of step", t->step, false);
    int error = make_folder(t->ckpt_dir, why, sizeof why);
    if (!error) {
        make_metrics_anew(t);
        CkptSave what = {t->step, t->tensor, t->ntensor, state_json(t, mem, NAN)};
        what.keep = (int)t->job.cfg->checkpoint_keep_checkpoint_max;
        what.spare = t->good_step;
        error = ckpt_save(t->ckpt_dir, &what, why, sizeof why);
    }
    if (!error) {
        t->saved_step = t->step;
        report_say(t, "saved %s/step_%08lld (%.1f s)", t->ckpt_dir, (long long)t->step,
                   clock_seconds() - start);
        if (why[0]) report_say(t, "note: %s", why);
    } else if (error < 0) {
        t->saved_step = t->step;
        report_say(t, "WARNING: saved %s/step_%08lld, but: %s; training goes on",
                   t->ckpt_dir, (long long)t->step, why);
    } else {
        char last[64] = "there is no older one of this run";
        if (t->saved_step >= 0)
            snprintf(last, sizeof last, "the last good one is of step %lld",
                     (long long)t->saved_step);
        report_say(t, "WARNING: no checkpoint of step %lld: %s; %s; training goes on",
                   (long long)t->step, why, last);
    }
    arena_free(mem);
}

/* ---- the start ---- */

static int count_parameters(const Train *t) {
    int n = 0;
    for (int i = 0; i < t->ntensor; i++) n += t->tensor[i].file == CKPT_MODEL;
    return n;
}

/* Parameters come before the states that belong to them. */
static const char *load_source(Train *t) {
    if (!program_in_parts(t->program))
        return source_load(t->mem, &t->job.source, t->program->entry, program_weight,
                           t->program);
    Func *whole = model_entry(job_build_whole(&t->job));
    return source_load_parts(t->mem, &t->job.source, whole, t->tensor,
                             count_parameters(t));
}

const char *train_state_weights(Train *t) {
    t->tensor = program_tensors(t->mem, t->program, &t->ntensor);
    return load_source(t);
}

static void first_weights(Train *t) {
    const Func *f = t->program->entry;
    if (t->job.has_source) {
        report_say(t, "weights from %s", load_source(t));
        return;
    }
    for (int i = 0; i < f->narg; i++) {
        if (arg_role(f, i) != ARG_param) continue;
        Layout l = layout_of(t->mem, f, i);
        weights_init(f, i, &l, comm_place(), t->program->arg[i],
                     (uint64_t)t->job.cfg->seed);
    }
}

/* A checkpoint of another compute_dtype has none: it begins. So does one that is now asked to
 * begin with another value. */
static void restore_loss_scale(Train *t, const Json *s) {
    const Json *v = json_get(s, "loss_scale");
    if (!v || !t->scales_loss) return;
    if (train_key_changed(t, s, "runner_wrapper.scale_sense.loss_scale_value")) return;
    double value = json_get_f64(v, "value", 0);
    int64_t good = json_get_i64(v, "good_steps", 0, INT64_MAX, 0);
    int64_t left = json_get_i64(v, "overflows_left", 0, INT64_MAX, 0);
    if (!loss_scale_restore(&t->loss_scale, value, good, left))
        fail(EXIT_CHECKPOINT,
             "the checkpoint has a loss scale of %g, which is not between "
             "0 and %g",
             value, LOSS_SCALE_MOST);
}

/* Schedule and bias corrections count updates. A run that ended at its limit of skipped
 * steps and is to go on behind them gets as many tries again. */
static void restore_counts(Train *t, const Json *s) {
    int64_t most = t->job.cfg->runner_config_max_skipped_steps;
    t->skipped = json_get_i64(s, "skipped_steps", 0, t->step, 0);
    t->skipped_in_a_row = json_get_i64(s, "skipped_in_a_row", 0, t->skipped, 0);
    t->updated_step =
        json_get_i64(s, "updated_step", 0, t->step,
                     t->skipped == t->step ? 0 : t->step - t->skipped_in_a_row);
    if (most && t->skipped_in_a_row >= most) t->skipped_in_a_row = 0;
    t->good_step = json_get_i64(s, "good_checkpoint", -1, t->step, -1);
    t->first_loss = json_get_f64(s, "first_loss", NAN);
    restore_loss_scale(t, s);
}

static const Json *parse_state(const Train *t, const char *state) {
    return ckpt_state_parse(t->mem, "state of the checkpoint", state);
}

/* Why steps from the loaded checkpoint would only be skipped; NULL: they may be good. */
static const char *why_diverged(const Train *t, const Json *s) {
    int64_t most = t->job.cfg->runner_config_max_skipped_steps;
    int64_t n = json_get_i64(s, "skipped_in_a_row", 0, t->step, 0);
    const char *bad = train_state_not_finite(t);
    if (bad) return arena_printf(t->mem, "%s is not finite", bad);
    bool all = n > 0 && n == t->step && n >= t->steps;
    if (!most || (n < most && !all)) return NULL;
    return arena_printf(t->mem, "%lld steps in a row were skipped", (long long)n);
}

bool train_divides_by_zero(const Train *t) {
    const Config *cfg = t->job.cfg;
    return cfg->optimizer_eps == 0 && !config_idle(cfg, "optimizer.eps");
}

/* From a checkpoint of a run that has diverged back to the one before it that is good.
 * Training is the same bits each time, so another configuration must be given. */
static void leave_diverged(Train *t, const char *dir, char **state) {
    const Json *s = parse_state(t, *state);
    const char *why = why_diverged(t, s);
    if (!why) return;
    long long good = json_get_i64(s, "good_checkpoint", -1, t->step, -1);
    long long newest = (long long)t->step;
    const char *to = folder_of_step(t->mem, dir, good);
    const char *now = folder_of_step(t->mem, dir, newest);
    const char *milder = train_divides_by_zero(t)
                             ? "an --optimizer.eps above 0"
                             : "a smaller --lr_schedule.learning_rate";
    if (good < 0 || good == newest || !is_there(t->mem, to, good))
        fail(EXIT_DIVERGED,
             "the run has diverged (%s at step %lld), and there is no checkpoint of a "
             "good step: write --resume never and %s to start anew, or --resume %s to go "
             "on all the same",
             why, newest, milder, now);
    if (train_same_config(t, s))
        fail(EXIT_DIVERGED,
             "the run has diverged (%s at step %lld), and the same configuration would "
             "do so again: write %s, say, to go on from %s, or --resume %s to go on "
             "behind "
             "the skipped steps",
             why, newest, milder, to, now);
    ckpt_load_dir(t->mem, to, t->tensor, t->ntensor, state, &t->step);
    t->went_back = true;
    report_say(t,
               "note: the run has diverged (%s at step %lld): it goes on from before "
               "that; to go on behind the skipped steps write --resume and their "
               "checkpoint",
               why, newest);
}

static bool load_latest(Train *t, const char *dir, char **state) {
    Text damaged = text_new(t->mem);
    bool found =
        ckpt_load_latest(t->mem, dir, t->tensor, t->ntensor, state, &t->step, &damaged);
    report_lines(t, "WARNING: ", damaged.s);
    if (!found) return false;
    leave_diverged(t, dir, state);
    t->loaded = folder_of_step(t->mem, dir, t->step);
    return true;
}

/* `resume` names a checkpoint, a run folder, a folder of checkpoints or its file `latest`; as
 * rank 0 sees it, the others may not see it at all. */
static void load_named(Train *t, const char *path, char **state) {
    bool root = comm_rank() == 0;
    path = comm_broadcast_text(t->mem, root ? ckpt_of_latest(t->mem, path) : path);
    bool one = root && folder_has(t->mem, path, CKPT_MANIFEST);
    if (comm_max_i64(one)) {
        ckpt_load_dir(t->mem, path, t->tensor, t->ntensor, state, &t->step);
        t->loaded = path;
        return;
    }
    bool here = comm_max_i64(root && has_checkpoints(t->mem, path));
    const char *of_run = root && !here ? run_checkpoints(t->mem, path) : NULL;
    if (!of_run) of_run = path_join(t->mem, path, RUN_CHECKPOINTS);
    of_run = comm_broadcast_text(t->mem, of_run);
    if (!here && load_latest(t, of_run, state)) return;
    if (load_latest(t, path, state)) return;
    fail(EXIT_CHECKPOINT, "resume: there is no checkpoint in %s%s", path,
         root ? run_where_named(t->mem, path) : "");
}

/* A folder that callbacks.CheckpointMonitor names hides those of the run folder. */
static void note_others(const Train *t) {
    const char *own = path_join(t->mem, t->run_dir, RUN_CHECKPOINTS);
    if (comm_rank() != 0 || same_folder(own, t->ckpt_dir) ||
        !has_checkpoints(t->mem, own))
        return;
    report_say(t,
               "note: the run begins anew, as %s has no checkpoint; --resume %s goes on "
               "from those of the run folder",
               t->ckpt_dir, own);
}

/* False: there is none to go on from. */
static bool load_checkpoint(Train *t, char **state) {
    const char *how = t->job.cfg->resume, *first = config_resume_else(t->job.cfg);
    if (!strcmp(how, "never")) return false;
    if (strcmp(how, "auto") != 0)
        t->named = how;
    else if (!load_latest(t, t->ckpt_dir, state) && first[0])
        t->named = first;
    else if (t->loaded && first[0])
        report_say(t, "note: load_checkpoint is not used: a checkpoint is there");
    if (t->named)
        load_named(t, t->named, state);
    else if (!t->loaded)
        note_others(t);
    return t->loaded != NULL;
}

static bool resume(Train *t) {
    char *state = NULL;
    t->step = 0;
    ckpt_explain(train_explain_misfit, t);
    bool loaded = load_checkpoint(t, &state);
    ckpt_explain(NULL, NULL);
    if (!loaded) return false;
    report_say(t, "resumed after step %lld", (long long)t->step);
    if (t->job.has_source)
        report_say(t, "note: init_from is not used: a checkpoint is there");
    const Json *s = parse_state(t, state);
    restore_counts(t, s);
    t->began_step = json_get_i64(s, "began_step", 0, t->step, -1);
    train_go_on_with_data(t, s);
    t->valid_changed = train_other_validation(t, s);
    train_say_changes(t, s);
    return true;
}

/* A checkpoint that lies elsewhere is none of this run, nor is what it says was good there. */
static void keep_to_own(Train *t) {
    int64_t *const step[] = {&t->saved_step, &t->good_step};
    for (int i = 0; i < ARRAY_LEN(step); i++)
        if (*step[i] >= 0 &&
            !is_there(t->mem, folder_of_step(t->mem, t->ckpt_dir, *step[i]), *step[i]))
            *step[i] = -1;
}

/* A run that goes on from a checkpoint elsewhere begins a new folder. */
static void begin_folder(Train *t) {
    bool anew =
        comm_rank() == 0 && t->named && !folder_has(t->mem, t->run_dir, RUN_METRICS);
    if (comm_max_i64(anew)) t->began_step = t->step;
}

static bool is_finite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

const char *train_state_not_finite(const Train *t) {
    int64_t from_end = 0; /* of the first one */
    for (int i = 0; i < t->ntensor && !from_end; i++) {
        const CkptTensor *c = &t->tensor[i];
        if (c->file != CKPT_MODEL || !c->data) continue;
        int64_t n =
            c->layout ? layout_local_count(c->layout) : sizes_product(c->dim, c->rank);
        if (!is_finite(c->data, n)) from_end = t->ntensor - i;
    }
    from_end = comm_max_i64(from_end);
    if (!from_end) return NULL;
    const CkptTensor *c = &t->tensor[t->ntensor - from_end];
    return c->tensor ? c->tensor : c->name;
}

static void look_at_weights(Train *t) {
    t->not_finite = train_state_not_finite(t);
    if (t->not_finite)
        report_say(t,
                   "WARNING: %s has elements that are inf or NaN before the first step",
                   t->not_finite);
}

static void close_length(Train *t) {
    int said = t->job.cfg->n_notes;
    t->steps_open = false;
    train_check_schedules(t);
    train_say_notes(t, said);
}

void train_state_start(Train *t) {
    t->tensor = program_tensors(t->mem, t->program, &t->ntensor);
    aside_lock_checkpoints(t);
    comm_barrier(); /* then all see the same names */
    if (comm_rank() == 0) data_fingerprint(t->data, t->data_print);
    t->saved_step = t->good_step = -1;
    t->first_loss = NAN;
    if (resume(t))
        t->saved_step = t->step;
    else
        first_weights(t);
    t->start_step = t->step;
    train_check_steps(t);
    if (t->steps_open) close_length(t);
    look_at_weights(t);
}

void train_state_own(Train *t) {
    keep_to_own(t);
    begin_folder(t);
}
