/* Tests of pass tile: models train to the same losses whether the head goes over its rows in
 * parts or not, under strategies of every kind with all ranks simulated by the interpreter;
 * no value of all rows and the vocabulary is left; and the memory that it saves. */
#include "../plans.h"
#include "../simulated.h"

TEST_LABEL(RELEASED);

static const char to_local[] =
    "simplify,seed,zero,cut,autodiff,simplify,halve,train,simplify,shard,reshard,collect,"
    "simplify,localize,simplify,keep,beside,sink,simplify,pipeline,simplify,ahead,"
    "simplify,tile,"
    "simplify";

enum { STEPS = 3 };

typedef struct Way {
    const char *name, *model;
    int dp, tp, cp, ring, sp, vocab, zero, micro, beside, stages;
    SimChange change;
    const char *schedule; /* NULL: 1f1b */
    int chunks;           /* of a stage; 0: 1 */
} Way;

static Strategy strategy_of(const Way *w) {
    return (Strategy){SIM_STRATEGY(w), .stages = w->stages, .chunks = MAX(w->chunks, 1),
                      .schedule = w->schedule ? w->schedule : "1f1b"};
}

static bool is_of_tiles(const Func *f) {
    return strstr(f->name, ".tile") != NULL;
}

static int count_tiles(const Module *m) {
    int n = 0;
    for (const Func *f = m->first; f; f = f->next) n += is_of_tiles(f);
    return n;
}

/* The most elements of a value whose last dimension are the classes that a rank has, and
 * whose others are sequences and tokens. */
static int64_t most_logits(const Simulated *s) {
    int64_t classes = strategy_vocab(&s->strategy, &s->spec), most = 0;
    if (s->strategy.vocab_parallel) classes /= s->strategy.tensor;
    for (const Func *f = s->m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next)
            for (int i = 0; i < op->nout; i++) {
                const Type *t = &op->out[i]->ty;
                bool logits = t->rank >= 3 && t->dim[t->rank - 1] == classes;
                if (logits) most = MAX(most, type_count(t));
            }
    return most;
}

static SimCurve curve_of(const Way *w, int64_t tile_bytes, int64_t *logits, int *tiles) {
    Arena *mem = arena_new();
    SimChange change = w->change;
    change.tile_bytes = tile_bytes;
    Simulated s = sim_open(mem, w->model, strategy_of(w), w->micro, change, to_local);
    *logits = most_logits(&s);
    *tiles = count_tiles(s.m);
    SimCurve c = sim_train(&s, STEPS);
    arena_free(mem);
    return c;
}

static void same_curve(const Way *w) {
    int64_t whole_logits, logits;
    int none, tiles;
    test_at("%s", w->name);
    SimCurve whole = curve_of(w, 0, &whole_logits, &none);
    EXPECT(none == 0 && whole_logits > 0);
    int64_t bytes = 4 * whole_logits / 3; /* less than half */
    SimCurve parts = curve_of(w, bytes, &logits, &tiles);
    if (tiles == 0 || logits == 0 || 4 * logits > bytes)
        test_fail(__FILE__, __LINE__, "%s: %d tiles, %lld logits of %lld", w->name, tiles,
                  (long long)logits, (long long)whole_logits);
    for (int i = 0; i < STEPS; i++) {
        double off = fabs(parts.loss[i] - whole.loss[i]) / whole.loss[i];
        double norm_off = fabs(parts.norm[i] - whole.norm[i]) / whole.norm[i];
        if (!(off <= 1e-6 && norm_off <= 1e-5))
            test_fail(__FILE__, __LINE__,
                      "step %d: loss %.9g, wanted %.9g; norm off %.2g", i + 1,
                      parts.loss[i], whole.loss[i], norm_off);
    }
}

static const Way ways[] = {
    {"one rank", "gpt2_tiny", 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, {0}},
    {"another head", "gpt2_untied", 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, {0}},
    {"Llama", "llama_tiny", 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, {0}},
    {"micro-batches", "gpt2_tiny", 1, 1, 1, 1, 0, 0, 0, 4, 0, 1, {0}},
    {"dropout", "gpt2_tiny", 1, 1, 1, 1, 0, 0, 0, 2, 0, 1, {.resid_dropout = 0.1}},
    {"labels of -1", "gpt2_tiny", 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, {.masked = true}},
    {"documents", "llama_tiny", 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, {.documents = true}},
    {"parts", "gpt2_tiny", 1, 2, 1, 1, 0, 1, 0, 1, 1, 1, {.interleave = 2}},
    {"tp, vocabulary split", "gpt2_tiny", 1, 2, 1, 1, 0, 1, 0, 1, 0, 1, {0}},
    {"the same, labels of -1",
     "gpt2_tiny",
     1,
     2,
     1,
     1,
     1,
     1,
     0,
     2,
     1,
     1,
     {.masked = true}},
    {"tp, vocabulary whole", "gpt2_tiny", 1, 2, 1, 1, 1, 0, 0, 1, 0, 1, {0}},
    {"dp, ZeRO 1", "gpt2_tiny", 2, 1, 1, 1, 0, 0, 1, 2, 1, 1, {0}},
    {"dp, ZeRO 2", "gpt2_tiny", 2, 1, 1, 1, 0, 0, 2, 2, 1, 1, {0}},
    {"dp, tp, ZeRO 3", "llama_tiny", 2, 2, 1, 1, 0, 1, 3, 2, 1, 1, {0}},
    {"cp by heads", "gpt2_tiny", 1, 1, 2, 1, 0, 0, 1, 1, 0, 1, {0}},
    {"cp in a ring", "gpt2_tiny", 1, 1, 2, 2, 0, 0, 0, 1, 1, 1, {.masked = true}},
    {"stages", "gpt2_tiny", 1, 1, 1, 1, 0, 0, 0, 4, 0, 2, {0}},
    {"stages, vocabulary split", "gpt2_tiny", 1, 2, 1, 1, 0, 1, 0, 2, 0, 2, {0}},
    {"stages, one micro-batch", "gpt2_untied", 1, 1, 1, 1, 0, 0, 0, 1, 0, 2, {0}},
    {"gpipe", "llama_tiny", 1, 1, 1, 1, 0, 0, 0, 4, 0, 2, {.masked = true}, "gpipe"},
    {"breadth first", "gpt2_tiny", 2, 1, 1, 1, 0, 0, 1, 2, 0, 2, {0}, "breadth_first"},
    {"parts in stages",
     "gpt2_tiny",
     1,
     2,
     1,
     1,
     1,
     1,
     0,
     2,
     1,
     2,
     {.interleave = 2, .resid_dropout = 0.1}},
};

TEST_LIMIT(same_losses, 120) {
    for (int i = 0; i < ARRAY_LEN(ways); i++) same_curve(&ways[i]);
}

/* ---- memory ---- */

static const char gpt2_124m[] =
    "model:\n"
    "  model_config: {type: GPT2Config, vocab_size: 50257, seq_length: 1024,\n"
    "                 hidden_size: 768, num_layers: 2, num_heads: 12}\n"
    "runner_config: {batch_size: 4}\n"
    "context: {threads: 1}\n";

/* Of the last stage. */
static double total_bytes(const char *keys) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, gpt2_124m, keys);
    const Plan *last = p.pipe ? &p.pipe->stage[p.pipe->schedule->stages - 1] : &p;
    double bytes = (double)last->memory.total_bytes;
    arena_free(mem);
    return bytes;
}

/* The logits are 823 MB, a part of them 103 MB, or half of both where two ranks split them. In
 * a pipeline gpipe would keep those of all micro-batches. */
TEST(memory) {
    static const struct {
        const char *keys;
        double logits_bytes;
    } cases[] = {
        {"", 823e6},
        {"tp 2 emb_dp False", 412e6},
        {"pp 2 micro 2", 823e6},
        {"pp 2 micro 2 schedule gpipe", 2 * 823e6},
        {"pp 2 micro 2 schedule zero_bubble_h1", 823e6},
    };
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        Arena *mem = arena_new();
        double parts =
            total_bytes(arena_printf(mem, "%s context.tile_size 100MB", cases[i].keys));
        double whole =
            total_bytes(arena_printf(mem, "%s context.tile_size 0B", cases[i].keys));
        printf("  %s: %.0f MB, with all logits %.0f MB\n", cases[i].keys, parts / 1e6,
               whole / 1e6);
        /* not all of them is saved: then the rest of the step is the most, and parts of a fifth
         * save no more */
        EXPECT(whole - parts > 2.0 / 3 * cases[i].logits_bytes);
        arena_free(mem);
    }
}
