/* yaml.c - a configuration from any bytes: refused with a message, or printed and read
 * back to the same. */
#include "frontend/config/yaml.h"
#include "frontend/config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Arena *a = arena_new();
    Catch c;
    Config *cfg = NULL;
    if (CATCH(c)) {
        yaml_parse(a, "fuzz", (const char *)data, size);
        cfg = config_parse(a, "fuzz", (const char *)data, size);
        catch_end(&c);
    } else {
        check(c.code == EXIT_CONFIG && c.message[0]);
        arena_free(a);
        return 0;
    }
    Text first = text_new(a), second = text_new(a);
    config_print(cfg, &first);
    config_print(config_parse(a, "printed", first.s, first.n), &second);
    check(!strcmp(first.s, second.s));
    arena_free(a);
    return 0;
}
