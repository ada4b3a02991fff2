/* bpe_load.h - how tokenizer files write bytes as characters. */
#ifndef STATOR_BPE_LOAD_H
#define STATOR_BPE_LOAD_H
#include "base/base.h"

/* Bytes in the order of GPT-2's vocabulary: id i < 256 is byte gpt2_byte(i). First come
 * the 188 printable ones, which are written as themselves, then the others, as U+0100 and
 * up. */
int gpt2_byte(int i);
/* s[n] as UTF-8 of the characters that represent its bytes, zero-terminated. */
char *bytes_to_chars(Arena *mem, const char *s, size_t n, size_t *out_n);

#endif
