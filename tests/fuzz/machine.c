/* machine.c - a machine file from any bytes: refused with a message, or printed. */
#include "frontend/config/machine_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Arena *a = arena_new();
    Catch c;
    if (CATCH(c)) {
        Text text = text_new(a);
        machine_print(machine_parse(a, "fuzz", (const char *)data, size), "head", &text);
        check(text.n > 0);
        catch_end(&c);
    } else {
        check(c.code == EXIT_CONFIG && c.message[0]);
    }
    arena_free(a);
    return 0;
}
