/* eval_report.c - what an evaluation tells. */
#include "base/json.h"
#include "frontend/train/eval.h"
#include "runtime/comm/comm.h"
#include <math.h>

typedef struct Figures {
    double loss, error, perplexity, accuracy, bits_per_byte;
} Figures;

/* The error of the mean, with samples drawn and not tokens, which are not independent: of a
 * ratio of sums (Cochran, Sampling Techniques, 6.4). */
static double spread(const EvalSums *s, double mean) {
    double n = (double)s->samples;
    double squares = s->loss2 - 2 * mean * s->loss_tokens + mean * mean * s->tokens2;
    if (s->samples < 2 || !s->tokens || isnan(squares)) return NAN;
    return sqrt(MAX(squares, 0) * n / (n - 1)) / (double)s->tokens;
}

static Figures figures_of(const EvalSums *s) {
    double tokens = (double)s->tokens;
    Figures f = {.loss = s->loss / tokens, .accuracy = s->correct / tokens};
    if (isnan(f.loss)) f.loss = NAN; /* printf writes the sign of one */
    f.error = spread(s, f.loss);
    f.perplexity = exp(f.loss);
    f.bits_per_byte = s->bytes ? s->loss / (log(2) * (double)s->bytes) : NAN;
    return f;
}

static const char *split_name(const Eval *e) {
    return e->endings || e->all ? "all" : data_split_name[e->split];
}

static void report_json(const Eval *e, const Figures *f) {
    const EvalSums *s = &e->sums;
    Text t = text_new(e->t.mem);
    json_add_text(&t, "{", "model", e->from);
    json_add_text(&t, ", ", "data", e->source.name);
    json_add_text(&t, ", ", "split", split_name(e));
    text_add(&t, ", \"samples\": %lld, \"tokens\": %lld", (long long)s->samples,
             (long long)s->tokens);
    if (e->endings) {
        int64_t right, mean, n = eval_endings_count(e->endings);
        eval_endings_score(e->endings, &right, &mean);
        text_add(&t, ", \"examples\": %lld", (long long)n);
        json_add_double(&t, ", ", "acc", (double)right / (double)n);
        json_add_double(&t, ", ", "acc_norm", (double)mean / (double)n);
    }
    json_add_double(&t, ", ", "loss", f->loss);
    json_add_double(&t, ", ", "loss_error", f->error);
    json_add_double(&t, ", ", "perplexity", f->perplexity);
    if (s->bytes) text_add(&t, ", \"bytes\": %lld", (long long)s->bytes);
    if (s->bytes) json_add_double(&t, ", ", "bits_per_byte", f->bits_per_byte);
    json_add_double(&t, ", ", "accuracy", f->accuracy);
    json_add_double(&t, ", ", "seconds", e->seconds);
    text_add(&t, "}");
    puts(t.s);
}

static void report_endings(const Eval *e) {
    int64_t right, mean, n = eval_endings_count(e->endings);
    eval_endings_score(e->endings, &right, &mean);
    printf("examples       %lld\n", (long long)n);
    printf("acc            %.4f (%lld right by the sum over an ending)\n",
           (double)right / (double)n, (long long)right);
    printf("acc_norm       %.4f (%lld right by the mean over its tokens)\n",
           (double)mean / (double)n, (long long)mean);
}

static void report_text(const Eval *e, const Figures *f) {
    const EvalSums *s = &e->sums;
    const char *unit = job_unit(&e->t.job);
    printf("weights        %s\n", e->from);
    const char *first = "";
    if (e->source.n < e->source.all)
        first = arena_printf(e->t.mem, "the first %lld of ", (long long)e->source.n);
    printf("data           %s (%s), %s%lld samples, %lld %ss that count\n",
           e->source.name, split_name(e), first, (long long)e->source.all,
           (long long)s->tokens, e->t.job.ncolumns ? "label" : unit);
    if (e->endings) report_endings(e);
    printf("loss           %.6f", f->loss);
    if (!isnan(f->error)) printf(" +- %.6f", f->error);
    printf("\nperplexity     %.4f\n", f->perplexity);
    if (s->bytes)
        printf("bits per byte  %.6f (%lld bytes)\n", f->bits_per_byte,
               (long long)s->bytes);
    printf("accuracy       %.6f of the %s\n", f->accuracy,
           e->t.job.ncolumns ? "labels" : "next tokens");
    printf("time           %.1f s, %.0f %ss/s\n", e->seconds,
           (double)s->tokens / MAX(e->seconds, 1e-9), unit);
}

bool eval_report(const Eval *e) {
    if (!e->sums.tokens) fail(EXIT_DATA, "%s: none of its labels counts", e->source.name);
    Figures f = figures_of(&e->sums);
    if (comm_rank() == 0) {
        if (e->json)
            report_json(e, &f);
        else
            report_text(e, &f);
        fflush(stdout);
    }
    return isfinite(f.loss);
}
