/* op_rows.c - what a row of ops.def cannot be silent about: letters of its attributes that
 * mean something, numbers that change its result, a gradient or the reason for none. */
#include "trial.h"

TEST(attributes_have_known_letters) {
    for (int k = 0; k < OP_COUNT; k++) {
        for (const char *p = optab[k].attrs; *p; p += strcspn(p, " "), p += *p == ' ') {
            const char *colon = strchr(p, ':');
            size_t rest = colon ? strcspn(colon, " ") : 0;
            bool good = colon && rest >= 2 && strchr(attr_kind_letter, colon[1]) &&
                        (rest == 2 || (rest == 3 && colon[2] == '?'));
            if (!good)
                test_fail(__FILE__, __LINE__,
                          "%s: the attributes \"%s\": NAME:LETTER or NAME:LETTER?, a "
                          "letter of \"%s\"",
                          optab[k].name, optab[k].attrs, attr_kind_letter);
        }
    }
}

/* ---- each number changes the result ---- */

static Tensor **run_op(const Trial *t) {
    Tensor **in = NEW_ARRAY(t->mem, Tensor *, (size_t)t->op->nin + 1);
    Tensor **out = NEW_ARRAY(t->mem, Tensor *, (size_t)t->op->nout + 1);
    for (int i = 0; i < t->op->nin; i++) {
        in[i] = tensor_new(t->mem, &t->op->in[i]->ty);
        fill_argument(in[i], t->op->in[i]->name, 0);
    }
    for (int i = 0; i < t->op->nout; i++) out[i] = tensor_new(t->mem, &t->op->out[i]->ty);
    Ref ref = {t->op, in, out, 0, &t->f->mod->mesh, NULL};
    t->row->ref(&ref);
    return out;
}

static bool same_results(const Trial *t, Tensor **a, Tensor **b) {
    for (int i = 0; i < t->op->nout; i++) {
        if (memcmp(a[i]->data, b[i]->data, (size_t)type_bytes(&a[i]->ty))) return false;
    }
    return true;
}

/* Does another number there make another result in a sample? */
static bool matters(int kind, const char *key) {
    bool does = false;
    for (int i = 0; i < ARRAY_LEN(samples) && !does; i++) {
        if (op_kind(samples[i].kind) != kind) continue;
        Arena *mem = arena_new();
        Trial t = trial_new(mem, &samples[i]);
        const Attr *a = op_attr(t.op, key);
        if (a && !is_comm(&samples[i])) {
            Tensor **before = run_op(&t);
            op_set_float(t.op, key, isfinite(a->f) ? 0.75 * a->f + 0.03 : 1);
            does = !same_results(&t, before, run_op(&t));
        }
        arena_free(mem);
    }
    return does;
}

/* So a key that the row has and the kernels spell otherwise is found out, and a sample
 * that shows nothing of it. */
TEST(numbers_matter) {
    int n = 0;
    for (int k = 0; k < OP_COUNT; k++) {
        for (const char *p = optab[k].attrs; *p; p += strcspn(p, " "), p += *p == ' ') {
            char key[32];
            size_t length = strcspn(p, ":");
            EXPECT(length < sizeof key);
            memcpy(key, p, length);
            key[length] = 0;
            if (p[length + 1] != 'f') continue;
            if (!matters(k, key))
                test_fail(__FILE__, __LINE__,
                          "%s: no sample has another result when %s is another number; "
                          "ref_%s does not read it by this name, or no sample shows it",
                          optab[k].name, key, optab[k].name);
            n++;
        }
    }
    printf("  %d attributes\n", n);
    EXPECT(n > 20);
}

/* ---- a gradient, or a reason for none ---- */

static const char of_gradient[] = "a gradient itself; there are no second ones",
                  of_optimizer[] = "makes the step, behind the gradients",
                  of_passes[] = "made by passes behind autodiff";
/* autodiff refuses to take a gradient through these. */
static const struct {
    const char *op, *reason;
} no_gradient[] = {
    {"log_add", of_passes},
    {"pick", "a product with onehot has one"},
    {"embed_grad", of_gradient},
    {"embed_add", of_passes},
    {"cache_write", "of prediction, and of the gradient of slice"},
    {"cache_write_each", "of prediction"},
    {"finite", "of bad steps: 0 or 1"},
    {"agree", "of bad steps: 0 or 1"},
    {"arrive", of_passes},
    {"relu_grad", of_gradient},
    {"gelu_grad", of_gradient},
    {"gelu_erf_grad", of_gradient},
    {"fast_gelu_grad", of_gradient},
    {"silu_grad", of_gradient},
    {"layernorm_grad", of_gradient},
    {"rmsnorm_grad", of_gradient},
    {"softmax_grad", of_gradient},
    {"xent_grad", of_gradient},
    {"attention_grad", of_gradient},
    {"attention_within_grad", of_gradient},
    {"attention_each", "of prediction, where sequences have lengths of their own"},
    {"adamw", of_optimizer},
    {"adam", of_optimizer},
    {"momentum", of_optimizer},
    {"sgd", of_optimizer},
};

static bool takes_floats(int kind) {
    bool does = false;
    for (int i = 0; i < ARRAY_LEN(samples) && !does; i++) {
        if (op_kind(samples[i].kind) != kind) continue;
        Arena *mem = arena_new();
        Trial t = trial_new(mem, &samples[i]);
        bool makes = false;
        for (int k = 0; k < t.op->nout; k++) makes |= is_float(t.op->out[k]);
        for (int k = 0; k < t.op->nin; k++) does |= makes && is_float(t.op->in[k]);
        arena_free(mem);
    }
    return does;
}

TEST(gradient_or_reason) {
    for (int k = 0; k < OP_COUNT; k++) {
        const OpInfo *row = &optab[k];
        /* those of ranks are made behind autodiff too */
        unsigned spared = F_COMM | F_RANK | F_CALL | F_EFFECT;
        bool silent = !row->vjp && !(row->flags & spared) && takes_floats(k);
        bool excused = false;
        for (int i = 0; i < ARRAY_LEN(no_gradient); i++)
            excused |= !strcmp(no_gradient[i].op, row->name);
        if (silent && !excused)
            test_fail(__FILE__, __LINE__,
                      "%s has no .vjp, so models cannot learn through it: write "
                      "vjp_%s, or a reason into no_gradient",
                      row->name, row->name);
        if (excused && !silent)
            test_fail(__FILE__, __LINE__, "%s needs no reason in no_gradient", row->name);
    }
}
