/* train_setup.c - from the words of the command to a compiled program. */
#include "codegen/product_choices.h"
#include "frontend/config/config_state.h"
#include "frontend/config/data_open.h"
#include "frontend/plan/plan.h"
#include "frontend/plan/recompute_auto.h"
#include "frontend/train/rank_memory.h"
#include "frontend/train/train.h"
#include "runtime/comm/agree.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/free_memory.h"
#include "runtime/core/rt.h"

/* ---- data ---- */

static void open_data(Train *t) {
    const Job *j = &t->job;
    if (!data_path_given(j->cfg, SPLIT_TRAIN)[0])
        config_refuse(
            j->cfg, "train_dataset.data_loader.dataset_dir", NULL,
            "--dataset_dir PATH, or --dataset_dir embedded for the text that is "
            "built in",
            "train_dataset.data_loader.dataset_dir is empty: there is nothing "
            "to train on");
    DataShape shape =
        job_data_shape(j, j->batch * j->micro, j->cfg->runner_config_max_steps);
    t->data = data_open_split(t->mem, j->cfg, SPLIT_TRAIN, &shape);
}

/* ---- steps and schedule ---- */

static void choose_steps(Train *t) {
    const Config *cfg = t->job.cfg;
    int64_t most = t->data->steps_available, wanted = cfg->runner_config_max_steps;
    if (wanted == 0)
        config_refuse(cfg, "runner_config.max_steps", NULL, "1 or more, or -1 for epochs",
                      "max_steps is 0: nothing would be trained");
    if (most >= 0) {
        bool once = cfg->train_dataset_data_loader_type == LOADER_TENSOR_BATCHES;
        t->steps = wanted >= 0 ? wanted : data_steps(cfg, t->data);
        if (once || !t->goes_on) train_check_steps(t);
        if (once && wanted < 0 && cfg->runner_config_epochs > 1)
            config_refuse(cfg, "runner_config.epochs", NULL, NULL,
                          "TensorBatches are taken once, in order: epochs must be 1");
        return;
    }
    if (wanted >= 0) {
        t->steps = wanted;
        return;
    }
    int64_t samples;
    if (__builtin_mul_overflow(t->data->samples, cfg->runner_config_epochs, &samples))
        config_refuse(cfg, "runner_config.epochs", NULL, NULL, "too many epochs");
    t->steps = MAX(samples / t->data->batch, 1);
}

static void choose_loss_scale(Train *t) {
    const Config *cfg = t->job.cfg;
    double fixed = cfg->runner_wrapper_loss_scale;
    LossScaleRule rule = {
        .dynamic = fixed == 0 && cfg->runner_wrapper_scale_sense_type == SCALE_DYNAMIC,
        .first = fixed > 0 ? fixed : cfg->runner_wrapper_scale_sense_loss_scale_value,
        .least = cfg->runner_wrapper_min_loss_scale,
        .factor = cfg->runner_wrapper_scale_sense_scale_factor,
        .window = cfg->runner_wrapper_scale_sense_scale_window,
        .hysteresis = cfg->runner_wrapper_hysteresis};
    t->loss_scale = loss_scale_start(&rule);
}

/* ---- optimizer ---- */

/* save_graphs without a folder of its own writes into the run folder. */
static const char *dump_folder(const Train *t) {
    const Config *cfg = t->job.cfg;
    bool named =
        config_given(cfg, "dump_ir") || config_given(cfg, "context.save_graphs_path");
    if (comm_rank() != 0) return NULL; /* the same text on all */
    if (!named && cfg->context_save_graphs) return path_join(t->mem, t->run_dir, "ir");
    return cfg->dump_ir[0] ? cfg->dump_ir : NULL;
}

static PassOptions pass_options(Train *t) {
    const Config *cfg = t->job.cfg;
    PassOptions o = strategy_pass_options(cfg);
    o.dump_dir = dump_folder(t);
    t->scales_loss = o.scale_loss;
    return o;
}

/* ---- program ---- */

static void find_slots(Train *t) {
    Program *p = t->program;
    t->at.rng = program_slot(p, ARG_rng);
    t->at.counted = program_slot(p, ARG_counted);
    t->at.lr = program_slot(p, ARG_lr);
    t->at.weight_decay = program_slot(p, ARG_weight_decay);
    t->at.correction1 = program_slot(p, ARG_bias_correction1);
    t->at.loss_scale = program_slot(p, ARG_loss_scale);
    t->at.correction2 = program_slot(p, ARG_bias_correction2);
    check(p->entry->nret >= 3 && (t->at.lr || p->stages > 1));
    t->at.loss = p->ret[0];
    t->at.grad_norm = p->ret[1];
    t->at.good = p->ret[2];
}

/* `f`: the model before the passes. */
static void count_parameters(Train *t, const Func *f) {
    t->parameters = 0;
    for (int i = 0; i < f->narg; i++)
        if (arg_role(f, i) == ARG_param) {
            const Type *ty = &f->arg[i]->ty;
            double rows = ty->rank ? (double)ty->dim[0] : 1;
            t->parameters +=
                (int64_t)((double)type_count(ty) / rows * arg_float(f, i, "rows", rows));
        }
}

/* Bytes of the probe, which shares the program's weights, of the batches ahead and of what the
 * profile keeps. */
static uint64_t bytes_beside(const Train *t) {
    uint64_t probe =
        t->probe ? (uint64_t)t->probe->plan.total_bytes - dump_shared_bytes(t) : 0;
    return probe + (uint64_t)job_ahead_bytes(&t->job) + t->profile_bytes;
}

/* program_fit for all ranks: the one that lacks most says so, and ends the others. */
static void fit(const Train *t, uint64_t beside_bytes, uint64_t limit_bytes,
                const char *limit, const char *size) {
    uint64_t lacks = program_lacks(t->program, beside_bytes, limit_bytes);
    int64_t own = (int64_t)MIN(lacks, (uint64_t)INT64_MAX), most = comm_max_i64(own);
    int64_t rank = own == most ? comm_rank() : INT32_MAX, first = -comm_max_i64(-rank);
    if (most && rank == first)
        program_fit(t->program, beside_bytes, limit_bytes, limit, size);
    if (most) comm_barrier();
}

/* All of the process must fit the limits before any of it is there, on any rank. The limit
 * of the configuration is compared with what `stator plan` says, or with more. */
static void allocate(Train *t) {
    uint64_t limit = (uint64_t)t->job.cfg->context_max_device_memory;
    uint64_t beside = bytes_beside(t);
    uint64_t recorded = t->profile_bytes;
    uint64_t stated = (uint64_t)plan_process_bytes(t->job.cfg);
    t->program->memory_where = plan_memory_where(t->mem, &t->job, comm_stage());
    comm_barrier();
    FreeMemory left = rank_memory_left();
    t->process_bytes = memory_resident_bytes();
    if (limit)
        fit(t, beside - recorded + MAX(t->process_bytes + recorded, stated), limit, NULL,
            config_memory_limit(t->job.cfg));
    uint64_t packed =
        (uint64_t)plan_packed_bytes(t->job.cfg, t->threads, t->program->plan.total_bytes);
    fit(t, beside + packed, left.bytes, left.of, NULL);
    comm_barrier();
    profile_measure(t);
    program_allocate(t->program, NULL, 0);
    if (t->probe) program_allocate(t->probe, t->program, 0);
}

/* The hash of the plan of all stages, as `stator plan` has it. */
static void join_plans(Train *t) {
    int stages = t->program->stages;
    if (stages == 1) return;
    Plan plan = plan_read(t->mem, t->program->entry, &t->job);
    const char *all = comm_gather(t->mem, plan.hash, sizeof plan.hash);
    char *first = NEW_ARRAY(t->mem, char, (size_t)stages * sizeof plan.hash);
    for (int k = 0; k < stages; k++)
        memcpy(first + (size_t)k * sizeof plan.hash,
               all + (size_t)comm_first_of_stage(k) * sizeof plan.hash, sizeof plan.hash);
    plan_join_hashes(first, stages, t->plan_hash);
}

static void look_for_recompute(void *context) {
    Train *t = context;
    recompute_choose(&t->job);
}

/* Rank 0 searches for all. */
static void choose_recompute(Train *t) {
    Strategy *s = &t->job.strategy;
    if (!s->remake_auto) return;
    int said = t->job.cfg->n_notes;
    agree_with_rank_0(t->mem, look_for_recompute, t);
    train_say_notes(t, said);
    const char *text = comm_broadcast_text(t->mem, s->remake ? s->remake : "");
    s->remake = text[0] ? text : NULL;
}

static void make_program(Train *t) {
    const Config *cfg = t->job.cfg;
    products_choose(t);
    choose_recompute(t);
    t->job.choices->together = true;
    PassOptions o = pass_options(t);
    CompileOptions co = strategy_compile_options(cfg);
    co.choices = t->job.choices;
    co.log_ops = cfg->profile;
    co.memory_hint = plan_memory_hint(t->mem, &t->job);
    Module *m = job_build_step(&t->job, &o);
    Module *model = module_clone(t->mem, m);
    ranks_apply(t, m, &o);
    watch_task("start of the run", -1, false); /* of a stage from here on */
    int said = cfg->n_notes;
    strategy_note_zero(t->job.cfg, m, &o);
    ranks_agree_module(t, m, o.schedule);
    t->program = program_make(t->mem, m, train_passes, &o, &co);
    strategy_note_messages(t->job.cfg, &t->job.strategy, t->program->entry->mod, &o);
    train_say_notes(t, said);
    t->threads = t->program->threads;
    t->pipe = o.schedule;
    join_plans(t);
    if (cfg->dump[0]) dump_plan(t);
    count_parameters(t, model_entry(model));
    job_count_flops(&t->job, model); /* last: the passes say better what they refuse */
    profile_plan(t);
    predict_start(t);
    report_plan(t);
    memory_give_back();
    allocate(t);
    find_slots(t);
    t->feed = feed_make(t, t->program);
}

/* ---- validation ---- */

typedef struct Valid {
    Train *t;
    const DataShape *shape;
    DataSplit split;
    Data *data;
} Valid;

static void look_at_validation(void *context) {
    Valid *v = context;
    v->data = data_open_split(v->t->mem, v->t->job.cfg, v->split, v->shape);
}

static int64_t batches_of(const Train *t, const Data *d) {
    int64_t there = d->steps_available;
    if (there < 0) there = d->samples / d->batch;
    return MIN(t->job.cfg->runner_config_eval_iters, there);
}

/* Megatron-LM goes through a part again where the samples asked for are more than it has. */
static void note_repeated(const Train *t, const Data *d, int64_t batches,
                          const char *part) {
    bool gpt = t->job.cfg->train_dataset_data_loader_type == LOADER_GPT_DATASET;
    int64_t taken = batches * d->batch * d->seq;
    if (!gpt || comm_rank() != 0 || taken < d->tokens) return;
    fprintf(stderr,
            "note: the %s part has %lld tokens, and its %lld batch%s of %lld sequences "
            "take %lld: they go through it about %.3g times\n",
            part, (long long)d->tokens, (long long)batches, batches == 1 ? "" : "es",
            (long long)d->batch, (long long)taken, (double)taken / (double)d->tokens);
}

/* Fewer batches than were asked for are what there is. */
static void note_fewer(const Train *t, const Data *d, int64_t batches) {
    const Config *cfg = t->job.cfg;
    if (batches >= cfg->runner_config_eval_iters || comm_rank() != 0 ||
        !config_given(cfg, "runner_config.eval_iters"))
        return;
    fprintf(stderr,
            "note: the valid part has %lld samples, %lld batch%s of %lld: a validation "
            "takes these, and not the %lld of runner_config.eval_iters\n",
            (long long)d->samples, (long long)batches, batches == 1 ? "" : "es",
            (long long)d->batch, (long long)cfg->runner_config_eval_iters);
}

static DataShape shape_of_part(const Train *t) {
    return job_data_shape(&t->job, t->data->batch, t->steps);
}

static _Noreturn void refuse_valid(const Config *cfg, const Data *d) {
    bool own = data_is_own(cfg, SPLIT_VALID);
    DataPlace place = data_place(cfg, SPLIT_VALID);
    const char *key = place.paths.n ? place.path_key : place.dir_key;
    config_refuse(cfg, own ? key : "train_dataset.data_loader.split",
                  "runner_config.eval_iters",
                  own ? "more data, or --runner_config.eval_iters 0"
                      : "a larger valid share, or --runner_config.eval_iters 0",
                  "the valid split has %lld samples, less than one batch of %lld",
                  (long long)d->samples, (long long)d->batch);
}

static ValidPart open_valid(Train *t) {
    DataShape shape = shape_of_part(t);
    Valid look = {t, &shape, SPLIT_VALID, NULL};
    agree_look(look_at_validation, &look);
    int64_t batches = batches_of(t, look.data);
    if (batches < 1) refuse_valid(t->job.cfg, look.data);
    note_repeated(t, look.data, batches, "valid");
    note_fewer(t, look.data, batches);
    ranks_agree_data(t, look.data, batches);
    if (data_is_own(t->job.cfg, SPLIT_VALID))
        t->valid_source = arena_printf(
            t->mem, "%s: %s samples, of which %lld batches of %lld are taken",
            look.data->path, human((double)look.data->samples, "").s, (long long)batches,
            (long long)look.data->batch);
    return (ValidPart){look.data, batches};
}

/* What a run can do without: one too small is left out, with a line. */
static void look_at_test(void *context) {
    Valid *v = context;
    Catch c;
    if (!CATCH(c)) return;
    look_at_validation(v);
    catch_end(&c);
}

static ValidPart open_test(Train *t) {
    DataShape shape = shape_of_part(t);
    Valid look = {t, &shape, SPLIT_TEST, NULL};
    agree_look(look_at_test, &look);
    int64_t batches = look.data ? batches_of(t, look.data) : 0;
    if (comm_max_i64(batches < 1)) {
        if (comm_rank() == 0)
            fprintf(stderr,
                    "note: the test split is not as large as a batch of %lld samples: "
                    "there is no test at the end\n",
                    (long long)t->data->batch);
        data_close(look.data);
        return (ValidPart){0};
    }
    note_repeated(t, look.data, batches, "test");
    ranks_agree_data(t, look.data, batches);
    return (ValidPart){look.data, batches};
}

/* A test part that nobody asked for, of a default, is not taken. */
static bool asks_for_test(const Config *cfg) {
    return data_has_split(cfg, SPLIT_TEST) &&
           config_given(cfg, "train_dataset.data_loader.split");
}

static void plan_validation(Train *t) {
    const Config *cfg = t->job.cfg;
    ValidPart valid = {0}, test = {0};
    if (data_has_split(cfg, SPLIT_VALID)) valid = open_valid(t);
    if (asks_for_test(cfg)) test = open_test(t);
    if (!valid.data && !test.data) return;
    valid_plan(t, valid, test, cfg->runner_config_eval_interval);
}

/* ---- the whole ---- */

static void hash_config(Train *t) {
    Text text = text_new(t->mem);
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        if (!train_key_counts(key)) continue;
        text_add(&text, "%s=%s\n", key->path,
                 config_value(t->job.cfg, t->mem, key->path));
    }
    if (t->job.module.path)
        text_add_bytes(&text, t->job.module.text, t->job.module.bytes);
    text_add(&text, "steps=%lld\n", (long long)t->steps);
    hash_hex(text.s, text.n, t->config_hash);
}

static void choose_shape(void *job) {
    job_choose_shape(job);
}

/* What the configuration names on this host's disk. What does not fit the model is told with what
 * is not there, before anything is read. */
static void look_at_work(void *context) {
    Train *t = context;
    Config *cfg = t->job.cfg;
    bool chosen = config_try(cfg->state, choose_shape, &t->job);
    data_try_paths(cfg);
    if (chosen) job_check(&t->job);
    config_fail_all(cfg->state);
    open_data(t);
    choose_steps(t);
    train_choose_schedules(t);
    if (!t->steps_open) train_check_schedules(t);
    choose_loss_scale(t);
    hash_config(t);
}

void train_plan(Train *t, int argc, char **argv) {
    ranks_agree_build(t);
    train_load_config(t, argc, argv);
    rt_set_threads((int)t->job.cfg->context_threads);
    int said = t->job.cfg->n_notes;
    job_choose_model(&t->job);
    train_say_notes(t, said);
    ranks_agree_module_file(t);
    const char *file;
    t->goes_on = comm_max_i64(comm_rank() == 0 && train_goes_on(t, "", &file));
    t->steps_open = t->goes_on && t->job.cfg->runner_config_max_steps < 0;
    said = t->job.cfg->n_notes;
    agree_look(look_at_work, t);
    train_say_notes(t, said);
    ranks_agree_data(t, t->data, t->steps);
    make_program(t);
    plan_validation(t);
    sample_plan(t);
}
