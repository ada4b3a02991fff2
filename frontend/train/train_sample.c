/* train_sample.c - texts that the model makes as it is, every so many steps: a program for a
 * token of each text, which shares the weights of the training program and works in its
 * memory. Prompts go in token by token, so there is no program for them. All ranks run it,
 * rank 0 chooses the tokens. Texts go to samples.jsonl in the run folder, an object a line. */
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/config/run_tokenizer.h"
#include "frontend/model/generation.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/run/step_lines.h"
#include "runtime/text/prompt.h"
#include "runtime/text/sampler.h"
#include <unistd.h>

typedef struct SampleText {
    const char *prompt; /* NULL: none was given */
    int32_t *id;        /* the prompt's, then new ones */
    int64_t given, n;
    bool ended;
    Sampler *sampler; /* on rank 0 */
} SampleText;

typedef struct Samples {
    Program *program;
    const Tokenizer *tokenizer; /* on rank 0; NULL: bytes */
    bool bytes;
    int *end; /* tokens that end a text; on rank 0 */
    int nend;
    SampleText *text;
    int64_t n, total; /* texts; tokens of one, at most */
    int32_t *message; /* tokens of a step, then how many each text has before it */
} Samples;

/* ---- the texts ---- */

static void put_ids(Arena *mem, SampleText *x, const int32_t *id, int64_t n,
                    int64_t total) {
    x->id = NEW_ARRAY(mem, int32_t, (size_t)total);
    x->given = n;
    memcpy(x->id, id, (size_t)n * sizeof *id);
}

static _Noreturn void refuse_prompt(const Train *t, const char *prompt, const char *why) {
    config_refuse(t->job.cfg, "runner_config.sample_prompts", NULL,
                  "prompts that the model can go on with", "prompt \"%.60s\": %s", prompt,
                  why);
}

static int32_t *bytes_as_tokens(Arena *mem, const char *s, int64_t n) {
    int32_t *id = NEW_ARRAY(mem, int32_t, (size_t)n + 1);
    for (int64_t i = 0; i < n; i++) id[i] = (unsigned char)s[i];
    return id;
}

static void read_prompt(const Train *t, Samples *s, SampleText *x, const char *prompt) {
    Arena *mem = arena_new();
    int64_t count = (int64_t)strlen(prompt);
    uint64_t bad = 0;
    if (!s->tokenizer && !s->bytes)
        refuse_prompt(
            t, prompt,
            "the run has no tokenizer, so no text is tokens; leave prompts out");
    int32_t *id = s->tokenizer ? prompt_encode(mem, s->tokenizer, prompt, (size_t)count,
                                               &count, &bad)
                               : bytes_as_tokens(mem, prompt, count);
    if (bad) refuse_prompt(t, prompt, "it is not valid UTF-8");
    if (!count) refuse_prompt(t, prompt, "it is empty; a model needs one token to go on");
    for (int64_t i = 0; i < count; i++)
        if (id[i] >= t->job.spec.vocab)
            refuse_prompt(t, prompt, "it has a token beyond the model's vocabulary");
    if (count >= s->total)
        refuse_prompt(t, prompt, "with new tokens it is longer than the model's context");
    x->prompt = prompt;
    put_ids(t->mem, x, id, count, s->total);
    arena_free(mem);
}

static int32_t first_token(const Train *t, const Samples *s) {
    int64_t id = source_first_token(&t->job.spec, s->tokenizer);
    if (id < 0)
        config_refuse(t->job.cfg, "runner_config.sample_every", NULL,
                      "texts to go on with, runner_config.sample_prompts",
                      "the model knows no token that begins a text");
    return (int32_t)id;
}

static void read_texts(const Train *t, Samples *s) {
    const TextList prompts = t->job.cfg->runner_config_sample_prompts;
    TokenizerSpec spec = run_tokenizer(t->mem, t->job.cfg);
    Sampling set = generation_sampling(t->job.cfg, &t->job.spec, false);
    if (run_tokenizer_found(&spec)) s->tokenizer = tokenizer_open(t->mem, &spec);
    s->bytes =
        !s->tokenizer && (t->job.spec.vocab <= 256 ||
                          t->job.cfg->train_dataset_data_loader_type == LOADER_TEXT_FILE);
    s->end = generation_end_tokens(t->mem, &t->job.spec, s->tokenizer, &s->nend);
    for (int64_t i = 0; i < s->n; i++) {
        SampleText *x = &s->text[i];
        x->sampler = sampler_new(t->mem, &set, (int)t->job.spec.vocab);
        if (prompts.n) {
            read_prompt(t, s, x, prompts.items[i]);
            continue;
        }
        int32_t begin = first_token(t, s);
        put_ids(t->mem, x, &begin, 1, s->total);
    }
}

/* ---- the program ---- */

static void refuse_what_has_no_texts(const Train *t) {
    if (t->job.has_spec) return;
    config_refuse(t->job.cfg, "runner_config.sample_every", NULL,
                  "--runner_config.sample_every 0",
                  "model.file gives a module of its own, so no text can be made");
}

/* The same placements as in training, so that the weights are where that has them. */
static Program *make_program(Train *t, const Samples *s) {
    Strategy strategy = t->job.strategy;
    strategy.own_data = true;
    strategy.overlap = OVERLAP_OFF;
    strategy.sequence_parallel = false;
    strategy.names_gathered = false; /* nothing is made again in a backward pass */
    PassOptions o = pass_options_default();
    o.micro_batches = t->job.micro; /* of the schedule that training has */
    int64_t kept = model_cache_rows(&t->job.spec, s->total);
    ModelShape shape = {.batch = s->n,
                        .seq = 1,
                        .cache_len = kept,
                        .ring = kept < s->total,
                        .vocab_rows = strategy_vocab(&strategy, &t->job.spec)};
    Module *m = model_build(t->mem, &t->job.spec, shape, MODEL_PREDICT);
    PassOptions training = o;
    ranks_apply(t, module_clone(t->mem, m), &training);
    strategy_apply(&strategy, &t->job.spec, m, &o);
    if (zero_gathers_ahead(&training)) o.zero_level = 3; /* as training leaves them */
    model_logits_whole(m);
    if (o.schedule) o.schedule = schedule_forward(t->mem, o.schedule);
    CompileOptions co = strategy_compile_options(t->job.cfg);
    return program_make(t->mem, m, forward_passes, &o, &co);
}

/* All weights must be those of training. */
static bool shares_weights(const Train *t, const Program *p) {
    bool same = true;
    for (int i = 0; i < p->entry->narg; i++) {
        if (arg_role(p->entry, i) != ARG_param) continue;
        int k = program_arg_named(t->program, p->entry->arg[i]->name);
        same &= k >= 0 && t->program->arg[k] == p->arg[i];
    }
    return !comm_max_i64(!same);
}

void sample_plan(Train *t) {
    const Config *cfg = t->job.cfg;
    if (!cfg->runner_config_sample_every) return;
    refuse_what_has_no_texts(t);
    Samples *s = t->samples = NEW(t->mem, Samples);
    s->n = MAX(cfg->runner_config_sample_prompts.n, 1);
    s->total = t->job.spec.max_positions;
    s->text = NEW_ARRAY(t->mem, SampleText, (size_t)s->n);
    if (comm_rank() == 0) read_texts(t, s);
    int64_t longest = 0;
    for (int64_t i = 0; i < s->n; i++) longest = MAX(longest, s->text[i].given);
    longest = comm_max_i64(longest);
    s->total = MIN(s->total, longest + cfg->runner_config_sample_tokens);
    s->message = NEW_ARRAY(t->mem, int32_t, (size_t)(2 * s->n) + 1);
    s->program = make_program(t, s);
    program_borrow(s->program, t->program,
                   (uint64_t)t->job.cfg->context_max_device_memory);
    if (!shares_weights(t, s->program))
        config_refuse(
            t->job.cfg, "runner_config.sample_every", NULL,
            "--runner_config.sample_every 0, and stator predict RUN",
            "under this strategy weights are not placed as prediction has them");
}

/* ---- the file ---- */

/* Into *context, unless that is NULL. */
static int64_t step_of_line(void *context, const Json *line) {
    int64_t step = json_i64(json_need(line, "step"), 0, INT64_MAX), *to = context;
    if (to) *to = step;
    return step;
}

/* Lines of steps after `last` go. *damage: see step_lines_keep_damaged. */
static int keep_lines(const Train *t, int64_t last, const char **damage) {
    Arena *mem = arena_new();
    const char *path = path_join(mem, t->run_dir, RUN_SAMPLES);
    StepLines l = {0};
    if (file_exists(path)) l = step_lines_read(mem, path, last, step_of_line, NULL);
    *damage = step_lines_keep_damaged(t->mem, &l);
    int error = step_lines_cut(&l);
    step_lines_close(&l);
    arena_free(mem);
    return error;
}

static void add_ids(Text *out, const int32_t *id, int64_t n) {
    for (int64_t i = 0; i < n; i++) text_add(out, "%s%d", i ? "," : "", id[i]);
}

/* The bytes of the new tokens; false: they have no text. */
static bool new_text(const Samples *s, const SampleText *x, Text *out) {
    bool begun = false; /* as predict: what is before the first piece may be no text */
    for (int64_t i = 0; i < x->n; i++) {
        size_t n;
        bool given = i < x->given;
        if (s->bytes) {
            if (given) continue;
            char byte = (char)MIN(x->id[i], 255);
            text_add_bytes(out, &byte, 1);
        } else if (s->tokenizer && x->id[i] < tokenizer_vocab(s->tokenizer) &&
                   !tokenizer_special(s->tokenizer, x->id[i])) {
            const char *piece = tokenizer_piece(s->tokenizer, x->id[i], !begun, &n);
            if (!given) text_add_bytes(out, piece, n);
            begun = true;
        }
    }
    return s->bytes || s->tokenizer;
}

/* As predict has it: what begins a character that does not end is one U+FFFD, and of byte fallback
 * each byte is. */
static void write_text(const Samples *s, const Text *text, Text *to) {
    char *valid = arena_alloc(text->mem, 3 * text->n + 1);
    size_t n = tokenizer_valid_utf8(text->s, text->n, valid);
    bool each_byte = s->tokenizer && tokenizer_falls_back(s->tokenizer);
    json_write_bytes(to, each_byte ? text->s : valid, each_byte ? text->n : n);
}

static void tell(const Train *t, const Samples *s) {
    Arena *mem = arena_new();
    Text lines = text_new(mem);
    for (int64_t i = 0; i < s->n; i++) {
        const SampleText *x = &s->text[i];
        Text text = text_new(mem), shown = text_new(mem);
        bool readable = new_text(s, x, &text);
        text_add(&lines, "{\"step\":%lld,\"prompt\":", (long long)t->step);
        if (x->prompt)
            json_write_bytes(&lines, x->prompt, strlen(x->prompt));
        else
            text_add(&lines, "null");
        if (readable)
            write_text(s, &text, &shown);
        else
            text_add(&shown, "null");
        text_add(&lines, ",\"text\":%s,\"tokens\":[", shown.s);
        add_ids(&lines, x->id + x->given, x->n - x->given);
        text_add(&lines, "]}\n");
        if (!readable) add_ids(&text, x->id + x->given, x->n - x->given);
        report_say(t, "sample at step %lld: %s%s%s", (long long)t->step,
                   x->prompt ? x->prompt : "", x->prompt ? " ... " : "",
                   readable ? shown.s : text.s);
    }
    const char *path = path_join(mem, t->run_dir, RUN_SAMPLES);
    report_unwritten(t, RUN_SAMPLES, file_append(path, lines.s, lines.n));
    arena_free(mem);
}

/* ---- making them ---- */

/* Token at[i] of text i, for all: on rank 0 the scores of the next ones come back. */
static const float *run_tokens(const Samples *s) {
    const Program *p = s->program;
    const int32_t *token = s->message, *at = s->message + s->n;
    program_set(p, ARG_tokens, token);
    program_set(p, ARG_offset, at);
    program_set(p, ARG_positions, at);
    Arena *mem = arena_new();
    int32_t *last = NEW_ARRAY(mem, int32_t, (size_t)s->n);
    int32_t *taken = NEW_ARRAY(mem, int32_t, (size_t)s->n);
    for (int64_t i = 0; i < s->n; i++) last[i] = (int32_t)i, taken[i] = 1;
    program_set(p, ARG_last, last);
    program_set(p, ARG_taken, taken);
    arena_free(mem);
    train_run(s->program);
    return p->ret[0];
}

/* Text x has had `at` + 1 tokens; takes the next one where it is not the prompt's. False: its
 * scores are no numbers, as of a model that has diverged. */
static bool take_token(const Train *t, const Samples *s, SampleText *x, int64_t at,
                       const float *scores) {
    if (x->ended || at + 1 < x->given) return true;
    bool may_end = x->n >= generation_least(t->job.cfg, x->given);
    sampler_bar(x->sampler, s->end, may_end ? 0 : s->nend);
    if (!sampler_takes(x->sampler, scores)) return false;
    int32_t token = sampler_next(x->sampler, scores, x->n);
    sampler_seen(x->sampler, token);
    x->ended = generation_ends(&t->job.spec, s->tokenizer, token);
    if (!x->ended) x->id[x->n++] = token;
    x->ended |=
        x->n - x->given >= t->job.cfg->runner_config_sample_tokens || x->n >= s->total;
    return true;
}

/* On rank 0: what goes in at step `at`, and whether there is anything. A text that has ended
 * goes over its last token again. */
static void fill_message(const Samples *s, int64_t at) {
    int32_t more = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const SampleText *x = &s->text[i];
        int64_t k = MIN(at, x->n - 1);
        s->message[i] = x->id[k];
        s->message[s->n + i] = (int32_t)k;
        more |= !x->ended;
    }
    s->message[2 * s->n] = more;
}

static void make_texts(Train *t, Samples *s) {
    bool root = comm_rank() == 0, good = true;
    int64_t row = strategy_vocab(&t->job.strategy, &t->job.spec);
    for (int64_t i = 0; root && i < s->n; i++) {
        SampleText *x = &s->text[i];
        x->n = x->given;
        x->ended = false;
        sampler_forget(x->sampler);
        for (int64_t k = 0; k < x->n; k++) sampler_seen(x->sampler, x->id[k]);
    }
    for (int64_t at = 0;; at++) {
        if (root) fill_message(s, at);
        if (!good) s->message[2 * s->n] = 0;
        comm_broadcast(s->message, (size_t)(2 * s->n + 1) * sizeof *s->message, 0);
        if (!s->message[2 * s->n]) break;
        const float *scores = run_tokens(s);
        for (int64_t i = 0; root && i < s->n; i++)
            good &= take_token(t, s, &s->text[i], at, scores + i * row);
    }
    if (root && good)
        tell(t, s);
    else if (root)
        report_say(t,
                   "WARNING: no samples at step %lld: the model's scores are no numbers",
                   (long long)t->step);
}

void sample_start(Train *t) {
    Samples *s = t->samples;
    if (!s) return;
    const char *damage = NULL;
    int error = comm_rank() ? 0 : keep_lines(t, t->start_step, &damage);
    if (damage) report_say(t, "WARNING: %s", damage);
    report_unwritten(t, RUN_SAMPLES, error);
}

void sample_step(Train *t) {
    if (t->samples && t->step % t->job.cfg->runner_config_sample_every == 0)
        make_texts(t, t->samples);
}

/* Have texts of this step been told? On all ranks. */
static bool has_texts(const Train *t) {
    Arena *mem = arena_new();
    const char *path = path_join(mem, t->run_dir, RUN_SAMPLES);
    int64_t last = -1;
    if (comm_rank() == 0 && file_exists(path)) {
        StepLines l = step_lines_read(mem, path, -1, step_of_line, &last);
        step_lines_close(&l);
    }
    arena_free(mem);
    return comm_max_i64(last) == t->step;
}

void sample_catch_up(Train *t) {
    if (!t->samples || t->step <= MAX(t->began_step, 0) || has_texts(t)) return;
    watch_task("behind step", t->step, false);
    sample_step(t);
}

void sample_end(Train *t) {
    if (t->samples) program_free(t->samples->program);
}
