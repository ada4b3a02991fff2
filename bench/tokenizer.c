/* tokenizer.c - how fast text becomes ids on one core: the project's own sources (code
 * and English), and where they are, tinyshakespeare and GPT-2's vocabulary; otherwise a
 * vocabulary trained on the sources. CPU time, so that other programs count little.
 * First: a text seen once, with no words remembered. Steady: as in a long run.
 *     bench_tokenizer [FILE...] */
#include "runtime/text/tokenizer.h"
#include <stdlib.h>
#include <time.h>

extern const unsigned char embedded_corpus[];
extern const size_t embedded_corpus_bytes;

enum { VOCAB = 16384, REPEATS = 5, STEADY_BYTES = 64 << 20, MAX_FILE_BYTES = 1 << 30 };
static const double goal_mb_s = 30;

static double cpu_seconds(void) {
    struct timespec t;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) != 0) die("clock_gettime failed");
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *shared_file(Arena *mem, const char *name) {
    const char *set = getenv("STATOR_SHARED");
    const char *dir = set ? set : CONFIGS_DIR "/../../shared";
    const char *path = path_join(mem, dir, name);
    return file_exists(path) ? path : NULL;
}

static Tokenizer *open_tokenizer(Arena *mem) {
    TokenizerSpec spec = {
        .vocab_file = shared_file(mem, "data/gpt2-tokenizer/vocab.json"),
        .merge_file = shared_file(mem, "data/gpt2-tokenizer/merges.txt"),
    };
    double start = cpu_seconds();
    if (spec.vocab_file && spec.merge_file) {
        Tokenizer *t = tokenizer_open(mem, &spec);
        printf("  opened in %.3f s: %s\n", cpu_seconds() - start, tokenizer_describe(t));
        return t;
    }
    TokenizerTrainer *tr = tokenizer_trainer_new(mem);
    tokenizer_trainer_add(tr, (const char *)embedded_corpus, embedded_corpus_bytes, NULL);
    Tokenizer *t = tokenizer_train(tr, VOCAB);
    printf("  trained in %.3f s: %s\n", cpu_seconds() - start, tokenizer_describe(t));
    return t;
}

static double mb_s(double bytes, double seconds) {
    return bytes / 1e6 / (seconds > 1e-9 ? seconds : 1e-9);
}

static void measure(const Tokenizer *t, const char *name, const char *s, size_t n) {
    Arena *mem = arena_new();
    size_t cap = tokenizer_max_tokens(t, n), ids = 0, rounds = STEADY_BYTES / (n + 1) + 1;
    int32_t *id = NEW_ARRAY(mem, int32_t, cap);
    double first = 1e30, steady = 1e30;
    for (int i = 0; i < REPEATS; i++) {
        TokenizerCache *cache = tokenizer_cache_new();
        double start = cpu_seconds();
        ids = tokenizer_encode(t, cache, s, n, false, id, cap, NULL);
        double once = cpu_seconds() - start;
        if (once < first) first = once;
        start = cpu_seconds();
        for (size_t r = 0; r < rounds; r++)
            tokenizer_encode(t, cache, s, n, false, id, cap, NULL);
        double all = cpu_seconds() - start;
        if (all < steady) steady = all;
        tokenizer_cache_free(cache);
    }
    double first_mb_s = mb_s((double)n, first);
    double steady_mb_s = mb_s((double)n * (double)rounds, steady);
    printf("  %s: %zu bytes, %zu ids\n", name, n, ids);
    printf("tokenizer %s, first: %.1f MB/s; the goal is %.0f, ratio %.2f\n", name,
           first_mb_s, goal_mb_s, first_mb_s / goal_mb_s);
    printf("tokenizer %s, steady: %.1f MB/s; the goal is %.0f, ratio %.2f\n", name,
           steady_mb_s, goal_mb_s, steady_mb_s / goal_mb_s);
    arena_free(mem);
}

static void measure_file(Arena *mem, const Tokenizer *t, const char *path) {
    size_t n;
    const char *s = file_read(mem, path, MAX_FILE_BYTES, &n, EXIT_DATA);
    const char *name = path_name(path);
    measure(t, name, s, n);
}

int main(int argc, char **argv) {
    Arena *mem = arena_new();
    Tokenizer *t = open_tokenizer(mem);
    measure(t, "own sources", (const char *)embedded_corpus, embedded_corpus_bytes);
    const char *play = shared_file(mem, "data/tinyshakespeare.txt");
    if (play)
        measure_file(mem, t, play);
    else
        printf("  skipped: no shared tinyshakespeare.txt\n");
    for (int i = 1; i < argc; i++) measure_file(mem, t, argv[i]);
    arena_free(mem);
    return 0;
}
