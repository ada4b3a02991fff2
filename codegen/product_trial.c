/* product_trial.c - see product_trial.h. */
#include "codegen/product_trial.h"
#include "codegen/rt_call.h"
#include "runtime/core/free_memory.h"
#include "runtime/core/rt.h"
#include <stdlib.h>
#include <sys/mman.h>

enum {
    ROUNDS = 6, /* of all forms that are left */
    LEAST_ROUNDS = 3,
    MOST_COPIES = 8, /* of the operands */
    PAGE_BYTES = 2 << 20,
};
/* All operands together, so that a run finds its own in no cache. */
static const int64_t COLD_BYTES = 96 << 20;
/* A form that is so much slower than the fastest is run no more; one must be so much faster
 * than the rule's to be taken, and in all rounds but one: less is noise, and would be another
 * order of sums for nothing. */
static const double SLOW = 1.15, FASTER = 0.98;

typedef void (*Generated)(const void *a, const void *b, const void *bias, void *c,
                          void *work);

typedef struct Candidate {
    const char *form;
    ProductCode code;
    Generated run;     /* of generated code */
    double best, last; /* seconds */
    int runs, wins;    /* wins: rounds in which it was faster than the rule's */
} Candidate;

typedef struct Operands {
    void *a, *b, *c;
} Operands;

typedef struct Bench {
    const Target *target;
    const ProductShape *s;
    double deadline;
    Candidate item[PRODUCT_FORMS + 1];
    int n, copies;
    Jit *jit;
    Operands set[MOST_COPIES];
    void *bias, *work;
} Bench;

/* ---- memory ---- */

static int64_t bytes_of(const DnnlDesc *d) {
    int64_t last = 0;
    for (int i = 0; i < d->rank; i++) last += (d->dim[i] - 1) * d->stride[i];
    return d->rank ? (last + 1) * dtype_bytes[d->dtype] : 0;
}

/* In large pages, as a program's memory is; NULL where there is none. */
static void *room(int64_t bytes) {
    size_t whole = (size_t)round_up(MAX(bytes, 1), PAGE_BYTES);
    void *p = aligned_alloc(PAGE_BYTES, whole);
    if (p) madvise(p, whole, MADV_HUGEPAGE);
    return p;
}

/* Numbers from 1 to 2, whatever the type; NULL where there is no memory. */
static void *operand(const DnnlDesc *d) {
    int64_t bytes = bytes_of(d);
    char *p = room(bytes);
    if (!p) return NULL;
    for (int64_t i = 0; d->dtype == DT_F32 && i < bytes / 4; i++) {
        uint32_t x = 0x3f800000 | ((uint32_t)i * 2654435761u >> 9);
        memcpy(p + 4 * i, &x, sizeof x);
    }
    for (int64_t i = 0; d->dtype != DT_F32 && i < bytes / 2; i++) {
        uint16_t x = (uint16_t)(0x3f80 | (i * 37 & 127));
        memcpy(p + 2 * i, &x, sizeof x);
    }
    return p;
}

static bool operands_make(Bench *b) {
    const ProductShape *s = b->s;
    int64_t each = bytes_of(&s->a) + bytes_of(&s->b) + bytes_of(&s->c), work = 0;
    for (int i = 0; i < b->n; i++)
        work = MAX(work, product_workspace_bytes(&b->item[i].code, b->target->lanes));
    b->copies = (int)MAX(1, MIN(MOST_COPIES, (COLD_BYTES + each - 1) / each));
    uint64_t all = (uint64_t)(each * b->copies + work);
    if (all > memory_left("").bytes / 2) return false;
    b->work = room(work);
    if (s->bias.rank) b->bias = operand(&s->bias);
    bool ok = b->work && (b->bias || !s->bias.rank);
    for (int i = 0; i < b->copies && ok; i++) {
        Operands *o = &b->set[i];
        o->a = operand(&s->a), o->b = operand(&s->b), o->c = operand(&s->c);
        ok = o->a && o->b && o->c;
    }
    return ok;
}

static void bench_free(Bench *b) {
    for (int i = 0; i < b->copies; i++)
        free(b->set[i].a), free(b->set[i].b), free(b->set[i].c);
    free(b->bias);
    free(b->work);
    for (int i = 0; i < b->n; i++) dnnl_matmul_free(b->item[i].code.matmul);
    if (b->jit) jit_free(b->jit);
}

/* ---- code ---- */

/* All generated forms in one module: form i is function "product.i". */
static void generate(Bench *b) {
    Arena *mem = arena_new();
    const Target *t = b->target;
    Emit *e = emit_new(mem, "products", t->lanes, t->cpu, t->features);
    char why[400] = "";
    bool any = false;
    for (int i = 0; i < b->n; i++) {
        if (b->item[i].code.matmul) continue;
        const char *inner = arena_printf(mem, "inner.%d", i);
        LLVMTypeRef params[] = {e->ptr, e->ptr, e->ptr, e->ptr, e->ptr};
        LLVMValueRef args[ARRAY_LEN(params)];
        product_emit(e, inner, &b->item[i].code.own);
        emit_func(e, arena_printf(mem, "product.%d", i), e->void_, params,
                  ARRAY_LEN(params), false);
        for (int k = 0; k < ARRAY_LEN(args); k++) args[k] = emit_param(e, k);
        emit_call(e, inner, args, ARRAY_LEN(args));
        emit_ret(e, NULL);
        any = true;
    }
    if (any) {
        Target *own = (Target *)(uintptr_t)t; /* LLVM's calls are not const */
        Object *o = jit_compile(own, e->mod, NULL);
        b->jit = jit_load(own, o->bytes, o->n, rt_thread_symbols, RT_THREAD_SYMBOLS, why,
                          sizeof why);
        if (!b->jit) die("linking products: %s", why);
        object_free(o);
    }
    for (int i = 0; i < b->n; i++)
        if (!b->item[i].code.matmul)
            b->item[i].run =
                (Generated)jit_lookup(b->jit, arena_printf(mem, "product.%d", i));
    emit_free(e);
    arena_free(mem);
}

/* Is the rule's primitive this one as well? */
static bool is_the_rules(const Bench *b, const ProductCode *code) {
    const DnnlMatmul *rule = b->item[0].code.matmul, *m = code->matmul;
    return rule && m && !strcmp(dnnl_matmul_impl(rule), dnnl_matmul_impl(m)) &&
           dnnl_matmul_scratch_bytes(rule) == dnnl_matmul_scratch_bytes(m);
}

static bool candidates_make(Bench *b) {
    const char *form[PRODUCT_FORMS + 1];
    char why[400];
    int n = product_forms(b->s, b->target->lanes, form);
    for (int i = 0; i < n; i++) {
        Candidate *c = &b->item[b->n];
        *c = (Candidate){.form = form[i]};
        bool there =
            product_code_make(b->s, form[i], b->target->lanes, &c->code, why, sizeof why);
        if (!there && !i) return false; /* not even the rule has one */
        if (there && i && is_the_rules(b, &c->code)) {
            dnnl_matmul_free(c->code.matmul);
            there = false;
        }
        b->n += there;
    }
    return true;
}

/* ---- time ---- */

static void run(const Bench *b, Candidate *c, int turn) {
    const Operands *o = &b->set[turn % b->copies];
    double start = clock_seconds();
    if (c->code.matmul) {
        dnnl_matmul_run(c->code.matmul, o->a, o->b, b->bias, o->c, b->work);
    } else {
        bool swapped = c->code.swapped;
        c->run(swapped ? o->b : o->a, swapped ? o->a : o->b, b->bias, o->c, b->work);
    }
    c->last = clock_seconds() - start;
    c->wins += c->runs && c->last < b->item[0].last;
    if (!c->runs++ || c->last < c->best) c->best = c->last;
}

static double fastest(const Bench *b) {
    double best = b->item[0].best;
    for (int i = 1; i < b->n; i++) best = MIN(best, b->item[i].best);
    return best;
}

/* The first run of each, which counts for nothing: in it oneDNN's gemm makes its code, 30 ms. */
static bool warm_up(Bench *b) {
    for (int i = 0; i < b->n; i++) {
        if (clock_seconds() >= b->deadline) return false;
        run(b, &b->item[i], i);
        b->item[i].runs = b->item[i].wins = 0;
    }
    return true;
}

/* False: the time was over too soon. */
static bool run_all(Bench *b) {
    int turn = b->n; /* behind the operands of the first runs */
    if (!warm_up(b)) return false;
    for (int round = 0; round < ROUNDS; round++) {
        double limit = round ? SLOW * fastest(b) : 0;
        for (int i = 0; i < b->n; i++) {
            Candidate *c = &b->item[i];
            if (round && i && c->best > limit) continue;
            if (clock_seconds() >= b->deadline) return round >= LEAST_ROUNDS;
            run(b, c, turn++);
        }
    }
    return true;
}

bool product_times(const Target *target, const ProductShape *s, double deadline,
                   ProductTime *time, int *n) {
    Bench b = {.target = target, .s = s, .deadline = deadline};
    bool ok = clock_seconds() < deadline && candidates_make(&b);
    if (ok) {
        generate(&b);
        ok = operands_make(&b) && run_all(&b);
    }
    *n = b.n;
    for (int i = 0; i < b.n; i++) {
        const Candidate *c = &b.item[i];
        time[i] = (ProductTime){c->form, c->best, i && c->wins >= MAX(c->runs - 2, 1)};
    }
    bench_free(&b);
    return ok;
}

bool product_try(const Target *target, const ProductShape *s, double deadline,
                 ProductTrial *out) {
    ProductTime time[PRODUCT_FORMS + 1], best;
    int n;
    if (!product_times(target, s, deadline, time, &n)) return false;
    best = time[0];
    for (int i = 1; i < n; i++)
        if (time[i].wins && time[i].seconds < best.seconds) best = time[i];
    if (best.seconds > FASTER * time[0].seconds) best = time[0];
    *out = (ProductTrial){best.form, best.seconds, time[0].seconds};
    return true;
}
