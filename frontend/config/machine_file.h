/* machine_file.h - a machine as a YAML file. docs/machines.md lists the keys. */
#ifndef STATOR_MACHINE_FILE_H
#define STATOR_MACHINE_FILE_H
#include "frontend/config/config.h"
#include "passes/cost/machine.h"

/* Reads it. Fails with EXIT_CONFIG at the position of what is unknown, missing, no positive
 * number, or of lists whose lengths do not go together. */
Machine *machine_read(Arena *mem, const char *path);
/* The same of a text; path: for messages. */
Machine *machine_parse(Arena *mem, const char *path, const char *text, size_t n);
/* That of context.machine, read once; NULL: the key is not given. A relative path is looked
 * for beside the YAML file that says it, then from the working directory. */
const Machine *config_machine(const Config *cfg);
/* That of the key, or machine_plain with a note. */
const Machine *config_machine_or_plain(const Config *cfg);
/* As a file that machine_read reads to the same machine; head: comment lines without '#',
 * or NULL. */
void machine_print(const Machine *m, const char *head, Text *out);

#endif
