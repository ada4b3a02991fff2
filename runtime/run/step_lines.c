/* step_lines.c - see step_lines.h. */
#define _GNU_SOURCE
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

/* Lines that are not together are put together in `rest`. */
static void keep(StepLines *l, Text *rest, const char *line, size_t n) {
    if (!rest->n && line == l->kept + l->kept_bytes) {
        l->kept_bytes += n;
        return;
    }
    if (!rest->n) text_add_bytes(rest, l->kept, l->kept_bytes);
    text_add_bytes(rest, line, n);
}

StepLines step_lines_read(Arena *mem, const char *path, int64_t last, StepOfLine *step_of,
                          void *context) {
    StepLines l = {.path = path};
    Text rest = text_new(mem);
    Arena *scratch = NULL;
    file_map(&l.file, path);
    const char *line = l.kept = l.file.n ? (const char *)l.file.bytes : "", *end;
    const char *stop = line + l.file.n;
    for (int number = 1; (end = memchr(line, '\n', (size_t)(stop - line))); number++) {
        if (number % LINES_AT_ONCE == 1) {
            arena_free(scratch);
            scratch = arena_new();
        }
        size_t n = (size_t)(end - line);
        int64_t step = step_of_line(scratch, path, line, n, step_of, context);
        if (step < 0 && !l.damaged++) l.first_damaged = number;
        if (step >= 0 && step <= last) keep(&l, &rest, line, n + 1);
        line = end + 1;
        l.lines = number;
    }
    arena_free(scratch);
    if (rest.n) l.kept = rest.s, l.kept_bytes = rest.n;
    return l;
}

int step_lines_cut(const StepLines *l) {
    return l->kept_bytes == l->file.n
               ? 0
               : file_write_atomic(l->path, l->kept, l->kept_bytes);
}

void step_lines_close(StepLines *l) {
    file_unmap(&l->file);
}

const char *step_lines_keep_damaged(Arena *mem, const StepLines *l) {
    if (!l->damaged) return NULL;
    const char *aside = file_aside(mem, l->path, "damaged", EXIT_DATA);
    file_write(aside, l->file.bytes, l->file.n, EXIT_DATA);
    return arena_printf(
        mem,
        "%.300s:%d: the line is broken or out of order; %d such lines are taken out, "
        "the file as it was is %.300s",
        l->path, l->first_damaged, l->damaged, aside);
}
