/* sample.c - see sample.h. */
#include "sample.h"
#include "rng.h"

void sample_fill(Tensor *t, const char *name, int64_t limit) {
    uint64_t stream = hash64(name, strlen(name));
    for (int64_t i = 0, n = type_count(&t->ty); i < n; i++) {
        double u = rng_uniform(1, stream, (uint64_t)i);
        tensor_set(t, i,
                   dtype_is_float(t->ty.dt) ? 2 * u - 1
                                            : (double)(int64_t)(u * (double)limit));
    }
}

/* Roles that steer a program rather than feed it have fixed values. */
static bool fixed_role(const Func *f, int i, double *v) {
    static const struct {
        const char *role;
        double value;
    } fixed[] = {{"lr", 0.01}, {"bias_correction1", 0.1}, {"bias_correction2", 0.05},
                 {"dloss", 1}, {"offset", 0}, {"last", 0}};
    const char *role = arg_str(f, i, "role", "");
    for (int k = 0; k < ARRAY_LEN(fixed); k++) {
        *v = fixed[k].value;
        if (!strcmp(role, fixed[k].role)) return true;
    }
    return false;
}

/* Smallest table that integers of the function could index: the least vocabulary. */
static int64_t integer_limit(const Func *f) {
    int64_t limit = 1 << 20;
    for (int i = 0; i < f->narg; i++) {
        const Type *t = &f->arg[i]->ty;
        for (int d = 0; d < t->rank; d++) {
            if (dtype_is_float(t->dt) && t->rank >= 2 && t->dim[d] > 1)
                limit = MIN(limit, t->dim[d]);
        }
    }
    return limit;
}

Tensor ***sample_arguments(Arena *mem, const Func *f) {
    int n = mesh_ranks(&f->mod->mesh);
    Tensor ***arg = NEW_ARRAY(mem, Tensor **, (size_t)n);
    for (int r = 0; r < n; r++) {
        arg[r] = NEW_ARRAY(mem, Tensor *, (size_t)f->narg + 1);
        for (int i = 0; i < f->narg; i++) {
            Tensor *t = arg[r][i] = tensor_new(mem, &f->arg[i]->ty);
            double v;
            if (!fixed_role(f, i, &v)) {
                char name[256];
                snprintf(name, sizeof name, "%s/%d", f->arg[i]->name, r);
                sample_fill(t, name, integer_limit(f));
                bool square = !strncmp(f->arg[i]->name, "v.", 2); /* second moments */
                for (int64_t k = 0; square && k < type_count(&t->ty); k++) {
                    tensor_set(t, k, tensor_get(t, k) * tensor_get(t, k));
                }
                continue;
            }
            for (int64_t k = 0; k < type_count(&t->ty); k++) tensor_set(t, k, v);
        }
    }
    return arg;
}

Tensor ***sample_results(Arena *mem, const Func *f) {
    int n = mesh_ranks(&f->mod->mesh);
    Tensor ***ret = NEW_ARRAY(mem, Tensor **, (size_t)n);
    for (int r = 0; r < n; r++) ret[r] = NEW_ARRAY(mem, Tensor *, (size_t)f->nret + 1);
    return ret;
}
