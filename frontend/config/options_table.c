/* options_table.c - the commands and their options as data; see options.h. */
#include "frontend/config/options.h"
#include <limits.h>

#define KEYS  COMMAND_KEYS
#define FIRST COMMAND_FIRST
#define RANKS COMMAND_RANKS
const CommandRow command_table[N_COMMANDS] = {
#define COMMAND(name, flags, max_words, usage, line, text, end)                          \
    {#name, flags, max_words, usage, line, text, end},
#include "frontend/config/commands.def"
};
#undef KEYS
#undef FIRST
#undef RANKS

const OptionRow option_table[] = {
#define OPTION(command, names, kind, value, low, high, help)                             \
    {COMMAND_##command, names, OPTION_##kind, value, low, high, NULL, help},
#define KEY_OPTION(command, names, value, key, help)                                     \
    {COMMAND_##command, names, OPTION_KEY, value, 0, 0, key, help},
#include "frontend/config/commands.def"
};
const int n_options = ARRAY_LEN(option_table);

const char *option_next_name(const char **at, char name[64]) {
    size_t n = strcspn(*at, " ");
    if (!n) return NULL;
    check(n < 64);
    memcpy(name, *at, n);
    name[n] = 0;
    *at += n + ((*at)[n] == ' ');
    return name;
}
