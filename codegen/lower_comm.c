/* lower_comm.c - collectives as calls of runtime/comm/comm.h, and ops that depend on the
 * rank, which is read when the program runs. */
#include "codegen/lower.h"
#include "runtime/comm/comm.h"
#include "runtime/core/rt.h"

static const Mesh *mesh_of(const Op *op) {
    return &op->fn->mod->mesh;
}

static int members_of(const Op *op) {
    return mesh_group_size(mesh_of(op), op_axes(op));
}

static int dim_of(const Op *op, int i, const char *key) {
    int64_t d = op_int(op, key, 0);
    return (int)(d < 0 ? d + op->in[i]->ty.rank : d);
}

/* ---- collectives ---- */

static CommKind kind_of(const Op *op) {
    static const CommKind kind[OP_COUNT] = {
        [OP_all_reduce] = COMM_ALL_REDUCE,         [OP_all_gather] = COMM_ALL_GATHER,
        [OP_reduce_scatter] = COMM_REDUCE_SCATTER, [OP_all_to_all] = COMM_ALL_TO_ALL,
        [OP_ring_shift] = COMM_RING_SHIFT,
    };
    const Attr *of = op_attr(op, "of");
    return of && !strcmp(of->s, "max") ? COMM_ALL_REDUCE_MAX : kind[op->kind];
}

/* Operand i and its result as comm.h sees them, without the addresses. */
static CommPart comm_part(const Op *op, int i) {
    const Type *in = &op->in[i]->ty, *out = &op->out[i]->ty;
    CommPart p = {.before = 1, .each = 1, .after = 1, .dtype = in->dt};
    int n = members_of(op);
    bool reduces = op->kind == OP_all_reduce || op->kind == OP_reduce_scatter;
    DType sum = dtype_is_float(in->dt) ? dtype_sum(in->dt) : in->dt;
    if (reduces && sum != DT_F32 && sum != DT_I32)
        lower_refuse(op, "its operands must be f32, bf16, f16 or i32");
    if (reduces && dtype_bytes[in->dt] != dtype_bytes[op->in[0]->ty.dt])
        lower_refuse(op, "its operands must be of one width");
    if (op->kind == OP_all_reduce || op->kind == OP_ring_shift) {
        p.after = type_count(in);
    } else if (op->kind == OP_all_to_all) {
        int split = dim_of(op, i, "split"), join = dim_of(op, i, "join");
        TypeAround from = type_around(in, split), to = type_around(out, join);
        p.before = from.before, p.each = from.count / n, p.after = from.after;
        p.join_before = to.before, p.join_each = to.count / n, p.join_after = to.after;
    } else {
        int d = dim_of(op, i, "dim");
        TypeAround from = type_around(in, d);
        p.before = from.before, p.after = from.after;
        p.each = op->kind == OP_all_gather ? in->dim[d] : out->dim[d];
    }
    return p;
}

static CommPart *comm_parts(Lower *l, const Op *op) {
    CommPart *part = NEW_ARRAY(l->mem, CommPart, (size_t)op->nin);
    for (int i = 0; i < op->nin; i++) part[i] = comm_part(op, i);
    return part;
}

int64_t lower_comm_workspace(Lower *l, const Op *op) {
    if (members_of(op) == 1) return 0;
    int64_t staging =
        comm_workspace_bytes(kind_of(op), members_of(op), comm_parts(l, op), op->nin);
    return rt_collective_bytes(op->nin) + staging;
}

enum { LABEL_ITEMS = RT_LABEL_BYTES / sizeof(int64_t) + 1 };

/* A label, for reports, as numbers of eight bytes of text each, ended by a zero; how many. */
static int label_items(Lower *l, const char *text, LLVMValueRef *item) {
    int64_t word[LABEL_ITEMS] = {0};
    int n = (int)(strlen(text) / sizeof(int64_t)) + 1;
    memcpy(word, text, strlen(text));
    for (int k = 0; k < n; k++) item[k] = emit_i64(l->e, word[k]);
    return n;
}

/* The numbers of all parts as rt_collective reads them, and where the op is in the program: a
 * constant of the module. */
static LLVMValueRef shapes(Lower *l, const Op *op, const CommPart *part) {
    char text[RT_LABEL_BYTES] = "";
    int n = op->nin, items = n * RT_PART_NUMBERS;
    LLVMValueRef *item = NEW_ARRAY(l->mem, LLVMValueRef, (size_t)items + LABEL_ITEMS);
    snprintf(text, sizeof text, "of @%s (%%%s over %s)", op->fn->name,
             op->out[0]->name ? op->out[0]->name : "", op_attr(op, "axis")->s);
    items += label_items(l, text, item + items);
    for (int i = 0; i < n; i++) {
        const CommPart *p = &part[i];
        int64_t v[RT_PART_NUMBERS] = {p->before,      p->each,      p->after,
                                      p->join_before, p->join_each, p->join_after,
                                      p->dtype};
        for (int k = 0; k < RT_PART_NUMBERS; k++) {
            item[i * RT_PART_NUMBERS + k] = emit_i64(l->e, v[k]);
        }
    }
    return lower_numbers(l, items, item);
}

void lower_collective(Lower *l, const Op *op) {
    Emit *e = l->e;
    if (members_of(op) == 1) { /* there are no other ranks */
        for (int i = 0; i < op->nin; i++) {
            CALL_RT(l->e, rt_copy, lower_pointer(l, op->out[i]),
                    lower_pointer(l, op->in[i]),
                    emit_i64(l->e, type_bytes(&op->in[i]->ty)));
        }
        return;
    }
    LLVMValueRef ws = lower_workspace(l, op, 0);
    for (int i = 0; i < op->nin; i++) {
        emit_store(e, lower_pointer(l, op->in[i]), emit_at(e, e->ptr, ws, 2 * i), NULL,
                   8);
        emit_store(e, lower_pointer(l, op->out[i]), emit_at(e, e->ptr, ws, 2 * i + 1),
                   NULL, 8);
    }
    LLVMValueRef args[] = {emit_i64(l->e, kind_of(op)), emit_i64(l->e, op_axes(op)),
                           emit_i64(l->e, op->nin), shapes(l, op, comm_parts(l, op)), ws};
    bool late = op_int(op, "late", 0);
    rt_call(e, late ? CALL_rt_collective_begin : CALL_rt_collective, args,
            ARRAY_LEN(args));
}

/* The workspace of a collective that was begun holds its ticket. */
void lower_arrive(Lower *l, const Op *op) {
    const Op *begun = op->in[0]->def;
    if (!begun || !op_int(begun, "late", 0) || members_of(begun) == 1) return;
    CALL_RT(l->e, rt_collective_wait, emit_i64(l->e, begun->nin),
            lower_workspace(l, begun, 0));
}

void lower_reshard(Lower *l, const Op *op) {
    (void)l;
    lower_refuse(op, "pass collect makes collectives of it");
}

/* ---- this rank's part ---- */

static LLVMValueRef coord_of(Lower *l, const Op *op) {
    return part_coord(l->e, mesh_of(op), op_axes(op));
}

void lower_shard(Lower *l, const Op *op) {
    const Type *in = &op->in[0]->ty, *out = &op->out[0]->ty;
    int d = dim_of(op, 0, "dim");
    TypeAround a = type_around(in, d);
    int64_t run = a.after * dtype_bytes[in->dt];
    LLVMValueRef skip = emit_muli(l->e, coord_of(l, op), out->dim[d] * run);
    CALL_RT(l->e, rt_copy_runs, lower_pointer(l, op->out[0]),
            emit_gep(l->e, l->e->i8, lower_pointer(l, op->in[0]), skip),
            emit_i64(l->e, a.before), emit_i64(l->e, out->dim[d] * run),
            emit_i64(l->e, out->dim[d] * run), emit_i64(l->e, in->dim[d] * run));
}

void lower_on_first(Lower *l, const Op *op) {
    CALL_RT(l->e, rt_on_first, lower_pointer(l, op->out[0]), lower_pointer(l, op->in[0]),
            emit_i64(l->e, type_bytes(&op->in[0]->ty)), coord_of(l, op));
}

void lower_coord(Lower *l, const Op *op) {
    LLVMValueRef c = emit_muli(l->e, coord_of(l, op), op_int(op, "by", 1));
    c = LLVMBuildTrunc(l->e->b, c, l->e->i32, "");
    emit_store(l->e, c, lower_pointer(l, op->out[0]), NULL, 4);
}

void lower_index_from(Lower *l, const Op *op) {
    CALL_RT(l->e, rt_index_from, lower_pointer(l, op->out[0]),
            lower_pointer(l, op->in[0]), lower_pointer(l, op->in[1]),
            emit_i64(l->e, type_count(&op->in[0]->ty)));
}

/* ---- other stages ---- */

void lower_tell_task(Lower *l, const Op *op) {
    if (!l->task) return;
    Task t = op_is_task(op) ? l->task[op->id] : op_message_task(l->task, op);
    Task told = l->told;
    if (t.kind == told.kind && t.chunk == told.chunk && t.micro == told.micro) return;
    l->told = t;
    CALL_RT(l->e, rt_task, emit_i64(l->e, t.kind), emit_i64(l->e, t.chunk),
            emit_i64(l->e, t.micro));
}

/* Where the op is, for reports, as a constant of the module: "of stage 1, task 1F3 (%y from
 * stage 0)". */
static LLVMValueRef message_label(Lower *l, const Op *op, const Value *v) {
    char text[RT_LABEL_BYTES] = "";
    bool in = op->kind == OP_receive;
    Task t = l->task ? op_message_task(l->task, op) : (Task){.kind = TASK_NONE};
    snprintf(text, sizeof text, "of stage %d, %s%s (%%%s %s stage %lld)", op->fn->stage,
             t.kind ? "task " : "", op_task_text(l->mem, t), v->name, in ? "from" : "to",
             (long long)op_int(op, in ? "from" : "to", 0));
    LLVMValueRef item[LABEL_ITEMS];
    return lower_numbers(l, label_items(l, text, item), item);
}

static LLVMValueRef message_bytes(Lower *l, const Op *op, const Value *v) {
    if (type_bytes(&v->ty) > COMM_MESSAGE_BYTES)
        lower_refuse(op,
                     "a message has at most 1 GiB: more micro-batches make it smaller");
    return emit_i64(l->e, type_bytes(&v->ty));
}

void lower_send(Lower *l, const Op *op) {
    CALL_RT(l->e, rt_send, lower_pointer(l, op->out[0]),
            emit_i64(l->e, op_int(op, "to", 0)), emit_i64(l->e, op_int(op, "message", 0)),
            lower_pointer(l, op->in[0]), message_bytes(l, op, op->in[0]),
            message_label(l, op, op->in[0]));
}

void lower_sent(Lower *l, const Op *op) {
    CALL_RT(l->e, rt_sent, lower_pointer(l, op->in[0]), message_label(l, op, op->in[1]));
}

void lower_receive(Lower *l, const Op *op) {
    CALL_RT(l->e, rt_receive, emit_i64(l->e, op_int(op, "from", 0)),
            emit_i64(l->e, op_int(op, "message", 0)), lower_pointer(l, op->out[0]),
            message_bytes(l, op, op->out[0]), message_label(l, op, op->out[0]));
}
