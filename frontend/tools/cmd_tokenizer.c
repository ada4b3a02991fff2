/* cmd_tokenizer.c - the command tokenizer: trains a BPE on one's own text, and shows what
 * a tokenizer makes of a text. */
#include "frontend/config/commands.h"
#include "frontend/tools/text.h"
#include "runtime/text/tokenizer.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static const char usage_text[] =
    "stator tokenizer train --input FILE... --vocab-size N --output DIR\n"
    "stator tokenizer encode TOKENIZER [--allow-special] [TEXT...]\n"
    "stator tokenizer decode TOKENIZER [ID...]\n\n"
    "train learns a byte-level BPE of N ids (256 bytes, merges, <|endoftext|>) and "
    "writes\n"
    "vocab.json, merges.txt and tokenizer.json. encode prints the ids of TEXT, or of\n"
    "what it reads; decode prints the text of ids. TOKENIZER is one of:\n"
    "  --vocab-file vocab.json --merge-file merges.txt\n"
    "  --tokenizer-file tokenizer.json\n"
    "  --tokenizer-type ByteTokenizer\n"
    "--allow-special reads <|endoftext|> in the text as the special token.\n";

enum { MAX_TRAIN_FILE_BYTES = TOKENIZER_MAX_TEXT_BYTES };

typedef struct Words {
    const char **s;
    int n, cap;
} Words;

typedef struct Options {
    Arena *mem;
    TokenizerSpec spec;
    Words input, rest;
    const char *vocab_size, *output;
    bool allow_special, help;
} Options;

/* Is `word` the option --name, or --name=VALUE? '_' and '-' are the same. */
static bool is_option(const char *word, const char *name, const char **value) {
    if (strncmp(word, "--", 2)) return false;
    const char *p = word + 2;
    for (; *name; name++, p++)
        if (*p != *name && !(*p == '_' && *name == '-')) return false;
    *value = *p == '=' ? p + 1 : NULL;
    return *p == 0 || *p == '=';
}

static void set_once(const char **field, const char *value, const char *option) {
    if (*field) fail(EXIT_CONFIG, "--%s is given twice", option);
    *field = value;
}

/* Takes the option at argv[i]; returns the number of the last word it took. */
static int take_option(Options *o, int argc, char **argv, int i) {
    struct {
        const char *name, **field;
    } fields[] = {
        {"vocab-file", &o->spec.vocab_file},
        {"merge-file", &o->spec.merge_file},
        {"tokenizer-file", &o->spec.tokenizer_file},
        {"tokenizer-type", &o->spec.type},
        {"vocab-size", &o->vocab_size},
        {"output", &o->output},
    };
    const char *value;
    if (is_option(argv[i], "input", &value)) {
        if (value) PUSH(o->mem, o->input.s, o->input.n, o->input.cap, value);
        while (!value && i + 1 < argc && strncmp(argv[i + 1], "--", 2))
            PUSH(o->mem, o->input.s, o->input.n, o->input.cap, argv[++i]);
        return i;
    }
    for (int f = 0; f < ARRAY_LEN(fields); f++) {
        if (!is_option(argv[i], fields[f].name, &value)) continue;
        if (!value && i + 1 == argc) fail(EXIT_CONFIG, "%s needs a value", argv[i]);
        set_once(fields[f].field, value ? value : argv[++i], fields[f].name);
        return i;
    }
    if (is_option(argv[i], "allow-special", &value) && !value) {
        o->allow_special = true;
        return i;
    }
    fail(EXIT_CONFIG, "unknown option %.100s; stator tokenizer --help", argv[i]);
}

static void read_options(Options *o, int argc, char **argv) {
    bool words = false; /* behind "--" nothing is an option */
    for (int i = 1; i < argc; i++) {
        if (!words && !strcmp(argv[i], "--"))
            words = true;
        else if (!words && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")))
            o->help = true;
        else if (!words && !strncmp(argv[i], "--", 2))
            i = take_option(o, argc, argv, i);
        else
            PUSH(o->mem, o->rest.s, o->rest.n, o->rest.cap, argv[i]);
    }
}

static void warn_bad(uint64_t bad) {
    if (bad)
        fprintf(stderr,
                "stator: warning: %llu places are not valid UTF-8 and count as U+FFFD\n",
                (unsigned long long)bad);
}

/* ---- train ---- */

static int64_t parse_vocab_size(const char *s) {
    char *end;
    errno = 0;
    long long n = strtoll(s, &end, 10);
    if (errno || end == s || *end)
        fail(EXIT_CONFIG, "--vocab-size %.100s: write a number from %d to %d", s,
             TRAIN_MIN_VOCAB, TRAIN_MAX_VOCAB);
    return n;
}

static int train(Options *o) {
    if (!o->input.n || !o->vocab_size || !o->output || o->rest.n > 1)
        fail(EXIT_CONFIG, "write stator tokenizer train --input FILE... --vocab-size N "
                          "--output DIR");
    int64_t vocab_size = parse_vocab_size(o->vocab_size);
    if (vocab_size < TRAIN_MIN_VOCAB || vocab_size > TRAIN_MAX_VOCAB)
        fail(EXIT_CONFIG, "--vocab-size %lld; it must be from %d to %d",
             (long long)vocab_size, TRAIN_MIN_VOCAB, TRAIN_MAX_VOCAB);
    double start = clock_seconds();
    TokenizerTrainer *tr = tokenizer_trainer_new(o->mem);
    uint64_t bad = 0, bytes = 0;
    for (int i = 0; i < o->input.n; i++) {
        Arena *file = arena_new();
        size_t n;
        char *s = file_read(file, o->input.s[i], MAX_TRAIN_FILE_BYTES, &n, EXIT_DATA);
        tokenizer_trainer_add(tr, s, n, &bad);
        bytes += n;
        arena_free(file);
    }
    warn_bad(bad);
    Tokenizer *t = tokenizer_train(tr, vocab_size);
    tokenizer_write(t, o->output);
    if (tokenizer_vocab(t) < vocab_size)
        fprintf(stderr,
                "stator: note: no pair occurs twice any more; the vocabulary has %lld "
                "ids, not %lld\n",
                (long long)tokenizer_vocab(t), (long long)vocab_size);
    printf("%s: %s; trained on %s in %.1f s\n", o->output, tokenizer_describe(t),
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

/* The words behind "encode" or "decode", a space between; without any, the input. */
static Text input_text(const Options *o) {
    Text text = text_new(o->mem);
    for (int i = 1; i < o->rest.n; i++)
        text_add(&text, "%s%s", i > 1 ? " " : "", o->rest.s[i]);
    if (o->rest.n == 1) read_input(&text);
    return text;
}

static void end_output(void) {
    if (fflush(stdout) != 0 || ferror(stdout))
        fail(EXIT_DATA, "cannot write the output: %s", strerror(errno));
}

static int encode(Options *o) {
    Tokenizer *t = tokenizer_open(o->mem, &o->spec);
    Text text = input_text(o);
    TokenizerCache *cache = tokenizer_cache_new();
    uint64_t bad = 0;
    size_t cap = tokenizer_max_tokens(t, text.n);
    int32_t *id = NEW_ARRAY(o->mem, int32_t, cap);
    size_t n =
        tokenizer_encode(t, cache, text.s, text.n, o->allow_special, id, cap, &bad);
    tokenizer_cache_free(cache);
    warn_bad(bad);
    for (size_t i = 0; i < n; i++) printf("%s%d", i ? " " : "", id[i]);
    putchar('\n');
    end_output();
    return 0;
}

static int decode(Options *o) {
    if (o->allow_special) fail(EXIT_CONFIG, "--allow-special is for encode alone");
    Tokenizer *t = tokenizer_open(o->mem, &o->spec);
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
    Options o = {.mem = arena_new()};
    read_options(&o, argc, argv);
    int code = 0;
    if (o.help) {
        fputs(usage_text, stdout);
        arena_free(o.mem);
        return 0;
    }
    const char *what = o.rest.n ? o.rest.s[0] : "";
    bool trains = !strcmp(what, "train");
    if (!trains && (o.input.n || o.vocab_size || o.output))
        fail(EXIT_CONFIG,
             "--input, --vocab-size and --output are for stator tokenizer train alone");
    if (trains)
        code = train(&o);
    else if (!strcmp(what, "encode"))
        code = encode(&o);
    else if (!strcmp(what, "decode"))
        code = decode(&o);
    else
        fail(EXIT_CONFIG,
             "stator tokenizer %.100s: write train, encode or decode; stator "
             "tokenizer --help",
             what);
    arena_free(o.mem);
    return code;
}
