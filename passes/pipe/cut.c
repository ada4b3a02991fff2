/* cut.c - cuts the model into the chunks of a pipeline. Level global.
 *     %x = embed ...; %y = call %x, %w {fn=@layer; times=12; carry=1; each=1}; %loss = ...
 *     -> %x = call %tokens, %table, %w {fn=@chunk.0}          with layers 0 to 5
 *        %loss = call %x, %labels, %w#6 {fn=@chunk.1}         with layers 6 to 11
 * A layer is a run of a loop. Ops between loops go with the layers before them, those before
 * the first with chunk 0, those behind the last with the last chunk. Where the text marks the
 * ops that begin a chunk (marks.h), these count instead. What can be made again from data and
 * constants, and views of parameters, is made in each chunk that reads it. A stacked parameter
 * becomes one argument for each chunk: `tensor` is its name and `first` its first row there. A
 * parameter that chunks of several stages read is an argument for each of them, in training for each
 * chunk, as its gradients of a micro-batch are made at different times; `same` names that of the
 * first, and pass train adds their gradients up. The module means what it meant. */
#include "ir/placement.h"
#include "passes/passes.h"
#include "passes/pipe/layers.h"
#include "passes/pipe/marks.h"
#include "passes/pipe/schedule.h"

typedef struct Piece { /* of a loop, or an op that is marked; in the order of the model */
    const Op *op;
    int chunk;
} Piece;

typedef struct Cut {
    Module *m;
    const PassOptions *o;
    const PipeSchedule *schedule;
    Func *f;
    Arena *mem;
    int chunks;
    Marks marks;
    int64_t *end; /* by chunk: number of layers up to its end */
    Piece *piece;
    int npieces, piece_cap;
    int *chunk_of; /* by op id; -1: made in every chunk that reads it */
    Func **body;   /* by chunk */
    Value ***in;   /* by chunk: the operands of its call, values of the model */
    Value **now;   /* by value id of the model: its value behind the calls */
} Cut;

/* ---- loops ---- */

int64_t module_layers(const Module *m) {
    return layers_count(layers_model(m));
}

static const int64_t *chunk_layers(Cut *k, int64_t there) {
    if (k->marks.any) return marks_layers(k->mem, &k->marks, k->f, k->chunks);
    if (k->o->chunk_layers) return k->o->chunk_layers;
    return schedule_even_layers(k->mem, there, k->chunks);
}

static void read_layers(Cut *k) {
    int64_t n = 0, there = layers_count(k->f);
    k->chunks = k->schedule->chunks;
    k->end = NEW_ARRAY(k->mem, int64_t, (size_t)k->chunks);
    k->marks = marks_read(k->mem, k->f);
    const int64_t *layers = chunk_layers(k, there);
    module_drop_attr(k->m, "stage");
    for (int c = 0; c < k->chunks; c++) k->end[c] = n += layers[c];
    if (n != there)
        fail(
            EXIT_CONFIG,
            "the stages have %lld layers together, the model has %lld (runs of the loops "
            "of @%s)",
            (long long)n, (long long)there, k->f->name);
}

static void add_piece(Cut *k, const Op *op, int chunk) {
    Piece p = {op, chunk};
    PUSH(k->mem, k->piece, k->npieces, k->piece_cap, p);
}

/* `at`: layers before this loop. */
static void cut_loop(Cut *k, Op *op, int64_t at) {
    const int64_t times = call_of(op).times;
    int64_t *end = NEW_ARRAY(k->mem, int64_t, (size_t)k->chunks);
    int *chunk = NEW_ARRAY(k->mem, int, (size_t)k->chunks), n = 0;
    for (int c = 0; c < k->chunks; c++) {
        int64_t to = MIN(k->end[c] - at, times);
        if (to <= (n ? end[n - 1] : 0)) continue;
        chunk[n] = c;
        end[n++] = to;
    }
    LoopPieces p = layers_cut(k->mem, op, end, n);
    for (int i = 0; i < p.n; i++) add_piece(k, p.piece[i], chunk[i]);
}

/* Layers that are made again together stay so. */
static void place_whole(Cut *k, const Op *op, int64_t at) {
    int c = 0;
    while (k->end[c] <= at) c++;
    if (at + layers_of(op) > k->end[c])
        fail_op(op, "a stage of the pipeline would end between these layers, which are "
                    "made again together");
    add_piece(k, op, c);
}

static void find_pieces(Cut *k) {
    int64_t at = 0;
    int nth = 0;
    for (Op *op = k->f->first, *next; op; op = next) {
        const Mark *mark = nth < k->marks.n ? &k->marks.mark[nth] : NULL;
        bool marked = mark && mark->op == op;
        int64_t layers = layers_of(op);
        next = op->next;
        nth += marked;
        if (op_is_loop(op))
            cut_loop(k, op, at);
        else if (layers)
            place_whole(k, op, at);
        else if (marked)
            add_piece(k, op, mark->chunk);
        at += layers;
    }
}

/* ---- which op is in which chunk ---- */

/* Can every chunk make it for itself: from data and constants, or as another view of a
 * parameter? `again` is by value id. */
static bool is_made_again(const Func *f, const Op *op, const bool *again) {
    if (op_is_call(op) || op_has(op, F_EFFECT)) return false;
    bool view = op->nin == 1 && (op_has(op, F_MOVE | F_VIEW));
    for (int i = 0; i < op->nin; i++) {
        const Value *v = op->in[i];
        bool given = !v->def && (view || arg_role(f, v->nth) != ARG_param);
        if (!given && !(v->def && again[v->id])) return false;
    }
    return true;
}

/* Of a view of a parameter only views are made again. */
static bool views_param(const Func *f, const Op *op, const bool *views) {
    for (int i = 0; i < op->nin; i++)
        if (layers_is_param(f, op->in[i]) || views[op->in[i]->id]) return true;
    return false;
}

static void assign_chunks(Cut *k) {
    Func *f = k->f;
    func_number(f);
    bool *again = NEW_ARRAY(k->mem, bool, (size_t)f->nvalues + 1);
    bool *views = NEW_ARRAY(k->mem, bool, (size_t)f->nvalues + 1);
    k->chunk_of = NEW_ARRAY(k->mem, int, (size_t)f->nops + 1);
    int chunk = 0, piece = 0;
    for (const Op *op = f->first; op; op = op->next) {
        if (piece < k->npieces && k->piece[piece].op == op)
            chunk = k->piece[piece++].chunk;
        else if (piece == k->npieces && !k->marks.any)
            chunk = k->chunks - 1;
        bool moves = op->nin == 1 && op_has(op, F_MOVE | F_VIEW);
        bool param = views_param(f, op, views);
        bool free = is_made_again(f, op, again) && (!param || moves);
        k->chunk_of[op->id] = free ? -1 : chunk;
        for (int i = 0; i < op->nout && free; i++) {
            again[op->out[i]->id] = true;
            views[op->out[i]->id] = param;
        }
    }
}

/* What every chunk can make for itself is nobody's work. */
static void check_marks(const Cut *k) {
    bool *works = NEW_ARRAY(k->mem, bool, (size_t)k->chunks);
    for (const Op *op = k->f->first; op; op = op->next)
        if (k->chunk_of[op->id] >= 0) works[k->chunk_of[op->id]] = true;
    for (int i = 0; i < k->marks.n; i++) {
        const Mark *m = &k->marks.mark[i];
        if (i == 0 && !works[0])
            fail_op(m->op, "stage=%d: there is no op before it for chunk 0", m->chunk);
        if (!works[m->chunk])
            fail_op(m->op,
                    "stage=%d: chunk %d has no op but such that every chunk makes for "
                    "itself",
                    m->chunk, m->chunk);
    }
}

/* ---- chunks ---- */

/* By op id: is it in chunk c, or made again there? `results`: it also makes what the model
 * returns. */
static bool *ops_of(Cut *k, int c, bool results) {
    const Func *f = k->f;
    bool *read = NEW_ARRAY(k->mem, bool, (size_t)f->nvalues + 1);
    bool *mine = NEW_ARRAY(k->mem, bool, (size_t)f->nops + 1);
    for (int i = 0; i < f->nret && results; i++) read[f->ret[i]->id] = true;
    for (const Op *op = f->last; op; op = op->prev) {
        int of = k->chunk_of[op->id];
        mine[op->id] = of == c || (of < 0 && op_makes_marked(op, read));
        if (mine[op->id]) op_mark_operands(op, read);
    }
    return mine;
}

/* Is the value of chunk c read in another one, or returned by the model? */
static bool leaves(const Cut *k, const Value *v, int c) {
    for (const Op *op = v->def->next; op; op = op->next)
        if (k->chunk_of[op->id] != c && op_reads_value(op, v)) return true;
    return func_result(k->f, v) >= 0;
}

/* The argument of the chunk that its result v overwrites; -1: none. */
static int argument_under(const Cut *k, const Value *v, Value **map) {
    const Func *f = k->f;
    for (int r = 0; r < f->nret; r++) {
        const Value *under = f->alias[r] >= 0 ? f->arg[f->alias[r]] : NULL;
        if (f->ret[r] == v && under && map[under->id]) return map[under->id]->nth;
    }
    return -1;
}

static Value *chunk_argument(Cut *k, int c, Value *v) {
    Func *body = k->body[c];
    k->in[c][body->narg] = v;
    return func_arg(body, v->name, v->ty);
}

static void fill_chunk(Cut *k, int c, Value **result, int *nresults) {
    Func *f = k->f, *body = k->body[c];
    bool last = c == k->chunks - 1;
    bool *mine = ops_of(k, c, last);
    Value **map = NEW_ARRAY(k->mem, Value *, (size_t)f->nvalues + 1);
    k->in[c] = NEW_ARRAY(k->mem, Value *, (size_t)f->nvalues + 1);
    Builder b = build_at_end(body);
    for (const Op *op = f->first; op; op = op->next) {
        if (!mine[op->id]) continue;
        for (int i = 0; i < op->nin; i++) {
            Value *v = op->in[i];
            if (!map[v->id]) map[v->id] = chunk_argument(k, c, v);
        }
        op_clone(&b, op, map);
    }
    *nresults = 0;
    for (const Op *op = f->first; op; op = op->next) {
        bool again = last && k->chunk_of[op->id] < 0 && mine[op->id];
        for (int i = 0; i < op->nout; i++) {
            Value *v = op->out[i];
            bool out = k->chunk_of[op->id] == c && leaves(k, v, c);
            if (!out && !(again && func_result(f, v) >= 0)) continue;
            func_ret(body, map[v->id], argument_under(k, v, map));
            result[(*nresults)++] = v;
        }
    }
}

/* The argument by which a chunk has the parameter or cache. */
static Value *argument_of_chunk(Cut *k, Value *v, int chunk) {
    Func *f = k->f;
    int owner = func_arg_stage(f, v->nth), stage = k->schedule->stage_of[chunk];
    bool shares = !schedule_has_backward(k->schedule);
    if (owner < 0) func_arg_set_int(f, v->nth, "stage", stage);
    if (owner < 0 || (shares && owner == stage)) return v;
    for (int i = 0; i < f->narg && shares; i++)
        if (func_arg_stage(f, i) == stage && func_arg_same(f, i) == v->nth)
            return f->arg[i];
    const char *name = arena_printf(k->m->mem, "%s#chunk%d", v->name, chunk);
    const Attr *attrs = f->arg_attr[v->nth];
    Value *copy = func_arg(f, name, v->ty);
    f->arg_attr[copy->nth] = attr_copy(k->m->mem, attrs);
    func_arg_set_text(f, copy->nth, "same", ATTR_STR, v->name);
    func_arg_set_int(f, copy->nth, "stage", stage);
    return copy;
}

static void call_chunk(Cut *k, int c, Value **result, int nresults) {
    Func *f = k->f, *body = k->body[c];
    Builder b = build_at_end(f);
    for (int i = 0; i < body->narg; i++) {
        Value *v = k->in[c][i];
        bool stored =
            layers_is_param(f, v) || (!v->def && func_result_over(f, v->nth) >= 0);
        k->in[c][i] = v->def ? k->now[v->id] : stored ? argument_of_chunk(k, v, c) : v;
    }
    Op *call = build_call(&b, body, body->narg, k->in[c]);
    for (int i = 0; i < nresults; i++) {
        k->now[result[i]->id] = call->out[i];
        call->out[i]->name = result[i]->name;
        call->out[i]->ty = result[i]->ty;
    }
}

/* A parameter that no chunk reads is updated all the same, by one stage. */
static void place_unread(Cut *k) {
    Func *f = k->f;
    for (int i = 0; i < f->narg; i++)
        if (layers_is_param(f, f->arg[i]) && func_arg_stage(f, i) < 0)
            func_arg_set_int(f, i, "stage", 0);
}

/* The ops that were there up to `last` are in the chunks now. */
static void replace_body(Cut *k, Op *last) {
    Func *f = k->f;
    for (int i = 0; i < f->nret; i++)
        if (f->ret[i]->def) f->ret[i] = k->now[f->ret[i]->id];
    for (Op *op = last, *prev; op; op = prev) {
        prev = op->prev;
        op_remove(op);
    }
}

static void make_chunks(Cut *k) {
    Func *f = k->f;
    Op *last = f->last;
    Value **result = NEW_ARRAY(k->mem, Value *, (size_t)f->nvalues + 1);
    k->now = NEW_ARRAY(k->mem, Value *, (size_t)f->nvalues + 1);
    k->body = NEW_ARRAY(k->mem, Func *, (size_t)k->chunks);
    k->in = NEW_ARRAY(k->mem, Value **, (size_t)k->chunks);
    Value ***results = NEW_ARRAY(k->mem, Value **, (size_t)k->chunks);
    int *n = NEW_ARRAY(k->mem, int, (size_t)k->chunks);
    for (int c = 0; c < k->chunks; c++) {
        const char *name = arena_printf(k->m->mem, "chunk.%d", c);
        k->body[c] = func_new_unique(k->m, name, ROLE_FUNC);
        k->body[c]->task = TASK_FORWARD;
        k->body[c]->chunk = c;
        fill_chunk(k, c, result, &n[c]);
        results[c] = NEW_ARRAY(k->mem, Value *, (size_t)n[c] + 1);
        memcpy(results[c], result, (size_t)n[c] * sizeof *result);
    }
    for (int c = 0; c < k->chunks; c++) call_chunk(k, c, results[c], n[c]);
    place_unread(k);
    replace_body(k, last);
}

void pass_cut(Module *m, const PassOptions *o) {
    Cut k = {.m = m, .o = o, .schedule = schedule_of_options(m->mem, o)};
    if (!k.schedule) return;
    k.f = layers_model(m);
    k.mem = arena_scratch();
    read_layers(&k);
    find_pieces(&k);
    assign_chunks(&k);
    check_marks(&k);
    make_chunks(&k);
    arena_free(k.mem);
}
