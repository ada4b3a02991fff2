/* prompt.c - see prompt.h. */
#include "runtime/text/prompt.h"

int32_t *prompt_encode(Arena *mem, const Tokenizer *t, const char *s, size_t n,
                       int64_t *count, uint64_t *bad) {
    int nprefix;
    const int32_t *prefix = tokenizer_prefix(t, &nprefix);
    size_t most = tokenizer_max_tokens(t, n), bytes = (size_t)nprefix * sizeof *prefix;
    if (most > INT32_MAX / 2) fail(EXIT_CONFIG, "the prompt is too long");
    int32_t *id = NEW_ARRAY(mem, int32_t, most + (size_t)nprefix + 1);
    int32_t *own = id + nprefix;
    TokenizerCache *cache = tokenizer_cache_new();
    *count = (int64_t)tokenizer_encode(t, cache, s, n, true, own, most, bad);
    tokenizer_cache_free(cache);
    if (!nprefix || (*count >= nprefix && !memcmp(own, prefix, bytes))) return own;
    memcpy(id, prefix, bytes);
    *count += nprefix;
    return id;
}
