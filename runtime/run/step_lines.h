/* step_lines.h - files of lines of JSON, each of a step: a run that goes on keeps those up to
 * the step that it goes on after. */
#ifndef STATOR_STEP_LINES_H
#define STATOR_STEP_LINES_H
#include "base/json.h"
#include "runtime/core/file_map.h"

/* The step of a line; -1, or a failure with EXIT_DATA: it is broken or out of order. */
typedef int64_t StepOfLine(void *context, const Json *line);

typedef struct StepLines {
    const char *path;
    FileMap file;      /* as it is */
    const char *kept;  /* its good lines of steps up to the last one: where they */
    size_t kept_bytes; /* are its first ones, in place */
    int damaged, first_damaged; /* lines, and which of them is the first, from 1 */
    int lines;                  /* that have their end */
} StepLines;

/* Goes over the file, however large, and asks of each line in turn. A last line without its end,
 * of a run that was killed, is left out and is no damage. Fails with EXIT_DATA where the file
 * cannot be read. */
StepLines step_lines_read(Arena *mem, const char *path, int64_t last, StepOfLine *step_of,
                          void *context);

/* The file has the kept lines alone from here on. 0 or errno. */
int step_lines_cut(const StepLines *l);
/* What is kept is gone after that. */
void step_lines_close(StepLines *l);

/* Keeps the file as PATH.damaged-N where lines are damaged; what to say of that, in mem, or
 * NULL. */
const char *step_lines_keep_damaged(Arena *mem, const StepLines *l);

#endif
