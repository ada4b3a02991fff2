/* cmd_predict.c - the command predict: options and prompt in, text out. */
#include "frontend/config/commands.h"
#include "frontend/config/config.h"
#include "frontend/config/key.h"
#include "frontend/model/source.h"
#include "frontend/tools/generate.h"
#include "frontend/tools/predict_module.h"
#include "frontend/tools/sampler.h"
#include "frontend/tools/text.h"

typedef struct Options {
    const char *from;
    const char *prompt, *prompt_tokens, *prompt_file, *stop, *max_new;
    const char *data, *out;
    bool tokens, greedy, no_prompt, help;
    char **flag; /* keys of the configuration, as --path=value */
    int nflag, cap;
} Options;

typedef enum OptionKind { OPTION_TEXT, OPTION_SWITCH, OPTION_KEY } OptionKind;

typedef struct OptionRow {
    const char *name;
    OptionKind kind;
    size_t field;    /* in Options; unused for OPTION_KEY */
    const char *key; /* OPTION_KEY: the key of the configuration it stands for */
    const char *doc;
} OptionRow;

#define TEXT_OPTION(name, field, doc)                                                    \
    { name, OPTION_TEXT, offsetof(Options, field), NULL, doc }
#define SWITCH(name, field, doc)                                                         \
    { name, OPTION_SWITCH, offsetof(Options, field), NULL, doc }
#define KEY_OPTION(name, key, doc)                                                       \
    { name, OPTION_KEY, 0, key, doc }

static const OptionRow option_table[] = {
    TEXT_OPTION("prompt", prompt, "TEXT    the text to go on with"),
    TEXT_OPTION("prompt_file", prompt_file, "FILE  the same from a file or a pipe"),
    TEXT_OPTION("prompt_tokens", prompt_tokens, "1,2,3  the same as token numbers"),
    TEXT_OPTION("max_new_tokens", max_new, "N  stop after N tokens"),
    TEXT_OPTION("stop", stop, "TEXT    stop where this text would come"),
    TEXT_OPTION(
        "data", data,
        "PATH    model.file: the samples, a safetensors file or a folder of .npy"),
    TEXT_OPTION("out", out, "FILE     model.file: results as safetensors, not as JSON"),
    SWITCH("greedy", greedy, "       always the best token"),
    SWITCH("tokens", tokens, "       print token numbers instead of text"),
    SWITCH("no_prompt", no_prompt, "    print the new text alone"),
    SWITCH("help", help, "         this list"),
    KEY_OPTION("temperature", "model.model_config.temperature",
               "X  divides the scores; 0: always the best token"),
    KEY_OPTION("top_k", "model.model_config.top_k",
               "K        sample from the K best tokens; 0: all"),
    KEY_OPTION("top_p", "model.model_config.top_p",
               "P        sample from the best tokens with probability P"),
    KEY_OPTION("repetition_penalty", "model.model_config.repetition_penalty",
               "X  for tokens that stand already; 1: none"),
    KEY_OPTION("max_decode_length", "model.model_config.max_decode_length",
               "N  most tokens, prompt included"),
    KEY_OPTION("threads", "context.threads", "N      0: all cores"),
};

static void usage(FILE *out) {
    fputs(
        "stator predict RUN|CHECKPOINT|HF_DIR|CONFIG.yaml [OPTION ...]\n\n"
        "Generates text with the newest good checkpoint of a run folder, a checkpoint, "
        "a\n"
        "Hugging Face folder, or the run of a configuration file. Of a model.file: its\n"
        "results, but for the loss, on the samples of --data, a JSON object a "
        "sample.\n\n",
        out);
    for (int i = 0; i < ARRAY_LEN(option_table); i++)
        fprintf(out, "  --%s %s\n", option_table[i].name, option_table[i].doc);
    fputs(
        "\nEvery key of the configuration is a flag too: --seed 7, --context.cpu NAME.\n"
        "The same seed gives the same text. Sampling is as the run's configuration "
        "says.\n",
        out);
}

static const OptionRow *option_find(const char *name, size_t n) {
    for (int i = 0; i < ARRAY_LEN(option_table); i++) {
        const char *row = option_table[i].name;
        if (strlen(row) == n && !memcmp(row, name, n)) return &option_table[i];
    }
    return NULL;
}

static void set_text(Options *o, const OptionRow *row, const char *value) {
    const char **field = (const char **)((char *)o + row->field);
    if (*field) fail(EXIT_CONFIG, "--%s is given twice; keep one", row->name);
    *field = value;
}

/* One flag at argv[*i]; leaves *i at its last word. */
static void read_flag(Arena *mem, Options *o, int argc, char **argv, int *i) {
    char *word = argv[*i] + 2, *value = strchr(word, '=');
    size_t n = value ? (size_t)(value - word) : strlen(word);
    const OptionRow *row = option_find(word, n);
    if (row && row->kind == OPTION_SWITCH) {
        if (value) fail(EXIT_CONFIG, "--%s takes no value", row->name);
        *(bool *)((char *)o + row->field) = true;
        return;
    }
    bool is_key = !row || row->kind == OPTION_KEY;
    if (value) {
        value++;
    } else {
        if (*i + 1 >= argc || (is_key && !strncmp(argv[*i + 1], "--", 2)))
            fail(EXIT_CONFIG, "--%s needs a value: --%s VALUE", word, word);
        value = argv[++*i];
    }
    if (!is_key) {
        set_text(o, row, value);
        return;
    }
    const char *path = row ? row->key : arena_strndup(mem, word, n);
    PUSH(mem, o->flag, o->nflag, o->cap, arena_printf(mem, "--%s=%s", path, value));
}

static Options read_options(Arena *mem, int argc, char **argv) {
    Options o = {0};
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--", 2) && argv[i][2]) {
            read_flag(mem, &o, argc, argv, &i);
        } else if (!strcmp(argv[i], "-h")) {
            o.help = true;
        } else if (o.from) {
            fail(EXIT_CONFIG,
                 "'%.100s' is one word too many; put a prompt of several words "
                 "in quotes: --prompt \"...\"",
                 argv[i]);
        } else {
            o.from = argv[i];
        }
    }
    return o;
}

/* A key that does nothing here must not look as if it did. Unknown ones are left to the
 * configuration, which knows the nearest. */
static void check_flags(Arena *mem, const Options *o, const Source *s) {
    static const char *const used[] = {"seed", "dump_ir", "model.model_config.do_sample"};
    static const char *const finds[] = {"resume_or_finetune_checkpoint", "output_dir",
                                        "init_from",
                                        "callbacks.CheckpointMonitor.directory"};
    bool of_config = s->config && !strcmp(s->config, o->from);
    for (int i = 0; i < o->nflag; i++) {
        const char *path = o->flag[i] + 2;
        path = arena_strndup(mem, path, strcspn(path, "="));
        int k = key_find(path);
        if (k < 0) continue;
        const char *key = key_table[k].path;
        bool ok = !strncmp(key, "context.", 8);
        for (int j = 0; j < ARRAY_LEN(used); j++) ok |= !strcmp(key, used[j]);
        for (int j = 0; j < ARRAY_LEN(finds); j++)
            ok |= of_config && !strcmp(key, finds[j]);
        for (int j = 0; j < ARRAY_LEN(option_table); j++)
            ok |= option_table[j].key && !strcmp(key, option_table[j].key);
        if (!ok)
            fail(EXIT_CONFIG,
                 "--%s changes nothing here: the model is the one of %s; "
                 "leave it out",
                 path, o->from);
    }
}

/* Options of texts are not for a user's module, nor the other way round. */
static void check_kind(const Options *o, const Source *s) {
    const char *text[] = {o->prompt, o->prompt_file, o->prompt_tokens, o->stop,
                          o->max_new};
    for (int i = 0; i < ARRAY_LEN(text) && s->module; i++)
        if (text[i])
            fail(EXIT_CONFIG,
                 "%s is of a module of its own (model.file): give --data PATH, its "
                 "samples, and no options of texts",
                 s->path);
    if (s->module && !o->data)
        fail(EXIT_CONFIG,
             "%s is of a module of its own (model.file): give its samples, --data PATH "
             "(a safetensors file or a folder of .npy files, tensors by the names of "
             "the module's arguments)",
             s->path);
    if (!s->module && (o->data || o->out))
        fail(EXIT_CONFIG,
             "--%s is for a module of its own (model.file); %s holds a "
             "language model: give --prompt TEXT",
             o->data ? "data" : "out", s->path);
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
    int given =
        (o->prompt != NULL) + (o->prompt_file != NULL) + (o->prompt_tokens != NULL);
    if (given != 1)
        fail(EXIT_CONFIG,
             "%s: write one of --prompt TEXT, --prompt_file FILE and "
             "--prompt_tokens 1,2,3",
             given ? "more than one prompt" : "no prompt");
    Tokens t;
    if (o->prompt_tokens) {
        t = tokens_parse(mem, o->prompt_tokens, s->spec.vocab);
    } else {
        check_bytes(s, o->prompt ? "prompt" : "prompt_file");
        const char *text = o->prompt;
        size_t n = text ? strlen(text) : 0;
        if (!text)
            text = file_read_to_end(mem, o->prompt_file, TEXT_MAX_PROMPT_BYTES, &n,
                                    EXIT_DATA);
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

static int64_t parse_count(const char *text) {
    int64_t n = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9' && n < INT32_MAX; p++) n = n * 10 + (*p - '0');
    if (*p || p == text || n == 0 || n > INT32_MAX)
        fail(EXIT_CONFIG, "--max_new_tokens %.50s: write a whole number from 1 up", text);
    return n;
}

/* Tokens of the whole text. The context is what the model has positions for. */
static int64_t choose_total(const Options *o, const Source *s, const Config *cfg, int n) {
    int64_t context = MIN(s->spec.max_positions, INT32_MAX);
    if (n >= context)
        fail(EXIT_CONFIG,
             "the prompt has %d tokens and the model's context %lld: nothing "
             "can follow; shorten the prompt",
             n, (long long)context);
    if (!o->max_new) {
        int64_t total = MIN(cfg->model_max_decode_length, context);
        if (n >= total)
            fail(EXIT_CONFIG,
                 "the prompt has %d tokens and max_decode_length is %lld, "
                 "prompt included: write --max_new_tokens N",
                 n, (long long)total);
        return total;
    }
    int64_t wanted = parse_count(o->max_new);
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
    bool numbers = o->tokens || !s->bytes;
    if (numbers && o->stop)
        fail(EXIT_CONFIG,
             "--stop is a text, and this prints token numbers; leave it out");
    if (numbers && !o->tokens)
        fprintf(stderr, "note: the tokens of this model are not bytes: prints their "
                        "numbers\n");
    if (numbers) return (Output){0};
    if (!o->no_prompt) {
        TextStream *echo = text_stream_new(mem, stdout, NULL);
        for (int i = 0; i < prompt.n; i++)
            text_stream_put(echo, (unsigned char)MIN(prompt.id[i], 255));
        text_stream_end(echo);
    }
    return (Output){.text = text_stream_new(mem, stdout, o->stop)};
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
    return (Sampling){.greedy = o->greedy || !cfg->model_do_sample,
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
    bool named = s->config && !strcmp(s->config, o->from);
    Config *cfg = config_load(mem, named ? s->config : NULL, o->nflag, o->flag);
    if (s->config && !named) take_choices(mem, cfg, s->config);
    for (int i = 0; i < cfg->n_notes; i++)
        if (!strncmp(cfg->notes[i], "command line", 12))
            fprintf(stderr, "note: %s\n", cfg->notes[i]);
    return cfg;
}

int cmd_predict(int argc, char **argv) {
    Arena *mem = arena_new();
    Options o = read_options(mem, argc, argv);
    if (o.help) {
        usage(stdout);
        return 0;
    }
    if (!o.from)
        fail(EXIT_CONFIG,
             "stator predict needs a run folder, a checkpoint, a Hugging Face "
             "folder or a configuration file; stator predict --help");
    double start = clock_seconds();
    Source s = source_open(mem, o.from, o.nflag, o.flag);
    check_flags(mem, &o, &s);
    const Config *cfg = load_config(mem, &o, &s);
    check_kind(&o, &s);
    if (s.module) {
        predict_module(mem, &s, cfg, o.data, o.out);
        arena_free(mem);
        return 0;
    }
    Sampling sampling = sampling_of(&o, cfg);
    Sampler *sampler = sampler_new(mem, &sampling, (int)s.spec.vocab);
    Tokens prompt = read_prompt(mem, &o, &s);
    int64_t total = choose_total(&o, &s, cfg, prompt.n);
    Generator *g = generator_new(mem, &s.spec, prompt.n, total, cfg);
    const char *folder = source_load(mem, &s, g->owner->entry, generator_weight, g);
    report_start(&s, folder, g, clock_seconds() - start);
    Output out = open_output(mem, &o, &s, prompt);
    Times t = generate(g, sampler, &s.spec, prompt, total, &out);
    close_output(&out);
    report_end(&t, prompt.n, out.count);
    generator_free(g);
    arena_free(mem);
    return 0;
}
