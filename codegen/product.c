/* product.c - see product.h. */
#include "codegen/product.h"

const char product_rule[] = "rule";

typedef struct Form {
    const char *name;
    DnnlForm dnnl;
    int rows, words; /* of generated code: its blocks (pairs_matmul.h); 0: oneDNN's */
} Form;

/* Blocks: the rule's, which fit caches of 1 MB and up, and some to either side. */
static const Form forms[PRODUCT_FORMS] = {
    {"gemm", DNNL_GEMM, 0, 0},
    {"brgemm", DNNL_BRGEMM, 0, 0},
    {"brgemm_packed", DNNL_BRGEMM_PACKED, 0, 0},
    {"own_768x1024", DNNL_RULE, 768, 1024},
    {"own_384x1024", DNNL_RULE, 384, 1024},
    {"own_1536x1024", DNNL_RULE, 1536, 1024},
    {"own_768x512", DNNL_RULE, 768, 512},
    {"own_384x512", DNNL_RULE, 384, 512},
    {"own_768x2048", DNNL_RULE, 768, 2048},
    {"own_192x2048", DNNL_RULE, 192, 2048},
};

static const Form *form_named(const char *name) {
    for (int i = 0; i < PRODUCT_FORMS; i++)
        if (!strcmp(forms[i].name, name)) return &forms[i];
    return NULL;
}

bool product_form_known(const char *form) {
    return !strcmp(form, product_rule) || form_named(form);
}

ProductShape product_shape_clear(void) {
    ProductShape s;
    memset(&s, 0, sizeof s);
    return s;
}

static void add_operand(Text *t, const char *name, const DnnlDesc *d) {
    text_add(t, " %s %s[", name, dtype_name[d->dtype]);
    text_add_ints(t, ",", d->dim, d->rank);
    text_add(t, "]:");
    text_add_ints(t, ",", d->stride, d->rank);
}

const char *product_shape_text(Arena *mem, const ProductShape *s) {
    Text t = text_new(mem);
    int i = s->c.rank - 2;
    text_add(&t, "%lld x %lld x %lld", (long long)s->c.dim[i], (long long)s->c.dim[i + 1],
             (long long)s->a.dim[i + 1]);
    add_operand(&t, "a", &s->a);
    add_operand(&t, "b", &s->b);
    add_operand(&t, "c", &s->c);
    if (s->bias.rank) add_operand(&t, "bias", &s->bias);
    if (s->adds) text_add(&t, " adds");
    return t.s;
}

/* Factors of one type, a result of that type or f32, and a bias of f32. */
static bool takes_types(const ProductShape *s) {
    DType factor = s->a.dtype, result = s->c.dtype;
    bool known = factor == DT_F32 || dtype_is_narrow(factor);
    return known && (result == DT_F32 || result == factor) &&
           (!s->bias.rank || s->bias.dtype == DT_F32);
}

/* A few rows with any matrix: what there is to gain is to read that at the speed of memory, for
 * which oneDNN has no code. */
static bool rows_make(const ProductShape *s, ProductCode *code) {
    const DnnlDesc *a = &s->a, *b = &s->b, *c = &s->c;
    if (c->rank != 2 || c->dim[0] > ROWS_MATMUL_MOST) return false;
    int64_t m = c->dim[0], n = c->dim[1], k = a->dim[1];
    if (!takes_types(s)) return false;
    if ((k > 1 && a->stride[1] != 1) || (n > 1 && c->stride[1] != 1)) return false;
    RowsMatmul rows = {.m = m,
                       .n = n,
                       .k = k,
                       .a_m = m > 1 ? a->stride[0] : k,
                       .b_k = k > 1 ? b->stride[0] : n,
                       .b_n = n > 1 ? b->stride[1] : 1,
                       .c_m = m > 1 ? c->stride[0] : n,
                       .threads = s->threads,
                       .dt = a->dtype,
                       .rounds = dtype_is_narrow(c->dtype),
                       .bias = s->bias.rank > 0,
                       .adds = s->adds};
    if (!rows_matmul_takes(&rows)) return false;
    code->own.few_rows = true;
    code->own.rows = rows;
    return true;
}

/* The product as generated code takes it: as it is or, where the result lies along its rows,
 * with factors and result transposed. */
static bool pairs_make(const ProductShape *s, const Form *form, ProductCode *code) {
    const DnnlDesc *a = &s->a, *b = &s->b, *c = &s->c;
    const DType dt = a->dtype;
    if (!takes_types(s) || c->rank != 2) return false;
    bool swapped = c->dim[1] > 1 && c->stride[1] != 1;
    if (swapped && (s->bias.rank || c->stride[0] != 1)) return false;
    const int row = swapped, col = !swapped;
    const DnnlDesc *first = swapped ? b : a, *second = swapped ? a : b;
    int64_t m = c->dim[row], n = c->dim[col], k = a->dim[1];
    code->swapped = swapped;
    code->own.pairs = (PairsMatmul){.m = m,
                                    .n = n,
                                    .k = k,
                                    .a_m = m > 1 ? first->stride[row] : k,
                                    .a_k = k > 1 ? first->stride[col] : 1,
                                    .b_k = k > 1 ? second->stride[row] : n,
                                    .b_n = n > 1 ? second->stride[col] : 1,
                                    .c_m = m > 1 ? c->stride[row] : n,
                                    .bias = s->bias.rank > 0,
                                    .adds = s->adds,
                                    .rounds = dtype_is_narrow(c->dtype),
                                    .threads = s->threads,
                                    .block_rows = form ? form->rows : 0,
                                    .block_words = form ? form->words : 0,
                                    .dt = dt,
                                    .tiles = s->tiles,
                                    .dots = s->dots && dt == DT_BF16 && !s->tiles};
    return pairs_matmul_takes(&code->own.pairs);
}

/* Fewer multiply-adds take less time than there is to gain: code for them is only compiled. */
enum { OWN_LEAST = 1 << 22 };

/* oneDNN's products of f32 are as fast as ours on CPUs of 16 lanes that have no tile registers, but
 * where both factors lie along k: there it has 0.3 to 0.9 of our speed below 512 rows, 0.9 to 0.99
 * above. By tile registers we have 1.4 to 1.9 times the speed of our products by fma. With 8
 * lanes oneDNN 2.6 packs little: it has 0.1 to 0.95 of our speed below 1024 rows, and 0.95 to 1.1
 * above. */
static bool rule_is_own(const ProductShape *s, int vl) {
    if (dtype_is_narrow(s->a.dtype)) return true;
    ProductCode code;
    if (!pairs_make(s, NULL, &code)) return false;
    const PairsMatmul *p = &code.own.pairs;
    bool along_k = p->a_k == 1 && p->b_k == 1 && p->n >= vl;
    return (vl < 16 || s->tiles || along_k) &&
           (double)p->m * (double)p->n * (double)p->k >= OWN_LEAST;
}

/* Does another form before it, or the rule, have the same blocks? */
static bool is_repeated(const ProductShape *s, const Form *f, int vl) {
    ProductCode code = {0}, other = {0};
    if (!f->rows || !pairs_make(s, f, &code)) return false;
    bool repeated =
        rule_is_own(s, vl) && !rows_make(s, &other) && pairs_make(s, NULL, &other) &&
        pairs_matmul_same(&code.own.pairs, &other.own.pairs, vl); /* the rule's */
    for (const Form *g = forms; g < f && !repeated; g++)
        repeated = g->rows && pairs_make(s, g, &other) &&
                   pairs_matmul_same(&code.own.pairs, &other.own.pairs, vl);
    return repeated;
}

int product_forms(const ProductShape *s, int vl, const char **form) {
    ProductCode code;
    int n = 0;
    bool own = pairs_make(s, NULL, &code);
    form[n++] = product_rule;
    for (int i = 0; i < PRODUCT_FORMS; i++) {
        if (forms[i].rows && (!own || is_repeated(s, &forms[i], vl))) continue;
        form[n++] = forms[i].name;
    }
    return n;
}

/* Code for a CPU of narrower vectors does not use the wider ones of oneDNN either. */
static bool dnnl_has(const ProductShape *s, int vl) {
    DType t = s->a.dtype;
    return t == DT_F32 || (t == DT_BF16 && vl >= 16);
}

bool product_code_make(const ProductShape *s, const char *form, int vl, ProductCode *code,
                       char *why, size_t why_size) {
    bool rule = !form || !strcmp(form, product_rule);
    const Form *f = rule ? NULL : form_named(form);
    memset(code, 0, sizeof *code); /* comparisons see all bytes */
    snprintf(why, why_size, "there is no such form of it");
    if (!rule && !f) return false;
    if (rule && rows_make(s, code)) return true;
    bool own = !rule || rule_is_own(s, vl);
    if (own && (rule || f->rows) && pairs_make(s, f, code)) return true;
    memset(code, 0, sizeof *code);
    if ((f && f->rows) || !dnnl_has(s, vl)) return false;
    code->matmul = dnnl_matmul_new(s, rule ? DNNL_RULE : f->dnnl, why, why_size);
    return code->matmul != NULL;
}

void product_emit(Emit *e, const char *name, const OwnProduct *p) {
    if (p->few_rows)
        rows_matmul_emit(e, name, &p->rows);
    else
        pairs_matmul_emit(e, name, &p->pairs);
}

int64_t product_workspace_bytes(const ProductCode *code, int vl) {
    if (code->matmul) return (int64_t)dnnl_matmul_scratch_bytes(code->matmul);
    if (code->own.few_rows) return rows_matmul_workspace_bytes(&code->own.rows, vl);
    return pairs_matmul_workspace_bytes(&code->own.pairs, vl);
}
