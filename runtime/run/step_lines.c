/* step_lines.c - see step_lines.h. */
#include "runtime/run/step_lines.h"

/* A long run has a million lines: memory for what they hold is given back now and then. */
enum { LINES_AT_ONCE = 256 };

static int64_t step_of_line(Arena *scratch, const char *path, const char *line, size_t n,
                            StepOfLine *step_of, void *context) {
    Catch c;
    if (!CATCH(c)) {
        if (c.code != EXIT_DATA) fail_again(c.code, c.message);
        return -1;
    }
    const Json *v = json_parse(scratch, path, line, n, LINES_FILE_MAX_BYTES, EXIT_DATA);
    int64_t step = step_of(context, v);
    catch_end(&c);
    return step;
}

StepLines step_lines_read(Arena *mem, const char *path, int64_t last, StepOfLine *step_of,
                          void *context) {
    StepLines l = {.path = path, .kept = text_new(mem)};
    Arena *scratch = NULL;
    l.bytes = file_read(mem, path, LINES_FILE_MAX_BYTES, &l.size, EXIT_DATA);
    const char *line = l.bytes, *stop = l.bytes + l.size, *end;
    for (int number = 1; (end = memchr(line, '\n', (size_t)(stop - line))); number++) {
        if (number % LINES_AT_ONCE == 1) {
            arena_free(scratch);
            scratch = arena_new();
        }
        size_t n = (size_t)(end - line);
        int64_t step = step_of_line(scratch, path, line, n, step_of, context);
        if (step < 0 && !l.damaged++) l.first_damaged = number;
        if (step >= 0 && step <= last) text_add_bytes(&l.kept, line, n + 1);
        line = end + 1;
    }
    arena_free(scratch);
    return l;
}

const char *step_lines_keep_damaged(Arena *mem, const StepLines *l) {
    if (!l->damaged) return NULL;
    const char *aside = file_aside(mem, l->path, "damaged", EXIT_DATA);
    file_write(aside, l->bytes, l->size, EXIT_DATA);
    return arena_printf(
        mem,
        "%.300s:%d: the line is broken or out of order; %d such lines are taken out, "
        "the file as it was is %.300s",
        l->path, l->first_damaged, l->damaged, aside);
}
