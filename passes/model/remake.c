/* remake.c - says on the loops over layers what backward makes again, for pass autodiff: the
 * attribute `remake` (made_again.h). Level global.
 *     %y = call %x, %w {fn=@layer; times=12; carry=1; each=1}
 *     -> %y = call %x, %w {fn=@layer; times=12; carry=1; each=1; remake="full"}
 * Where only the first layers of each chunk of a pipeline (of the model, when there is none)
 * are "full", the loop is cut there. What the text says of a call stays. */
#include "passes/model/made_again.h"
#include "passes/passes.h"
#include "passes/pipe/layers.h"
#include "passes/pipe/schedule.h"
#include <stdlib.h>

typedef struct Span { /* layers up to `end` of the model */
    int64_t end;
    const char *policy; /* NULL: none */
} Span;

typedef struct Spans {
    Span *span;
    int n, cap;
} Spans;

static void add_span(Arena *mem, Spans *s, int64_t end, const char *policy) {
    int64_t begin = s->n ? s->span[s->n - 1].end : 0;
    if (end <= begin) return;
    bool same = s->n && made_again_same(s->span[s->n - 1].policy, policy);
    if (same)
        s->span[s->n - 1].end = end;
    else
        PUSH(mem, s->span, s->n, s->cap, ((Span){end, policy}));
}

/* Number c of "2,1,0"; one number counts for every chunk. */
static int64_t layers_of_chunk(const char *text, int c, int chunks) {
    int n = 1;
    for (const char *p = text; *p; p++) n += *p == ',';
    if (n != 1 && n != chunks)
        fail(EXIT_CONFIG, "remake_full has %d numbers for %d chunks of the model", n,
             chunks);
    for (int i = 0; i < c && n > 1; i++) text = strchr(text, ',') + 1;
    char *end;
    long long v = strtoll(text, &end, 10);
    if (end == text || (*end && *end != ',') || v < 0)
        fail(EXIT_CONFIG, "remake_full is whole numbers, \"2,1,0\", not '%s'", text);
    return v;
}

static Spans spans_of(Arena *mem, const PassOptions *o, int64_t layers) {
    const PipeSchedule *schedule = schedule_of_options(mem, o);
    int chunks = schedule ? schedule->chunks : 1;
    const int64_t *of = schedule && o->chunk_layers
                            ? o->chunk_layers
                            : schedule_even_layers(mem, layers, chunks);
    const char *policy = o->remake && o->remake[0] ? o->remake : NULL;
    Spans s = {0};
    for (int64_t c = 0, at = 0; c < chunks; at += of[c++]) {
        int64_t n = o->remake_full && o->remake_full[0]
                        ? layers_of_chunk(o->remake_full, (int)c, chunks)
                        : 0;
        if (n > of[c])
            fail(EXIT_CONFIG,
                 "%lld layers of chunk %lld are to be made again, it has %lld",
                 (long long)n, (long long)c, (long long)of[c]);
        add_span(mem, &s, at + n, "full");
        add_span(mem, &s, MIN(at + of[c], layers), policy);
    }
    return s;
}

static bool any_layer_has(const Func *model, const char *policy) {
    for (const Op *op = model->first; op; op = op->next)
        if (layers_is_loop(op) && made_again_names(op_func(op), policy)) return true;
    return false;
}

static void check_names(const Func *model, const char *policy) {
    for (const char *p = policy; *p; p = made_again_next(p))
        if (!any_layer_has(model, p))
            fail(EXIT_CONFIG,
                 "nothing in a layer is called '%.*s', so it cannot be made again; "
                 "stator train --dump_ir shows the names of values",
                 (int)strcspn(p, ", "), p);
}

/* `at`: layers before this loop. */
static void mark_loop(Arena *mem, const Spans *s, Op *loop, int64_t at) {
    const int64_t times = call_of(loop).times;
    int64_t *end = NEW_ARRAY(mem, int64_t, (size_t)s->n);
    const char **policy = NEW_ARRAY(mem, const char *, (size_t)s->n);
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        int64_t to = MIN(s->span[i].end - at, times);
        if (to <= (n ? end[n - 1] : 0)) continue;
        policy[n] = s->span[i].policy;
        end[n++] = to;
    }
    LoopPieces p = layers_cut(mem, loop, end, n);
    for (int i = 0; i < n; i++)
        if (policy[i]) op_set_str(p.piece[i], "remake", policy[i]);
}

static void mark_loops(Arena *mem, Func *model, const PassOptions *o) {
    Spans s = spans_of(mem, o, layers_count(model));
    if (o->remake && s.n) check_names(model, o->remake);
    int64_t at = 0;
    for (Op *op = model->first, *next; op; op = next) {
        next = op->next;
        if (!layers_is_loop(op)) continue;
        int64_t times = call_of(op).times;
        if (!made_again_policy(op)) mark_loop(mem, &s, op, at);
        at += times;
    }
}

void pass_remake(Module *m, const PassOptions *o) {
    bool any = (o->remake && o->remake[0]) || (o->remake_full && o->remake_full[0]);
    if (!any) return;
    Arena *mem = arena_new();
    Catch c;
    if (CATCH(c)) {
        mark_loops(mem, layers_model(m), o);
        catch_end(&c);
    }
    arena_free(mem);
    if (c.code) fail_again(c.code, c.message);
}
