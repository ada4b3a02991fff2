/* cmd_preprocess.c - the command preprocess: the flags of Megatron-LM's
 * preprocess_data.py, what it says while it works, and the end of it. */
#include "frontend/config/commands.h"
#include "frontend/config/options.h"
#include "frontend/config/run_tokenizer.h"
#include "runtime/core/rt.h"
#include "runtime/core/stop_signal.h"
#include "runtime/data/preprocess.h"
#include "runtime/run/metrics.h"
#include <unistd.h>

enum { BAD_LINES_SHOWN = 20, BAD_LINES_DEFAULT = 100 };

typedef struct Work {
    Arena *mem;
    const char **input, **key;
    int ninput, nkey;
    const char *output_prefix;
    int format, documents; /* of TextFormat and TextDocument; -1: not given */
    TokenizerSpec tokenizer;
    bool append_eod;
    int64_t workers, log_interval, max_bad_lines;
} Work;

static void check_keys(const Work *w) {
    if (w->nkey > JSON_LINE_KEYS)
        fail(EXIT_CONFIG, "--json-keys has %d keys; at most %d", w->nkey, JSON_LINE_KEYS);
    for (int i = 0; i < w->nkey; i++) {
        if (!w->key[i][0] || strchr(w->key[i], '/'))
            fail(EXIT_CONFIG, "--json-keys '%.100s': a key is part of a file's name here",
                 w->key[i]);
        for (int k = 0; k < i; k++)
            if (!strcmp(w->key[i], w->key[k]))
                fail(EXIT_CONFIG, "--json-keys has '%.100s' twice", w->key[i]);
    }
}

static Work work_of(Arena *mem, const Options *o) {
    static const char *text_key[] = {"text"};
    Work w = {.mem = mem,
              .output_prefix = option_text(o, "--output-prefix"),
              .format = option_choice(o, "--input-format", -1),
              .documents = option_choice(o, "--text-documents", -1),
              .tokenizer = {.type = option_text(o, "--tokenizer-type"),
                            .vocab_file = option_text(o, "--vocab-file"),
                            .merge_file = option_text(o, "--merge-file"),
                            .tokenizer_file = option_text(o, "--tokenizer-file")},
              .append_eod = option_given(o, "--append-eod"),
              .workers = option_int(o, "--workers", 0),
              .log_interval = option_int(o, "--log-interval", 0),
              .max_bad_lines = option_int(o, "--max-bad-lines", BAD_LINES_DEFAULT)};
    w.input = option_list(o, "--input", &w.ninput);
    w.key = option_list(o, "--json-keys", &w.nkey);
    if (!w.ninput) fail(EXIT_CONFIG, "--input is missing: the files to read");
    if (!w.output_prefix)
        fail(EXIT_CONFIG, "--output-prefix is missing: P makes P_text_document.bin/.idx");
    if (!w.nkey) w.key = text_key, w.nkey = 1;
    check_keys(&w);
    return w;
}

static TextReader *open_reader(const Work *o) {
    TextSpec spec = {.inputs = o->input, .ninputs = o->ninput};
    if (o->format >= 0) spec.format = o->format == 0 ? TEXT_JSON : TEXT_PLAIN;
    if (o->documents >= 0) spec.document = (TextDocument)o->documents;
    TextReader *r = text_read_open(o->mem, &spec);
    int plain = 0;
    for (int i = 0; i < text_read_files(r); i++) {
        plain += text_read_plain(r, i);
        if (plain && o->nkey > 1)
            fail(EXIT_CONFIG, "%s is plain text, which has no keys: --json-keys %s ...",
                 text_read_path(r, i), o->key[0]);
    }
    if (!plain && o->documents >= 0)
        fail(EXIT_CONFIG,
             "--text-documents is for plain text, and %s has a document in each line: "
             "leave it out, or --input-format text",
             text_read_path(r, 0));
    return r;
}

/* Running. */

typedef struct Run {
    const Work *o;
    TextReader *reader;
    IndexedWriter *writer[JSON_LINE_KEYS];
    PreprocessCount count;
    double start, last; /* seconds; of the last line */
    uint64_t last_documents;
    const volatile sig_atomic_t *stop;
} Run;

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
        say_aside("warning: %s:%lld:%zu: %s; the line is left out", b->path,
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
        fprintf(stderr, "warning: %llu sequences were not UTF-8 and became U+FFFD\n",
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

/* The tokenizer goes with the pairs, so that a run on them has it. */

static const char *tokenizer_dir(const Run *r, int k) {
    return data_tokenizer_dir(r->o->mem, indexed_write_prefix(r->writer[k]));
}

static const char *tokenizer_tmp(const Run *r, int k) {
    return arena_printf(r->o->mem, "%s.tmp", tokenizer_dir(r, k));
}

static void remove_tokenizer(const char *dir) {
    tokenizer_remove(dir);
    rmdir(dir);
}

/* While nothing of an older pair is touched: a disk may be full. */
static void write_tokenizers(const Run *r, const Tokenizer *t) {
    const char *type = r->o->tokenizer.type;
    bool none = type && !strcmp(type, "ByteTokenizer");
    for (int k = 0; k < r->o->nkey; k++) {
        remove_tokenizer(tokenizer_tmp(r, k)); /* what a killed process has left */
        if (!none) tokenizer_write(t, tokenizer_tmp(r, k));
    }
}

/* A pair is one from when its .idx has its name: until then nobody takes the tokens of one
 * tokenizer for those of the other. */
static void publish(const Run *r) {
    for (int k = 0; k < r->o->nkey; k++) {
        indexed_write_withdraw(r->writer[k]);
        tokenizer_move(tokenizer_tmp(r, k), tokenizer_dir(r, k));
        indexed_write_publish(r->writer[k]);
    }
}

static int run_all(Run *r, const Tokenizer *t) {
    const Work *o = r->o;
    int workers = (int)o->workers;
    if (!workers) workers = MIN(rt_cores(), 64);
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
                           .stop = r->stop};
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
    write_tokenizers(r, t);
    publish(r);
    say_end(r);
    return 0;
}

static void clean_up(Run *r) {
    text_read_close(r->reader);
    for (int k = 0; k < JSON_LINE_KEYS && r->writer[k]; k++) {
        remove_tokenizer(tokenizer_tmp(r, k));
        indexed_write_close(r->writer[k]);
    }
    stop_signal_release();
}

int cmd_preprocess(int argc, char **argv) {
    const Options *given = options_take(COMMAND_preprocess, argc, argv);
    if (!given) return 0;
    Arena *mem = given->mem;
    Work *o = NEW(mem, Work);
    *o = work_of(mem, given);
    Run *r = NEW(mem, Run);
    r->o = o;
    Tokenizer *t = tokenizer_open(mem, &o->tokenizer);
    if (o->append_eod && tokenizer_eod(t) < 0)
        fail(EXIT_CONFIG,
             "--append-eod: this tokenizer has no token that ends a text (%s)",
             tokenizer_describe(t));
    r->reader = open_reader(o);
    Catch c;
    int code = 0;
    r->stop = stop_signal_catch();
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
