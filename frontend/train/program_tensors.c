/* program_tensors.c - see program_tensors.h. */
#include "frontend/train/program_tensors.h"
#include "runtime/comm/comm.h"

bool program_in_parts(const Program *p) {
    bool rows = false;
    for (int i = 0; i < p->entry->narg; i++)
        rows |= attr_find(p->entry->arg_attr[i], "first") != NULL;
    return rows || comm_size() > 1;
}

static CkptTensor tensor_of(Arena *mem, const Program *p, const Func *f, int i) {
    bool mine = f == p->entry;
    Layout *l = NEW(mem, Layout);
    *l = layout_of(mem, f, i);
    CkptTensor c = {.name = f->arg[i]->name,
                    .tensor = arg_str(f, i, "tensor", NULL),
                    .dtype = l->whole.dt,
                    .rank = l->whole.rank,
                    .data = mine ? p->arg[i] : NULL,
                    .file = arg_role(f, i) == ARG_state ? CKPT_OPTIMIZER : CKPT_MODEL,
                    .layout = program_in_parts(p) ? l : NULL};
    memcpy(c.dim, l->whole.dim, sizeof c.dim);
    c.dim[0] = (int64_t)arg_float(f, i, "rows", (double)c.dim[0]);
    return c;
}

CkptTensor *program_tensors(Arena *mem, const Program *p, int *n) {
    int total = 0;
    for (int s = 0; s < p->stages; s++) total += p->step[s]->narg;
    CkptTensor *list = NEW_ARRAY(mem, CkptTensor, (size_t)total);
    *n = 0;
    for (int states = 0; states < 2; states++)
        for (int s = 0; s < p->stages; s++)
            for (int i = 0; i < p->step[s]->narg; i++) {
                const Func *f = p->step[s];
                bool own = func_arg_stage(f, i) >= 0 || p->stages == 1;
                if (arg_role(f, i) != (states ? ARG_state : ARG_param)) continue;
                if (arg_str(f, i, "rounds", NULL)) continue;
                if (own)
                    list[(*n)++] = tensor_of(mem, p, f, i);
                else if (s == 0)
                    list[(*n)++] = tensor_of(mem, p, p->entry,
                                             program_arg_named(p, f->arg[i]->name));
            }
    return list;
}

float *program_weight(void *program, int arg) {
    return ((Program *)program)->arg[arg];
}
