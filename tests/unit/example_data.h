/* example_data.h - data for the modules of examples/, made from nothing. */
#ifndef STATOR_TESTS_EXAMPLE_DATA_H
#define STATOR_TESTS_EXAMPLE_DATA_H
#include "made_npy.h"
#include "ranks.h"
#include "runtime/store/safetensors.h"
#include <sys/stat.h>

enum { SAMPLES = 500 };

static double uniform(uint64_t *state) {
    return (double)(runs_random(state) >> 11) * 0x1p-53;
}

static double normal(uint64_t *state) {
    return sqrt(-2 * log(uniform(state) + 1e-300)) *
           cos(6.283185307179586 * uniform(state));
}

static const char *folder(const char *name) {
    const char *path = in_temp(name);
    mkdir(path, 0700);
    return path;
}

/* Waves of three lengths, as one safetensors file. */
static const char *make_sequences(void) {
    uint64_t state = 11;
    float *x = NEW_ARRAY(mem(), float, SAMPLES * 12 * 4);
    int32_t *kind = NEW_ARRAY(mem(), int32_t, SAMPLES);
    for (int s = 0; s < SAMPLES; s++) {
        kind[s] = (int32_t)(runs_random(&state) % 3);
        for (int f = 0; f < 4; f++) {
            double phase = 6.28 * uniform(&state);
            for (int t = 0; t < 12; t++)
                x[(s * 12 + t) * 4 + f] = (float)(sin(t * (0.4 + 0.5 * kind[s]) + phase) +
                                                  0.2 * normal(&state));
        }
    }
    SafeTensor t[] = {
        {.name = "kind", .dtype = DT_I32, .rank = 1, .dim = {SAMPLES}, .data = kind},
        {.name = "x", .dtype = DT_F32, .rank = 3, .dim = {SAMPLES, 12, 4}, .data = x}};
    const char *path = in_temp("sequences.safetensors");
    EXPECT_INT(safetensors_write(path, t, 2, NULL, NULL), 0);
    return path;
}

/* Classes of a linear map, as .npy of doubles and of 64-bit integers, as NumPy has them.
 */
static const char *make_classes(void) {
    uint64_t state = 5;
    double *x = NEW_ARRAY(mem(), double, SAMPLES * 6), w[6][5];
    int64_t *labels = NEW_ARRAY(mem(), int64_t, SAMPLES);
    const char *dir = folder("samples");
    for (int i = 0; i < 30; i++) w[i / 5][i % 5] = normal(&state);
    for (int s = 0; s < SAMPLES; s++) {
        double best = -INFINITY;
        for (int i = 0; i < 6; i++) x[6 * s + i] = normal(&state);
        for (int c = 0; c < 5; c++) {
            double y = 0;
            for (int i = 0; i < 6; i++) y += x[6 * s + i] * w[i][c];
            if (y > best) best = y, labels[s] = c;
        }
    }
    npy_write(path_join(mem(), dir, "x.npy"), "<f8", "(500, 6)", x, SAMPLES * 48);
    npy_write(path_join(mem(), dir, "labels.npy"), "<i8", "(500,)", labels, SAMPLES * 8);
    return dir;
}

static const char *make_pairs(void) {
    uint64_t state = 7;
    const char *dir = folder("pairs");
    float *left = NEW_ARRAY(mem(), float, SAMPLES * 6);
    float *right = NEW_ARRAY(mem(), float, SAMPLES * 3), *target;
    target = NEW_ARRAY(mem(), float, SAMPLES);
    for (int s = 0; s < SAMPLES; s++) {
        for (int i = 0; i < 6; i++) left[6 * s + i] = (float)normal(&state);
        for (int i = 0; i < 3; i++) {
            right[3 * s + i] = (float)normal(&state);
            target[s] += left[6 * s + i] * right[3 * s + i];
        }
    }
    npy_write(path_join(mem(), dir, "left.npy"), "<f4", "(500, 6)", left, SAMPLES * 24);
    npy_write(path_join(mem(), dir, "right.npy"), "<f4", "(500, 3)", right, SAMPLES * 12);
    npy_write(path_join(mem(), dir, "target.npy"), "<f4", "(500,)", target, SAMPLES * 4);
    return dir;
}

#endif
