/* cmd_preprocess.c - the command preprocess: the flags of Megatron-LM's
 * preprocess_data.py, what it says while it works, and the end of it. */
#include "frontend/config/commands.h"
#include "runtime/data/data_reader.h"
#include "runtime/data/preprocess.h"
#include "runtime/run/metrics.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_INPUTS = 65536, BAD_LINES_SHOWN = 20, BAD_LINES_DEFAULT = 100 };

typedef struct Options {
    Arena *mem;
    const char **input, **key;
    int ninput, input_cap, nkey, key_cap;
    const char *output_prefix, *text_documents, *input_format;
    TokenizerSpec tokenizer;
    bool append_eod, help;
    int64_t workers, log_interval, max_bad_lines;
} Options;

static const char usage_text[] =
    "stator preprocess --input FILE|'PATTERN'... --output-prefix P [options]\n\n"
    "Makes P_text_document.bin and .idx, which GPTDataset trains on, of loose JSON\n"
    "(.jsonl, .json, .ndjson: an object per line) or plain text (.txt, .text, .md), "
    "also\n"
    "with .gz or .zst behind. Flags are those of Megatron-LM's preprocess_data.py; "
    "--a_b\n"
    "is --a-b.\n"
    "  --json-keys KEY...      texts to take, each to a pair P_KEY_document (text)\n"
    "  --tokenizer-type T      GPT2BPETokenizer (the default) or ByteTokenizer\n"
    "  --vocab-file F --merge-file F   vocab.json and merges.txt, or\n"
    "  --tokenizer-file F      tokenizer.json\n"
    "  --append-eod            <|endoftext|> behind each document\n"
    "  --workers N             threads that tokenize (all cores); changes no byte\n"
    "  --log-interval N        a line every N documents (else one a second)\n"
    "  --max-bad-lines N       lines that are no object with the keys are left out; "
    "more\n"
    "                          than N end the command (100)\n"
    "  --input-format json|text       whatever the names are\n"
    "  --text-documents file|blank-line|line   what of plain text is a document (file)\n"
    "Exit codes: 0 done, 2 wrong flags, 3 bad data or a full disk, 75 stopped by a "
    "signal.\n"
    "Nothing is under the final names until it is complete.\n";

/* Flags of Megatron's that change nothing here. */
typedef struct Idle {
    const char *name;
    bool value;
    const char *why;
} Idle;
static const Idle idle_flags[] = {
    {"--partitions", true, "threads share one pass over the input"},
    {"--keep-sequential-samples", false, "the order of the input is always kept"},
    {"--keep-newlines", false, "text is always kept as it is"},
    {"--keep-empty", false, "empty documents are always kept"},
    {"--dataset-impl", true, ".bin and .idx are the only form"},
};

static const char *const flag_names[] = {
    "--input",          "--json-keys",    "--output-prefix",  "--tokenizer-type",
    "--vocab-file",     "--merge-file",   "--tokenizer-file", "--append-eod",
    "--workers",        "--log-interval", "--max-bad-lines",  "--input-format",
    "--text-documents", "--help"};

/* The words, one after another. */
typedef struct Words {
    int argc, at;
    char **argv;
    const char *flag;   /* with '-' for '_' */
    const char *inside; /* the value of --flag=value, else NULL */
} Words;

static void next_flag(Arena *mem, Words *w) {
    const char *word = w->argv[w->at++];
    if (!strcmp(word, "\\") || !strcmp(word, "\\ "))
        fail(EXIT_CONFIG, "a word of the command is a lone backslash: take away the "
                          "blank behind the \\ at the end of the line");
    if (strncmp(word, "--", 2))
        fail(EXIT_CONFIG, "unexpected word '%.200s'; stator preprocess --help", word);
    const char *equals = strchr(word, '=');
    char *flag =
        arena_strndup(mem, word, equals ? (size_t)(equals - word) : strlen(word));
    for (char *p = flag; *p; p++)
        if (*p == '_') *p = '-';
    w->flag = flag;
    w->inside = equals ? equals + 1 : NULL;
}

static const char *value(Words *w) {
    if (w->inside) return w->inside;
    if (w->at == w->argc || !strncmp(w->argv[w->at], "--", 2))
        fail(EXIT_CONFIG, "%s has no value%s", w->flag,
             w->at == w->argc ? " (was a bash array expanded without [@]?)" : "");
    return w->argv[w->at++];
}

static void values(Arena *mem, Words *w, const char ***list, int *n, int *cap) {
    do {
        if (*n == MAX_INPUTS) fail(EXIT_CONFIG, "%s has too many values", w->flag);
        PUSH(mem, *list, *n, *cap, value(w));
    } while (!w->inside && w->at < w->argc && strncmp(w->argv[w->at], "--", 2) &&
             strcmp(w->argv[w->at], "\\"));
}

static int64_t number(Words *w, int64_t low, int64_t high) {
    const char *text = value(w);
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < low || n > high)
        fail(EXIT_CONFIG, "%s %.100s: it must be a whole number, %lld .. %lld", w->flag,
             text, (long long)low, (long long)high);
    return n;
}

static bool is_idle(Words *w) {
    for (int i = 0; i < ARRAY_LEN(idle_flags); i++) {
        if (strcmp(w->flag, idle_flags[i].name)) continue;
        if (idle_flags[i].value) value(w);
        fprintf(stderr, "note: %s has no effect: %s\n", w->flag, idle_flags[i].why);
        return true;
    }
    return false;
}

static _Noreturn void unknown(const Words *w) {
    if (!strcmp(w->flag, "--split-sentences"))
        fail(EXIT_CONFIG, "--split-sentences is for BERT's data and not supported: GPT "
                          "takes whole documents, leave it out");
    const char *near = nearest_name(w->flag, flag_names, ARRAY_LEN(flag_names));
    fail(EXIT_CONFIG, "unknown option %.100s%s%s; stator preprocess --help lists all",
         w->flag, near ? ": did you mean " : "", near ? near : "");
}

static void read_flag(Options *o, Words *w) {
    const struct {
        const char *name, **to;
    } texts[] = {{"--output-prefix", &o->output_prefix},
                 {"--tokenizer-type", &o->tokenizer.type},
                 {"--vocab-file", &o->tokenizer.vocab_file},
                 {"--merge-file", &o->tokenizer.merge_file},
                 {"--tokenizer-file", &o->tokenizer.tokenizer_file},
                 {"--input-format", &o->input_format},
                 {"--text-documents", &o->text_documents}};
    for (int i = 0; i < ARRAY_LEN(texts); i++) {
        if (strcmp(w->flag, texts[i].name)) continue;
        *texts[i].to = value(w);
        return;
    }
    if (!strcmp(w->flag, "--input"))
        values(o->mem, w, &o->input, &o->ninput, &o->input_cap);
    else if (!strcmp(w->flag, "--json-keys"))
        values(o->mem, w, &o->key, &o->nkey, &o->key_cap);
    else if (!strcmp(w->flag, "--append-eod"))
        o->append_eod = true;
    else if (!strcmp(w->flag, "--workers"))
        o->workers = number(w, 1, PREPROCESS_MAX_WORKERS);
    else if (!strcmp(w->flag, "--log-interval"))
        o->log_interval = number(w, 1, INT64_MAX);
    else if (!strcmp(w->flag, "--max-bad-lines"))
        o->max_bad_lines = number(w, 0, INT64_MAX);
    else if (!is_idle(w))
        unknown(w);
}

static void read_words(Options *o, int argc, char **argv) {
    Words w = {.argc = argc, .at = 1, .argv = argv};
    while (w.at < argc) {
        if (!strcmp(argv[w.at], "--help") || !strcmp(argv[w.at], "-h")) {
            o->help = true;
            return;
        }
        next_flag(o->mem, &w);
        read_flag(o, &w);
    }
    if (!o->ninput) fail(EXIT_CONFIG, "--input is missing: the files to read");
    if (!o->output_prefix)
        fail(EXIT_CONFIG, "--output-prefix is missing: P makes P_text_document.bin/.idx");
    if (!o->nkey) PUSH(o->mem, o->key, o->nkey, o->key_cap, "text");
    if (o->nkey > JSON_LINE_KEYS)
        fail(EXIT_CONFIG, "--json-keys has %d keys; at most %d", o->nkey, JSON_LINE_KEYS);
    for (int i = 0; i < o->nkey; i++) {
        if (!o->key[i][0] || strchr(o->key[i], '/'))
            fail(EXIT_CONFIG, "--json-keys '%.100s': a key is part of a file's name here",
                 o->key[i]);
        for (int k = 0; k < i; k++)
            if (!strcmp(o->key[i], o->key[k]))
                fail(EXIT_CONFIG, "--json-keys has '%.100s' twice", o->key[i]);
    }
}

/* The place of `word` among words[n]; one of them must be it. */
static int choice(const char *flag, const char *word, const char *const *words, int n) {
    Arena *mem = arena_new();
    Text all = text_new(mem);
    for (int i = 0; i < n; i++) {
        if (!strcmp(word, words[i])) {
            arena_free(mem);
            return i;
        }
        text_add(&all, "%s%s", i ? ", " : "", words[i]);
    }
    fail(EXIT_CONFIG, "%s %.100s: there are %s", flag, word, all.s);
}

static TextReader *open_reader(const Options *o) {
    static const char *const formats[] = {"json", "text"};
    static const char *const documents[] = {"file", "blank-line", "line"};
    TextSpec spec = {.inputs = o->input, .ninputs = o->ninput};
    if (o->input_format)
        spec.format = choice("--input-format", o->input_format, formats, 2) == 0
                          ? TEXT_JSON
                          : TEXT_PLAIN;
    if (o->text_documents)
        spec.document =
            (TextDocument)choice("--text-documents", o->text_documents, documents, 3);
    TextReader *r = text_read_open(o->mem, &spec);
    for (int i = 0; i < text_read_files(r) && o->nkey > 1; i++)
        if (text_read_plain(r, i))
            fail(EXIT_CONFIG, "%s is plain text, which has no keys: --json-keys %s ...",
                 text_read_path(r, i), o->key[0]);
    return r;
}

/* Running. */

typedef struct Run {
    const Options *o;
    TextReader *reader;
    IndexedWriter *writer[JSON_LINE_KEYS];
    PreprocessCount count;
    double start, last; /* seconds; of the last line */
    uint64_t last_documents;
} Run;

static volatile sig_atomic_t stop_asked;

static void on_signal(int number_of) {
    stop_asked = number_of;
}

/* The first signal ends the work in order, a second one at once. */
static void catch_signals(void) {
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&act.sa_mask);
    stop_asked = 0;
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of write */
}

static void say_progress(const Run *r, const PreprocessCount *n, uint64_t documents) {
    char left[64] = "", time[32];
    double seconds = MAX(clock_seconds() - r->start, 1e-9);
    uint64_t total = text_read_total(r->reader), done = text_read_done(r->reader);
    if (total && done && done < total)
        snprintf(left, sizeof left, " %s left.",
                 duration_format(seconds * (double)(total - done) / (double)done, time));
    fprintf(stderr, "Processed %llu documents (%.1f docs/s, %.2f MB/s).%s\n",
            (unsigned long long)documents, (double)n->documents / seconds,
            (double)n->bytes / seconds / (1 << 20), left);
}

static void on_progress(void *context, const PreprocessCount *n) {
    Run *r = context;
    uint64_t interval = (uint64_t)r->o->log_interval;
    double now = clock_seconds();
    if (interval ? n->documents / interval == r->last_documents / interval
                 : now - r->last < 1)
        return;
    r->last = now;
    r->last_documents = n->documents;
    say_progress(r, n, interval ? n->documents / interval * interval : n->documents);
}

static void on_bad(void *context, const PreprocessBad *b, const PreprocessCount *n) {
    const Run *r = context;
    char what[256];
    snprintf(what, sizeof what, "%s%s%s%s", b->key ? "key '" : "", b->key ? b->key : "",
             b->key ? "': " : "", b->what);
    if (n->bad_lines > (uint64_t)r->o->max_bad_lines)
        fail(EXIT_DATA,
             "%s:%lld:%zu: %s; that is broken line %llu, and --max-bad-lines is %lld",
             b->path, (long long)b->line, b->column, what,
             (unsigned long long)n->bad_lines, (long long)r->o->max_bad_lines);
    if (n->bad_lines <= BAD_LINES_SHOWN)
        fprintf(stderr, "warning: %s:%lld:%zu: %s; the line is left out\n", b->path,
                (long long)b->line, b->column, what);
    if (n->bad_lines == BAD_LINES_SHOWN)
        fprintf(stderr, "warning: further broken lines are only counted\n");
}

static void say_end(const Run *r) {
    const PreprocessCount *n = &r->count;
    say_progress(r, n, n->documents);
    if (n->bad_lines)
        fprintf(stderr, "warning: %llu broken lines were left out\n",
                (unsigned long long)n->bad_lines);
    if (n->bad_utf8)
        fprintf(stderr, "warning: %llu places were not UTF-8 and became U+FFFD\n",
                (unsigned long long)n->bad_utf8);
    if (n->surrogates)
        fprintf(stderr, "warning: %llu lone surrogates became U+FFFD\n",
                (unsigned long long)n->surrogates);
    for (int k = 0; k < r->o->nkey; k++) {
        const IndexedWriter *w = r->writer[k];
        printf("%s.bin/.idx: %llu documents, %llu sequences, %llu tokens\n",
               indexed_write_prefix(w), (unsigned long long)indexed_write_documents(w),
               (unsigned long long)indexed_write_sequences(w),
               (unsigned long long)indexed_write_tokens(w));
    }
}

static int run_all(Run *r, const Tokenizer *t) {
    const Options *o = r->o;
    int workers = (int)o->workers;
    if (!workers) workers = (int)MIN(MAX(sysconf(_SC_NPROCESSORS_ONLN), 1), 64);
    for (int k = 0; k < o->nkey; k++) {
        char *prefix =
            arena_printf(o->mem, "%s_%s_document", o->output_prefix, o->key[k]);
        r->writer[k] = indexed_write_open(o->mem, prefix, tokenizer_vocab(t));
    }
    PreprocessSpec spec = {.tokenizer = t,
                           .reader = r->reader,
                           .keys = o->key,
                           .writers = r->writer,
                           .nkeys = o->nkey,
                           .append_eod = o->append_eod,
                           .workers = workers,
                           .bad = on_bad,
                           .progress = on_progress,
                           .context = r,
                           .stop = &stop_asked};
    r->start = r->last = clock_seconds();
    r->count = preprocess_run(&spec);
    if (r->count.interrupted) {
        fprintf(stderr, "stopped by a signal; nothing was written\n");
        return EXIT_SIGNALLED;
    }
    if (!r->count.documents)
        fail(EXIT_DATA, "no document in the input%s",
             r->count.bad_lines ? ", only broken lines" : "");
    for (int k = 0; k < o->nkey; k++) indexed_write_complete(r->writer[k]);
    for (int k = 0; k < o->nkey; k++) indexed_write_publish(r->writer[k]);
    say_end(r);
    return 0;
}

static void clean_up(Run *r) {
    text_read_close(r->reader);
    for (int k = 0; k < JSON_LINE_KEYS; k++) indexed_write_close(r->writer[k]);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

int cmd_preprocess(int argc, char **argv) {
    Arena *mem = arena_new();
    Options *o = NEW(mem, Options);
    o->mem = mem;
    o->max_bad_lines = BAD_LINES_DEFAULT;
    read_words(o, argc, argv);
    if (o->help) {
        fputs(usage_text, stdout);
        return 0;
    }
    Run *r = NEW(mem, Run);
    r->o = o;
    Tokenizer *t = tokenizer_open(mem, &o->tokenizer);
    if (o->append_eod && tokenizer_eod(t) < 0)
        fail(EXIT_CONFIG, "--append-eod: this tokenizer has no <|endoftext|> (%s)",
             tokenizer_describe(t));
    r->reader = open_reader(o);
    Catch c;
    int code = 0;
    catch_signals();
    if (CATCH(c)) {
        code = run_all(r, t);
        catch_end(&c);
    } else {
        clean_up(r);
        fail_again(c.code, c.message);
    }
    clean_up(r);
    arena_free(mem);
    return code;
}
