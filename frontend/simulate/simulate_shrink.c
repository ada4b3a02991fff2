/* simulate_shrink.c - the least model that a strategy can be shown on. Every size becomes the
 * smallest one that all divisors of the strategy divide, and whatever kind of model it was
 * stays: heads that share keys, a window shorter than the sequence, a vocabulary that is
 * padded, chunks with more layers than others. Limits in bytes follow the sizes, or nothing
 * would be above them any more. */
#include "frontend/model/model_parts.h"
#include "frontend/simulate/simulate.h"
#include <math.h>
#include <stdlib.h>

enum {
    LEAST_HEADS = 2,
    LEAST_HEAD_DIM = 4,
    LEAST_WIDTH = 8, /* a norm over two numbers knows their order alone */
    /* Norms of what layers add, one behind the other, make much of what 16 bits round where they
     * are over few numbers: the shrunken model would be worse than the model is. */
    LEAST_HEAD_DIM_OF_NORMS = 16,
    LEAST_WIDTH_OF_NORMS = 32,
    LEAST_INNER_WIDTH = 4, /* of the MLP */
    LEAST_VOCAB = 48,
    LEAST_SEQ = 16,
    LEAST_WINDOW =
        4, /* in one of its own token alone attention depends on no query or key */
    LEAST_LAYERS = 2, /* of a chunk, so that its loop is one */
    LEAST_MICRO = 3,  /* the first, the last, and one between them */
    SHARED_HEADS = 2, /* that read the same keys, where several do */
};
/* With less Adam makes whole steps of gradients that are rounding alone (those of the biases
 * of keys are), and equal strategies would end at other weights. */
#define LEAST_EPS 1e-3
/* A dynamic scale begins so high that the first steps of a run are skipped until it has come
 * down; in a few steps it does not. */
#define MOST_LOSS_SCALE 1024.0

/* ---- sizes ---- */

/* The least that both divide. */
static int64_t joint(int64_t a, int64_t b) {
    return a / common_divisor(a, b) * b;
}

/* The first multiple of `unit` from `least` on, no more than there was. */
static int64_t smallest(int64_t unit, int64_t least, int64_t was) {
    return MIN(round_up(MIN(least, was), unit), was);
}

/* Ranks that entries of parallel.shard cut a dimension into; 1: there are no entries. */
static int64_t parts_of_entries(const Strategy *t) {
    bool hybrid = t->ring > 1 && t->ring < t->context;
    const struct {
        const char *axis;
        int64_t size;
    } axes[] = {{"rp", MAX(t->groups, 1)},
                {"dp", t->data / MAX(t->groups, 1)},
                {"cp", hybrid ? t->ring : t->context},
                {"up", hybrid ? t->context / t->ring : 1},
                {"tp", t->tensor}};
    int64_t parts = 1;
    for (int a = 0; a < ARRAY_LEN(axes); a++)
        for (int i = 0; i < t->user.n; i++) {
            const char *placement = strchr(t->user.items[i], '=');
            if (!placement || !strstr(placement, axes[a].axis)) continue;
            parts *= axes[a].size;
            break;
        }
    return parts;
}

/* `unit`, and also what entries ask for, where the size that was there does. */
static int64_t with_entries(int64_t unit, int64_t parts, int64_t was) {
    int64_t both = joint(unit, parts);
    return was % both ? unit : both;
}

static int64_t small_head_dim(const ModelSpec *was, bool normed) {
    int64_t least = normed ? LEAST_HEAD_DIM_OF_NORMS : LEAST_HEAD_DIM;
    for (int64_t d = least; d < was->head_dim; d *= 2) {
        int64_t turned = (int64_t)((double)d * was->rotary_percent);
        if (was->positions != POSITION_ROPE || (turned >= 2 && turned % 2 == 0)) return d;
    }
    return was->head_dim;
}

static void shrink_heads(ModelSpec *s, const ModelSpec *was, const Strategy *t,
                         int64_t parts) {
    int64_t unit = t->tensor * (t->context / t->ring),
            shared = was->heads / was->kv_heads;
    s->heads = smallest(with_entries(unit, parts, was->heads), LEAST_HEADS, was->heads);
    s->kv_heads = shared == 1 ? s->heads : was->kv_heads;
    if (shared == 1 || was->kv_heads == 1) return;
    s->kv_heads = smallest(with_entries(unit, parts, was->kv_heads), 2, was->kv_heads);
    s->heads = s->kv_heads * MIN(shared, SHARED_HEADS);
}

/* As large as they were in comparison, up to a product that changes no sizes. Each layer makes more of
 * what is rounded before it: those of more layers than the least are smaller by the root of their
 * proportion, so that all together add as much (with them an untied head, which has theirs). */
static void shrink_std(ModelSpec *s, const ModelSpec *was) {
    double *std[] = {&s->embedding_std, &s->position_std, &s->block_std, &s->output_std};
    double most = 1 / sqrt((double)s->hidden);
    double deep = sqrt(MIN(1, (double)LEAST_LAYERS / (double)s->layers));
    for (int i = 0; i < ARRAY_LEN(std); i++) {
        double grown = *std[i] * sqrt((double)was->hidden / (double)s->hidden);
        *std[i] = MAX(*std[i], MIN(grown, most) * (i < 2 ? 1 : deep));
    }
}

/* normed: there are norms behind norms, in 16 bits. */
static void shrink_widths(ModelSpec *s, const ModelSpec *was, const Strategy *t,
                          int64_t parts, bool normed) {
    int64_t least = normed ? LEAST_WIDTH_OF_NORMS : LEAST_WIDTH;
    shrink_heads(s, was, t, parts);
    s->head_dim = small_head_dim(was, normed);
    double share =
        (double)(s->heads * s->head_dim) / (double)(was->heads * was->head_dim);
    int64_t width = MAX(llround((double)was->hidden * share), least);
    s->hidden = smallest(was->hidden % parts ? 1 : parts, width, was->hidden);
    double wider = (double)was->ffn / (double)was->hidden;
    int64_t inner = MAX(llround((double)s->hidden * wider), LEAST_INNER_WIDTH);
    s->ffn = smallest(with_entries(t->tensor, parts, was->ffn), inner, was->ffn);
    int64_t rows = with_entries(t->tensor, parts, was->vocab);
    bool padded = was->vocab % t->tensor != 0;
    s->vocab =
        smallest(padded ? 1 : rows,
                 round_up(LEAST_VOCAB, padded ? t->tensor : rows) + padded, was->vocab);
}

static int64_t small_seq(int64_t was, const Strategy *t, int64_t parts) {
    int64_t unit = t->context * (t->ring > 1 ? 2 : 1);
    if (t->sequence_parallel) unit = joint(unit, t->context * t->tensor);
    return smallest(with_entries(unit, parts, was), LEAST_SEQ, was);
}

/* n of the tokens of a sequence, as many of a shorter one. */
static int64_t of_shorter(int64_t n, int64_t was, int64_t seq) {
    return MAX(1, (int64_t)((double)n * (double)seq / (double)was));
}

static void shrink_positions(ModelSpec *s, int64_t was, int64_t seq) {
    s->max_positions =
        MIN(s->max_positions, MAX(seq, of_shorter(s->max_positions, was, seq)));
    int64_t window = MAX(of_shorter(s->window, was, seq), MIN(s->window, LEAST_WINDOW));
    if (s->window) s->window = s->window < was ? window : seq;
    if (s->rope.original) s->rope.original = of_shorter(s->rope.original, was, seq);
}

/* ---- layers ---- */

/* Of the first chunk of `text`, up to '|': how many spans say of how many layers. */
static int64_t counted_spans(const char *text) {
    int64_t n = 0;
    for (; *text && *text != '|'; text++) n += *text == ':';
    return n;
}

/* The most layers of a chunk that the text at chunk c is for: of all, where it has one alone. */
static int64_t layers_of_text(const char *text, const int64_t *layers, int chunks,
                              int c) {
    int64_t most = 0;
    if (strchr(text, '|')) return layers[c];
    for (int k = 0; k < chunks; k++) most = MAX(most, layers[k]);
    return most;
}

/* The text with 1 for each count above that, but all layers for all, and two layers together: see
 * remake_spans.h. */
static const char *small_remake(Arena *mem, const char *whole, const int64_t *was,
                                const int64_t *is, int chunks) {
    Text t = text_new(mem);
    int c = 0;
    for (const char *text = whole; *text;) {
        size_t n = strcspn(text, ";|");
        const char *colon = memchr(text, ':', n), *end = text + n + (text[n] != 0);
        int64_t count = atoll(text);
        int64_t all = count >= layers_of_text(whole, was, chunks, c)
                          ? layers_of_text(whole, is, chunks, c)
                          : 0;
        c += text[n] == '|';
        if (colon && *text != 'x') text_add(&t, "%lld", (long long)MAX(all, count > 0));
        if (colon && memchr(text, 'x', (size_t)(colon - text))) text_add(&t, "x2");
        if (colon) text = colon;
        text_add_bytes(&t, text, (size_t)(end - text));
        text = end;
    }
    return t.s;
}

/* Of the text of all chunks, or the one that is for all of them. */
static const char *spans_of_chunk(const char *text, int chunk) {
    bool each = strchr(text, '|');
    for (; each && chunk; chunk--) text = strchr(text, '|') + 1;
    return text;
}

/* Has every stage as many chunks as the others? A list has a row for each. */
static bool has_rows(Arena *mem, const PipeSchedule *p) {
    int *n = NEW_ARRAY(mem, int, (size_t)p->stages);
    for (int c = 0; c < p->chunks; c++) n[p->stage_of[c]]++;
    for (int k = 0; k < p->stages; k++)
        if (n[k] * p->stages != p->chunks) return false;
    return true;
}

static void set_layers(Arena *mem, Strategy *t, const PipeSchedule *p,
                       const int64_t *of) {
    int64_t *list = NEW_ARRAY(mem, int64_t, (size_t)p->chunks);
    int *nth = NEW_ARRAY(mem, int, (size_t)p->stages);
    for (int c = 0; c < p->chunks; c++)
        list[nth[p->stage_of[c]]++ * p->stages + p->stage_of[c]] = of[c];
    t->layers = (StageLayers){.list = {list, p->chunks / p->stages, p->stages}};
}

/* By chunk: the same for all, or where they differ one for the least and two for those with
 * more. */
static void shrink_layers(Arena *mem, SimulateJob *s, const Plan *p, int64_t parts) {
    const int64_t whole = s->job.spec.layers;
    const int64_t *was = p->pipe ? p->pipe->layers : &whole;
    int chunks = p->pipe ? p->pipe->schedule->chunks : 1;
    Strategy *t = &s->job.strategy;
    bool uneven = false;
    int64_t least = INT64_MAX, sum = 0, *is = NEW_ARRAY(mem, int64_t, (size_t)chunks);
    if (p->pipe && !has_rows(mem, p->pipe->schedule)) return;
    for (int c = 0; c < chunks; c++)
        if (was[c]) least = MIN(least, was[c]);
    for (int c = 0; c < chunks; c++) uneven |= was[c] && was[c] != least;
    for (int c = 0; c < chunks; c++) {
        const char *text = t->remake ? spans_of_chunk(t->remake, c) : "";
        bool all = atoll(text) == was[c]; /* and nothing is left of the chunk */
        int64_t spans = all ? 0 : counted_spans(text);
        int64_t like = uneven ? 1 + (was[c] > least) : LEAST_LAYERS;
        is[c] = MIN(was[c], MAX(like, spans + (spans > 0)));
        is[c] = smallest(was[c] % parts ? 1 : parts, is[c], was[c]);
        sum += is[c];
    }
    if (p->pipe) set_layers(mem, t, p->pipe->schedule, is);
    if (t->remake) t->remake = small_remake(mem, t->remake, was, is, chunks);
    s->job.spec.layers = sum;
}

/* Of a schedule in a file as many as it has. */
static int64_t small_micro(const Strategy *t, int64_t was) {
    if (t->stages <= 1) return MIN(was, LEAST_MICRO);
    if (t->schedule && ends_with(t->schedule, ".csv")) return was;
    return MIN(was, 2 * t->stages + was % t->stages);
}

/* ---- limits in bytes ---- */

/* Of a layer, as pass zero compares them. */
static int64_t part_bytes(const PartParam *p) {
    return type_bytes(&p->ty);
}

/* That of the smallest parameter that was above it: the same ones are. */
static int64_t small_threshold(Arena *mem, const ModelSpec *s, const ModelSpec *was,
                               int64_t threshold) {
    PartParam small[MODEL_MAX_PARAMS], large[MODEL_MAX_PARAMS];
    int n = model_params(mem, was, large);
    check(model_params(mem, s, small) == n);
    int64_t least = INT64_MAX;
    for (int i = 0; i < n; i++)
        if (part_bytes(&large[i]) >= threshold) least = MIN(least, part_bytes(&small[i]));
    return least;
}

static int64_t in_proportion(int64_t n, double share) {
    return n > 0 ? MAX(1, (int64_t)((double)n * share)) : n;
}

static void shrink_limits(Arena *mem, SimulateJob *s, const Job *was) {
    Job *j = &s->job;
    double weights =
        (double)model_parameters(&j->spec) / (double)model_parameters(&was->spec);
    double rows = (double)(j->batch * j->seq) / (double)(was->batch * was->seq);
    double logits = rows * (double)j->spec.vocab / (double)was->spec.vocab;
    j->strategy.zero_threshold_bytes =
        small_threshold(mem, &j->spec, &was->spec, was->strategy.zero_threshold_bytes);
    j->strategy.bucket_bytes = in_proportion(was->strategy.bucket_bytes, weights);
    s->tile_bytes = in_proportion(s->tile_bytes, logits);
    s->tile_rows = in_proportion(s->tile_rows, rows);
}

/* ---- what has changed ---- */

static void add_change(Arena *mem, SimulateJob *s, const char *what, const char *was,
                       const char *is) {
    if (!strcmp(was, is)) return;
    PUSH(mem, s->change, s->nchanges, s->cap_changes, ((SimulateChange){what, was, is}));
}

static void add_count(Arena *mem, SimulateJob *s, const char *what, int64_t was,
                      int64_t is) {
    add_change(mem, s, what, arena_printf(mem, "%lld", (long long)was),
               arena_printf(mem, "%lld", (long long)is));
}

static const char *bytes_text(Arena *mem, int64_t n) {
    return n == INT64_MAX ? "none is above" : arena_strdup(mem, human((double)n, "B").s);
}

static void add_bytes(Arena *mem, SimulateJob *s, const char *what, int64_t was,
                      int64_t is) {
    add_change(mem, s, what, bytes_text(mem, was), bytes_text(mem, is));
}

static const char *number_text(Arena *mem, double v) {
    return arena_printf(mem, "%g", v);
}

static void list_changes(Arena *mem, SimulateJob *s, const Job *was, int64_t tile_bytes) {
    const Job *j = &s->job;
    const ModelSpec *a = &was->spec, *b = &j->spec;
    const Strategy *t = &was->strategy;
    add_count(mem, s, "num_layers", a->layers, b->layers);
    add_count(mem, s, "hidden_size", a->hidden, b->hidden);
    add_count(mem, s, "num_heads", a->heads, b->heads);
    add_count(mem, s, "n_kv_heads", a->kv_heads, b->kv_heads);
    add_count(mem, s, "head_dim", a->head_dim, b->head_dim);
    add_count(mem, s, "ffn_hidden_size", a->ffn, b->ffn);
    add_count(mem, s, "vocab_size", a->vocab, b->vocab);
    add_count(mem, s, "seq_length", was->seq, j->seq);
    add_count(mem, s, "sliding_window", a->window, b->window);
    add_count(mem, s, "batch_size", was->batch / t->data, j->batch / t->data);
    add_count(mem, s, "micro_batch_num", was->micro, j->micro);
    add_change(mem, s, "initializer_range", number_text(mem, a->block_std),
               number_text(mem, b->block_std));
    if (t->remake) add_change(mem, s, "recompute", t->remake, j->strategy.remake);
    if (t->zero_level)
        add_bytes(mem, s, "parallel_optimizer_threshold", t->zero_threshold_bytes,
                  j->strategy.zero_threshold_bytes);
    if (t->data * t->context * t->tensor > 1)
        add_bytes(mem, s, "bucket_size", t->bucket_bytes, j->strategy.bucket_bytes);
    add_bytes(mem, s, "tile_size", tile_bytes, s->tile_bytes);
}

/* ---- the whole ---- */

static void shrink(Arena *mem, SimulateJob *s, const Plan *plan) {
    const Job *was = plan->job;
    Job *j = &s->job;
    const Strategy *t = &was->strategy;
    int64_t parts = parts_of_entries(t), tile_bytes = s->tile_bytes;
    bool normed = was->spec.sandwich && was->cfg->model_compute_dtype != FLOAT_32;
    shrink_widths(&j->spec, &was->spec, t, parts, normed);
    shrink_layers(mem, s, plan, parts);
    shrink_std(&j->spec, &was->spec);
    j->seq = small_seq(was->seq, t, parts);
    shrink_positions(&j->spec, was->seq, j->seq);
    j->batch = MIN(was->batch, with_entries(t->data * j->parts, parts, was->batch));
    j->micro = small_micro(t, was->micro);
    j->shape.batch = j->batch;
    j->shape.seq = j->seq;
    j->shape.vocab_rows = strategy_vocab(&j->strategy, &j->spec);
    shrink_limits(mem, s, was);
    list_changes(mem, s, was, tile_bytes);
}

SimulateJob simulate_shrink(Arena *mem, const Plan *plan, bool full) {
    const Config *cfg = plan->job->cfg;
    PassOptions o = strategy_pass_options(cfg);
    double scale = cfg->runner_wrapper_loss_scale > 0
                       ? cfg->runner_wrapper_loss_scale
                       : cfg->runner_wrapper_scale_sense_loss_scale_value;
    SimulateJob s = {.job = *plan->job,
                     .shrunk = !full && plan->job->has_spec,
                     .data_vocab = job_data_shape(plan->job, 1, 1).vocab,
                     .tile_bytes = o.tile_bytes,
                     .tile_rows = o.tile_rows,
                     .eps = MAX(o.eps, LEAST_EPS),
                     .loss_scale = MIN(scale, MOST_LOSS_SCALE)};
    s.job.mem = mem;
    if (s.shrunk) shrink(mem, &s, plan);
    add_change(mem, &s, "optimizer.eps", number_text(mem, o.eps),
               number_text(mem, s.eps));
    if (o.scale_loss)
        add_change(mem, &s, "loss_scale", number_text(mem, scale),
                   number_text(mem, s.loss_scale));
    return s;
}

void simulate_tune(const SimulateJob *s, PassOptions *o) {
    o->tile_bytes = s->tile_bytes;
    o->tile_rows = s->tile_rows;
    o->eps = s->eps;
    if (s->shrunk && o->overlap) o->overlap = 2; /* there is little to hide anything */
}
