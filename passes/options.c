/* options.c - options of passes by name: of `stator-opt -o`, and of the cases in
 * tests/passes. One table, so an option of a new pass is a row here. */
#include "passes/passes.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

typedef enum OptionKind { NUMBER, WHOLE, SMALL, YES_NO, WORD, FACTORS } OptionKind;

static const double any = 1e15; /* whole numbers are exact up to there */

static const struct {
    const char *name;
    OptionKind kind; /* WHOLE: int64_t, SMALL: int, YES_NO: bool as 0 or 1, FACTORS:
                        DType of products */
    size_t at;
    double most;
} table[] = {
    {"micro_batches", WHOLE, offsetof(PassOptions, micro_batches), any},
    {"interleave", WHOLE, offsetof(PassOptions, interleave), MAX_BESIDE},
    {"schedule", WORD, offsetof(PassOptions, schedule_name), 0},
    {"stages", SMALL, offsetof(PassOptions, stages), MAX_STAGES},
    {"stage_chunks", SMALL, offsetof(PassOptions, stage_chunks), MAX_STAGES},
    {"stage", SMALL, offsetof(PassOptions, stage), MAX_STAGES - 1},
    {"narrow", FACTORS, offsetof(PassOptions, narrow), 0},
    {"residual_exact", YES_NO, offsetof(PassOptions, residual_exact), 1},
    {"round_gradients", YES_NO, offsetof(PassOptions, round_gradients), 1},
    {"round_sums", YES_NO, offsetof(PassOptions, round_sums), 1},
    {"hoist_slices", YES_NO, offsetof(PassOptions, hoist_slices), 1},
    {"hold", YES_NO, offsetof(PassOptions, hold), 1},
    {"turn", YES_NO, offsetof(PassOptions, turn), 1},
    {"remake", WORD, offsetof(PassOptions, remake), 0},
    {"remake_elementwise", YES_NO, offsetof(PassOptions, remake_elementwise), 1},
    {"remake_axes", WORD, offsetof(PassOptions, remake_axes), 0},
    {"optimizer", WORD, offsetof(PassOptions, optimizer), 0},
    {"beta1", NUMBER, offsetof(PassOptions, beta1), 1},
    {"beta2", NUMBER, offsetof(PassOptions, beta2), 1},
    {"eps", NUMBER, offsetof(PassOptions, eps), any},
    {"momentum", NUMBER, offsetof(PassOptions, momentum), 1},
    {"decay_weights", YES_NO, offsetof(PassOptions, decay_weights), 1},
    {"scale_loss", YES_NO, offsetof(PassOptions, scale_loss), 1},
    {"clip_norm", NUMBER, offsetof(PassOptions, clip_norm), any},
    {"zero", SMALL, offsetof(PassOptions, zero_level), 3},
    {"zero_axes", WORD, offsetof(PassOptions, zero_axes), 0},
    {"zero_threshold_bytes", WHOLE, offsetof(PassOptions, zero_threshold_bytes), any},
    {"bucket_bytes", WHOLE, offsetof(PassOptions, bucket_bytes), any},
    {"tile_bytes", WHOLE, offsetof(PassOptions, tile_bytes), any},
    {"tile_rows", WHOLE, offsetof(PassOptions, tile_rows), any},
    {"overlap", SMALL, offsetof(PassOptions, overlap), 2},
    {"gathers_at_end", YES_NO, offsetof(PassOptions, gathers_at_end), 1},
};

void pass_options_print(FILE *to) {
    for (int i = 0; i < ARRAY_LEN(table); i++) {
        fprintf(to, "%s%s", i ? ", " : "", table[i].name);
        if (table[i].kind == YES_NO)
            fprintf(to, " (0, 1)");
        else if (table[i].kind == FACTORS)
            fprintf(to, " (f32, bf16, f16)");
        else if (table[i].kind != WORD && table[i].most < any)
            fprintf(to, " (0..%g)", table[i].most);
    }
}

static int find(const char *name) {
    const char *names[ARRAY_LEN(table)];
    for (int i = 0; i < ARRAY_LEN(table); i++) names[i] = table[i].name;
    int i = name_index(name, names, ARRAY_LEN(table));
    if (i >= 0) return i;
    const char *near = nearest_name(name, names, ARRAY_LEN(table));
    fail(EXIT_CONFIG, "unknown option '%s' of a pass%s%s", name,
         near ? "; did you mean " : "", near ? near : "");
}

static double number_of(int option, const char *text) {
    char *end;
    double v = strtod(text, &end);
    bool whole = table[option].kind != NUMBER;
    bool good = end != text && !*end && v >= 0 && v <= table[option].most &&
                (!whole || v == floor(v));
    if (!good)
        fail(EXIT_CONFIG, "%s wants a%s number from 0 to %g, got '%s'",
             table[option].name, whole ? " whole" : "", table[option].most, text);
    return v;
}

static DType factors_of(int option, const char *text) {
    static const DType types[] = {DT_F32, DT_BF16, DT_F16};
    for (int i = 0; i < ARRAY_LEN(types); i++)
        if (!strcmp(text, dtype_name[types[i]])) return types[i];
    fail(EXIT_CONFIG, "%s wants f32, bf16 or f16, got '%s'", table[option].name, text);
}

void pass_option_set(PassOptions *o, const char *text) {
    char name[32];
    size_t n = strcspn(text, "=");
    if (!text[n]) fail(EXIT_CONFIG, "an option of a pass is KEY=VALUE, got '%s'", text);
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name), text);
    int i = find(name);
    const char *value = text + n + 1;
    char *at = (char *)o + table[i].at;
    if (table[i].kind == WORD)
        memcpy(at, &value, sizeof value);
    else if (table[i].kind == FACTORS)
        *(DType *)at = factors_of(i, value);
    else if (table[i].kind == NUMBER)
        *(double *)at = number_of(i, value);
    else if (table[i].kind == WHOLE)
        *(int64_t *)at = (int64_t)number_of(i, value);
    else if (table[i].kind == SMALL)
        *(int *)at = (int)number_of(i, value);
    else
        *(bool *)at = number_of(i, value) != 0;
}
