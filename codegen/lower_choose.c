/* lower_choose.c - the attribute `form` of products, which says what code they have. It is in
 * the text of the program, so in the hash of the plan, in the key of the object, and the same
 * on all ranks. What has the rule's form has no attribute. */
#include "codegen/lower.h"

typedef struct Chosen {
    Op *op;
    ProductShape shape;
} Chosen;

static Chosen *products_of(Lower *l, Arena *mem, Module *m, int *n) {
    Chosen *list = NULL;
    int cap = 0;
    *n = 0;
    for (Func *f = m->first; f; f = f->next) {
        for (Op *op = f->first; op; op = op->next) {
            Chosen c = {.op = op};
            if (op->kind != OP_dot || op_attr(op, "form")) continue;
            if (!lower_product_shape(l, op, &c.shape)) continue;
            PUSH(mem, list, *n, cap, c);
        }
    }
    return list;
}

void lower_choose(Module *m, void *lower) {
    Lower *l = lower;
    int n;
    if (!l->choices) return;
    Arena *mem = arena_new();
    Chosen *list = products_of(l, mem, m, &n);
    ProductShape *shape = NEW_ARRAY(mem, ProductShape, (size_t)n + 1);
    for (int i = 0; i < n; i++) shape[i] = list[i].shape;
    product_choices_add(l->choices, shape, n, l->target, l->threads);
    for (int i = 0; i < n; i++) {
        const char *text = product_shape_text(mem, &shape[i]);
        const char *form = product_choices_form(l->choices, text);
        if (form) op_set_str(list[i].op, "form", form);
    }
    arena_free(mem);
}
