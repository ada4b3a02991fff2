/* memplan.c - the checker of memory plans finds spoilt plans, what a plan adds up to, and
 * the size of programs of many layers. */
#include "../ir_file.h"
#include "base/rng.h"
#include "ir/sample.h"
#include "passes/passes.h"

static Module *planned(Arena *mem, const char *name, const char *passes,
                       int micro_batches) {
    Module *m = ir_file(mem, name);
    PassOptions o = pass_options_default();
    o.micro_batches = micro_batches;
    passes_run(m, passes, &o);
    return m;
}

static Func *entry(const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (func_is_entry(f)) return f;
    }
    test_fail(__FILE__, __LINE__, "no entry");
}

/* ---- spoilt plans ---- */

static int last_read(const Func *f, const Value *v) {
    int last = v->def->id;
    for (const Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nin; i++) {
            if (op->in[i] == v) last = op->id;
        }
    }
    for (int i = 0; i < f->nret; i++) {
        if (f->ret[i] == v) last = f->nops;
    }
    return last;
}

static Value **frame_values(Arena *mem, const Func *f, int *n) {
    Value **list = NEW_ARRAY(mem, Value *, (size_t)f->nvalues + 1);
    *n = 0;
    for (const Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nout; i++) {
            if (op->out[i]->loc.kind == LOC_FRAME) list[(*n)++] = op->out[i];
        }
    }
    return list;
}

static bool is_view(const Value *v) {
    return optab[v->def->kind].flags & F_VIEW;
}

/* Every value moved onto every other that is made before it and read after it. */
static int spoil_pairs(Arena *mem, const Module *m, Func *f) {
    int n, spoilt = 0;
    func_number(f);
    Value **v = frame_values(mem, f, &n);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            bool together =
                v[i]->def->id < v[j]->def->id && last_read(f, v[i]) > v[j]->def->id;
            int64_t old = v[j]->loc.at, at = v[i]->loc.at;
            if (!together || at == old || is_view(v[j])) continue;
            if (at + type_bytes(&v[j]->ty) > f->frame_bytes) continue;
            v[j]->loc.at = at;
            if (!memplan_check(mem, m)) {
                test_fail(__FILE__, __LINE__, "@%s: %%%s on top of %%%s was not noticed",
                          f->name, v[j]->name, v[i]->name);
            }
            v[j]->loc.at = old;
            spoilt++;
        }
    }
    return spoilt;
}

static int spoil_all(const char *name, const char *passes, int micro_batches) {
    Arena *mem = arena_new();
    Module *m = planned(mem, name, passes, micro_batches);
    int spoilt = 0;
    EXPECT(memplan_check(mem, m) == NULL);
    for (Func *f = m->first; f; f = f->next) {
        if (f->role != ROLE_KERNEL) spoilt += spoil_pairs(mem, m, f);
    }
    EXPECT(memplan_check(mem, m) == NULL);
    arena_free(mem);
    return spoilt;
}

TEST_LIMIT(overlaps_are_noticed, 120) {
    EXPECT(spoil_all("mlp.ir", train_passes, 1) > 15);
    EXPECT(spoil_all("tiny_gpt.ir", train_passes, 3) > 50);
    EXPECT(spoil_all("llama_tiny.ir", predict_passes, 1) > 5);
}

static bool same_results(Arena *mem, const Func *f, Tensor **want) {
    Tensor ***ret = sample_results(mem, f);
    interp_run(mem, f, sample_arguments(mem, f), ret);
    for (int i = 0; i < f->nret; i++) {
        if (memcmp(ret[0][i]->data, want[i]->data, (size_t)type_bytes(&want[i]->ty))) {
            return false;
        }
    }
    return true;
}

static int draw(uint64_t *state, int n) {
    return (int)(rng_uniform(11, 0, (*state)++) * n);
}

static Func *draw_func(const Module *m, uint64_t *state) {
    int n = 0;
    for (Func *f = m->first; f; f = f->next) n += f->role != ROLE_KERNEL;
    n = draw(state, n);
    for (Func *f = m->first;; f = f->next) {
        if (f->role != ROLE_KERNEL && n-- == 0) return f;
    }
}

/* Some other place for the value: of another value, an argument, a result, or anywhere.
 */
static Loc draw_location(const Func *f, const Value *v, Value **all, int n,
                         uint64_t *state) {
    int64_t bytes = type_bytes(&v->ty);
    int k = draw(state, 4);
    if (k == 0 && f->narg) {
        int a = draw(state, f->narg);
        if (type_bytes(&f->arg[a]->ty) >= bytes) return (Loc){LOC_ARG, a};
    }
    if (k == 1 && f->nret) {
        int r = draw(state, f->nret);
        if (type_bytes(&f->ret[r]->ty) >= bytes) return (Loc){LOC_RET, r};
    }
    int64_t at = k == 2 ? 64 * draw(state, (int)(f->frame_bytes / 64))
                        : all[draw(state, n)]->loc.at;
    return at + bytes <= f->frame_bytes ? (Loc){LOC_FRAME, at} : v->loc;
}

/* What the checker lets pass must compute the same. */
static void check_sound(const char *name, const char *passes, int micro_batches) {
    Arena *mem = arena_new();
    Module *m = planned(mem, name, passes, micro_batches);
    Func *f = entry(m);
    Tensor ***want = sample_results(mem, f);
    interp_run(mem, f, sample_arguments(mem, f), want);
    uint64_t state = 0;
    int caught = 0, passed = 0;
    for (int k = 0; k < 400; k++) {
        Arena *scratch = arena_new();
        Func *g = draw_func(m, &state);
        int n;
        func_number(g);
        Value **all = frame_values(scratch, g, &n);
        if (n) {
            Value *v = all[draw(&state, n)];
            Loc old = v->loc;
            v->loc = draw_location(g, v, all, n, &state);
            bool ok = memplan_check(scratch, m) == NULL;
            if (ok && !same_results(scratch, f, want[0])) {
                test_fail(__FILE__, __LINE__,
                          "%s: %%%s of @%s moved to %d:%lld changes the "
                          "results unnoticed",
                          name, v->name, g->name, (int)v->loc.kind, (long long)v->loc.at);
            }
            caught += !ok;
            passed += ok;
            v->loc = old;
        }
        arena_free(scratch);
    }
    EXPECT(caught > 40 && passed > 5);
    arena_free(mem);
}

TEST_LIMIT(checker_is_sound, 180) {
    check_sound("mlp.ir", train_passes, 1);
    check_sound("tiny_gpt.ir", train_passes, 1);
    check_sound("tiny_gpt.ir", train_passes, 3);
    check_sound("reverse.ir", train_passes, 1);
    check_sound("two_towers.ir", train_passes, 2);
    check_sound("decode.ir", predict_passes, 1);
}

/* Workspaces on top of values that live across their ops: how many there are to be noticed. */
static int move_workspaces(const char *name, int micro_batches) {
    Arena *mem = arena_new();
    Module *m = planned(mem, name, train_passes, micro_batches);
    int moved = 0;
    for (Func *f = m->first; f; f = f->next) {
        if (f->role == ROLE_KERNEL) continue;
        int n;
        func_number(f);
        Value **v = frame_values(mem, f, &n);
        for (Op *op = f->first; op; op = op->next) {
            int64_t bytes = op_int(op, "ws_bytes", 0), old = op_int(op, "ws", 0);
            for (int i = 0; i < n && bytes; i++) {
                bool across = v[i]->def->id < op->id && last_read(f, v[i]) > op->id;
                if (!across || v[i]->loc.at + bytes > f->frame_bytes) continue;
                op_set_int(op, "ws", v[i]->loc.at);
                EXPECT(memplan_check(mem, m) != NULL);
                op_set_int(op, "ws", old);
                moved++;
            }
        }
    }
    EXPECT(memplan_check(mem, m) == NULL);
    arena_free(mem);
    return moved;
}

TEST(workspace_is_checked) {
    static const char *const files[] = {"tiny_gpt.ir", "reverse.ir", "two_towers.ir",
                                        "mlp.ir"};
    int moved = 0;
    for (int i = 0; i < ARRAY_LEN(files); i++)
        for (int micro_batches = 1; micro_batches <= 3; micro_batches++)
            moved += move_workspaces(files[i], micro_batches);
    printf("  %d moved\n", moved);
    EXPECT(moved > 10);
}

/* ---- sums ---- */

TEST(classes_add_up) {
    Arena *mem = arena_new();
    Module *m = planned(mem, "tiny_gpt.ir", train_passes, 2);
    Func *f = entry(m);
    MemoryPlan p = memory_plan(mem, f);
    int64_t sum = 0, weights = 0;
    for (int k = 0; k < MEM_CLASSES; k++) {
        EXPECT(p.class_bytes[k] >= 0);
        sum += p.class_bytes[k];
    }
    EXPECT_INT(sum, p.total_bytes);
    EXPECT_INT(p.frame_offset + f->frame_bytes, p.total_bytes);
    for (int i = 0; i < f->narg; i++) {
        if (arg_role(f, i) != ARG_param) continue;
        weights += (type_bytes(&f->arg[i]->ty) + 63) / 64 * 64;
    }
    EXPECT_INT(p.class_bytes[MEM_WEIGHTS], weights);
    EXPECT_INT(p.class_bytes[MEM_OPTIMIZER], 2 * weights); /* AdamW: m and v */
    for (int i = 0; i < f->nret; i++) {
        if (f->alias[i] >= 0) EXPECT_INT(p.ret_offset[i], p.arg_offset[f->alias[i]]);
    }
    arena_free(mem);
}

/* The plan is a function of the program alone. */
TEST(plans_repeat) {
    Arena *mem = arena_new();
    char *first = module_print(mem, planned(mem, "tiny_gpt.ir", train_passes, 3));
    for (int k = 0; k < 3; k++) {
        arena_alloc(mem, 1000 * (size_t)(k + 1)); /* other addresses */
        EXPECT_STR(module_print(mem, planned(mem, "tiny_gpt.ir", train_passes, 3)),
                   first);
    }
    arena_free(mem);
}

/* ---- layers ---- */

static Module *model_of(Arena *mem, int layers) {
    const char *text =
        "module @deep mesh() level(global)\n"
        "func @layer(%%x: f32[2,4,6], %%g: f32[6], %%w: f32[6,3,2,3], %%o: f32[2,3,6],\n"
        "    %%u: f32[6,9], %%d: f32[9,6], %%zero: i32[], %%rng: i32[4]) -> (f32[2,4,6]) "
        "{\n"
        "  %%n, %%r = rmsnorm %%x, %%g {eps=1e-05} : f32[2,4,6], f32[2,4]\n"
        "  %%a = dot %%n, %%w {btc,cahd->btahd} : f32[2,4,3,2,3]\n"
        "  %%q, %%k, %%v = unstack %%a {dim=2} : f32[2,4,2,3], f32[2,4,2,3], "
        "f32[2,4,2,3]\n"
        "  %%y, %%l = attention %%q, %%k, %%v, %%zero, %%zero, %%rng {scale=1; causal=1} "
        ": f32[2,4,2,3], f32[2,4,2]\n"
        "  %%p = dot %%y, %%o {bthd,hdc->btc} : f32[2,4,6]\n"
        "  %%x1 = add %%x, %%p : f32[2,4,6]\n"
        "  %%h = dot %%x1, %%u {btc,cf->btf} : f32[2,4,9]\n"
        "  %%s = silu %%h : f32[2,4,9]\n"
        "  %%f = dot %%s, %%d {btf,fc->btc} : f32[2,4,6]\n"
        "  %%z = add %%x1, %%f : f32[2,4,6]\n"
        "  return %%z\n}\n"
        "func @net:model(%%x: f32[2,4,6] {role=data}, %%rng: i32[4] {role=rng},\n"
        "    %%g: f32[%d,6] {role=param}, %%w: f32[%d,6,3,2,3] {role=param; decay=1},\n"
        "    %%o: f32[%d,2,3,6] {role=param; decay=1}, %%u: f32[%d,6,9] {role=param},\n"
        "    %%d: f32[%d,9,6] {role=param; decay=1}) -> (f32[]) {\n"
        "  %%zero = fill {value=0} : i32[]\n"
        "  %%y = call %%x, %%g, %%w, %%o, %%u, %%d, %%zero, %%rng "
        "{fn=@layer; times=%d; carry=1; each=5} : f32[2,4,6]\n"
        "  %%loss = sum %%y {btc->_} : f32[]\n"
        "  return %%loss\n}\n";
    int n = layers;
    char *spelt = arena_printf(mem, text, n, n, n, n, n, n);
    return module_parse(mem, "deep", spelt, strlen(spelt));
}

static int lines_after(const char *passes, int layers, int micro_batches) {
    Arena *mem = arena_new();
    Module *m = model_of(mem, layers);
    PassOptions o = pass_options_default();
    o.micro_batches = micro_batches;
    passes_run(m, passes, &o);
    int lines = 0;
    for (const char *p = module_print(mem, m); *p; p++) lines += *p == '\n';
    arena_free(mem);
    return lines;
}

TEST(layers_do_not_grow_programs) {
    for (int micro_batches = 1; micro_batches <= 4; micro_batches += 3) {
        int few = lines_after(train_passes, 12, micro_batches);
        int many = lines_after(train_passes, 96, micro_batches);
        EXPECT(few > 50 && many <= few * 12 / 10);
    }
    EXPECT(lines_after(predict_passes, 96, 1) <=
           lines_after(predict_passes, 12, 1) * 12 / 10);
}
