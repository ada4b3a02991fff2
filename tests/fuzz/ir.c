/* ir.c - a module from any bytes: read it or refuse it; what was read prints to a text
 * that is read back as the same text. */
#include "ir/ir.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    Arena *mem = arena_new();
    char *volatile once = NULL, *volatile twice = NULL;
    Catch c;
    if (CATCH(c)) {
        once = module_print(mem, module_parse(mem, "fuzz.ir", (const char *)bytes, n));
        catch_end(&c);
    }
    if (once && CATCH(c)) {
        twice = module_print(mem, module_parse(mem, "again.ir", once, strlen(once)));
        catch_end(&c);
    }
    if (once && !twice) {
        fprintf(stderr, "%s\nis printed, but refused: %s\n", once, c.message);
        abort();
    }
    if (once && strcmp(once, twice)) {
        fprintf(stderr, "%s\nis read back as\n%s\n", once, twice);
        abort();
    }
    arena_free(mem);
    return 0;
}
