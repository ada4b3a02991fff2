/* rank_part.c - see rank_part.h. */
#include "codegen/rank_part.h"
#include "codegen/rt_call.h"

int64_t part_step(const Part *p, int d) {
    return sizes_product(p->whole.dim + d + 1, p->whole.rank - d - 1);
}

static int64_t local_size(const Mesh *mesh, const Type *whole, int d) {
    return whole->dim[d] / mesh_group_size(mesh, whole->split[d]);
}

static bool is_zigzag(const Part *p, int d) {
    return p->zigzag > 1 && d == 1;
}

/* Neighbouring dimensions are one group when the inner one is whole. */
Part part_of(const Mesh *mesh, const Type *whole, int64_t zigzag) {
    Part p = {.mesh = mesh, .whole = *whole, .zigzag = zigzag};
    for (int d = 0; d < whole->rank; d++) {
        int64_t size = local_size(mesh, whole, d);
        bool apart = is_zigzag(&p, d) || is_zigzag(&p, d - 1);
        if (d && size == whole->dim[d] && !apart)
            p.size[p.ngroups - 1] *= size;
        else
            p.size[p.ngroups++] = size;
        p.step[p.ngroups - 1] = part_step(&p, d);
        if (is_zigzag(&p, d)) p.zigzag_group = p.ngroups - 1;
    }
    /* a scalar; or neighbours of a zigzag dimension, which are none in the whole */
    if (!p.ngroups || is_zigzag(&p, whole->rank - 1)) {
        p.size[p.ngroups] = p.step[p.ngroups] = 1;
        p.ngroups++;
    }
    return p;
}

LLVMValueRef part_coord(Emit *e, const Mesh *mesh, Axes axes) {
    LLVMValueRef c = emit_i64(e, 0);
    for (int k = 0; k < mesh->naxes; k++) {
        int a = axes & AXES_REVERSED ? mesh->naxes - 1 - k : k;
        if (!(axes >> a & 1) || mesh->axis[a].size == 1) continue;
        LLVMValueRef mine = CALL_RT(e, rt_coord, emit_i64(e, a));
        c = emit_add(e, emit_muli(e, c, mesh->axis[a].size), mine);
    }
    return c;
}

LLVMValueRef part_base(Emit *e, const Part *p) {
    LLVMValueRef base = emit_i64(e, 0);
    for (int d = 0; d < p->whole.rank; d++) {
        int64_t distance = local_size(p->mesh, &p->whole, d) * part_step(p, d);
        if (is_zigzag(p, d)) continue;
        LLVMValueRef c = part_coord(e, p->mesh, p->whole.split[d]);
        base = emit_add(e, base, emit_muli(e, c, distance));
    }
    return base;
}

LLVMValueRef rng_micro_element(Emit *e, LLVMValueRef rng, int64_t count) {
    LLVMValueRef at = emit_at(e, e->i32, rng, RNG_MICRO);
    LLVMValueRef micro = emit_load(e, e->i32, at, NULL, 4);
    micro = LLVMBuildSExt(e->b, micro, e->i64, "");
    return emit_muli(e, micro, count);
}

LLVMValueRef part_first_row(Emit *e, const Part *p) {
    if (p->zigzag <= 1) return emit_i64(e, 0);
    LLVMValueRef c = part_coord(e, p->mesh, p->whole.split[1]);
    return emit_muli(e, c, local_size(p->mesh, &p->whole, 1));
}

static LLVMValueRef number_like(Emit *e, LLVMValueRef like, int64_t v) {
    int lanes = emit_lanes(like);
    return lanes ? emit_splat_n(e, emit_i64(e, v), lanes) : emit_i64(e, v);
}

/* zigzag_position of `row` rows of the whole. */
static LLVMValueRef true_row(Emit *e, const Part *p, LLVMValueRef row) {
    LLVMValueRef two = number_like(e, row, 2);
    LLVMValueRef size = number_like(e, row, p->whole.dim[1] / (2 * p->zigzag));
    LLVMValueRef slot = emit_div(e, row, size), chunk = emit_div(e, slot, two);
    LLVMValueRef late = emit_sub(e, number_like(e, row, 2 * p->zigzag - 1), chunk);
    LLVMValueRef even =
        emit_icmp(e, LLVMIntEQ, emit_rem(e, slot, two), number_like(e, row, 0));
    chunk = emit_select(e, even, chunk, late);
    return emit_add(e, emit_mul(e, chunk, size), emit_rem(e, row, size));
}

LLVMValueRef part_distance(Emit *e, const Part *p, LLVMValueRef first_row,
                           LLVMValueRef i) {
    LLVMValueRef sum = number_like(e, i, 0);
    for (int g = p->ngroups - 1; g >= 0; g--) {
        LLVMValueRef size = number_like(e, i, p->size[g]);
        LLVMValueRef index = g ? emit_rem(e, i, size) : i;
        if (g) i = emit_div(e, i, size);
        if (p->zigzag > 1 && g == p->zigzag_group) {
            LLVMValueRef first = first_row;
            if (emit_lanes(i)) first = emit_splat_n(e, first, emit_lanes(i));
            index = true_row(e, p, emit_add(e, index, first));
        }
        sum = emit_add(e, sum, emit_mul(e, index, number_like(e, index, p->step[g])));
    }
    return sum;
}
