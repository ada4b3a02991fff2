/* made.h - programs made by chance, the same for the same seed: shapes are subsets of
 * three dimensions a, b, c of sizes 1 to 5; elementwise ops with broadcasting,
 * reductions, products, views, and loops whose function overwrites what it carries. */
#ifndef STATOR_TESTS_MADE_H
#define STATOR_TESTS_MADE_H
#include "base/base.h"
#include "base/rng.h"

typedef struct Made {
    Text text;
    uint64_t seed, drawn;
    int size[3];
    int nvalues, mask[64]; /* %v0, %v1, ...: the dimensions of each */
} Made;

static int draw(Made *g, int n) {
    return (int)(rng_uniform(g->seed, 0, g->drawn++) * n);
}

static void letters(Made *g, int mask) {
    for (int d = 0; d < 3; d++) {
        if (mask >> d & 1) text_add(&g->text, "%c", 'a' + d);
    }
    if (!mask) text_add(&g->text, "_");
}

static void type(Made *g, int mask) {
    const char *comma = "";
    text_add(&g->text, "f32[");
    for (int d = 0; d < 3; d++) {
        if (!(mask >> d & 1)) continue;
        text_add(&g->text, "%s%d", comma, g->size[d]);
        comma = ",";
    }
    text_add(&g->text, "]");
}

static void result(Made *g, int mask) {
    text_add(&g->text, " : ");
    type(g, mask);
    text_add(&g->text, "\n");
    g->mask[g->nvalues++] = mask;
}

static void made_op(Made *g) {
    static const char *const unary[] = {"tanh", "gelu", "silu", "relu", "copy"};
    static const char *const binary[] = {"add", "sub", "mul"};
    int x = draw(g, g->nvalues), y = draw(g, g->nvalues);
    int mx = g->mask[x], my = g->mask[y];
    text_add(&g->text, "  %%v%d = ", g->nvalues);
    switch (draw(g, 7)) {
    case 0:
    case 1:
        text_add(&g->text, "%s %%v%d", unary[draw(g, ARRAY_LEN(unary))], x);
        result(g, mx);
        return;
    case 2:
    case 3:
        text_add(&g->text, "%s %%v%d, %%v%d {", binary[draw(g, 3)], x, y);
        letters(g, mx), text_add(&g->text, ","), letters(g, my);
        text_add(&g->text, "->"), letters(g, mx | my), text_add(&g->text, "}");
        result(g, mx | my);
        return;
    case 4: {
        int kept = mx & draw(g, 8);
        text_add(&g->text, "%s %%v%d {", draw(g, 3) ? "sum" : "max", x);
        letters(g, mx), text_add(&g->text, "->"), letters(g, kept);
        text_add(&g->text, "}");
        result(g, kept);
        return;
    }
    case 5: {
        int kept = (mx ^ my) | (mx & my & draw(g, 8));
        text_add(&g->text, "dot %%v%d, %%v%d {", x, y);
        letters(g, mx), text_add(&g->text, ","), letters(g, my);
        text_add(&g->text, "->"), letters(g, kept), text_add(&g->text, "}");
        result(g, kept);
        return;
    }
    default:
        text_add(&g->text, "reshape %%v%d", x);
        result(g, mx);
    }
}

/* A call in a loop of @f(carry, each, invariant), which overwrites what it carries. */
static void made_call(Made *g) {
    int x = -1, w = -1;
    for (int i = 0; i < g->nvalues; i++) {
        if (g->mask[i] == 6 && (x < 0 || draw(g, 2))) x = i; /* [b,c] */
        if (g->mask[i] == 7 && (w < 0 || draw(g, 2))) w = i; /* [a,b,c] */
    }
    if (x < 0 || w < 0) return;
    int other = g->nvalues++;
    g->mask[other] = 6;
    text_add(&g->text,
             "  %%v%d, %%v%d = call %%v%d, %%v%d, %%v%d {fn=@f; times=%d; carry=1; "
             "each=1%s} : ",
             other, g->nvalues, x, w, x, g->size[0], draw(g, 2) ? "; reverse=1" : "");
    type(g, 6);
    text_add(&g->text, ", ");
    type(g, 7);
    text_add(&g->text, "\n");
    g->mask[g->nvalues++] = 7;
}

static void made_callee(Made *g) {
    text_add(&g->text, "func @f(%%x: "), type(g, 6);
    text_add(&g->text, ", %%w: "), type(g, 6);
    text_add(&g->text, ", %%b: "), type(g, 6);
    text_add(&g->text, ") -> ("), type(g, 6);
    text_add(&g->text, "%s, ", draw(g, 2) ? "=%x" : ""), type(g, 6);
    text_add(&g->text, "%s) {\n  %%m = mul %%x, %%w : ", draw(g, 2) ? "=%w" : "");
    type(g, 6);
    text_add(&g->text, "\n  %%n = add %%m, %%%s : ", draw(g, 2) ? "b" : "x");
    type(g, 6);
    text_add(&g->text, "\n  %%t = tanh %%n : "), type(g, 6);
    text_add(&g->text, "\n  return %%t, %%%s\n}\n", draw(g, 2) ? "m" : "x");
}

/* func @net:model(%v0...) -> (...): 6 arguments, some of them overwritten by results */
static char *made_program(Arena *mem, uint64_t seed) {
    static const int sizes[] = {1, 2, 3, 5}, shapes[] = {7, 6, 3, 4, 1, 0};
    Made head = {.text = text_new(mem), .seed = seed}, g = head;
    g.text = text_new(mem);
    for (int d = 0; d < 3; d++) g.size[d] = sizes[draw(&g, 4)];
    for (int i = 0; i < 6; i++) g.mask[g.nvalues++] = shapes[i];
    for (int k = 0, n = 4 + draw(&g, 20); k < n; k++) {
        if (draw(&g, 8))
            made_op(&g);
        else
            made_call(&g);
    }
    int ret[3], alias[3], taken = 0;
    for (int i = 0; i < 3; i++) {
        ret[i] = i ? draw(&g, g.nvalues) : g.nvalues - 1;
        alias[i] = -1;
        for (int a = 0; a < 6; a++) {
            if (g.mask[a] != g.mask[ret[i]] || taken >> a & 1 || !draw(&g, 3)) continue;
            alias[i] = a;
            taken |= 1 << a;
            break;
        }
    }
    memcpy(head.size, g.size, sizeof g.size);
    head.drawn = g.drawn;
    text_add(&head.text, "module @made mesh() level(local)\n");
    made_callee(&head);
    text_add(&head.text, "func @net:model(");
    for (int i = 0; i < 6; i++) {
        text_add(&head.text, "%s%%v%d: ", i ? ", " : "", i);
        type(&head, shapes[i]);
    }
    text_add(&head.text, ") -> (");
    for (int i = 0; i < 3; i++) {
        text_add(&head.text, "%s", i ? ", " : "");
        type(&head, g.mask[ret[i]]);
        if (alias[i] >= 0) text_add(&head.text, "=%%v%d", alias[i]);
    }
    text_add(&head.text, ") {\n%s  return %%v%d, %%v%d, %%v%d\n}\n", g.text.s, ret[0],
             ret[1], ret[2]);
    return head.text.s;
}

#endif
