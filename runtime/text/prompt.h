/* prompt.h - texts as the tokens that a model goes on with. */
#ifndef STATOR_PROMPT_H
#define STATOR_PROMPT_H
#include "runtime/text/tokenizer.h"

/* The ids of a text of n bytes, behind those of the tokenizer's template unless it has them
 * already; *bad (or NULL): sequences that are not valid UTF-8. In mem. Fails with EXIT_CONFIG
 * where the text is too long. */
int32_t *prompt_encode(Arena *mem, const Tokenizer *t, const char *s, size_t n,
                       int64_t *count, uint64_t *bad);
#endif
