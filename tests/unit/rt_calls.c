/* rt_calls.c - calls of runtime functions are held against rt.def, and every row is called; what
 * code asks of the tables besides. */
#include "codegen/lower.h"
#include "codegen/rt_call.h"
#include "jitted.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* What `emit` says when it dies; it must. */
static const char *last_words(void (*emit)(Emit *)) {
    Arena *mem = arena_new();
    Emit *e = emit_for(mem, target_of_lanes(8));
    emit_func(e, "f", e->void_, &e->ptr, 1, false);
    char *path = path_join(mem, temp_dir(), "said");
    int status;
    pid_t child = fork();
    if (!child) {
        EXPECT(dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO) >= 0);
        emit(e);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    return file_read(mem, path, 4096, NULL, EXIT_DATA);
}

static void too_few(Emit *e) {
    CALL_RT(e, rt_copy, emit_param(e, 0), emit_param(e, 0));
}

static void pointer_for_number(Emit *e) {
    CALL_RT(e, rt_copy, emit_param(e, 0), emit_param(e, 0), emit_param(e, 0));
}

static void number_for_double(Emit *e) {
    LLVMValueRef p = emit_param(e, 0), n = emit_i64(e, 2);
    CALL_RT(e, rt_rope_table, p, p, n, n, p, n, n);
}

static void narrow_number(Emit *e) {
    CALL_RT(e, rt_coord, emit_i32(e, 0));
}

static void by_its_name(Emit *e) {
    LLVMValueRef axis = emit_i64(e, 0);
    emit_call(e, "rt_coord", &axis, 1);
}

TEST(calls_are_held_against_the_table) {
    EXPECT_PART(last_words(too_few), "rt_copy takes 3 arguments, not 2");
    EXPECT_PART(last_words(pointer_for_number), "argument 3 of rt_copy is i64, not ptr");
    EXPECT_PART(last_words(number_for_double),
                "argument 6 of rt_rope_table is double, not i64");
    EXPECT_PART(last_words(narrow_number), "argument 1 of rt_coord is i64, not i32");
    EXPECT_PART(last_words(by_its_name), "rt_coord is called before it is declared");
}

static const char one_copy[] = "module @m mesh() level(global)\n"
                               "func @f:model(%x: f32[4] {role=data}) -> (f32[4]) {\n"
                               "  %y = copy %x : f32[4]\n"
                               "  return %y\n"
                               "}\n";

static void workspace_of(Emit *e, int64_t bytes, int64_t skip) {
    Arena *mem = arena_new();
    Module *m = module_parse(mem, "text", one_copy, sizeof one_copy - 1);
    Lower l = {.mem = mem, .m = m, .e = e, .frame = emit_param(e, 0)};
    Op *op = m->first->first;
    if (bytes) op_set_int(op, "ws", 64);
    if (bytes) op_set_int(op, "ws_bytes", bytes);
    lower_workspace(&l, op, skip);
}

static void no_workspace(Emit *e) {
    workspace_of(e, 0, 0);
}

static void behind_workspace(Emit *e) {
    workspace_of(e, 64, 65);
}

TEST(workspaces_are_those_of_the_plan) {
    EXPECT_PART(last_words(no_workspace),
                "copy of @f has no workspace of more than 0 bytes");
    EXPECT_PART(last_words(behind_workspace),
                "copy of @f has no workspace of more than 65 bytes");
}

TEST(results_are_those_of_the_table) {
    Emit *e = emit_for(arena_new(), target_of_lanes(8));
    emit_func(e, "f", e->i64, &e->ptr, 1, false);
    LLVMValueRef coord = CALL_RT(e, rt_coord, emit_i64(e, 1));
    EXPECT(LLVMTypeOf(coord) == e->i64);
    emit_free(e);
}

/* Names of the runtime in code generation: all through the table, and all of the table. */
TEST(every_row_is_called) {
    static const char *const call[] = {
#define RT(result, name, params, what) #name,
#include "runtime/core/rt.def"
    };
    EXPECT_INT(ARRAY_LEN(call), RT_CALLS);
    Arena *mem = arena_new();
    Text all = text_new(mem);
    static const char *const file[] = {"attention_parts", "lower",      "lower_comm",
                                       "lower_dot",       "lower_misc", "lower_kernel",
                                       "lower_widen",     "rank_part",  "rt_run"};
    for (int i = 0; i < ARRAY_LEN(file); i++) {
        char *path = arena_printf(mem, "%s/../codegen/%s.c", tests_dir(), file[i]);
        text_add(&all, "%s", file_read(mem, path, 1 << 20, NULL, EXIT_DATA));
    }
    EXPECT(!strstr(all.s, "\"rt_"));
    for (int i = 0; i < ARRAY_LEN(call); i++) {
        bool here = strstr(all.s, arena_printf(mem, "e, %s,", call[i])) ||
                    strstr(all.s, arena_printf(mem, "CALL_%s", call[i]));
        if (!here) test_fail(__FILE__, __LINE__, "nothing calls %s", call[i]);
    }
}
