/* source.c - see source.h. */
#include "frontend/model/source.h"
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/config/run_tokenizer.h"
#include "runtime/comm/comm.h"
#include "runtime/store/ckpt_files.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

/* The model and the kind of tokens, as the state in the manifest tells them. */
static void read_state(Arena *mem, Source *s, const char *folder, const Manifest *m) {
    const char *name = path_join(mem, folder, CKPT_MANIFEST);
    if (m->version > CKPT_VERSION)
        fail(EXIT_CHECKPOINT,
             "checkpoint %s has format version %lld; this stator reads "
             "up to %d: use the newer one that wrote it",
             folder, (long long)m->version, CKPT_VERSION);
    const Json *state = ckpt_state_parse(mem, name, m->state_json);
    const Json *model = json_get(state, "model");
    s->module = json_get_string(state, "module", NULL);
    if (!s->module && (!model || model->kind != JSON_OBJECT))
        fail(EXIT_CHECKPOINT,
             "checkpoint %s does not say what model it is of: it was trained from a "
             "model.file before checkpoints kept the module; go on training it with its "
             "configuration, then the next one does",
             folder);
    char *raw = s->module ? NULL : json_raw(mem, model);
    if (raw) s->spec = model_spec_of_json(mem, name, raw, strlen(raw));
    const Json *data = json_get(state, "data");
    const char *type = "";
    if (data && data->kind == JSON_OBJECT) type = json_get_string(data, "type", "");
    s->data_type = type;
    s->bytes = !strcmp(type, "TextFile") && !json_get_bool(data, "tokenizer", false);
}

static void read_checkpoint(Arena *mem, Source *s) {
    Manifest m = {0};
    const char *wrong = manifest_read(mem, s->path, &m);
    if (wrong) fail(EXIT_CHECKPOINT, "checkpoint %s is damaged: %s", s->path, wrong);
    read_state(mem, s, s->path, &m);
}

/* The model of the newest checkpoint whose manifest can be read. */
static void read_newest(Arena *mem, Source *s) {
    CkptEntry *e;
    int n, error = ckpt_list(mem, s->path, &e, &n);
    if (error) fail(EXIT_CHECKPOINT, "cannot read %s: %s", s->path, strerror(error));
    const char *first = NULL;
    for (int i = 0; i < n; i++) {
        if (e[i].tmp) continue;
        const char *folder = path_join(mem, s->path, e[i].name);
        Manifest m = {0};
        const char *wrong = manifest_read(mem, folder, &m);
        if (!wrong) {
            read_state(mem, s, folder, &m);
            return;
        }
        if (!first) first = arena_printf(mem, "%s: %s", e[i].name, wrong);
    }
    fail(EXIT_CHECKPOINT, "none of the checkpoints in %s is good; %s", s->path,
         first ? first : "there is none");
}

/* By its manifest, or without it by the name that only checkpoints have. */
static bool is_checkpoint(Arena *mem, const char *dir) {
    char *whole = realpath(dir, NULL);
    const char *name = whole ? strrchr(whole, '/') + 1 : "";
    size_t digits = begins_with(name, "step_") ? strspn(name + 5, "0123456789") : 0;
    bool named = digits >= 8 && !name[5 + digits];
    free(whole);
    return folder_has(mem, dir, CKPT_MANIFEST) ||
           (named && !folder_has(mem, dir, "config.json") &&
            !folder_has(mem, dir, RUN_CONFIG));
}

/* What a folder is; false: nothing known. */
static bool find_kind(Arena *mem, const char *dir, Source *s) {
    const char *of_run;
    s->path = dir;
    if (is_checkpoint(mem, dir)) {
        s->kind = SOURCE_CHECKPOINT;
    } else if (has_checkpoints(mem, dir)) {
        s->kind = SOURCE_CHECKPOINTS;
    } else if ((of_run = run_checkpoints(mem, dir))) {
        s->kind = SOURCE_CHECKPOINTS;
        s->path = of_run;
    } else if (folder_has(mem, dir, "config.json")) {
        s->kind = SOURCE_HF;
    } else {
        return false;
    }
    return true;
}

bool source_is_hf(Arena *mem, const char *dir) {
    Source s;
    return find_kind(mem, dir, &s) && s.kind == SOURCE_HF;
}

/* The folder of weights that a configuration speaks of. */
static void find_of_config(Arena *mem, const char *path, const Config *cfg, Source *s) {
    const char *named = cfg->resume_or_finetune_checkpoint;
    bool own_first = config_resume_else(cfg)[0] && !strcmp(cfg->resume, "auto");
    const char *const places[] = {own_first ? "" : named, cfg->checkpoint_directory,
                                  cfg->output_dir, named, cfg->init_from};
    s->config = path;
    /* A checkpoint that was named and is not there must not become another one. */
    int n = own_first ? ARRAY_LEN(places) - 1 : named[0] ? 1 : ARRAY_LEN(places);
    for (int i = 0; i < n; i++)
        if (dir_exists(places[i]) && find_kind(mem, places[i], s)) return;
    if (named[0])
        fail(EXIT_CHECKPOINT,
             "load_checkpoint %s is no checkpoint and no Hugging Face "
             "folder",
             named);
    fail(EXIT_CHECKPOINT,
         "%s: no weights yet: output_dir %s has no checkpoint; train it "
         "(stator train %s), or name weights: --load_checkpoint DIR",
         path, cfg->output_dir, path);
}

/* The configuration in the folder, or that of the run which has these checkpoints, or this
 * one of them; NULL: none. A config.yaml of whatever else is above is not asked. */
static const char *config_of_dir(Arena *mem, const char *dir, const Source *s) {
    static const char *const names[] = {RUN_CHECKPOINTS, RUN_BEST};
    const char *config = path_join(mem, dir, RUN_CONFIG);
    if (file_exists(config)) return config;
    if (s->kind == SOURCE_HF || s->path != dir) return NULL;
    const char *all = s->kind == SOURCE_CHECKPOINT ? path_join(mem, dir, "..") : dir;
    const char *run = path_join(mem, all, "..");
    config = path_join(mem, run, RUN_CONFIG);
    if (!file_exists(config)) return NULL;
    for (int i = 0; i < ARRAY_LEN(names); i++)
        if (same_folder(path_join(mem, run, names[i]), all)) return config;
    return NULL;
}

static void find_of_dir(Arena *mem, const char *dir, Source *s) {
    if (!find_kind(mem, dir, s)) {
        if (folder_has(mem, dir, RUN_CONFIG)) {
            config_load(mem, path_join(mem, dir, RUN_CONFIG), 0, NULL); /* readable? */
            const char *where = run_where_named(mem, dir);
            fail(EXIT_CHECKPOINT, "the run %s has no checkpoint%s%s", dir,
                 where[0] ? where : " yet",
                 where[0] ? "; go to the folder in which it was trained, or give the one "
                            "with its checkpoints"
                          : "; let stator train save one "
                            "(callbacks.CheckpointMonitor.save_checkpoint_steps)");
        }
        fail(EXIT_CONFIG,
             "%s holds no model: give a run folder (with ckpt), a "
             "checkpoint (with manifest.json) or a Hugging Face folder (with "
             "config.json)",
             dir);
    }
    s->config = config_of_dir(mem, dir, s);
}

/* Is the configuration that of the run with the weights? Of a folder that it names for its
 * checkpoints it is, where it lies in its own output_dir. */
static bool is_of_run(Arena *mem, const Source *s, const Config *cfg) {
    const char *dir = path_join(mem, s->path, s->kind == SOURCE_CHECKPOINT ? ".." : ".");
    const char *run = path_join(mem, cfg->output_dir, RUN_CONFIG);
    if (s->kind == SOURCE_HF) return false;
    if (same_folder(run, s->config) && same_folder(dir, cfg->checkpoint_directory))
        return true;
    run = config_of_dir(mem, s->path, s);
    return run && same_folder(run, s->config);
}

bool source_tokenizer_by_flag(const Config *cfg) {
    bool flag = config_by_flag(cfg, "train_dataset.data_loader.tokenizer_type");
    for (int i = 0; i < TOKENIZER_KEYS; i++)
        flag |= config_by_flag(cfg, tokenizer_keys[i]);
    return flag;
}

static bool goes_by_copy(Arena *mem, Source *s, const Config *cfg) {
    const char *gone = tokenizer_key_gone(cfg), *copy = s->tokenizer.tokenizer_file;
    if (!run_tokenizer_found(&s->tokenizer) || source_tokenizer_by_flag(cfg))
        return false;
    if (is_of_run(mem, s, cfg)) return true;
    if (!gone) return false;
    SourcePos at = config_where(cfg, gone);
    s->gone = arena_printf(mem,
                           "note: %s:%d: %s %s is not there: takes %s, which is with "
                           "the weights",
                           at.file, at.line, gone, config_written(cfg, gone),
                           copy ? copy : s->tokenizer.vocab_file);
    return true;
}

void source_take_keys(Arena *mem, Source *s, const Config *cfg) {
    TokenizerSpec named = tokenizer_of_keys(cfg);
    bool files = run_tokenizer_found(&named);
    if (!files && !tokenizer_is_bytes(&named)) return;
    if (files && goes_by_copy(mem, s, cfg)) return;
    s->tokenizer = named;
    s->bytes = !files;
    s->words = cfg;
}

Tokenizer *source_tokenizer(Arena *mem, const Source *s) {
    Catch c;
    if (s->gone) say_aside("%s", s->gone);
    if (!s->words) return tokenizer_open(mem, &s->tokenizer);
    if (CATCH(c)) {
        Tokenizer *t = tokenizer_open(mem, &s->tokenizer);
        catch_end(&c);
        return t;
    }
    const char *key = c.at.file ? NULL : tokenizer_key_said(s->words, c.message);
    if (!key) catch_again(&c);
    fail_at(c.code, config_where(s->words, key), "write where it is now", "%s: %s", key,
            catch_text(&c));
}

/* What lies with the weights goes before what lies with the data. */
static void find_tokenizer(Arena *mem, Source *s, const Config *cfg) {
    if (!s->bytes) s->tokenizer = tokenizer_of_folder(mem, s->path);
    s->bytes |= s->spec.vocab == 256 && !run_tokenizer_found(&s->tokenizer);
    if (!cfg) return;
    source_take_keys(mem, s, cfg);
    if (!s->bytes && !run_tokenizer_found(&s->tokenizer))
        s->tokenizer = run_tokenizer(mem, cfg);
}

Source source_open(Arena *mem, const char *path, int nflags, char **flags) {
    Source s = {.data_type = ""};
    const Config *cfg = NULL;
    struct stat st;
    path = ckpt_of_latest(mem, path);
    if (stat(path, &st) != 0)
        fail(EXIT_CONFIG,
             "cannot open %s: %s; give a run folder, a checkpoint, a Hugging "
             "Face folder or a configuration file",
             path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        find_of_dir(mem, path, &s);
    else
        find_of_config(mem, path, cfg = config_load(mem, path, nflags, flags), &s);
    if (s.kind == SOURCE_HF)
        s.spec = model_spec_of_hf(mem, s.path);
    else if (s.kind == SOURCE_CHECKPOINT)
        read_checkpoint(mem, &s);
    else
        read_newest(mem, &s);
    find_tokenizer(mem, &s, cfg);
    return s;
}

/* On rank 0: the failure says who looked. */
static Source open_for_all(Arena *mem, const char *path, int nflags, char **flags) {
    Catch c;
    if (CATCH(c)) {
        Source s = source_open(mem, path, nflags, flags);
        catch_end(&c);
        return s;
    }
    fail_again(c.code, arena_printf(mem, "%s\n  rank 0 on %s reads it for all ranks",
                                    c.message, comm_host()));
}

Source source_open_with(Arena *mem, const char *path, int nflags, char **flags) {
    bool root = comm_rank() == 0;
    Source s = {.data_type = ""};
    if (comm_size() == 1) return source_open(mem, path, nflags, flags);
    if (root) s = open_for_all(mem, path, nflags, flags);
    s.kind = (SourceKind)comm_max_i64(root ? (int64_t)s.kind : -1);
    s.bytes = comm_max_i64(s.bytes);
    s.path = comm_broadcast_text(mem, root ? s.path : "");
    bool known = comm_max_i64(root && !s.module);
    const char *model = !root   ? ""
                        : known ? model_spec_json(mem, &s.spec, false)
                                : s.module;
    model = comm_broadcast_text(mem, model);
    if (known)
        s.spec = model_spec_of_json(mem, s.path, model, strlen(model));
    else
        s.module = model;
    return s;
}

ModelSpec source_spec(const Source *s) {
    if (s->module)
        fail(EXIT_CHECKPOINT,
             "%s is of a module of its own (model.file); this needs a model of "
             "model.model_config",
             s->path);
    return s->spec;
}

const char *source_module_name(Arena *mem, const Source *s) {
    return arena_printf(mem, "the module of %s", s->path);
}

int *source_parameters(Arena *mem, const Func *entry, int *n) {
    int *list = NEW_ARRAY(mem, int, (size_t)entry->narg);
    *n = 0;
    for (int i = 0; i < entry->narg; i++)
        if (arg_role(entry, i) == ARG_param) list[(*n)++] = i;
    return list;
}

CkptTensor *source_tensors(Arena *mem, const Func *entry, WeightAt at, void *context,
                           int *n) {
    int *arg = source_parameters(mem, entry, n);
    CkptTensor *t = NEW_ARRAY(mem, CkptTensor, (size_t)*n);
    for (int i = 0; i < *n; i++) {
        const Value *v = entry->arg[arg[i]];
        t[i] = (CkptTensor){.name = v->name,
                            .dtype = v->ty.dt,
                            .rank = v->ty.rank,
                            .data = at(context, arg[i]),
                            .file = CKPT_MODEL};
        memcpy(t[i].dim, v->ty.dim, sizeof t[i].dim);
    }
    return t;
}

typedef struct Parts {
    const Func *entry;
    const CkptTensor *t;
    int n;
} Parts;

/* Into the elements of t from `at` on. */
static void take_values(const CkptTensor *t, int64_t at, const float *values,
                        int64_t count) {
    if (t->dtype == DT_F32) {
        memcpy((float *)t->data + at, values, (size_t)count * sizeof *values);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        ((uint16_t *)t->data)[at + i] = f32_to_narrow(t->dtype, values[i]);
}

static void take_rows(const CkptTensor *t, int64_t first, int64_t count,
                      const float *values) {
    if (!t->layout) {
        take_values(t, first, values, count);
        return;
    }
    LayoutWalk w = layout_walk(t->layout, comm_place());
    while (layout_next(&w)) {
        int64_t from = MAX(w.global, first), to = MIN(w.global + w.count, first + count);
        if (from >= to) continue;
        take_values(t, w.local + from - w.global, values + from - first, to - from);
    }
}

static void take_piece(void *context, int arg, int64_t first, int64_t count,
                       const float *values) {
    const Parts *p = context;
    bool found = false;
    for (const CkptTensor *t = p->t; t < p->t + p->n; t++) {
        const char *name = t->tensor ? t->tensor : t->name;
        if (strcmp(name, p->entry->arg[arg]->name)) continue;
        found = true;
        take_rows(t, first, count, values);
    }
    check(found);
}

static void send_piece(void *context, int arg, int64_t first, int64_t count,
                       const float *values) {
    if (comm_size() > 1)
        comm_broadcast((void *)(uintptr_t)values, (size_t)count * sizeof *values, 0);
    take_piece(context, arg, first, count, values);
}

/* What rank 0 sends, in the order of hf_map. */
static void receive_pieces(const Func *entry, Parts *p) {
    Arena *mem = arena_new();
    HfMap map = hf_map(mem, entry);
    for (int i = 0; i < map.n; i++) {
        const HfTensor *t = &map.t[i];
        Arena *scratch = arena_new();
        size_t bytes = (size_t)t->count * sizeof(float);
        float *values = arena_alloc(scratch, bytes);
        comm_broadcast(values, bytes, 0);
        take_piece(p, t->arg, t->first, t->count, values);
        arena_free(scratch);
    }
    arena_free(mem);
}

/* From the checkpoint or the newest of the folder; returns its path. */
static const char *load_checkpoint(Arena *mem, const Source *s, CkptTensor *t, int n) {
    if (s->kind == SOURCE_CHECKPOINT) {
        ckpt_load_dir(mem, s->path, t, n, NULL, NULL);
        return s->path;
    }
    Text log = text_new(mem);
    int64_t step = 0;
    if (!ckpt_load_latest(mem, s->path, t, n, NULL, &step, &log))
        fail(EXIT_CHECKPOINT, "the checkpoints in %s are gone", s->path);
    fputs(log.s, stderr);
    char name[CKPT_NAME_BYTES];
    ckpt_name(step, name);
    return path_join(mem, s->path, name);
}

const char *source_load_parts(Arena *mem, const Source *s, const Func *entry,
                              CkptTensor *t, int n) {
    Parts p = {entry, t, n};
    if (s->kind != SOURCE_HF) return load_checkpoint(mem, s, t, n);
    if (comm_rank() == 0)
        weights_load_hf_pieces(s->path, entry, send_piece, &p);
    else
        receive_pieces(entry, &p);
    return s->path;
}

void source_mark_exact(const Source *s, Func *entry, DType type) {
    Arena *mem = arena_new();
    bool *exact = NEW_ARRAY(mem, bool, (size_t)entry->narg + 1);
    Type scalar = {.dt = type};
    if (s->kind == SOURCE_HF && comm_rank() == 0)
        weights_stored_as(s->path, entry, type, exact);
    if (comm_size() > 1) comm_broadcast(exact, (size_t)entry->narg * sizeof *exact, 0);
    for (int i = 0; i < entry->narg; i++)
        if (exact[i])
            func_arg_set_text(entry, i, "exact", ATTR_TYPE,
                              type_text(entry->mod->mem, &entry->mod->mesh, &scalar));
    arena_free(mem);
}

const char *source_load(Arena *mem, const Source *s, const Func *entry, WeightAt at,
                        void *context) {
    int n;
    if (s->kind == SOURCE_HF) {
        weights_load_hf(s->path, entry, at, context);
        return s->path;
    }
    CkptTensor *t = source_tensors(mem, entry, at, context, &n);
    return load_checkpoint(mem, s, t, n);
}

int64_t source_first_token(const ModelSpec *m, const Tokenizer *t) {
    int64_t id = t ? tokenizer_bos(t) : -1;
    if (id < 0) id = m->bos_token;
    if (id < 0 && t) id = tokenizer_eod(t);
    if (id < 0 && m->n_eos) id = m->eos[0];
    return id < m->vocab ? id : -1;
}
