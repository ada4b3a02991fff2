/* cmd_predict.c - the command predict: options and prompt in, text out. */
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/config/key.h"
#include "frontend/config/options.h"
#include "frontend/launch/launch.h"
#include "frontend/model/generation.h"
#include "frontend/model/source.h"
#include "frontend/tools/predict_module.h"
#include "frontend/tools/predict_round.h"
#include "frontend/tools/predict_strategy.h"
#include "frontend/train/rank_memory.h"
#include "runtime/comm/agree.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"

/* Is the first word a configuration, and not a folder that has one? */
static bool is_named(const Options *o, const Source *s) {
    return s->config && !strcmp(s->config, o->word[0]);
}

/* A key that does nothing here must not look as if it did. Unknown ones are left to the
 * configuration, which knows the nearest. */
static void check_flags(Arena *mem, const Options *o, const Source *s) {
    static const char *const used[] = {"seed",
                                       "dump_ir",
                                       "model.model_config.do_sample",
                                       "model.model_config.compute_dtype",
                                       "model.model_config.fp32_residual_connection",
                                       "model.model_config.max_new_tokens",
                                       "model.model_config.min_new_tokens"};
    static const char *const finds[] = {"resume_or_finetune_checkpoint", "output_dir",
                                        "init_from",
                                        "callbacks.CheckpointMonitor.directory"};
    static const char *const words[] = {"train_dataset.data_loader.tokenizer_type",
                                        "train_dataset.data_loader.tokenizer_file",
                                        "train_dataset.data_loader.vocab_file",
                                        "train_dataset.data_loader.merge_file"};
    for (int i = 0; i < o->nflags; i++) {
        const char *path = o->flag[i] + 2;
        path = arena_strndup(mem, path, strcspn(path, "="));
        int k = key_find(path);
        if (k < 0) continue;
        const char *key = key_table[k].path;
        bool ok = begins_with(key, "context.");
        ok |= is_one_of(key, used, ARRAY_LEN(used));
        ok |= is_named(o, s) && is_one_of(key, finds, ARRAY_LEN(finds));
        ok |= !s->module && is_one_of(key, words, ARRAY_LEN(words));
        ok |= option_has_key(COMMAND_predict, key);
        ok |= !s->module && predict_strategy_key(key);
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
        "--prompt", "--prompt_file",    "--prompt_lines",   "--prompt_tokens",
        "--stop",   "--max_new_tokens", "--min_new_tokens", "--num_samples",
        "--batch",  "--json",           "--slide"};
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

static int64_t context_of(const Source *s) {
    return MIN(s->spec.max_positions, INT32_MAX);
}

/* Tokens of the whole text. The context is what the model has positions for: text ends there,
 * or slides. */
static int64_t choose_total(Arena *mem, const Options *o, const Source *s,
                            const Config *cfg, const Prompt *p) {
    int n = p->tokens.n;
    bool slides = option_given(o, "--slide");
    int64_t context = slides ? INT64_MAX : context_of(s);
    if (n >= context)
        fail(EXIT_CONFIG,
             "%s has %d tokens and the model's context %lld: nothing can follow; "
             "shorten the prompt, or --slide: the model then sees its end",
             prompt_name(mem, p), n, (long long)context);
    if (context_of(s) < 2) fail(EXIT_CONFIG, "a context of one token cannot slide");
    int64_t wanted = cfg->model_max_new_tokens;
    if (!wanted) {
        int64_t total = MIN(cfg->model_max_decode_length, context);
        if (n >= total)
            fail(EXIT_CONFIG,
                 "%s has %d tokens and max_decode_length is %lld, "
                 "prompt included: write --max_new_tokens N",
                 prompt_name(mem, p), n, (long long)total);
        return total;
    }
    if (wanted > context - n)
        fprintf(stderr,
                "note: %d tokens of prompt and %lld new ones are more than the "
                "model's context of %lld: stops after %lld (--slide goes on)\n",
                n, (long long)wanted, (long long)context, (long long)(context - n));
    return n + MIN(wanted, context - n);
}

/* Tokens, prompt included, before which no text ends, of at most `total`. */
static int64_t choose_least(Arena *mem, const Config *cfg, const Prompt *p,
                            int64_t total) {
    int64_t least = generation_least(cfg, p->tokens.n);
    if (least > total)
        fail(EXIT_CONFIG,
             "behind %s of %d tokens come %lld new ones at most, and %lld are asked for "
             "at least: write a smaller --min_new_tokens (key min_new_tokens or "
             "min_length), or a larger --max_new_tokens",
             prompt_name(mem, p), p->tokens.n, (long long)(total - p->tokens.n),
             (long long)(least - p->tokens.n));
    return least;
}

/* ---- generation ---- */

/* Keys of generation_config.json that are not taken, with the flags that do what they would; a key of
 * the configuration may do it too. */
static const char *left_out(Arena *mem, const Options *o, const Config *cfg,
                            const char *folder) {
    static const char *const path[] = {
        "model.model_config.max_new_tokens", "model.model_config.max_decode_length",
        "model.model_config.min_new_tokens", "model.model_config.min_length", NULL};
    GenerationFlag flag[] = {{"max_new_tokens", "--max_new_tokens", false},
                             {"max_length", "--max_new_tokens", false},
                             {"min_new_tokens", "--min_new_tokens", false},
                             {"min_length", "--min_new_tokens", false},
                             {"stop_strings", "--stop", false}};
    for (int i = 0; i < ARRAY_LEN(flag); i++)
        flag[i].given =
            option_given(o, flag[i].flag) || (path[i] && config_given(cfg, path[i]));
    return generation_left_out(mem, folder, ARRAY_LEN(flag), flag);
}

/* What a file that may not be known to be there decides, and what it does not. */
static void report_choices(Arena *mem, const Options *o, const Source *s,
                           const Config *cfg) {
    bool greedy = option_given(o, "--greedy");
    const char *taken = generation_taken(mem, cfg, &s->spec, greedy);
    const char *left = s->kind == SOURCE_HF ? left_out(mem, o, cfg, s->path) : NULL;
    const char *file =
        s->kind == SOURCE_HF ? generation_file(mem, s->path) : "generation_config.json";
    if (taken)
        say_aside(
            "tokens are chosen as %s of the model says: %s; keys and flags go before it",
            file, taken);
    if (left) say_aside("note: %s/%s: not taken: %s", s->path, file, left);
}

static void report_start(Arena *mem, const Source *s, const char *folder,
                         const Generator *g, double seconds) {
    say_aside("model %s: %.2f M parameters, vocabulary %lld, context %lld; ready in "
              "%.2f s%s, %d threads",
              folder, 1e-6 * (double)model_parameters(&s->spec), (long long)s->spec.vocab,
              (long long)s->spec.max_positions, seconds,
              g->token->cached ? " (from the cache)" : "", g->token->threads);
    if (comm_size() > 1)
        fprintf(stderr, "%d ranks: %s\n", comm_size(),
                predict_strategy_text(mem, g->strategy));
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
                                       "model.model_config.max_decode_length",
                                       "model.model_config.max_new_tokens",
                                       "model.model_config.min_length",
                                       "model.model_config.min_new_tokens"};
    const Config *run = config_load(mem, path, 0, NULL);
    for (int i = 0; i < ARRAY_LEN(keys); i++)
        if (config_given(run, keys[i]) && !config_given(cfg, keys[i]))
            config_set_from(cfg, keys[i], config_value(run, mem, keys[i]),
                            config_where(run, keys[i]));
}

/* What a flag says goes before what a configuration says of the same thing in other words. */
static void put_flags_first(Config *cfg) {
    static const struct {
        const char *flag, *other, *off;
    } same[] = {
        {"model.model_config.temperature", "model.model_config.do_sample", "True"},
        {"model.model_config.top_k", "model.model_config.do_sample", "True"},
        {"model.model_config.top_p", "model.model_config.do_sample", "True"},
        {"model.model_config.max_decode_length", "model.model_config.max_new_tokens",
         "0"},
        {"model.model_config.min_length", "model.model_config.min_new_tokens", "0"}};
    for (int i = 0; i < ARRAY_LEN(same); i++)
        if (config_by_flag(cfg, same[i].flag) && !config_by_flag(cfg, same[i].other))
            config_set_flag(cfg, same[i].other, same[i].off);
}

/* The options go before the keys. A flag that another one leaves without effect is told of. */
static void take_lengths(const Options *o, Config *cfg) {
    static const char *const path[] = {"model.model_config.max_decode_length",
                                       "model.model_config.min_length"};
    cfg->model_max_new_tokens =
        option_int(o, "--max_new_tokens", cfg->model_max_new_tokens);
    cfg->model_min_new_tokens =
        option_int(o, "--min_new_tokens", cfg->model_min_new_tokens);
    for (int i = 0; i < ARRAY_LEN(path); i++) {
        const char *why = config_idle(cfg, path[i]);
        if (why && config_by_flag(cfg, path[i]))
            config_note(cfg, path[i], "%s has no effect: %s", path[i], why);
    }
}

/* Products are of f32, whatever the model was trained in, where no flag says otherwise. A module
 * of its own has its types written in it. */
static void leave_type_of_training(Config *cfg) {
    static const char *const off[][2] = {
        {"model.model_config.compute_dtype", "float32"},
        {"model.model_config.fp32_residual_connection", "False"}};
    for (int i = 0; i < ARRAY_LEN(off); i++)
        if (!config_by_flag(cfg, off[i][0])) config_set_flag(cfg, off[i][0], off[i][1]);
}

typedef struct Loading {
    Arena *mem;
    const Options *o;
    bool named; /* the first word is a configuration, not a folder */
    Config *cfg;
} Loading;

static void look_at_config(void *context) {
    Loading *l = context;
    const Options *o = l->o;
    l->cfg = config_load(l->mem, l->named ? o->word[0] : NULL, o->nflags, o->flag);
}

/* Notes on a file were shown when it was trained with; those on flags are new. */
static const Config *load_config(Arena *mem, const Options *o, const Source *s) {
    Loading l = {mem, o, comm_max_i64(is_named(o, s)), NULL};
    agree_look(look_at_config, &l);
    if (l.named && !l.cfg->model_file[0]) leave_type_of_training(l.cfg);
    if (comm_rank() != 0) return l.cfg;
    put_flags_first(l.cfg);
    if (s->config && !l.named) take_choices(mem, l.cfg, s->config);
    take_lengths(o, l.cfg);
    for (int i = 0; i < l.cfg->n_notes; i++)
        if (begins_with(l.cfg->notes[i], "command line"))
            fprintf(stderr, "note: %s\n", l.cfg->notes[i]);
    return l.cfg;
}

/* ---- what is to be made: rank 0 reads it ---- */

typedef struct Work {
    Sampling sampling;
    Wording wording;
    Prompt *prompt;
    int64_t *total, *least; /* by prompt */
    int n;                  /* prompts */
    int64_t samples;
    int64_t longest, most; /* tokens of a prompt, of a text */
} Work;

static Work read_work(Arena *mem, const Options *o, const Source *s, const Config *cfg) {
    bool greedy = option_given(o, "--greedy");
    Work k = {.sampling = generation_sampling(cfg, &s->spec, greedy),
              .samples = option_int(o, "--num_samples", 1)};
    sampler_new(mem, &k.sampling, (int)s->spec.vocab); /* looks at the settings */
    k.wording = wording_new(mem, o, s);
    k.prompt = prompts_read(mem, o, &k.wording, &k.n);
    k.total = NEW_ARRAY(mem, int64_t, (size_t)k.n);
    k.least = NEW_ARRAY(mem, int64_t, (size_t)k.n);
    for (int i = 0; i < k.n; i++) {
        k.total[i] = choose_total(mem, o, s, cfg, &k.prompt[i]);
        k.least[i] = choose_least(mem, cfg, &k.prompt[i], k.total[i]);
        k.longest = MAX(k.longest, k.prompt[i].tokens.n);
        k.most = MAX(k.most, k.total[i]);
    }
    if (k.most > context_of(s)) {
        k.longest = MAX(MIN(k.longest, context_of(s) - 1), context_of(s) / 2);
        k.longest = MAX(k.longest, 1);
        k.most = context_of(s);
    }
    return k;
}

/* Texts that a replica makes at a time: as many as asked for or, where nothing is said, as
 * products read weights once for, and as caches fit into a part of the memory. */
static int64_t choose_batch(const Options *o, const ModelSpec *s, const Config *cfg,
                            int64_t replicas, int64_t texts, int64_t most) {
    enum { PART = 4, MOST = 16 };
    int64_t each = divided_up(texts, replicas);
    int64_t asked = option_int(o, "--batch", 0);
    if (asked) return MIN(asked, each);
    uint64_t memory = rank_memory_left().bytes;
    if (cfg->context_max_device_memory)
        memory = MIN(memory, (uint64_t)cfg->context_max_device_memory);
    int64_t fit = (int64_t)(memory / PART) / generator_cache_bytes(s, most);
    return MAX(1, MIN(each, MIN(fit, MOST)));
}

/* As many texts at a time as replicas make together. */
static void make_texts(Arena *mem, Replicas *r, const Work *k) {
    RoundText *text = NEW_ARRAY(mem, RoundText, (size_t)r->n);
    int64_t all = k->n * k->samples;
    for (int64_t i = 0; i < all; i += r->n) {
        int n = (int)MIN(r->n, all - i);
        Arena *titles = arena_new();
        for (int j = 0; j < n; j++) {
            int64_t at = (i + j) / k->samples;
            text[j] = (RoundText){.prompt = &k->prompt[at],
                                  .total = k->total[at],
                                  .least = k->least[at],
                                  .sample = (i + j) % k->samples};
            if (all > 1 && !k->wording.json)
                text[j].title = arena_printf(titles, "== %lld of %lld",
                                             (long long)(i + j + 1), (long long)all);
        }
        predict_round(r, k->sampling, &k->wording, text, n);
        arena_free(titles);
    }
}

/* Where the number of texts at a time was not asked for, and they do not fit, there are fewer;
 * several ranks would have to agree on it. Says what takes memory where texts are made beside
 * each other. */
static Generator *make_generator(Arena *mem, const Source *s, const Strategy *strategy,
                                 GeneratorSize n, bool asked, const Config *cfg) {
    Catch c;
    if (CATCH(c)) {
        Generator *g = generator_new(mem, s, strategy, n, cfg);
        catch_end(&c);
        return g;
    }
    if (c.code == EXIT_MEMORY && n.batch > 1 && !asked && comm_size() == 1) {
        fprintf(stderr,
                "note: %lld texts at a time do not fit into the memory; trying %lld "
                "(--batch)\n",
                (long long)n.batch, (long long)n.batch / 2);
        n.batch /= 2;
        return make_generator(mem, s, strategy, n, asked, cfg);
    }
    if (c.code == EXIT_MEMORY && n.batch > 1)
        fail_again(c.code, arena_printf(mem,
                                        "%s\n    hint: fewer than %lld texts at a time, "
                                        "--batch 1",
                                        c.message, (long long)n.batch));
    fail_again(c.code, c.message);
}

static void predict_texts(Arena *mem, const Options *o, Source *s, const Config *cfg,
                          double start) {
    Work k = {0};
    bool root = comm_rank() == 0;
    Strategy strategy = predict_strategy(mem, o, &s->spec);
    watch_task("reading the prompts", -1, false);
    if (root) k = read_work(mem, o, s, cfg);
    int64_t longest = comm_max_i64(k.longest), most = comm_max_i64(k.most);
    GeneratorSize n = {.prompt = longest, .total = most};
    if (root)
        n.batch = choose_batch(o, &s->spec, cfg, strategy.data, k.n * k.samples, most);
    n.batch = comm_max_i64(n.batch);
    watch_task("start of the prediction", -1, false);
    Generator *g = make_generator(mem, s, &strategy, n, option_given(o, "--batch"), cfg);
    const char *folder = generator_load(mem, g, s);
    Replicas *r = replicas_new(mem, g);
    watch_task("prediction", -1, false);
    if (root) {
        report_start(mem, s, folder, g, clock_seconds() - start);
        report_choices(mem, o, s, cfg);
        make_texts(mem, r, &k);
        replicas_end(r);
    } else {
        replicas_follow(r);
    }
    generator_free(g);
}

/* ---- the command ---- */

static void refuse_ranks_of_module(const Source *s) {
    if (s->module && comm_size() > 1)
        fail(EXIT_CONFIG,
             "%s is of a module of its own (model.file), which is predicted from on one "
             "rank; leave stator launch out",
             s->path);
}

static void start_ranks(Arena *mem, const Options *o) {
    static bool started;
    if (!started) comm_start(); /* a second command of a process is one of its tests */
    started = true;
    if (comm_size() == 1) return;
    watch_start(launch_say_hang);
    watch_task("start of the prediction", -1, false);
    agree_on(mem, "build", program_build_id(), "start the same program on all hosts");
    Text flags = text_new(mem);
    for (int i = 0; i < o->nflags; i++) text_add(&flags, "%s\n", o->flag[i]);
    agree_on(mem, "flags", flags.s, "start all with the same flags");
}

static void end_ranks(void) {
    if (comm_size() == 1) return;
    comm_end();
    watch_stop();
}

int cmd_predict(int argc, char **argv) {
    const Options *o = options_take(COMMAND_predict, argc, argv);
    if (!o) return 0;
    Arena *mem = o->mem;
    if (!o->nwords)
        fail(EXIT_CONFIG,
             "stator predict needs a run folder, a checkpoint, a Hugging Face "
             "folder or a configuration file; stator help predict");
    double start = clock_seconds();
    start_ranks(mem, o);
    Source s = source_open_with(mem, o->word[0], o->nflags, o->flag);
    if (comm_rank() == 0) check_flags(mem, o, &s);
    const Config *cfg = load_config(mem, o, &s);
    if (comm_rank() == 0 && !is_named(o, &s)) source_take_keys(mem, &s, cfg);
    refuse_ranks_of_module(&s);
    if (comm_rank() == 0) check_kind(o, &s);
    if (s.module)
        predict_module(mem, &s, cfg, option_text(o, "--data"), option_text(o, "--out"));
    else
        predict_texts(mem, o, &s, cfg, start);
    arena_free(mem);
    end_ranks();
    return 0;
}
