/* cmd_predict.c - the command predict: options and prompt in, text out. */
#include "frontend/config/commands.h"
#include "frontend/config/config.h"
#include "frontend/config/key.h"
#include "frontend/config/options.h"
#include "frontend/model/source.h"
#include "frontend/tools/generate.h"
#include "frontend/tools/predict_module.h"
#include "frontend/tools/sampler.h"
#include "frontend/tools/text.h"

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
    static const char *const of_text[] = {"--prompt", "--prompt_file", "--prompt_tokens",
                                          "--stop", "--max_new_tokens"};
    bool data = option_given(o, "--data");
    for (int i = 0; i < ARRAY_LEN(of_text) && s->module; i++)
        if (option_given(o, of_text[i]))
            fail(EXIT_CONFIG,
                 "%s is of a module of its own (model.file): give --data PATH, its "
                 "samples, and no options of texts",
                 s->path);
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

/* ---- prompt and length ---- */

static void check_bytes(const Source *s, const char *option) {
    if (s->bytes) return;
    fail(EXIT_CONFIG,
         "the tokens of this model are not bytes (its vocabulary is %lld), so "
         "--%s cannot be read: give token numbers, --prompt_tokens 1,2,3",
         (long long)s->spec.vocab, option);
}

static Tokens read_prompt(Arena *mem, const Options *o, const Source *s) {
    const char *text = option_text(o, "--prompt");
    const char *file = option_text(o, "--prompt_file");
    const char *tokens = option_text(o, "--prompt_tokens");
    int given = (text != NULL) + (file != NULL) + (tokens != NULL);
    if (given != 1)
        fail(EXIT_CONFIG,
             "%s: write one of --prompt TEXT, --prompt_file FILE and "
             "--prompt_tokens 1,2,3",
             given ? "more than one prompt" : "no prompt");
    Tokens t;
    if (tokens) {
        t = tokens_parse(mem, tokens, s->spec.vocab);
    } else {
        check_bytes(s, text ? "prompt" : "prompt_file");
        size_t n = text ? strlen(text) : 0;
        if (!text)
            text = file_read_to_end(mem, file, TEXT_MAX_PROMPT_BYTES, &n, EXIT_DATA);
        if (n > TEXT_MAX_PROMPT_BYTES) fail(EXIT_CONFIG, "the prompt is above 64 MiB");
        t = tokens_of_bytes(mem, text, n);
    }
    if (t.n == 0)
        fail(EXIT_CONFIG, "the prompt is empty; a model needs one token to go on");
    for (int i = 0; i < t.n; i++)
        if (t.id[i] >= s->spec.vocab)
            fail(EXIT_CONFIG,
                 "byte %d of the prompt is %d, the vocabulary of the model is "
                 "0..%lld",
                 i + 1, t.id[i], (long long)s->spec.vocab - 1);
    return t;
}

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

/* ---- output ---- */

typedef struct Output {
    TextStream *text; /* NULL: token numbers */
    int64_t count;
} Output;

static Output open_output(Arena *mem, const Options *o, const Source *s, Tokens prompt) {
    bool tokens = option_given(o, "--tokens"), numbers = tokens || !s->bytes;
    const char *stop = option_text(o, "--stop");
    if (numbers && stop)
        fail(EXIT_CONFIG,
             "--stop is a text, and this prints token numbers; leave it out");
    if (numbers && !tokens)
        fprintf(stderr, "note: the tokens of this model are not bytes: prints their "
                        "numbers\n");
    if (numbers) return (Output){0};
    if (!option_given(o, "--no_prompt")) {
        TextStream *echo = text_stream_new(mem, stdout, NULL);
        for (int i = 0; i < prompt.n; i++)
            text_stream_put(echo, (unsigned char)MIN(prompt.id[i], 255));
        text_stream_end(echo);
    }
    return (Output){.text = text_stream_new(mem, stdout, stop)};
}

/* False when the stop text is complete. A token beyond the bytes prints as U+FFFD: byte
 * 255 begins no character. */
static bool put_token(Output *out, int token) {
    out->count++;
    if (out->text) return text_stream_put(out->text, (unsigned char)MIN(token, 255));
    printf("%s%d", out->count > 1 ? "," : "", token);
    fflush(stdout);
    return true;
}

static void close_output(Output *out) {
    if (out->text) text_stream_end(out->text);
    putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout)) fail(1, "cannot write the text to stdout");
}

/* ---- generation ---- */

static bool ends_text(const ModelSpec *s, int token) {
    for (int i = 0; i < s->n_eos; i++)
        if (s->eos[i] == token) return true;
    return false;
}

typedef struct Times {
    double prompt_seconds, token_seconds;
    int64_t steps; /* runs of the one-token program */
    const char *why;
} Times;

static Times generate(Generator *g, Sampler *sampler, const ModelSpec *s, Tokens prompt,
                      int64_t total, Output *out) {
    Times t = {.why = "length"};
    for (int i = 0; i < prompt.n; i++) sampler_seen(sampler, prompt.id[i]);
    double start = clock_seconds();
    const float *scores = generator_prompt(g, prompt.id, prompt.n);
    t.prompt_seconds = clock_seconds() - start;
    start = clock_seconds();
    for (int64_t n = prompt.n; n < total; n++) {
        int token = sampler_next(sampler, scores, n);
        sampler_seen(sampler, token);
        if (ends_text(s, token)) {
            t.why = "end token";
            break;
        }
        if (!put_token(out, token)) {
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
    Sampling sampling = sampling_of(o, cfg);
    Sampler *sampler = sampler_new(mem, &sampling, (int)s.spec.vocab);
    Tokens prompt = read_prompt(mem, o, &s);
    int64_t total = choose_total(o, &s, cfg, prompt.n);
    Generator *g = generator_new(mem, &s.spec, prompt.n, total, cfg);
    const char *folder = source_load(mem, &s, g->owner->entry, generator_weight, g);
    report_start(&s, folder, g, clock_seconds() - start);
    Output out = open_output(mem, o, &s, prompt);
    Times t = generate(g, sampler, &s.spec, prompt, total, &out);
    close_output(&out);
    report_end(&t, prompt.n, out.count);
    generator_free(g);
    arena_free(mem);
    return 0;
}
