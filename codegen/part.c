/* part.c - see part.h. */
#include "part.h"

int64_t part_step(const Part *p, int d) {
    int64_t step = 1;
    for (int k = d + 1; k < p->whole.rank; k++) step *= p->whole.dim[k];
    return step;
}

static int64_t local_size(const Mesh *mesh, const Type *whole, int d) {
    return whole->dim[d] / mesh_group_size(mesh, whole->split[d]);
}

bool part_fits(const Mesh *mesh, const Type *whole, const Type *local) {
    if (whole->rank != local->rank) return false;
    for (int d = 0; d < whole->rank; d++) {
        int n = mesh_group_size(mesh, whole->split[d]);
        if (whole->dim[d] % n || whole->dim[d] / n != local->dim[d]) return false;
    }
    return true;
}

/* Neighbouring dimensions are one group when the inner one is whole. */
Part part_of(const Mesh *mesh, const Type *whole) {
    Part p = {.mesh = mesh, .whole = *whole};
    for (int d = 0; d < whole->rank; d++) {
        int64_t size = local_size(mesh, whole, d);
        if (d && size == whole->dim[d]) p.size[p.ngroups - 1] *= size;
        else p.size[p.ngroups++] = size;
        p.step[p.ngroups - 1] = part_step(&p, d);
    }
    if (!p.ngroups) p.size[0] = p.step[0] = p.ngroups = 1; /* a scalar */
    return p;
}

LLVMValueRef part_coord(Emit *e, const Mesh *mesh, Axes axes) {
    LLVMValueRef c = emit_i64(e, 0);
    for (int k = 0; k < mesh->naxes; k++) {
        int a = axes & AXES_REVERSED ? mesh->naxes - 1 - k : k;
        if (!(axes >> a & 1) || mesh->axis[a].size == 1) continue;
        LLVMValueRef axis = emit_i64(e, a);
        LLVMValueRef mine = emit_call(e, "rt_coord", e->i64, &axis, 1);
        c = emit_add(e, emit_mul(e, c, emit_i64(e, mesh->axis[a].size)), mine);
    }
    return c;
}

LLVMValueRef part_base(Emit *e, const Part *p) {
    LLVMValueRef base = emit_i64(e, 0);
    for (int d = 0; d < p->whole.rank; d++) {
        int64_t distance = local_size(p->mesh, &p->whole, d) * part_step(p, d);
        LLVMValueRef c = part_coord(e, p->mesh, p->whole.split[d]);
        base = emit_add(e, base, emit_mul(e, c, emit_i64(e, distance)));
    }
    return base;
}

static LLVMValueRef number_like(Emit *e, LLVMValueRef like, int64_t v) {
    int lanes = emit_lanes(like);
    return lanes ? emit_splat_n(e, emit_i64(e, v), lanes) : emit_i64(e, v);
}

LLVMValueRef part_distance(Emit *e, const Part *p, LLVMValueRef i) {
    LLVMValueRef sum = number_like(e, i, 0);
    for (int g = p->ngroups - 1; g >= 0; g--) {
        LLVMValueRef size = number_like(e, i, p->size[g]);
        LLVMValueRef index = g ? emit_rem(e, i, size) : i;
        if (g) i = emit_div(e, i, size);
        sum = emit_add(e, sum, emit_mul(e, index, number_like(e, index, p->step[g])));
    }
    return sum;
}
