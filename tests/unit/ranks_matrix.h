/* ranks_matrix.h - trains golden cases on real MPI ranks under combinations that meet every pair
 * of values of two factors, a part of them in each test. */
#ifndef STATOR_TESTS_RANKS_MATRIX_H
#define STATOR_TESTS_RANKS_MATRIX_H
#include "../pairwise.h"
#include "ranks.h"

enum { MATRIX_PARTS = 3 };

static const char *const models[] = {"gpt2_tiny", "llama_tiny"};

typedef struct Matrix {
    int nfactors;
    const int *size; /* of each factor; the first: which of the models */
    int every_pair;  /* so many combinations meet all pairs */
    bool (*valid)(const int *v);
    int (*ranks)(const int *v);
    const char *(*words)(const int *v);
} Matrix;

static double matrix_run_one(const Matrix *m, const int *v) {
    const char *name = models[v[0]], *run = in_temp("run"), *words = m->words(v);
    test_at("%s %s", name, words);
    ranks_run(m->ranks(v), runs_golden_config(name), run, words);
    double worst = ranks_expect_curve(name, run, words);
    remove_all(run);
    return worst;
}

/* In the short form the first ones, which meet most pairs. */
static void matrix_run_part(const Matrix *m, int part) {
    Pairing p = pairing_new(mem(), m->nfactors, m->size, m->valid);
    int end = RANKS_SANITIZED ? 3 : test_long() ? m->every_pair : 9;
    double worst = 0;
    int runs = 0, most = 0;
    for (int n = 0; n < end; n++) {
        const int *v = pairing_next(&p);
        if (n % MATRIX_PARTS != part) continue;
        worst = fmax(worst, matrix_run_one(m, v));
        most = MAX(most, m->ranks(v));
        runs++;
    }
    printf("  %d combinations on up to %d ranks, worst relative loss %.2g\n", runs, most,
           worst);
}

/* Each pair of values that go together is in one of the combinations. */
static void matrix_expect_pairs(const Matrix *m) {
    Pairing p = pairing_new(mem(), m->nfactors, m->size, m->valid);
    EXPECT(pairing_meets_all(&p, m->every_pair, "all"));
}

#endif
