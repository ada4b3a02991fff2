/* train_report.c - what a run tells about itself. */
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/launch/launch.h"
#include "frontend/plan/plan.h"
#include "frontend/train/folder_lock.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/core/peak.h"
#include "runtime/core/rt.h"
#include "runtime/run/plot.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* Once, where the first line after that is read. */
static void note_lost_stdout(const Train *t) {
    static bool noted;
    if (noted || !t->log || !ferror(stdout)) return;
    fprintf(t->log, "note: stdout cannot be written to: what is said is only here\n");
    noted = true;
}

void report_say(const Train *t, const char *fmt, ...) {
    char line[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    make_printable(line, LINES_INDENTED);
    if (comm_rank() != 0) {
        /* said by rank 0 */
    } else if (t->metrics) {
        metrics_say(t->metrics, "%s", line);
    } else {
        puts(line);
        fflush(stdout);
    }
    note_lost_stdout(t);
    if (t->log) fprintf(t->log, "%s\n", line);
}

void report_lines(const Train *t, const char *before, const char *lines) {
    for (size_t n; lines += strspn(lines, "\n"), (n = strcspn(lines, "\n")); lines += n)
        report_say(t, "%s%.*s", before, (int)n, lines);
}

void report_unwritten(const Train *t, const char *file, int error) {
    if (error) report_say(t, "WARNING: cannot write %s: %s", file, strerror(error));
}

/* ---- the run folder ---- */

static void write_file(const Train *t, const char *name, const Text *text) {
    const char *path = path_join(t->mem, t->run_dir, name);
    file_write(path, text->s, text->n, EXIT_DATA);
}

/* The memory that this process will have: what it has now, without the arena, plus what
 * the plan and the data take. */
static void add_memory(const Train *t, Text *s) {
    uint64_t resident = t->process_bytes + (uint64_t)t->program->plan.total_bytes +
                        (uint64_t)job_ahead_bytes(&t->job);
    if (t->probe) {
        text_add(s, ",\n  \"dump_memory_bytes\": ");
        plan_json_memory(&t->probe->plan, s);
        resident += (uint64_t)t->probe->plan.total_bytes;
    }
    if (t->profile_bytes) {
        text_add(s, ",\n  \"profile_bytes\": %llu", (unsigned long long)t->profile_bytes);
        resident += t->profile_bytes;
    }
    text_add(s, ",\n  \"process_bytes\": %llu,\n  \"batches_ahead_bytes\": %lld",
             (unsigned long long)t->process_bytes, (long long)job_ahead_bytes(&t->job));
    text_add(s, ",\n  \"resident_bytes\": %llu", (unsigned long long)resident);
}

static void add_lines(Text *s, const char *lines) {
    bool first = true;
    for (const char *p = lines; *p;) {
        size_t n = strcspn(p, "\n");
        text_add(s, first ? "\n    " : ",\n    ");
        json_write_bytes(s, p, n);
        first = false;
        p += n + (p[n] == '\n');
    }
}

static void add_plan_of_rank(const Train *t, Arena *mem, Text *s) {
    Job job = t->job;
    job.mem = mem;
    job_count_remade(&job);
    Plan plan = plan_read(mem, t->program->entry, &job);
    plan_count_needed(mem, &plan);
    plan_json(&plan, s);
}

/* The planner makes the programs of all stages, of which this process has one. */
static void add_plan_of_stages(const Train *t, Arena *mem, Text *s) {
    Plan plan = plan_of_job(mem, &t->job);
    PlanPipe pipe = *plan.pipe;
    memcpy(pipe.hash, t->plan_hash, sizeof pipe.hash);
    plan.pipe = &pipe;
    plan_json(&plan, s);
}

void report_plan(Train *t) {
    if (comm_rank()) return;
    Arena *mem = arena_new();
    Text s = text_new(t->mem);
    if (t->program->stages > 1)
        add_plan_of_stages(t, mem, &s);
    else
        add_plan_of_rank(t, mem, &s);
    arena_free(mem);
    t->plan_json = s.s;
}

static void write_plan(const Train *t) {
    const Program *p = t->program;
    Text s = text_new(t->mem);
    text_add(&s, "{\n%s", t->plan_json);
    if (t->predicted_seconds > 0)
        text_add(&s, ",\n  \"predicted_step_seconds\": %.6g", t->predicted_seconds);
    text_add(&s, ",\n  \"steps\": %lld,\n  \"threads\": %d", (long long)t->steps,
             t->threads);
    add_memory(t, &s);
    text_add(&s, ",\n  \"passes\": \"%s\",\n  \"pass_seconds\": %.6f", train_passes,
             p->pass_seconds);
    text_add(&s, ",\n  \"codegen_seconds\": %.6f,\n  \"from_cache\": %s",
             p->codegen_seconds, p->cached ? "true" : "false");
    text_add(&s, ",\n  \"matmuls\": [");
    add_lines(&s, program_describe(t->mem, p));
    text_add(&s, "\n  ]\n}\n");
    write_file(t, "plan.json", &s);
}

static void keep_module(const Train *t) {
    const UserModule *u = &t->job.module;
    if (!u->path) return;
    Text text = text_new(t->mem);
    text_add_bytes(&text, u->text, u->bytes);
    write_file(t, RUN_MODULE, &text);
}

/* The module will be next to the configuration, which names it there, so that the folder can
 * be moved. */
static void name_files_from_folder(const Train *t) {
    config_keep_files(t->job.cfg, t->run_dir);
    if (t->job.module.path && t->job.cfg->model_file[0])
        config_set_flag(t->job.cfg, "model.file", RUN_MODULE);
}

/* In the run folder, and with the checkpoints, which may go elsewhere. */
static void keep_tokenizer(const Train *t) {
    if (!t->job.tokenizer) return;
    tokenizer_write(t->job.tokenizer, t->run_dir);
    if (t->job.cfg->checkpoint_save_checkpoint_steps > 0)
        tokenizer_write(t->job.tokenizer, t->ckpt_dir);
}

void report_open(Train *t) {
    const char *logs = path_join(t->mem, t->run_dir, RUN_LOGS);
    int error = dir_make(logs);
    if (error) fail(EXIT_DATA, "cannot make the folder %s: %s", logs, strerror(error));
    if (comm_rank() == 0) t->lock_fd = folder_lock(t->run_dir, -1, "--output_dir");
    const char *log = arena_printf(t->mem, "%s/rank_%d.log", logs, comm_rank());
    /* A folder from elsewhere may have a link or a pipe under this name. */
    int fd = open(
        log, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    t->log = fd < 0 ? NULL : fdopen(fd, "a");
    if (!t->log) fail(EXIT_DATA, "cannot write %s: %s", log, strerror(errno));
    setvbuf(t->log, NULL, _IOLBF, 0);
    if (comm_rank() == 0 && getenv(LAUNCH_CLOSED_ENV))
        fprintf(t->log, "note: stdout was closed at the start: what is said is only "
                        "here\n");
    launch_redirect_output(logs, comm_rank(), fd);
    if (comm_rank() == 0) name_files_from_folder(t);
}

/* The checkpoint that `resume` names, while the folder has none of its own. */
static const char *begun_from(const Train *t) {
    return t->saved_step < 0 && config_resumes(t->job.cfg) ? t->named : NULL;
}

/* A run that trains nothing says nothing new of the model that its folder has. */
void report_keep(const Train *t) {
    bool known = t->step >= t->steps && t->saved_step == t->step &&
                 folder_has(t->mem, t->run_dir, RUN_CONFIG);
    if (comm_rank() != 0 || known) return;
    keep_module(t);
    Text config = text_new(t->mem);
    config_print_run(t->job.cfg, begun_from(t), &config);
    write_file(t, RUN_CONFIG, &config);
    keep_tokenizer(t);
    products_keep(t);
    write_plan(t);
}

/* ---- the terminal ---- */

static void say_work(const Train *t) {
    const Job *j = &t->job;
    const Data *d = t->data;
    if (j->ncolumns) {
        report_say(t, "data       %s: %s samples of %d tensors", d->path,
                   human((double)d->samples, "").s, j->ncolumns);
        report_say(t, "work       %lld steps of %lld x %lld samples", (long long)t->steps,
                   (long long)j->micro, (long long)j->batch);
        return;
    }
    report_say(t, "data       %s: %s tokens, %s sequences of %lld", d->path,
               human((double)d->tokens, "").s, human((double)d->samples, "").s,
               (long long)j->seq);
    report_say(t, "work       %lld steps of %lld x %lld sequences (%s tokens)",
               (long long)t->steps, (long long)j->micro, (long long)j->batch,
               human((double)(d->batch * j->seq), "").s);
}

static void say_memory(const Train *t) {
    const MemoryPlan *plan = &t->program->plan;
    Text s = text_new(t->mem);
    for (int i = 0; i < MEM_CLASSES; i++)
        text_add(&s, "%s%s %s", i ? ", " : "", memory_class_name[i],
                 human((double)plan->class_bytes[i], "B").s);
    report_say(t, "memory     %s (%s)", human((double)plan->total_bytes, "B").s, s.s);
}

/* Ranks that share cores reach the peak by turns. */
static double share_of_core(const Train *t) {
    return MIN(1.0, comm_cores() / (double)(comm_local_size() * t->threads));
}

/* A hundredth of the steps that are left, on threads of a modest speed: a short run does not wait
 * for its base of utilization. */
static double peak_seconds(const Train *t) {
    const double rate = 20e9, share = 0.01;
    double step = t->job.flops_per_token * (double)t->data->batch * (double)t->job.seq;
    double flops = step * (double)MAX(t->steps - t->step, 0) / (comm_size() * t->threads);
    return MIN(PEAK_SECONDS, share * flops / rate);
}

/* Of the units that its products run on, of all ranks. */
static double measure_peak(const Train *t, const char **unit) {
    double peak = 0, seconds = peak_seconds(t);
    if (t->job.cfg->model_compute_dtype == FLOAT_BF16)
        peak = peak_bf16(t->threads, seconds, unit);
    if (peak <= 0) peak = peak_f32(t->threads, seconds, unit);
    return 1e9 * peak * comm_size() * share_of_core(t);
}

/* Products of f16, and of bf16 on a CPU that has no unit for them, are f32's. */
static void say_no_unit(const Train *t, const char *unit) {
    if (t->scales_loss)
        report_say(
            t, "note: products of float16 run on float32's units here, and take about as "
               "long; bfloat16 has faster ones on many CPUs");
    if (t->job.cfg->model_compute_dtype != FLOAT_BF16 || strcmp(unit, "FMA")) return;
    report_say(
        t, "note: no unit of this CPU (AMX, AVX512-BF16) is faster at bfloat16 than at "
           "float32: its products run on float32's, and take about as long");
}

static void say_loss_scale(const Train *t) {
    const LossScaleRule *r = &t->loss_scale.rule;
    if (!t->scales_loss) return;
    if (!r->dynamic) {
        report_say(t, "loss scale %.10g, fixed", t->loss_scale.value);
        return;
    }
    report_say(t,
               "loss scale %.10g, divided by %g after %lld overflow%s (at least %g), "
               "multiplied after %lld good steps",
               t->loss_scale.value, r->factor, (long long)r->hysteresis,
               r->hysteresis == 1 ? "" : "s", r->least, (long long)r->window);
}

static void say_schedule(const Train *t) {
    const RateSchedule *s = &t->schedule;
    if (s->kind == RATE_CONSTANT || s->total_steps >= t->steps) return;
    report_say(
        t,
        "note: the learning rate goes down over lr_schedule.total_steps %lld of the "
        "%lld steps, then stays at %g",
        (long long)s->total_steps, (long long)t->steps,
        learning_rate_at(s, s->total_steps + 2));
}

void report_header(Train *t) {
    const Program *p = t->program;
    char warning[256];
    const char *unit;
    comm_barrier();
    t->peak_flops = measure_peak(t, &unit);
    if (comm_rank() != 0) return;
    report_say(t, "model      %s (%s parameters)", job_title(t->mem, &t->job),
               human((double)t->parameters, "").s);
    say_work(t);
    if (t->valid_source) report_say(t, "validation %s", t->valid_source);
    report_say(t,
               "machine    %d rank%s of %d threads, measured %s peak %s: "
               "mfu is the share "
               "of it at %s model flops a %s",
               comm_size(), comm_size() == 1 ? "" : "s", t->threads, unit,
               human(t->peak_flops, "FLOP/s").s, human(t->job.flops_per_token, "").s,
               job_unit(&t->job));
    say_no_unit(t, unit);
    say_loss_scale(t);
    say_schedule(t);
    say_memory(t);
    report_say(t, "compiled   passes %.2f s, code %.2f s%s", p->pass_seconds,
               p->codegen_seconds, p->cached ? " (from the cache)" : "");
    report_say(t, "run folder %s", t->run_dir);
    if (t->data->steps_available < 0 && t->data->samples < t->data->batch)
        report_say(t,
                   "WARNING: %s has %lld sequences of %lld, a step takes %lld: each step "
                   "has some of them more than once; give more data or a smaller batch",
                   t->data->path, (long long)t->data->samples, (long long)t->data->seq,
                   (long long)t->data->batch);
    if (rt_bind_warning(warning, sizeof warning)) report_say(t, "WARNING: %s", warning);
}

/* Lines of steps have means over as many. */
static void say_done(const Train *t) {
    char of[64] = "", skipped[48] = "";
    int64_t interval = t->job.cfg->runner_config_log_interval;
    if (interval > 1)
        snprintf(of, sizeof of, " (of the last step alone, not a mean of %lld)",
                 (long long)interval);
    if (t->skipped)
        snprintf(skipped, sizeof skipped, ", skipped: %lld", (long long)t->skipped);
    report_say(t, "done       %lld steps, final loss %.4f%s%s", (long long)t->step,
               isnan(*t->at.loss) ? (double)NAN : (double)*t->at.loss, of, skipped);
}

/* How this program is called from here: by its name where PATH has its folder, else by its
 * path, from the working directory where it lies below that. */
static const char *program_word(Arena *mem) {
    char self[4096], here[4096];
    static const char replaced[] =
        " (deleted)"; /* behind the path of a program that was */
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return "stator";
    self[n] = 0;
    if (ends_with(self, replaced)) self[n - (ssize_t)strlen(replaced)] = 0;
    const char *slash = strrchr(self, '/'), *at = getenv("PATH");
    size_t folder = slash ? (size_t)(slash - self) : 0;
    for (; at && *at; at += strcspn(at, ":"), at += *at == ':')
        if (strcspn(at, ":") == folder && !strncmp(at, self, folder))
            return arena_printf(mem, "%s", slash + 1);
    size_t below = getcwd(here, sizeof here) ? strlen(here) : 0;
    bool inside = below && !strncmp(self, here, below) && self[below] == '/';
    bool beside = inside && !strchr(self + below + 1, '/');
    return arena_printf(mem, "%s%s", beside ? "./" : "",
                        inside ? self + below + 1 : self);
}

/* Words for a shell. */
static void say_next(const Train *t) {
    Arena *mem = arena_new();
    Text line = text_new(mem);
    text_add_word(&line, program_word(mem));
    text_add(&line, " predict ");
    text_add_word(&line, t->run_dir);
    bool numbers = t->job.cfg->train_dataset_data_loader_type == LOADER_TENSOR_BATCHES;
    report_say(t, "next       %s --%s", line.s,
               !t->job.has_spec ? "data PATH"
               : numbers        ? "prompt_tokens 1,2,3"
                                : "prompt \"...\"");
    arena_free(mem);
}

void report_end(const Train *t, bool drawn) {
    if (t->step > t->start_step) say_done(t);
    if (drawn) report_say(t, "loss curve %s/loss.svg", t->run_dir);
    if (t->saved_step != t->step) return;
    report_say(t, "checkpoint %s/step_%08lld", t->ckpt_dir, (long long)t->step);
    say_next(t);
}

/* ---- the loss curve ---- */

typedef struct CurvePoint {
    int64_t step;
    double loss;
} CurvePoint;

void report_point(Train *t, double loss) {
    CurvePoint p = {t->step, loss};
    PUSH(t->mem, t->curve, t->ncurve, t->curve_cap, p);
}

static void add_row(void *context, const MetricsRow *row) {
    Train *t = context;
    CurvePoint p = {row->step, row->loss};
    PUSH(t->mem, t->curve, t->ncurve, t->curve_cap, p);
}

void report_read_curve(Train *t) {
    metrics_walk(path_join(t->mem, t->run_dir, RUN_METRICS), add_row, t);
}

static int draw(const Train *t, Arena *mem) {
    int n = t->ncurve;
    double *x = NEW_ARRAY(mem, double, (size_t)n), *y = NEW_ARRAY(mem, double, (size_t)n);
    for (int i = 0; i < n; i++) {
        x[i] = (double)t->curve[i].step;
        y[i] = t->curve[i].loss;
    }
    Plot plot = {.title = "Training loss", .train = {x, y, n}};
    double *vx, *vy;
    int points = valid_points(t, mem, &vx, &vy);
    plot.validation = (PlotSeries){vx, vy, points};
    Text picture = plot_svg(mem, &plot);
    return file_write_atomic(path_join(mem, t->run_dir, "loss.svg"), picture.s,
                             picture.n);
}

bool report_plot(const Train *t) {
    if (comm_rank() != 0 || !t->ncurve) return false;
    Arena *mem = arena_new();
    Catch c;
    if (CATCH(c)) {
        int error = draw(t, mem);
        if (error)
            report_say(t, "WARNING: cannot write %s/loss.svg: %s", t->run_dir,
                       strerror(error));
        catch_end(&c);
        arena_free(mem);
        return !error;
    }
    report_say(t, "WARNING: the loss is not drawn: %s", catch_text(&c));
    arena_free(mem);
    return false;
}
