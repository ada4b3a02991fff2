/* predict_round.c - see predict_round.h. */
#include "frontend/tools/predict_round.h"
#include "frontend/model/generation.h"
#include "runtime/core/rt.h"
#include <errno.h>
#include <stdlib.h>

typedef struct Growing { /* a text that is being made */
    const RoundText *of;
    Sampler *sampler;
    Output out;
    FILE *to;   /* stdout, or what is kept of it */
    char *kept; /* malloc */
    size_t kept_n;
    int64_t n;   /* tokens, prompt included */
    Tokens past; /* those that the model has seen, the last ones; room for its context */
    int seen;    /* tokens of the prompt that it was shown */
    double prompt_seconds, token_seconds;
    int64_t steps;  /* tokens that went in one by one */
    const int *end; /* tokens that end a text */
    int nend;
    int drawn;       /* the next token; -1: scores that none can be drawn from */
    const char *why; /* it has ended; NULL: it has not */
    int lost;        /* errno of stdout, which takes no more; 0: it does */
} Growing;

/* Tokens of what the model has seen that it is shown again where its context is full: half of
 * it, so that as many new ones follow before the next time. */
static int64_t shown_again(const Source *s) {
    return MAX(1, s->spec.max_positions / 2);
}

static void keep_last(Tokens *past, int64_t n) {
    memmove(past->id, past->id + past->n - n, (size_t)n * sizeof *past->id);
    past->n = (int)n;
}

/* What the model sees of a prompt: all, or what it is shown again of a longer one. */
static Tokens seen_of(Arena *mem, const Tokens *prompt, const RoundText *of,
                      const Source *s) {
    int64_t context = MIN(s->spec.max_positions, INT32_MAX);
    int64_t n = prompt->n < context ? prompt->n : shown_again(s);
    int64_t cap = MAX(n, MIN(of->total, context));
    Tokens past = {NEW_ARRAY(mem, int32_t, (size_t)cap), (int)n, (int)cap};
    memcpy(past.id, prompt->id + prompt->n - n, (size_t)n * sizeof *past.id);
    return past;
}

static void begin(Arena *mem, Growing *t, const RoundText *of, Sampling sampling,
                  const Wording *w, bool first) {
    const Prompt *p = of->prompt;
    *t = (Growing){.of = of, .n = p->tokens.n, .to = stdout};
    t->past = seen_of(mem, &p->tokens, of, w->source);
    t->seen = t->past.n;
    if (!first) t->to = open_memstream(&t->kept, &t->kept_n);
    if (!t->to) die("open_memstream: %s", strerror(errno));
    sampling.seed += (uint64_t)of->sample;
    t->sampler = sampler_new(mem, &sampling, (int)w->source->spec.vocab);
    for (int i = 0; i < p->tokens.n; i++) sampler_seen(t->sampler, p->tokens.id[i]);
    if (of->title) fprintf(t->to, "%s\n", of->title);
    output_open(mem, &t->out, w, p, t->to);
    if (ferror(t->to)) t->lost = errno;
}

/* Tokens that would end it too early do not come next. */
static void bar_ends(Growing *t) {
    sampler_bar(t->sampler, t->end, t->n < t->of->least ? t->nend : 0);
}

/* Takes the next token; false: the text has ended. */
static bool grow(Growing *t, const float *scores, int64_t vocab, int32_t *token) {
    bar_ends(t);
    *token = t->drawn >= 0 ? t->drawn : sampler_next(t->sampler, scores, t->n);
    sampler_seen(t->sampler, *token);
    const Wording *w = t->out.w;
    if (generation_ends(&w->source->spec, w->tokenizer, *token))
        t->why = "end token";
    else if (!output_token(&t->out, *token, scores, vocab))
        t->why = "stop text";
    else if (ferror(stdout) || t->n + 1 >= t->of->total)
        t->why = "length";
    if (ferror(stdout) && !t->lost) t->lost = errno;
    t->n++;
    return !t->why;
}

static void report(const Growing *t) {
    int prompt = t->of->prompt->tokens.n;
    fprintf(stderr, "prompt: %d tokens", prompt);
    if (t->seen < prompt) fprintf(stderr, ", the last %d seen", t->seen);
    fprintf(stderr, ", %.1f tokens/s; new: %lld tokens",
            t->seen / MAX(t->prompt_seconds, 1e-9), (long long)t->out.count);
    if (t->steps)
        fprintf(stderr, ", %.1f tokens/s",
                (double)t->steps / MAX(t->token_seconds, 1e-9));
    fprintf(stderr, "; ended by %s\n", t->why);
}

static void end(Growing *t) {
    output_close(&t->out, t->of->sample, t->why);
    if (t->to != stdout) {
        if (fclose(t->to) != 0) die("open_memstream: %s", strerror(errno));
        fwrite(t->kept, 1, t->kept_n, stdout);
        free(t->kept);
    }
    if (fflush(stdout) != 0 && !t->lost) t->lost = errno;
    if (t->lost || ferror(stdout))
        fail(EXIT_DATA, "cannot write to stdout: %s", strerror(t->lost));
    report(t);
}

typedef struct Drawing {
    Growing *text;
    const float *const *scores;
} Drawing;

static void draw(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    const Drawing *d = ctx;
    (void)thread;
    for (int64_t k = begin; k < end; k++) {
        Growing *t = &d->text[k];
        t->drawn = -1;
        bar_ends(t);
        if (!t->why && sampler_takes(t->sampler, d->scores[k]))
            t->drawn = sampler_next(t->sampler, d->scores[k], t->n);
    }
}

/* A token more of each text that has not ended; false: all have. */
static bool grow_all(Replicas *r, Growing *text, int n, Tokens *next, double start) {
    bool any = false;
    Drawing d = {text, r->scores};
    rt_parallel(n, draw, &d);
    for (int k = 0; k < n; k++) {
        Growing *t = &text[k];
        next[k].n = !t->why && grow(t, r->scores[k], r->g->vocab, next[k].id);
        t->steps += next[k].n;
        any |= next[k].n;
        if (next[k].n || t->token_seconds > 0) continue;
        t->token_seconds = clock_seconds() - start;
    }
    return any;
}

/* The next tokens go in. Where the context is full the model is first shown its last part anew,
 * as a prompt. */
static void feed_all(Replicas *r, Growing *text, int n, const Tokens *next,
                     Tokens *again) {
    const Source *s = r->g->source;
    bool any = false;
    for (int k = 0; k < n; k++) {
        Tokens *past = &text[k].past;
        again[k].n = 0;
        if (!next[k].n) continue;
        if (past->n == s->spec.max_positions) {
            keep_last(past, shown_again(s));
            again[k] = *past;
            any = true;
        }
        past->id[past->n++] = next[k].id[0];
    }
    if (any) replicas_prompts(r, again);
    replicas_tokens(r, next);
}

/* Until all have ended. What fails is told below the text that is being printed. */
static void grow_to_end(Replicas *r, Growing *t, int n, Tokens *next, Tokens *again) {
    double start = clock_seconds();
    Catch c;
    if (CATCH(c)) {
        while (grow_all(r, t, n, next, start)) feed_all(r, t, n, next, again);
        catch_end(&c);
        return;
    }
    if (!t->out.w->json) putchar('\n');
    fflush(stdout);
    fail_again(c.code, c.message);
}

void predict_round(Replicas *r, Sampling sampling, const Wording *w,
                   const RoundText *text, int n) {
    Arena *mem = arena_new();
    check(n > 0 && n <= r->n);
    Growing *t = NEW_ARRAY(mem, Growing, (size_t)n);
    Tokens *next = NEW_ARRAY(mem, Tokens, (size_t)r->n);
    int nends;
    int *ends = generation_end_tokens(mem, &w->source->spec, w->tokenizer, &nends);
    for (int k = 0; k < n; k++) {
        begin(mem, &t[k], &text[k], sampling, w, k == 0);
        t[k].end = ends;
        t[k].nend = nends;
        next[k] = t[k].past;
    }
    Tokens *again = NEW_ARRAY(mem, Tokens, (size_t)r->n);
    double start = clock_seconds();
    replicas_prompts(r, next);
    for (int k = 0; k < n; k++) {
        t[k].prompt_seconds = clock_seconds() - start;
        next[k] = (Tokens){NEW_ARRAY(mem, int32_t, 1), 0, 1};
    }
    grow_to_end(r, t, n, next, again);
    for (int k = 0; k < n; k++) end(&t[k]);
    arena_free(mem);
}
