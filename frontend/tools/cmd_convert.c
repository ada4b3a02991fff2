/* cmd_convert.c - the command convert: weights between stator's checkpoints and Hugging
 * Face folders. What was written is read again and compared before it says done. */
#include "frontend/config/commands.h"
#include "frontend/config/options.h"
#include "frontend/config/run_tokenizer.h"
#include "frontend/model/generation.h"
#include "frontend/model/model_hf.h"
#include "frontend/model/source.h"
#include "runtime/store/ckpt_files.h"
#include "runtime/store/safetensors.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <unistd.h>

typedef struct Convert {
    Arena *mem;
    const char *from, *out;
    bool force;
    DType type; /* of the weights for Hugging Face */
    Source source;
    const Tokenizer *tokenizer; /* NULL: none */
    Func *entry;                /* for names and types of the parameters */
    float **weight;             /* by argument; NULL: no parameter */
} Convert;

/* The folder must be missing or empty, or --force given. */
static void check_out(const Convert *c) {
    DIR *dir = opendir(c->out);
    if (!dir && errno == ENOENT) return;
    if (!dir) fail(EXIT_CONFIG, "cannot write to %s: %s", c->out, strerror(errno));
    int others = 0;
    for (struct dirent *e; (e = readdir(dir));)
        others += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(dir);
    if (others && !c->force)
        fail(EXIT_CONFIG,
             "%s is not empty; give a new folder, or --force to replace files "
             "of the same names",
             c->out);
}

/* A run's own checkpoints must not get a stranger among them. */
static void check_no_checkpoints(const Convert *c) {
    CkptEntry *e;
    int n;
    int error = ckpt_list(c->mem, c->out, &e, &n);
    if (error == ENOENT) return;
    if (error) fail(EXIT_CHECKPOINT, "cannot read %s: %s", c->out, strerror(error));
    for (int i = 0; i < n; i++)
        if (e[i].step > 0)
            fail(EXIT_CHECKPOINT,
                 "%s holds the checkpoint %s of a run; give another folder", c->out,
                 e[i].name);
}

static float *weight_at(void *context, int arg) {
    return ((Convert *)context)->weight[arg];
}

/* They are converted as they are: what is wrong with them was so before. */
static void warn_not_finite(const Convert *c) {
    int n, *arg = source_parameters(c->mem, c->entry, &n);
    for (int i = 0; i < n; i++) {
        const Value *v = c->entry->arg[arg[i]];
        const float *w = c->weight[arg[i]];
        int64_t bad = 0, count = type_count(&v->ty);
        for (int64_t k = 0; k < count; k++) bad += !isfinite(w[k]);
        if (bad)
            fprintf(
                stderr,
                "stator: warning: %s: %lld of the %lld numbers of %s are inf or NaN\n",
                c->from, (long long)bad, (long long)count, v->name);
    }
}

static const char *load_weights(Convert *c) {
    ModelShape shape = {.batch = 1, .seq = 1};
    c->entry = model_entry(model_build(c->mem, &c->source.spec, shape, MODEL_TRAIN));
    c->weight = NEW_ARRAY(c->mem, float *, (size_t)c->entry->narg);
    int n, *arg = source_parameters(c->mem, c->entry, &n);
    for (int i = 0; i < n; i++) {
        int64_t bytes = type_bytes(&c->entry->arg[arg[i]]->ty);
        c->weight[arg[i]] = arena_alloc(c->mem, (size_t)bytes);
    }
    const char *from = source_load(c->mem, &c->source, c->entry, weight_at, c);
    warn_not_finite(c);
    return from;
}

static void differs(const Convert *c, const char *what) {
    fail(EXIT_CHECKPOINT, "%s: %s is not what was written to it; is the disk good?",
         c->out, what);
}

/* 16 bits a number, rounded as they were written. */
static bool same_narrow(DType type, const void *data, const float *want, int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        uint16_t bits;
        memcpy(&bits, (const char *)data + 2 * k, 2);
        if (bits != f32_to_narrow(type, want[k])) return false;
    }
    return true;
}

static void compare(const Convert *c, const Safetensors *st, const char *name,
                    const float *want, int64_t count) {
    const SafeTensor *t = safetensors_find(st, name);
    if (!t || t->dtype != (int)c->type ||
        t->bytes != (uint64_t)count * (uint64_t)dtype_bytes[c->type])
        differs(c, name);
    bool same = c->type == DT_F32 ? !memcmp(t->data, want, t->bytes)
                                  : same_narrow(c->type, t->data, want, count);
    if (!same) differs(c, name);
}

static void say_left_out(const Convert *c) {
    bool hf = c->source.kind == SOURCE_HF;
    const char *left = hf ? generation_left_out(c->mem, c->source.path, 0, NULL) : NULL;
    if (left)
        say_aside("note: %s/generation_config.json: not taken: %s", c->source.path, left);
}

/* The tokenizer goes with the weights, and says where texts end if the model does not. */
static void open_tokenizer(Convert *c) {
    ModelSpec *s = &c->source.spec;
    if (!run_tokenizer_found(&c->source.tokenizer)) return;
    c->tokenizer = source_tokenizer(c->mem, &c->source);
    int64_t bos = tokenizer_bos(c->tokenizer), eod = tokenizer_eod(c->tokenizer);
    if (!s->n_eos && eod >= 0 && eod < s->vocab) s->eos[s->n_eos++] = eod;
    if (s->bos_token < 0 && bos < s->vocab) s->bos_token = bos;
}

static void keep_tokenizer(const Convert *c) {
    /* that of weights that were in the folder before is not that of these */
    if (c->force && !same_folder(c->source.path, c->out)) tokenizer_remove(c->out);
    if (c->tokenizer) tokenizer_write(c->tokenizer, c->out);
}

/* ---- to Hugging Face ---- */

/* The tokenizer_auto.py of transformers 5 has a list of models (MODELS_WITH_INCORRECT_HUB_...) whose
 * class counts, and not tokenizer.json; of those that are written here it is one. */
static void note_own_tokenizer(const Convert *c) {
    bool own = !strcmp(model_hf_type(&c->source.spec), "qwen2");
    if (!own || !c->tokenizer || tokenizer_is_qwen2(c->tokenizer)) return;
    say_aside(
        "note: AutoTokenizer of transformers 5 cuts the texts of a qwen2 in Qwen2's own "
        "way, and this tokenizer has another one: take "
        "PreTrainedTokenizerFast.from_pretrained(\"%s\") for the same tokens",
        c->out);
}

static bool same_texts(const ModelSpec *a, const ModelSpec *b) {
    const TokenChoices *v = &a->choices, *w = &b->choices;
    int n, m;
    const int64_t *x = model_ends(a, &n), *y = model_ends(b, &m);
    return n == m && !memcmp(x, y, (size_t)n * sizeof *x) &&
           !memcmp(v->given, w->given, sizeof v->given) &&
           !memcmp(v->value, w->value, sizeof v->value);
}

static void check_hf(Convert *c) {
    const char *written = model_spec_json(c->mem, &c->source.spec, true);
    ModelSpec spec = model_spec_of_hf(c->mem, c->out);
    if (strcmp(written, model_spec_json(c->mem, &spec, true))) differs(c, "config.json");
    if (!same_texts(&spec, &c->source.spec)) differs(c, "generation_config.json");
    Safetensors *st = safetensors_open(c->mem, c->out, EXIT_CHECKPOINT);
    HfMap map = hf_map(c->mem, c->entry);
    if (st->n != map.n) differs(c, "model.safetensors");
    for (int i = 0; i < map.n; i++) {
        const HfTensor *t = &map.t[i];
        compare(c, st, hf_name_in_file(c->mem, &c->source.spec, t->name),
                c->weight[t->arg] + t->first, t->count);
    }
    safetensors_close(st);
}

static void to_hf(Convert *c) {
    const char *why = model_spec_not_hf(&c->source.spec);
    if (why) fail(EXIT_CONFIG, "%s is no model of Hugging Face's: %s", c->from, why);
    const char *folder = load_weights(c);
    weights_save_hf(c->out, &c->source.spec, c->entry, weight_at, c, c->type);
    check_hf(c);
    if (c->force) safetensors_remove_shards(c->out); /* may be all there was */
    keep_tokenizer(c);
    note_own_tokenizer(c);
    printf(
        "%s: config.json, generation_config.json%s%s and model.safetensors of %s; read "
        "back and equal\n",
        c->out, c->tokenizer ? ", " : "",
        c->tokenizer ? tokenizer_files(c->mem, c->tokenizer) : "", folder);
}

/* ---- to stator ---- */

static char *state_of(Convert *c) {
    const Source *s = &c->source;
    Text t = text_new(c->mem);
    text_add(&t, "{\"step\": 0, ");
    if (s->bytes && s->spec.vocab != 256)
        text_add(&t, "\"data\": {\"type\": \"TextFile\"}, ");
    text_add(&t, "\"model\": %s}", model_spec_json(c->mem, &s->spec, false));
    return t.s;
}

static void check_stator(Convert *c, const char *folder, const CkptTensor *t, int n) {
    Manifest m;
    const char *wrong = manifest_read(c->mem, folder, &m);
    if (wrong) differs(c, wrong);
    const char *path = path_join(c->mem, folder, ckpt_file_name[CKPT_MODEL]);
    Safetensors *st = safetensors_open(c->mem, path, EXIT_CHECKPOINT);
    for (int i = 0; i < n; i++) {
        int64_t count = 1;
        for (int d = 0; d < t[i].rank; d++) count *= t[i].dim[d];
        compare(c, st, t[i].name, t[i].data, count);
    }
    safetensors_close(st);
}

static void to_stator(Convert *c) {
    char why[1024], name[CKPT_NAME_BYTES];
    check_no_checkpoints(c);
    const char *from = load_weights(c);
    int n;
    CkptTensor *t = source_tensors(c->mem, c->entry, weight_at, c, &n);
    int error = dir_make(c->out);
    if (error) fail(EXIT_CHECKPOINT, "cannot make %s: %s", c->out, strerror(error));
    const CkptSave what = {0, t, n, state_of(c)};
    if (ckpt_save(c->out, &what, why, sizeof why) != 0)
        fail(EXIT_CHECKPOINT, "cannot write %s: %s", c->out, why);
    ckpt_name(0, name);
    const char *folder = path_join(c->mem, c->out, name);
    check_stator(c, folder, t, n);
    keep_tokenizer(c);
    printf("%s: weights of %s; read back and equal\n", folder, from);
}

int cmd_convert(int argc, char **argv) {
    const Options *o = options_take(COMMAND_convert, argc, argv);
    if (!o) return 0;
    Convert c = {.mem = o->mem};
    bool hf = option_choice(o, "--to", 0) == 0;
    if (!option_given(o, "--to"))
        fail(EXIT_CONFIG, "to what: write --to hf or --to stator");
    if (o->nwords < 2)
        fail(EXIT_CONFIG,
             "convert needs two folders: stator convert --to %s FROM OUT_DIR",
             option_text(o, "--to"));
    c.from = o->word[0];
    c.out = o->word[1];
    c.force = option_given(o, "--force");
    static const DType types[] = {DT_F32, DT_BF16, DT_F16};
    c.type = types[option_choice(o, "--dtype", 0)];
    if (!hf && c.type != DT_F32)
        fail(EXIT_CONFIG, "--dtype is of --to hf; a checkpoint of stator holds float32");
    check_out(&c);
    c.source = source_open(c.mem, c.from, 0, NULL);
    source_spec(&c.source);
    say_left_out(&c);
    open_tokenizer(&c);
    if (hf)
        to_hf(&c);
    else
        to_stator(&c);
    arena_free(c.mem);
    return 0;
}
