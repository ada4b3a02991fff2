/* automatic.h - parallel.parallel_mode 2: what takes a configuration has its strategy searched
 * for, as stator search does. The keys that say one are free, but for those on the command line. */
#ifndef STATOR_SEARCH_AUTOMATIC_H
#define STATOR_SEARCH_AUTOMATIC_H
#include "frontend/config/config.h"

/* A configuration as config_load_of takes it. */
typedef struct ConfigWords {
    ConfigFiles *files;
    int nflags;
    char **flag;
    int flag_cap;
} ConfigWords;

/* Does the configuration leave the strategy to the search (parallel_mode 2)? */
bool automatic_asked(const Config *cfg);
/* The words with the keys of the fastest strategy of so many ranks (0: of as many as the degrees
 * of the file have), so that nothing is asked for any more. limit_bytes: the memory of a rank
 * where neither context.max_device_memory nor the machine says it; 0: any. *said: a line on
 * what was found. Fails as stator search does. */
ConfigWords automatic_words(Arena *mem, const ConfigWords *w, int ranks,
                            double limit_bytes, const char **said);
/* The words with the strategy that the configuration of a run has, which is the one at `path`. */
ConfigWords automatic_words_of(Arena *mem, const ConfigWords *w, const char *path);
/* config_load_of, and, where it is asked for, what automatic_words says, with a note. */
Config *automatic_load(Arena *mem, const ConfigWords *w, int64_t ranks);

#endif
