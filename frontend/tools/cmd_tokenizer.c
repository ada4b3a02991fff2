/* cmd_tokenizer.c - the command tokenizer: trains a BPE on one's own text, and shows what
 * a tokenizer makes of a text. */
#include "frontend/config/commands.h"
#include "frontend/config/options.h"
#include "frontend/tools/text.h"
#include "runtime/text/tokenizer.h"
#include <errno.h>
#include <unistd.h>

enum { MAX_TRAIN_FILE_BYTES = TOKENIZER_MAX_TEXT_BYTES };

static TokenizerSpec spec_of(const Options *o) {
    return (TokenizerSpec){.type = option_text(o, "--tokenizer-type"),
                           .vocab_file = option_text(o, "--vocab-file"),
                           .merge_file = option_text(o, "--merge-file"),
                           .tokenizer_file = option_text(o, "--tokenizer-file")};
}

static void warn_bad(uint64_t bad) {
    if (bad)
        fprintf(
            stderr,
            "stator: warning: %llu sequences are not valid UTF-8 and count as U+FFFD\n",
            (unsigned long long)bad);
}

/* ---- train ---- */

static int train(const Options *o) {
    int ninput;
    const char **input = option_list(o, "--input", &ninput);
    const char *output = option_text(o, "--output");
    int64_t vocab_size = option_int(o, "--vocab-size", 0);
    if (!ninput || !vocab_size || !output || o->nwords > 1)
        fail(EXIT_CONFIG, "write stator tokenizer train --input FILE... --vocab-size N "
                          "--output DIR");
    double start = clock_seconds();
    TokenizerTrainer *tr = tokenizer_trainer_new(o->mem);
    uint64_t bad = 0, bytes = 0;
    for (int i = 0; i < ninput; i++) {
        Arena *file = arena_new();
        size_t n;
        char *s = file_read(file, input[i], MAX_TRAIN_FILE_BYTES, &n, EXIT_DATA);
        tokenizer_trainer_add(tr, s, n, &bad);
        bytes += n;
        arena_free(file);
    }
    warn_bad(bad);
    Tokenizer *t = tokenizer_train(tr, vocab_size);
    tokenizer_write(t, output);
    if (tokenizer_vocab(t) < vocab_size)
        fprintf(stderr,
                "stator: note: no pair occurs twice any more; the vocabulary has %lld "
                "ids, not %lld\n",
                (long long)tokenizer_vocab(t), (long long)vocab_size);
    printf("%s: %s; trained on %s in %.1f s\n", output, tokenizer_describe(t),
           human((double)bytes, "B").s, clock_seconds() - start);
    return 0;
}

/* ---- encode and decode ---- */

static void read_input(Text *text) {
    static char block[1 << 16];
    for (ssize_t n; (n = read(STDIN_FILENO, block, sizeof block)) != 0;) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail(EXIT_DATA, "cannot read the input: %s", strerror(errno));
        if (text->n + (size_t)n > TOKENIZER_MAX_TEXT_BYTES)
            fail(EXIT_DATA, "the input has more than %d bytes", TOKENIZER_MAX_TEXT_BYTES);
        text_add_bytes(text, block, (size_t)n);
    }
}

/* The words after "encode" or "decode", joined by spaces; without any, the input. */
static Text input_text(const Options *o) {
    Text text = text_new(o->mem);
    for (int i = 1; i < o->nwords; i++)
        text_add(&text, "%s%s", i > 1 ? " " : "", o->word[i]);
    if (o->nwords == 1) read_input(&text);
    return text;
}

static void end_output(void) {
    if (fflush(stdout) != 0 || ferror(stdout))
        fail(EXIT_DATA, "cannot write the output: %s", strerror(errno));
}

static int encode(const Options *o) {
    TokenizerSpec spec = spec_of(o);
    Tokenizer *t = tokenizer_open(o->mem, &spec);
    Text text = input_text(o);
    TokenizerCache *cache = tokenizer_cache_new();
    uint64_t bad = 0;
    size_t cap = tokenizer_max_tokens(t, text.n);
    int32_t *id = NEW_ARRAY(o->mem, int32_t, cap);
    bool special = option_given(o, "--allow-special");
    size_t n = tokenizer_encode(t, cache, text.s, text.n, special, id, cap, &bad);
    tokenizer_cache_free(cache);
    warn_bad(bad);
    for (size_t i = 0; i < n; i++) printf("%s%d", i ? " " : "", id[i]);
    putchar('\n');
    end_output();
    return 0;
}

static int decode(const Options *o) {
    if (option_given(o, "--allow-special"))
        fail(EXIT_CONFIG, "--allow-special is for encode alone");
    TokenizerSpec spec = spec_of(o);
    Tokenizer *t = tokenizer_open(o->mem, &spec);
    Text list = input_text(o);
    Tokens ids = tokens_parse(o->mem, list.s, tokenizer_vocab(t));
    size_t n = tokenizer_decode(t, ids.id, (size_t)ids.n, NULL, 0);
    char *out = arena_alloc(o->mem, n);
    tokenizer_decode(t, ids.id, (size_t)ids.n, out, n);
    fwrite(out, 1, n, stdout);
    end_output();
    return 0;
}

int cmd_tokenizer(int argc, char **argv) {
    Arena *mem = arena_new();
    const Options *o = options_read(mem, COMMAND_tokenizer, argc, argv);
    if (!o) {
        arena_free(mem);
        return 0;
    }
    int code = 0;
    const char *what = o->nwords ? o->word[0] : "";
    bool trains = !strcmp(what, "train");
    if (!trains && (option_given(o, "--input") || option_given(o, "--vocab-size") ||
                    option_given(o, "--output")))
        fail(EXIT_CONFIG,
             "--input, --vocab-size and --output are for stator tokenizer train alone");
    if (trains)
        code = train(o);
    else if (!strcmp(what, "encode"))
        code = encode(o);
    else if (!strcmp(what, "decode"))
        code = decode(o);
    else
        fail(EXIT_CONFIG,
             "stator tokenizer %.100s: write train, encode or decode; stator help "
             "tokenizer",
             what);
    arena_free(mem);
    return code;
}
