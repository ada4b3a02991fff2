/* mesh.c - ranks of a stage as points of a mesh, their groups, and which part of a tensor a rank
 * has. A rank's group is made of the ranks that differ from it in some axes only, in the
 * order of their numbers in the stage. Which of all ranks one of a stage is, the mesh's order
 * says. */
#include "ir/type.h"

int mesh_ranks(const Mesh *m) {
    int n = 1;
    for (int a = 0; a < m->naxes; a++) n *= m->axis[a].size;
    return n;
}

/* Axis 0 is the outermost: neighbouring ranks differ in the last axis. */
int mesh_coord(const Mesh *m, int rank, int axis) {
    for (int a = m->naxes - 1; a > axis; a--) rank /= m->axis[a].size;
    return rank % m->axis[axis].size;
}

bool mesh_axes_parse(const Mesh *m, const char *names, Axes *axes) {
    int last = -1, falls = 0, rises = 0;
    *axes = 0;
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, ".");
        int a = 0;
        while (a < m->naxes && (strncmp(m->axis[a].name, p, n) || m->axis[a].name[n]))
            a++;
        if (a == m->naxes || (*axes >> a & 1)) return false;
        *axes |= (Axes)(1u << a);
        falls |= last > a;
        rises |= last >= 0 && last < a;
        last = a;
        p += n;
        p += *p == '.';
    }
    if (falls) *axes |= AXES_REVERSED;
    return !(falls && rises);
}

const char *mesh_axes_text(Arena *mem, const Mesh *m, Axes axes) {
    if (axes && !(axes & (axes - 1)) && !(axes & AXES_REVERSED))
        return m->axis[__builtin_ctz(axes)].name;
    Text t = text_new(mem);
    for (int k = 0; k < m->naxes; k++) {
        int a = axes & AXES_REVERSED ? m->naxes - 1 - k : k;
        if (axes >> a & 1) text_add(&t, "%s%s", t.n ? "." : "", m->axis[a].name);
    }
    return t.n ? t.s : "";
}

int mesh_group_size(const Mesh *m, Axes axes) {
    int n = 1;
    for (unsigned left = axes & ((1u << m->naxes) - 1); left; left &= left - 1)
        n *= m->axis[__builtin_ctz(left)].size;
    return n;
}

int mesh_group_coord(const Mesh *m, int rank, Axes axes) {
    int c = 0;
    for (int k = 0; k < m->naxes; k++) {
        int a = axes & AXES_REVERSED ? m->naxes - 1 - k : k;
        if (axes >> a & 1) c = c * m->axis[a].size + mesh_coord(m, rank, a);
    }
    return c;
}

int mesh_group_member(const Mesh *m, int rank, Axes axes, int k) {
    int stride = 1;
    for (int a = m->naxes - 1; a >= 0; a--) {
        if (axes >> a & 1) {
            rank += (k % m->axis[a].size - mesh_coord(m, rank, a)) * stride;
            k /= m->axis[a].size;
        }
        stride *= m->axis[a].size;
    }
    return rank;
}

int mesh_axis_at(const Mesh *m, int k) {
    if (m->norder) return m->order[k];
    return k < m->naxes ? m->naxes - 1 - k : m->naxes;
}

int mesh_stride(const Mesh *m, int stages, int axis) {
    int stride = 1;
    for (int k = 0; mesh_axis_at(m, k) != axis; k++) {
        int a = mesh_axis_at(m, k);
        stride *= a == m->naxes ? stages : m->axis[a].size;
    }
    return stride;
}

int mesh_rank_at(const Mesh *m, int stages, int stage, int nth) {
    if (!m->norder) return stage * mesh_ranks(m) + nth;
    int rank = stage * mesh_stride(m, stages, m->naxes);
    for (int a = 0; a < m->naxes; a++)
        rank += mesh_coord(m, nth, a) * mesh_stride(m, stages, a);
    return rank;
}

void mesh_place(const Mesh *m, int stages, int rank, int *stage, int *nth) {
    *stage = rank / mesh_stride(m, stages, m->naxes) % stages;
    *nth = 0;
    for (int a = 0; a < m->naxes; a++)
        *nth =
            *nth * m->axis[a].size + rank / mesh_stride(m, stages, a) % m->axis[a].size;
}

bool part_fits(const Mesh *mesh, const Type *whole, const Type *local) {
    if (whole->rank != local->rank) return false;
    for (int d = 0; d < whole->rank; d++) {
        int n = mesh_group_size(mesh, whole->split[d]);
        if (whole->dim[d] % n || whole->dim[d] / n != local->dim[d]) return false;
    }
    return true;
}

int64_t part_element(const Mesh *m, int rank, const Type *whole, int64_t i) {
    int64_t at = 0, step = 1;
    for (int d = whole->rank - 1; d >= 0; d--) {
        int64_t part = whole->dim[d] / mesh_group_size(m, whole->split[d]);
        at += (mesh_group_coord(m, rank, whole->split[d]) * part + i % part) * step;
        i /= part;
        step *= whole->dim[d];
    }
    return at;
}
