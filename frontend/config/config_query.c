/* config_query.c - queries on a configuration, and messages about it. */
#include "frontend/config/config_state.h"
#include <stdlib.h>

static int known(const char *path) {
    int k = key_find(path);
    if (k < 0) die("no key %s in keys.def", path);
    return k;
}

bool config_given(const Config *cfg, const char *path) {
    return cfg->state->settings[known(path)].value != NULL;
}

const char *config_written(const Config *cfg, const char *path) {
    const YamlNode *value = cfg->state->settings[known(path)].value;
    return value && value->kind == NODE_TEXT ? value->text : NULL;
}

SourcePos config_where(const Config *cfg, const char *path) {
    const YamlNode *value = cfg->state->settings[known(path)].value;
    return value ? value->at : (SourcePos){.file = "default"};
}

const char *config_file_beside(const Config *cfg, Arena *mem, const char *path,
                               const char *name) {
    SourcePos at = config_where(cfg, path);
    bool in_folder = at.file && at.line && strchr(at.file, '/');
    if (name[0] == '/' || !in_folder) return name;
    const char *beside = path_join(mem, path_folder(mem, at.file), name);
    return file_exists(beside) ? beside : name;
}

void config_set_given(Config *cfg, const char *path, const char *value) {
    Setting *s = &cfg->state->settings[known(path)];
    SourcePos at = s->value ? s->value->at : (SourcePos){0};
    if (!s->name) s->name = path;
    s->value = yaml_scalar(cfg->state->mem, value, at);
    key_store(cfg->state->mem, &key_table[known(path)], path, s->value, cfg);
}

/* Its file gets the name by which a YAML file in the folder finds it. */
static void keep_file(Config *cfg, const char *path, const char *folder) {
    Arena *mem = cfg->state->mem;
    const char *name = config_value(cfg, mem, path);
    if (!name[0] || name[0] == '/') return;
    char *whole = realpath(config_file_beside(cfg, mem, path, name), NULL);
    char *there = realpath(path_join(mem, folder, name), NULL);
    if (whole && !(there && !strcmp(whole, there)))
        config_set_given(cfg, path, arena_strdup(mem, whole));
    free(whole);
    free(there);
}

void config_keep_files(Config *cfg, const char *folder) {
    keep_file(cfg, "context.machine", folder);
    keep_file(cfg, "model.file", folder);
    if (ends_with(cfg->parallel_pipeline_config_pipeline_scheduler, ".csv"))
        keep_file(cfg, "parallel.pipeline_config.pipeline_scheduler", folder);
}

static bool set_by_search(const Config *cfg, const char *path) {
    SourcePos at = config_where(cfg, path);
    return at.file && !strcmp(at.file, config_search_file);
}

void config_note(Config *cfg, const char *path, const char *fmt, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    Arena *a = cfg->state->mem;
    SourcePos at = config_where(cfg, path);
    if (set_by_search(cfg, path)) return;
    char *note = at.line ? arena_printf(a, "%s:%d: %s", at.file, at.line, line)
                         : arena_strdup(a, line);
    make_printable(note, LINES_NONE);
    PUSH(a, cfg->notes, cfg->n_notes, cfg->cap_notes, note);
}

void config_add_needless(Config *cfg, int key, const char *why) {
    ConfigState *s = cfg->state;
    if (set_by_search(cfg, key_table[key].path)) return;
    PUSH(s->mem, s->needless, s->n_needless, s->cap_needless, ((Needless){key, why}));
}

/* More of them are a file of another system, and would hide the lines that tell something. */
enum { NEEDLESS_LINES = 6 };

/* The names of all, in one line. */
static char *needless_names(const ConfigState *s) {
    Text all = text_new(s->mem);
    text_add(&all, "%d keys have no effect, stator help KEY says why: ", s->n_needless);
    for (int i = 0; i < s->n_needless; i++)
        text_add(&all, "%s%s", i ? ", " : "", s->settings[s->needless[i].key].name);
    make_printable(all.s, LINES_NONE);
    return all.s;
}

void config_note_needless(Config *cfg) {
    ConfigState *s = cfg->state;
    for (int i = 0; i < s->n_needless && s->n_needless <= NEEDLESS_LINES; i++) {
        const Needless *x = &s->needless[i];
        config_note(cfg, key_table[x->key].path, "%s has no effect: %s",
                    s->settings[x->key].name, x->why);
    }
    if (s->n_needless > NEEDLESS_LINES)
        PUSH(s->mem, cfg->notes, cfg->n_notes, cfg->cap_notes, needless_names(s));
    s->n_needless = 0;
}

const char *config_value(const Config *cfg, Arena *a, const char *path) {
    return key_text(a, &key_table[known(path)], cfg, false);
}

int64_t config_replica_ranks(const Config *cfg) {
    const int64_t degree[] = {cfg->parallel_config_model_parallel,
                              cfg->parallel_config_context_parallel,
                              cfg->parallel_config_pipeline_stage};
    int64_t ranks = 1;
    for (int i = 0; i < ARRAY_LEN(degree); i++)
        ranks = MIN(ranks * MIN(degree[i], INT32_MAX), (int64_t)INT32_MAX);
    return ranks;
}

int64_t config_ranks(const Config *cfg) {
    int64_t replicas = MIN(cfg->parallel_config_data_parallel, INT32_MAX);
    return MIN(replicas * config_replica_ranks(cfg), (int64_t)INT32_MAX);
}

int64_t config_warmup_of(const Config *cfg, int64_t total) {
    return (int64_t)(cfg->lr_schedule_warmup_ratio * (double)total);
}

const char *config_memory_limit(const Config *cfg) {
    const char *path = "context.max_device_memory";
    Arena *a = cfg->state->mem;
    const YamlNode *value = cfg->state->settings[known(path)].value;
    const char *text = value ? value->text : config_value(cfg, a, path);
    return arena_printf(a, "%s (%s in steps of 1000)", text,
                        human((double)cfg->context_max_device_memory, "B").s);
}

int config_height(const Config *cfg, const char *path) {
    return cfg->state->settings[known(path)].height;
}

_Noreturn void config_refuse(const Config *cfg, const char *path, const char *other,
                             const char *hint, const char *fmt, ...) {
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    SourcePos at = config_where(cfg, path);
    if (!at.line && other) at = config_where(cfg, other);
    const bool *broken = cfg->state->broken;
    cfg->state->follows = broken[known(path)] || (other && broken[known(other)]);
    fail_at(EXIT_CONFIG, at, hint, "%s", message);
}

int config_switch(const TextList *l) {
    bool on;
    if (!l->n) return 0;
    return l->n == 1 && key_parse_bool(l->items[0], &on) ? on : -1;
}

bool config_has_source(const Config *c) {
    return c->init_from[0] || c->pretrained_model_dir[0];
}

bool config_resumes(const Config *c) {
    if (!config_given(c, "resume_training")) return c->run_mode == RUN_TRAIN;
    bool trains = c->run_mode == RUN_TRAIN || c->run_mode == RUN_FINETUNE;
    return trains && c->resume_training;
}

const char *config_resume_else(const Config *c) {
    return config_resumes(c) ? c->resume_or_finetune_checkpoint : "";
}

void config_check_agree(const Config *cfg, const char *a, const char *b) {
    if (!config_given(cfg, a) || !config_given(cfg, b)) return;
    Arena *mem = cfg->state->mem;
    const char *va = config_value(cfg, mem, a), *vb = config_value(cfg, mem, b);
    if (!strcmp(va, vb)) return;
    SourcePos at = config_where(cfg, b);
    config_refuse(cfg, a, b, "keep one of the two", "%s is %s, but %s is %s (%s:%d)", a,
                  va, b, vb, at.file, at.line);
}
