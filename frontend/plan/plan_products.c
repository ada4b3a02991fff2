/* plan_products.c - the matrix products of a plan and their forms. See plan.h. */
#include "base/json.h"
#include "codegen/product_choices.h"
#include "frontend/plan/plan.h"
#include "ir/matmul.h"

static bool is_same(const PlanProduct *x, const PlanProduct *y) {
    return x->batch == y->batch && x->m == y->m && x->n == y->n && x->k == y->k &&
           x->type == y->type && x->result == y->result && !strcmp(x->form, y->form);
}

void plan_add_product(Arena *mem, Plan *p, const Op *op, int64_t runs) {
    Dims d;
    Matmul s;
    if (op->kind != OP_dot || !op_dims(op, &d) || matmul_of(&d, &s)) return;
    const Attr *form = op_attr(op, "form");
    PlanProduct row = {.batch = 1,
                       .m = s.m.size,
                       .n = s.n.size,
                       .k = s.k.size,
                       .type = dtype_name[op->in[0]->ty.dt],
                       .result = dtype_name[op->out[0]->ty.dt],
                       .form = form ? form->s : product_rule,
                       .runs = runs};
    for (int i = 0; i < s.nbatch; i++) row.batch *= s.batch[i].size;
    for (int i = 0; i < p->nproduct; i++) {
        if (!is_same(&p->product[i], &row)) continue;
        if (__builtin_add_overflow(p->product[i].runs, runs, &p->product[i].runs))
            p->product[i].runs = INT64_MAX;
        return;
    }
    PUSH(mem, p->product, p->nproduct, p->product_cap, row);
}

static bool has_choice(const Plan *p) {
    for (int i = 0; i < p->nproduct; i++)
        if (strcmp(p->product[i].form, product_rule)) return true;
    return false;
}

void plan_print_products(const Plan *p, Text *out) {
    if (!has_choice(p)) {
        text_add(out,
                 "\nproducts: %d shapes, all in the form of the rule "
                 "(context.measure_products_seconds)\n",
                 p->nproduct);
        return;
    }
    text_add(out,
             "\nproducts                                                 runs  form\n");
    for (int i = 0; i < p->nproduct; i++) {
        const PlanProduct *r = &p->product[i];
        char batch[32] = "";
        if (r->batch > 1) snprintf(batch, sizeof batch, "%lld of ", (long long)r->batch);
        text_add(out, "  %9s%7lld x %7lld x %7lld  %4s to %-4s %8lld  %s\n", batch,
                 (long long)r->m, (long long)r->n, (long long)r->k, r->type, r->result,
                 (long long)r->runs, r->form);
    }
}

void plan_json_products(const Plan *p, Text *out) {
    text_add(out, ",\n  \"products\": [");
    for (int i = 0; i < p->nproduct; i++) {
        const PlanProduct *r = &p->product[i];
        text_add(out,
                 "%s\n    {\"batch\": %lld, \"m\": %lld, \"n\": %lld, \"k\": %lld, "
                 "\"type\": \"%s\", \"result\": \"%s\", \"runs_per_step\": %lld",
                 i ? "," : "", (long long)r->batch, (long long)r->m, (long long)r->n,
                 (long long)r->k, r->type, r->result, (long long)r->runs);
        json_add_text(out, ", ", "form", r->form);
        text_add(out, "}");
    }
    text_add(out, "%s]", p->nproduct ? "\n  " : "");
}

ProductChoices *plan_choices(Arena *mem, const Config *cfg) {
    ProductChoices *c = NEW(mem, ProductChoices);
    *c = (ProductChoices){.mem = mem,
                          .limit_seconds = cfg->context_measure_products_seconds};
    return c;
}

CompileOptions plan_compile_options(const Job *j) {
    CompileOptions co = strategy_compile_options(j->cfg);
    co.choices = j->choices;
    if (j->threads) co.threads = j->threads;
    return co;
}
