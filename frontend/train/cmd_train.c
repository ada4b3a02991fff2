/* cmd_train.c - stator train: START HERE for a run, in the order of its parts. */
#include "frontend/config/commands.h"
#include "frontend/launch/launch.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/stop_signal.h"
#include "runtime/store/ckpt_files.h"
#include <unistd.h>

static void open_metrics(Train *t) {
    if (comm_rank() != 0) return;
    const char *path = path_join(t->mem, t->run_dir, RUN_METRICS);
    t->metrics = metrics_open(t->mem, path, t->steps, t->start_step, stdout);
    metrics_show(t->metrics, t->job.cfg->runner_config_log_interval, t->log,
                 launch_columns());
    const char *note = metrics_note(t->metrics);
    const char *missing = metrics_missing(t->metrics, t->mem, t->began_step);
    if (note[0]) report_say(t, "WARNING: %s", note);
    if (missing) report_say(t, "WARNING: %s", missing);
    report_read_curve(t);
}

static void close_metrics(Train *t) {
    metrics_close(t->metrics);
    t->metrics = NULL;
}

static bool saves(const Train *t) {
    return t->job.cfg->checkpoint_save_checkpoint_steps > 0;
}

/* Nothing is left to do, but the checkpoint with all steps may be one of another folder. */
static void nothing_to_do(Train *t) {
    report_say(t, "all %lld steps are done already%s", (long long)t->steps,
               t->step == t->steps
                   ? ""
                   : arena_printf(t->mem, ": the checkpoint is of step %lld",
                                  (long long)t->step));
    if (saves(t) && t->saved_step != t->step) train_state_save(t);
}

static int finish(Train *t) {
    bool drawn = report_plot(t);
    if (t->job.cfg->dump[0]) dump_write(t);
    close_metrics(t);
    predict_end(t);
    report_end(t, drawn);
    if (!saves(t) || t->saved_step == t->step) return 0;
    if (comm_rank() == 0)
        fprintf(stderr, "stator: error: the final weights are not saved (see the warning "
                        "above)\n");
    return EXIT_CHECKPOINT;
}

static void mend_latest(const Train *t, const char *folder, int64_t step) {
    int error = ckpt_mend_latest(t->mem, folder, step);
    if (error)
        report_say(t, "WARNING: cannot write %s/" CKPT_LATEST ": %s", folder,
                   strerror(error));
}

/* From here on what is in the folder is of this run. */
static void take_folder(Train *t) {
    const char *best = path_join(t->mem, t->run_dir, RUN_BEST);
    if (comm_rank() == 0) {
        ckpt_remove_leftovers(t->mem, t->ckpt_dir);
        ckpt_remove_leftovers(t->mem, best);
    }
    aside_move_others(t);
    best_start(t);
    if (comm_rank() == 0) {
        mend_latest(t, t->ckpt_dir, t->step);
        mend_latest(t, best, ckpt_newest(t->mem, best));
    }
    train_state_own(t);
    report_keep(t);
    products_keep_beside(t);
    comm_barrier();
}

int cmd_train(int argc, char **argv) {
    Train t = {.mem = arena_new(), .lock_fd = -1, .ckpt_lock_fd = -1};
    t.job.mem = t.mem;
    stop_signals_watch();
    comm_start();
    watch_start(launch_say_hang);
    watch_task("start of the run", -1, false);
    train_plan(&t, argc, argv);
    report_open(&t);
    bool late = t.steps_open; /* what the header says of them is known later */
    if (!late) report_header(&t);
    valid_fingerprint(&t);
    train_state_start(&t);
    if (late) report_header(&t);
    take_folder(&t);
    valid_start(&t);
    sample_start(&t);
    open_metrics(&t);
    tasks_draw_schedule(&t);
    profile_start(&t);
    if (t.step >= t.steps) nothing_to_do(&t);
    int code = train_loop(&t);
    watch_task("end of the run", -1, false);
    profile_end(&t);
    if (code == 0)
        code = finish(&t);
    else
        close_metrics(&t);
    valid_end(&t);
    sample_end(&t);
    data_close(t.data);
    if (t.probe) program_free(t.probe);
    program_free(t.program);
    if (t.log) fclose(t.log);
    aside_unlock_checkpoints(&t);
    if (t.lock_fd >= 0) close(t.lock_fd);
    if (comm_rank() == 0) launch_say_end(code);
    arena_free(t.mem);
    comm_end();
    watch_stop();
    return code;
}
