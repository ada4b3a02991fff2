/* job_model.c - which model a job is of: that of keys, of a folder, or a module. */
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/model/job.h"
#include "frontend/model/model_keys.h"
#include "frontend/model/stage_layers.h"
#include "runtime/comm/agree.h"
#include "runtime/comm/comm.h"
#include "runtime/store/safetensors.h"
#include <math.h>

#define MODEL "model.model_config."

static void read_module(void *context) {
    Job *j = context;
    UserModule *u = &j->module;
    u->path = config_file_beside(j->cfg, j->mem, "model.file", j->cfg->model_file);
    u->text = file_read(j->mem, u->path, MODEL_MAX_BYTES, &u->bytes, EXIT_CONFIG);
    model_parse(j->mem, u->path, u->text, u->bytes);
}

/* A checkpoint of a model.file brings its module with it. */
static void take_module(Job *j, bool given) {
    const char *text = j->source.module;
    stage_layers_refuse_noop(j->cfg, j->source.path);
    if (given)
        config_refuse(j->cfg, "init_from", "resume_or_finetune_checkpoint",
                      "leave model.model_config out",
                      "%s is of a module of its own, which model.model_config cannot "
                      "change",
                      j->source.path);
    const char *name = source_module_name(j->mem, &j->source);
    j->module = (UserModule){name, text, strlen(text)};
}

/* Dropout that nobody has asked for here. */
static void note_dropout(Config *cfg, const Source *source) {
    static const char *const keys[] = {MODEL "dropout_prob", MODEL "hidden_dropout_prob",
                                       MODEL "attention_probs_dropout_prob"};
    const ModelSpec *s = &source->spec;
    const double rate[] = {s->embd_dropout, s->resid_dropout, s->attn_dropout};
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        bool spread = i == 1 && config_given(cfg, keys[0]);
        if (source->kind != SOURCE_HF || !(rate[i] > 0) || config_given(cfg, keys[i]) ||
            spread)
            continue;
        config_note(cfg, "init_from",
                    "%s is %g, as config.json of %s says; --%s 0 turns "
                    "it off",
                    keys[i], rate[i], source->path, keys[i]);
    }
}

/* The model of the weights, changed by the keys that may change it. */
static void take_source(Job *j) {
    Config *cfg = j->cfg;
    bool shorter = config_given(cfg, MODEL "seq_length") ||
                   config_given(cfg, "train_dataset.seq_length");
    if (!j->evaluates) note_dropout(cfg, &j->source);
    j->spec = source_spec(&j->source);
    stage_layers_check_noop(cfg, j->spec.layers + cfg->parallel_config_noop_layers.n);
    model_keys_override(cfg, &j->spec, j->source.path);
    j->seq = shorter ? cfg->model_seq_length : j->spec.max_positions;
    if (j->seq > j->spec.max_positions && !model_grows(&j->spec))
        config_refuse(
            cfg, MODEL "seq_length", "train_dataset.seq_length", "a shorter one",
            "seq_length is %lld, but the model of %s has %lld positions",
            (long long)j->seq, j->source.path, (long long)j->spec.max_positions);
    model_keys_fill(cfg, &j->spec);
    cfg->model_seq_length = j->seq;
}

/* The checkpoint or the folder of them that a run goes on from; NULL: none. */
static const char *goes_on_from(const Job *j) {
    const Config *cfg = j->cfg;
    const char *first = config_resume_else(cfg), *own = cfg->checkpoint_directory;
    if (!strcmp(cfg->resume, "never")) return NULL;
    if (strcmp(cfg->resume, "auto") != 0) return cfg->resume;
    if (!own[0]) own = path_join(j->mem, cfg->output_dir, RUN_CHECKPOINTS);
    return has_checkpoints(j->mem, own) ? own : first[0] ? first : NULL;
}

/* Is a fine-tuning to begin, and from nothing? Rank 0 looks for all. */
static bool lacks_weights(const Job *j) {
    const Config *cfg = j->cfg;
    if (cfg->run_mode != RUN_FINETUNE || cfg->init_from[0]) return false;
    return !comm_max_i64(comm_rank() == 0 && goes_on_from(j));
}

/* Are there weights? Where nothing runs they may still be missing, or be a place to fill in. */
static bool finds_weights(const Job *j, bool given) {
    Config *cfg = j->cfg;
    const char *from = cfg->init_from;
    bool own = config_given(cfg, "init_from"), lacks = lacks_weights(j);
    if (j->plans && given && (from[0] ? !file_exists(from) : lacks)) {
        config_note(
            cfg, own ? "init_from" : "resume_or_finetune_checkpoint",
            "there are no weights%s%s: the model is planned as model.model_config "
            "says, and stator train needs them",
            from[0] ? " at " : "", from);
        return false;
    }
    if (lacks)
        config_refuse(cfg, "run_mode", "init_from", "set init_from or load_checkpoint",
                      "run_mode finetune needs weights to start from");
    return from[0] != 0;
}

/* What a run goes on from has the model too, when the weights that it began with are gone. On
 * rank 0, for all. */
static const char *model_folder(const Job *j, const char *path, const char *from) {
    bool gone = comm_rank() == 0 && !file_exists(from);
    const char *instead = gone ? goes_on_from(j) : NULL;
    instead = comm_broadcast_text(j->mem, instead ? instead : "");
    if (!instead[0]) return from;
    config_note(j->cfg, path,
                "there is no %s any more: the model is that of %s, which the run goes on "
                "from",
                from, instead);
    return instead;
}

/* The model of pretrained_model_dir, and its weights if it has any, as in MindFormers
 * (trainer/base_trainer.py). Rank 0 looks for all. */
static void open_pretrained(Job *j) {
    Config *cfg = j->cfg;
    static const char path[] = "pretrained_model_dir";
    const char *named = cfg->pretrained_model_dir, *dir = model_folder(j, path, named);
    bool root = comm_rank() == 0;
    if (root && !file_exists(dir))
        config_refuse(cfg, path, NULL,
                      "a folder with a config.json, or model.model_config",
                      "there is no folder %s", dir);
    j->source = source_open_with(j->mem, dir, 0, NULL);
    if (strcmp(dir, named) != 0) return;
    j->has_source = comm_max_i64(root && safetensors_of_folder(j->mem, dir) != NULL);
    if (j->has_source) cfg->init_from = dir;
    bool goes_on = comm_max_i64(root && goes_on_from(j));
    if (j->has_source)
        config_note(cfg, path, "the weights are those of %s", dir);
    else if (!goes_on)
        config_note(cfg, path, "%s has no weights: random ones of the seed are taken",
                    dir);
}

/* Of a Hugging Face folder a run takes weights: it cannot go on from there. */
static void refuse_to_resume_weights(void *context) {
    const Job *j = context;
    const Config *cfg = j->cfg;
    const char *from = goes_on_from(j), *hint = "--run_mode finetune takes its weights";
    if (!from || !source_is_hf(j->mem, from)) return;
    bool named = config_given(cfg, "resume") && strcmp(cfg->resume, "auto") != 0;
    if (config_given(cfg, "resume_training"))
        hint = "--resume_training False takes its weights";
    if (named) hint = "--init_from in place of resume takes its weights";
    config_refuse(cfg, named ? "resume" : "resume_or_finetune_checkpoint", NULL, hint,
                  "%s is a Hugging Face folder: it has no checkpoint to go on from",
                  from);
}

void job_choose_model(Job *j) {
    Config *cfg = j->cfg;
    bool given = model_keys_given(cfg), described;
    if (!j->plans && !j->evaluates) agree_look(refuse_to_resume_weights, j);
    j->seq = 1;
    j->has_source = finds_weights(j, given);
    described = !j->has_source && !cfg->init_from[0] && cfg->pretrained_model_dir[0];
    if (j->has_source)
        j->source = source_open_with(j->mem, model_folder(j, "init_from", cfg->init_from),
                                     0, NULL);
    if (described) open_pretrained(j);
    if (cfg->model_file[0]) {
        stage_layers_refuse_noop(cfg, cfg->model_file);
        agree_look(read_module, j);
        return;
    }
    if (j->has_source && j->source.module) {
        take_module(j, given);
        return;
    }
    j->has_spec = true;
    if (!given && !j->has_source && !described)
        fail(EXIT_CONFIG, "the configuration has no model: give a section "
                          "model.model_config, a model.file, or --init_from a folder "
                          "with a config.json");
    if (!j->has_source && !described) {
        stage_layers_check_noop(cfg, cfg->model_num_layers);
        j->spec = model_spec_of_config(cfg);
        j->seq = cfg->model_seq_length;
        return;
    }
    take_source(j);
    /* begun as a model of keys is, which folders of weights do not say */
    if (!j->has_source)
        j->spec.output_std = j->spec.block_std / sqrt(2.0 * (double)j->spec.layers);
}
