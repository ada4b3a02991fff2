/* published.c - tests of bench/published: rows that cannot be planned do not end the others. */
#define MACHINES_DIR TESTS_DIR "/../machines"
#define main         published_main
#include "bench/published.c"
#undef main
#include "command.h"

#define HEAD "layers,hidden,heads,seq,global_batch,micro_batch,seconds,machine\n"

static void predict_rows(const char *rows, char *more, char *last) {
    char *path = temp("rows.csv");
    write_text(path, rows);
    run(published_main, path, "--json", more, last, (char *)NULL);
}

/* Of a row, by its line; NULL: it is planned. */
static const char *problem_of(Arena *mem, int line) {
    const Json *j =
        json_parse(mem, "stdout", printed, strlen(printed), 1 << 20, EXIT_DATA);
    for (const Json *r = json_need(j, "rows")->first; r; r = r->next)
        if (json_i64(json_need(r, "line"), 1, 100) == line) {
            const Json *problem = json_get(r, "problem");
            return problem ? json_string(problem) : NULL;
        }
    test_fail(__FILE__, __LINE__, "no line %d in %s", line, printed);
}

TEST(a_machine_that_is_not_there_is_said_of_its_row) {
    Arena *mem = arena_new();
    char *own = temp("own.yaml");
    write_text(own, "name: x\nlinks: {}\n");
    const char *rows = arena_printf(mem,
                                    HEAD "2,32,2,16,4,2,0.5,h200x\n"
                                         "2,32,2,16,4,2,0.5,a100\n"
                                         "2,32,2,16,4,2,0.5,/none/x.yaml\n"
                                         "2,32,2,16,4,2,0.5,%s\n",
                                    own);
    predict_rows(rows, NULL, NULL);
    worked();
    EXPECT_PART(problem_of(mem, 2), "h200x.yaml");
    EXPECT(!problem_of(mem, 3));
    EXPECT_PART(problem_of(mem, 4), "/none/x.yaml");
    EXPECT_PART(problem_of(mem, 5), "own.yaml:2:");
    EXPECT_PART(printed, "\"compared\": 1,\n  \"not_planned\": 3,");
    predict_rows(rows, "--machine", "/none/y.yaml");
    refused(EXIT_CONFIG, "/none/y.yaml");
    arena_free(mem);
}

/* What is no number is no number in what is printed either. */
TEST(seconds_that_are_no_number_are_a_problem_of_their_row) {
    static const char *const text[] = {"nan", "inf", "-1", "1e400", "x"};
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(text); i++) {
        test_at("%s", text[i]);
        predict_rows(arena_printf(mem,
                                  HEAD "2,32,2,16,4,2,%s,a100\n2,32,2,16,4,2,0,a100\n",
                                  text[i]),
                     NULL, NULL);
        worked();
        EXPECT_PART(problem_of(mem, 2), "seconds is a number above 0, not");
        EXPECT(!problem_of(mem, 3));
        EXPECT_PART(printed, "\"measured_seconds\": 0,");
    }
    arena_free(mem);
}
