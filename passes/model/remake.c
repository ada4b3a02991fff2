/* remake.c - says on the loops over layers what backward makes again, for pass autodiff: the
 * attribute `remake` (made_again.h). Level global.
 *     %y = call %x, %w {fn=@layer; times=12; carry=1; each=1}
 *     -> %y = call %x, %w {fn=@layer; times=12; carry=1; each=1; remake="full"}
 * Where it differs from layer to layer (remake_spans.h) the loop is cut there. Layers that
 * are made again together become a call of a function with a loop. What the text says of a
 * call stays. */
#include "passes/model/made_again.h"
#include "passes/model/remake_spans.h"
#include "passes/passes.h"
#include "passes/pipe/layers.h"
#include "passes/pipe/schedule.h"

static RemakeSpans spans_of(Arena *mem, const PassOptions *o, int64_t layers) {
    const PipeSchedule *schedule = schedule_of_options(mem, o);
    int chunks = schedule ? schedule->chunks : 1;
    const int64_t *of = schedule && o->chunk_layers
                            ? o->chunk_layers
                            : schedule_even_layers(mem, layers, chunks);
    return remake_spans_parse(mem, o->remake, of, chunks);
}

static bool any_layer_has(const Func *model, const char *policy) {
    for (const Op *op = model->first; op; op = op->next)
        if (op_is_loop(op) && made_again_names(op_func(op), policy)) return true;
    return false;
}

static void check_names(const Func *model, const char *policy, SourcePos at) {
    static const char hint[] = "stator train --dump_ir shows the names of values";
    for (const char *p = policy; *p; p = made_again_next(p)) {
        int n = (int)strcspn(p, ", ");
        if (any_layer_has(model, p)) continue;
        if (at.line)
            fail_at(EXIT_CONFIG, at, hint,
                    "nothing in a layer is called '%.*s', so it cannot be made again", n,
                    p);
        fail(EXIT_CONFIG,
             "nothing in a layer is called '%.*s', so it cannot be made again; %s", n, p,
             hint);
    }
}

/* ---- layers together ---- */

/* @f.together, which runs the loop. */
static Func *together_make(const Op *loop) {
    Module *m = loop->fn->mod;
    const Func *layer = op_func(loop);
    Func *f =
        func_new_unique(m, arena_printf(m->mem, "%s.together", layer->name), ROLE_FUNC);
    Value **in = NEW_ARRAY(m->mem, Value *, (size_t)loop->nin + 1);
    Builder b = build_at_end(f);
    for (int i = 0; i < loop->nin; i++)
        in[i] = func_arg(f, loop->in[i]->name, loop->in[i]->ty);
    Op *op = op_again(&b, loop, in);
    for (int i = 0; i < op->nout; i++) func_ret(f, op->out[i], -1);
    return f;
}

/* Are the operands of the same types, so that one function runs both? */
static bool same_work(const Op *a, const Op *b) {
    if (op_func(a) != op_func(b) || call_of(a).times != call_of(b).times) return false;
    for (int i = 0; i < a->nin; i++)
        if (!type_equal(&a->in[i]->ty, &b->in[i]->ty)) return false;
    return true;
}

/* Each piece becomes a call of a function that runs its layers, made again as a whole. */
static void mark_together(Arena *mem, LoopPieces p, const char *policy) {
    Op **call = NEW_ARRAY(mem, Op *, (size_t)p.n);
    Op **loop = NEW_ARRAY(mem, Op *, (size_t)p.n);
    for (int i = 0; i < p.n; i++) {
        Func *f = NULL;
        for (int k = 0; k < i && !f; k++)
            if (same_work(p.piece[i], loop[k])) f = op_func(call[k]);
        loop[i] = p.piece[i];
        if (!f) f = together_make(loop[i]);
        Builder b = build_before(loop[i]);
        char *attrs = bfmt(&b, "fn=@%s; remake=\"%s\"", f->name, policy);
        call[i] =
            build_list(&b, loop[i]->kind, attrs, loop[i]->nin, loop[i]->in, NULL, 0);
        const Attr *mark = op_attr(loop[i], "stage");
        if (mark) op_set_attr(call[i], mark);
        for (int k = 0; k < call[i]->nout; k++) {
            call[i]->out[k]->name = loop[i]->out[k]->name;
            call[i]->out[k]->ty = loop[i]->out[k]->ty;
            func_replace(loop[i]->fn, loop[i]->out[k], call[i]->out[k]);
        }
    }
    for (int i = 0; i < p.n; i++) op_remove(loop[i]);
}

static void cut_together(Arena *mem, Op *loop, const RemakeSpan *s) {
    const int64_t times = call_of(loop).times;
    int n = 0;
    int64_t *end = NEW_ARRAY(mem, int64_t, (size_t)times);
    for (int64_t at = 0; at < times;) end[n++] = at = MIN(at + s->together, times);
    mark_together(mem, layers_cut(mem, loop, end, n), s->policy);
}

/* ---- loops ---- */

/* `at`: layers before this loop. */
static void mark_loop(Arena *mem, const RemakeSpans *s, Op *loop, int64_t at) {
    const int64_t times = call_of(loop).times;
    int64_t *end = NEW_ARRAY(mem, int64_t, (size_t)s->n);
    const RemakeSpan **span = NEW_ARRAY(mem, const RemakeSpan *, (size_t)s->n);
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        int64_t to = MIN(s->span[i].end - at, times);
        if (to <= (n ? end[n - 1] : 0)) continue;
        span[n] = &s->span[i];
        end[n++] = to;
    }
    LoopPieces p = layers_cut(mem, loop, end, n);
    for (int i = 0; i < n; i++) {
        if (!span[i]->policy) continue;
        if (span[i]->together > 1)
            cut_together(mem, p.piece[i], span[i]);
        else
            op_set_str(p.piece[i], "remake", span[i]->policy);
    }
}

static void mark_loops(Arena *mem, Func *model, const PassOptions *o) {
    RemakeSpans s = spans_of(model->mod->mem, o, layers_count(model));
    int64_t at = 0;
    for (int i = 0; i < s.n; i++)
        if (s.span[i].policy) check_names(model, s.span[i].policy, o->remake_pos);
    for (Op *op = model->first, *next; op; op = next) {
        next = op->next;
        int64_t layers = layers_of(op);
        if (op_is_loop(op) && !made_again_policy(op)) mark_loop(mem, &s, op, at);
        at += layers;
    }
}

void pass_remake(Module *m, const PassOptions *o) {
    if (!o->remake || !o->remake[0]) return;
    Arena *mem = arena_scratch();
    mark_loops(mem, layers_model(m), o);
    arena_free(mem);
}
