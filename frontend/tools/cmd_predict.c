/* cmd_predict.c - the command predict: options and prompt in, text out. */
#include "frontend/config/commands.h"
#include "frontend/config/config.h"
#include "frontend/config/key.h"
#include "frontend/config/options.h"
#include "frontend/model/source.h"
#include "frontend/tools/generate.h"
#include "frontend/tools/predict_module.h"
#include "frontend/tools/predict_text.h"
#include "frontend/tools/sampler.h"

/* A key that does nothing here must not look as if it did. Unknown ones are left to the
 * configuration, which knows the nearest. */
static void check_flags(Arena *mem, const Options *o, const Source *s) {
    static const char *const used[] = {"seed", "dump_ir", "model.model_config.do_sample"};
    static const char *const finds[] = {"resume_or_finetune_checkpoint", "output_dir",
                                        "init_from",
                                        "callbacks.CheckpointMonitor.directory"};
    bool of_config = s->config && !strcmp(s->config, o->word[0]);
    for (int i = 0; i < o->nflags; i++) {
        const char *path = o->flag[i] + 2;
        path = arena_strndup(mem, path, strcspn(path, "="));
        int k = key_find(path);
        if (k < 0) continue;
        const char *key = key_table[k].path;
        bool ok = !strncmp(key, "context.", 8);
        for (int j = 0; j < ARRAY_LEN(used); j++) ok |= !strcmp(key, used[j]);
        for (int j = 0; j < ARRAY_LEN(finds); j++)
            ok |= of_config && !strcmp(key, finds[j]);
        ok |= option_has_key(COMMAND_predict, key);
        if (!ok)
            fail(EXIT_CONFIG,
                 "--%s changes nothing here: the model is the one of %s; "
                 "leave it out",
                 path, o->word[0]);
    }
}

/* Options of texts are not for a user's module, nor the other way round. */
static void check_kind(const Options *o, const Source *s) {
    static const char *const of_text[] = {
        "--prompt", "--prompt_file",    "--prompt_lines", "--prompt_tokens",
        "--stop",   "--max_new_tokens", "--num_samples",  "--json"};
    bool data = option_given(o, "--data");
    for (int i = 0; i < ARRAY_LEN(of_text) && s->module; i++)
        if (option_given(o, of_text[i]))
            fail(EXIT_CONFIG,
                 "%s is of a module of its own (model.file): give --data PATH, its "
                 "samples, and no options of texts",
                 s->path);
    if (s->module && o->nwords > 1)
        fail(EXIT_CONFIG,
             "%s is of a module of its own (model.file), which takes no prompt", s->path);
    if (s->module && !data)
        fail(EXIT_CONFIG,
             "%s is of a module of its own (model.file): give its samples, --data PATH "
             "(a safetensors file or a folder of .npy files, tensors by the names of "
             "the module's arguments)",
             s->path);
    if (!s->module && (data || option_given(o, "--out")))
        fail(EXIT_CONFIG,
             "--%s is for a module of its own (model.file); %s holds a "
             "language model: give --prompt TEXT",
             data ? "data" : "out", s->path);
}

/* ---- length ---- */

/* Tokens of the whole text. The context is what the model has positions for. */
static int64_t choose_total(const Options *o, const Source *s, const Config *cfg, int n) {
    int64_t context = MIN(s->spec.max_positions, INT32_MAX);
    if (n >= context)
        fail(EXIT_CONFIG,
             "the prompt has %d tokens and the model's context %lld: nothing "
             "can follow; shorten the prompt",
             n, (long long)context);
    int64_t wanted = option_int(o, "--max_new_tokens", 0);
    if (!wanted) {
        int64_t total = MIN(cfg->model_max_decode_length, context);
        if (n >= total)
            fail(EXIT_CONFIG,
                 "the prompt has %d tokens and max_decode_length is %lld, "
                 "prompt included: write --max_new_tokens N",
                 n, (long long)total);
        return total;
    }
    if (wanted > context - n)
        fprintf(stderr,
                "note: %d tokens of prompt and %lld new ones are more than the "
                "model's context of %lld: stops after %lld\n",
                n, (long long)wanted, (long long)context, (long long)(context - n));
    return n + MIN(wanted, context - n);
}

/* ---- generation ---- */

typedef struct Times {
    double prompt_seconds, token_seconds;
    int64_t steps; /* runs of the one-token program */
    const char *why;
} Times;

static Times generate(Generator *g, Sampler *sampler, Tokens prompt, int64_t total,
                      Output *out) {
    Times t = {.why = "length"};
    for (int i = 0; i < prompt.n; i++) sampler_seen(sampler, prompt.id[i]);
    double start = clock_seconds();
    generator_restart(g);
    const float *scores = generator_prompt(g, prompt.id, prompt.n);
    t.prompt_seconds = clock_seconds() - start;
    start = clock_seconds();
    for (int64_t n = prompt.n; n < total; n++) {
        int token = sampler_next(sampler, scores, n);
        sampler_seen(sampler, token);
        if (wording_ends(out->w, token)) {
            t.why = "end token";
            break;
        }
        if (!output_token(out, token, scores, g->vocab)) {
            t.why = "stop text";
            break;
        }
        if (ferror(stdout) || n + 1 == total) break;
        scores = generator_token(g, token);
        t.steps++;
    }
    t.token_seconds = clock_seconds() - start;
    return t;
}

static Sampling sampling_of(const Options *o, const Config *cfg) {
    return (Sampling){.greedy = option_given(o, "--greedy") || !cfg->model_do_sample,
                      .temperature = cfg->model_temperature,
                      .top_k = cfg->model_top_k,
                      .top_p = cfg->model_top_p,
                      .repetition_penalty = cfg->model_repetition_penalty,
                      .seed = (uint64_t)cfg->seed};
}

static void report_start(const Source *s, const char *folder, const Generator *g,
                         double seconds) {
    fprintf(stderr,
            "model %s: %.2f M parameters, vocabulary %lld, context %lld; ready in "
            "%.2f s%s, %d threads\n",
            folder, 1e-6 * (double)model_parameters(&s->spec), (long long)s->spec.vocab,
            (long long)s->spec.max_positions, seconds,
            g->token->cached ? " (from the cache)" : "", g->token->threads);
}

static void report_end(const Times *t, int prompt_n, int64_t count) {
    fprintf(stderr, "prompt: %d tokens, %.1f tokens/s; new: %lld tokens", prompt_n,
            prompt_n / MAX(t->prompt_seconds, 1e-9), (long long)count);
    if (t->steps)
        fprintf(stderr, ", %.1f tokens/s",
                (double)t->steps / MAX(t->token_seconds, 1e-9));
    fprintf(stderr, "; ended by %s\n", t->why);
}

/* Of the configuration in a run folder, which may come from elsewhere, only how tokens are
 * chosen counts: nothing that writes to this machine or takes more of it. */
static void take_choices(Arena *mem, Config *cfg, const char *path) {
    static const char *const keys[] = {"seed",
                                       "model.model_config.do_sample",
                                       "model.model_config.temperature",
                                       "model.model_config.top_k",
                                       "model.model_config.top_p",
                                       "model.model_config.repetition_penalty",
                                       "model.model_config.max_decode_length"};
    const Config *run = config_load(mem, path, 0, NULL);
    for (int i = 0; i < ARRAY_LEN(keys); i++)
        if (config_given(run, keys[i]) && !config_given(cfg, keys[i]))
            config_set_flag(cfg, keys[i], config_value(run, mem, keys[i]));
}

/* Notes on a file were shown when it was trained with; those on flags are new. */
static const Config *load_config(Arena *mem, const Options *o, const Source *s) {
    bool named = s->config && !strcmp(s->config, o->word[0]);
    Config *cfg = config_load(mem, named ? s->config : NULL, o->nflags, o->flag);
    if (s->config && !named) take_choices(mem, cfg, s->config);
    for (int i = 0; i < cfg->n_notes; i++)
        if (!strncmp(cfg->notes[i], "command line", 12))
            fprintf(stderr, "note: %s\n", cfg->notes[i]);
    return cfg;
}

/* One text of a prompt, in memory of its own. */
static void predict_text(Generator *g, Sampling sampling, const Wording *w,
                         const Prompt *p, int64_t total, int64_t sample) {
    Arena *mem = arena_new();
    Output out;
    sampling.seed += (uint64_t)sample;
    Sampler *sampler = sampler_new(mem, &sampling, (int)w->source->spec.vocab);
    output_open(mem, &out, w, p);
    Times t = generate(g, sampler, p->tokens, total, &out);
    output_close(&out, sample, t.why);
    report_end(&t, p->tokens.n, out.count);
    arena_free(mem);
}

static void predict_texts(Arena *mem, const Options *o, Source *s, const Config *cfg,
                          double start) {
    Sampling sampling = sampling_of(o, cfg);
    sampler_new(mem, &sampling, (int)s->spec.vocab); /* looks at the settings */
    Wording w = wording_new(mem, o, s);
    int n, longest = 0;
    int64_t samples = option_int(o, "--num_samples", 1), most = 0, shown = 0;
    Prompt *prompt = prompts_read(mem, o, &w, &n);
    int64_t *total = NEW_ARRAY(mem, int64_t, (size_t)n);
    for (int i = 0; i < n; i++) {
        total[i] = choose_total(o, s, cfg, prompt[i].tokens.n);
        longest = MAX(longest, prompt[i].tokens.n);
        most = MAX(most, total[i]);
    }
    Generator *g = generator_new(mem, &s->spec, longest, most, cfg);
    const char *folder = source_load(mem, s, g->owner->entry, generator_weight, g);
    report_start(s, folder, g, clock_seconds() - start);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < samples; k++) {
            if (n * samples > 1 && !w.json)
                printf("== %lld of %lld\n", (long long)++shown, (long long)(n * samples));
            predict_text(g, sampling, &w, &prompt[i], total[i], k);
        }
    generator_free(g);
}

int cmd_predict(int argc, char **argv) {
    Arena *mem = arena_new();
    const Options *o = options_read(mem, COMMAND_predict, argc, argv);
    if (!o) {
        arena_free(mem);
        return 0;
    }
    if (!o->nwords)
        fail(EXIT_CONFIG,
             "stator predict needs a run folder, a checkpoint, a Hugging Face "
             "folder or a configuration file; stator help predict");
    double start = clock_seconds();
    Source s = source_open(mem, o->word[0], o->nflags, o->flag);
    check_flags(mem, o, &s);
    const Config *cfg = load_config(mem, o, &s);
    check_kind(o, &s);
    if (s.module) {
        predict_module(mem, &s, cfg, option_text(o, "--data"), option_text(o, "--out"));
        arena_free(mem);
        return 0;
    }
    predict_texts(mem, o, &s, cfg, start);
    arena_free(mem);
    return 0;
}
