/* along.h - files beside a tokenizer that belong to it and that nothing is read from:
 * chat_template.jinja, additional_chat_templates/NAME.jinja, special_tokens_map.json,
 * added_tokens.json. */
#ifndef STATOR_ALONG_H
#define STATOR_ALONG_H
#include "base/base.h"

typedef struct FileAlong {
    const char *name; /* below the folder of the tokenizer */
    const char *bytes;
    size_t n;
} FileAlong;

/* The names of those that are in `dir`, *n of them, always in the same order. */
const char *const *along_names(Arena *mem, const char *dir, int *n);
/* Those that are in `dir`, *n of them, always in the same order. Fails with EXIT_DATA for one
 * that cannot be read or is too large. */
FileAlong *along_read(Arena *mem, const char *dir, int *n);
/* Fails with EXIT_DATA. */
void along_write(const FileAlong *f, int n, const char *dir);
/* Removes those in `dir` whose names are not among f[n]: they are of another tokenizer. */
void along_remove_others(const FileAlong *f, int n, const char *dir);

#endif
