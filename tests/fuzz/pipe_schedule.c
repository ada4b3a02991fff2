/* Any bytes: the number of micro-batches, and an order of the stages of a pipeline, which is
 * printed as it was read, or a message with a place. */
#include "passes/pipe/schedule.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void look_at(Arena *mem, const PipeSchedule *s) {
    const TaskSeconds seconds = {.kind = {0, 1, 2, 1, 1}};
    Text a = text_new(mem), b = text_new(mem);
    schedule_print(s, &a);
    schedule_print(schedule_parse(mem, "again", a.s, s->micro), &b);
    check(!strcmp(a.s, b.s));
    check(schedule_seconds(mem, s, &seconds, NULL) >= 0);
    for (int k = 0; k < s->stages; k++) check(schedule_in_flight(s, k) >= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (!n) return 0;
    Arena *mem = arena_new();
    Catch c;
    const char *text = arena_strndup(mem, (const char *)data + 1, n - 1);
    PipeSchedule *volatile s = NULL;
    if (CATCH(c)) {
        s = schedule_parse(mem, "fuzz", text, 1 + data[0] % 8);
        catch_end(&c);
    } else {
        check(c.code == EXIT_CONFIG && c.message[0] && c.at.line > 0);
    }
    if (s) look_at(mem, s);
    arena_free(mem);
    return 0;
}
