/* cmd_tokenizer.c - the command tokenizer: trains a BPE on one's own text, and shows what
 * a tokenizer makes of a text. */
#include "base/json.h"
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

typedef struct Coder {
    const Tokenizer *t;
    TokenizerCache *cache;
    bool special, template; /* --allow-special, --template */
    uint64_t bad;
} Coder;

/* Prints the ids of s[n] with `between` between them. */
static void print_ids(Coder *c, Arena *mem, const char *s, size_t n,
                      const char *between) {
    size_t cap = tokenizer_max_tokens(c->t, n);
    int32_t *id = NEW_ARRAY(mem, int32_t, cap + 1);
    n = tokenizer_encode(c->t, c->cache, s, n, c->special, id, cap, &c->bad);
    int around[2] = {0};
    const int32_t *ends[2] = {tokenizer_prefix(c->t, &around[0]),
                              tokenizer_suffix(c->t, &around[1])};
    const char *gap = "";
    for (int i = 0; c->template && i < around[0]; i++, gap = between)
        printf("%s%d", gap, ends[0][i]);
    for (size_t i = 0; i < n; i++, gap = between) printf("%s%d", gap, id[i]);
    for (int i = 0; c->template && i < around[1]; i++, gap = between)
        printf("%s%d", gap, ends[1][i]);
}

/* A line of --json: a text becomes an array of ids, an array of ids a text. */
static void code_line(Coder *c, const char *line, size_t n, bool encodes) {
    Arena *mem = arena_new();
    const Json *v =
        json_parse(mem, "the input's line", line, n, TOKENIZER_MAX_TEXT_BYTES, EXIT_DATA);
    if (encodes) {
        json_want(v, JSON_STRING);
        putchar('[');
        print_ids(c, mem, v->s, v->length, ",");
        printf("]\n");
    } else {
        json_want(v, JSON_ARRAY);
        int32_t *id = NEW_ARRAY(mem, int32_t, (size_t)v->n + 1);
        int ids = 0;
        for (const Json *e = v->first; e; e = e->next)
            id[ids++] = (int32_t)json_i64(e, 0, tokenizer_vocab(c->t) - 1);
        size_t bytes = tokenizer_decode(c->t, id, (size_t)ids, NULL, 0);
        char *s = arena_alloc(mem, bytes + 1);
        tokenizer_decode(c->t, id, (size_t)ids, s, bytes);
        Text out = text_new(mem);
        char *valid = arena_alloc(mem, 3 * bytes + 1);
        json_write_bytes(&out, valid, tokenizer_valid_utf8(s, bytes, valid));
        puts(out.s);
    }
    arena_free(mem);
}

static void code_lines(Coder *c, const Options *o, bool encodes) {
    if (o->nwords > 1)
        fail(EXIT_CONFIG, "--json reads lines of JSON from the input: leave out %.100s",
             o->word[1]);
    Text all = input_text(o);
    const char *rest = all.s, *end = all.s + all.n;
    size_t n;
    for (const char *line; (line = line_next(&rest, end, &n));)
        code_line(c, line, n, encodes);
}

static int encode(const Options *o) {
    TokenizerSpec spec = spec_of(o);
    Coder c = {.t = tokenizer_open(o->mem, &spec),
               .cache = tokenizer_cache_new(),
               .special = option_given(o, "--allow-special"),
               .template = option_given(o, "--template")};
    if (option_given(o, "--json")) {
        code_lines(&c, o, true);
    } else {
        Text text = input_text(o);
        print_ids(&c, o->mem, text.s, text.n, " ");
        putchar('\n');
    }
    tokenizer_cache_free(c.cache);
    warn_bad(c.bad);
    end_output();
    return 0;
}

static int decode(const Options *o) {
    if (option_given(o, "--allow-special") || option_given(o, "--template"))
        fail(EXIT_CONFIG, "--allow-special and --template are for encode alone");
    TokenizerSpec spec = spec_of(o);
    Tokenizer *t = tokenizer_open(o->mem, &spec);
    if (option_given(o, "--json")) {
        code_lines(&(Coder){.t = t}, o, false);
        end_output();
        return 0;
    }
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
    const Options *o = options_take(COMMAND_tokenizer, argc, argv);
    if (!o) return 0;
    Arena *mem = o->mem;
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
