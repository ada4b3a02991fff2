/* predict_text.c - see predict_text.h. */
#include "frontend/tools/predict_text.h"
#include "base/json.h"
#include "base/utf8.h"
#include "frontend/config/run_tokenizer.h"
#include "runtime/text/prompt.h"
#include <math.h>

/* A prompt of numbers needs no tokenizer: one that is not understood is only told of. */
static const Tokenizer *open_tokenizer(Arena *mem, const Source *s, bool needed) {
    if (!run_tokenizer_found(&s->tokenizer)) return NULL;
    Catch c;
    if (!needed) {
        if (!CATCH(c)) {
            say_aside("note: without the tokenizer: %s", catch_text(&c));
            return NULL;
        }
        const Tokenizer *t = open_tokenizer(mem, s, true);
        catch_end(&c);
        return t;
    }
    const Tokenizer *t = source_tokenizer(mem, s);
    if (tokenizer_vocab(t) > s->spec.vocab)
        fail(EXIT_CONFIG,
             "the tokenizer %s has %lld ids, the model %s a vocabulary of %lld: they do "
             "not belong together; --prompt_tokens 1,2,3 needs none",
             s->tokenizer.tokenizer_file ? s->tokenizer.tokenizer_file
                                         : s->tokenizer.vocab_file,
             (long long)tokenizer_vocab(t), s->path, (long long)s->spec.vocab);
    return t;
}

Wording wording_new(Arena *mem, const Options *o, const Source *s) {
    bool tokens = option_given(o, "--tokens");
    Wording w = {.source = s,
                 .json = option_given(o, "--json"),
                 .echo = !option_given(o, "--no_prompt")};
    w.stop = option_list(o, "--stop", &w.nstop);
    for (int i = 0; i < w.nstop; i++)
        if (!w.stop[i][0])
            fail(EXIT_CONFIG,
                 "--stop is empty: give the text to stop at, or leave it out");
    bool from_numbers = option_given(o, "--prompt_tokens");
    if (!s->bytes && !(tokens && from_numbers))
        w.tokenizer = open_tokenizer(mem, s, !from_numbers);
    w.numbers = tokens || (!s->bytes && !w.tokenizer);
    if (w.numbers && w.nstop)
        fail(EXIT_CONFIG,
             "--stop is a text, and this prints token numbers; leave it out");
    if (w.numbers && !tokens)
        fprintf(stderr, "note: the tokens of this model are not bytes: prints their "
                        "numbers\n");
    return w;
}

/* ---- prompts ---- */

static void check_words(const Source *s, const Wording *w, const char *option) {
    if (s->bytes || w->tokenizer) return;
    fail(EXIT_CONFIG,
         "the tokens of this model are not bytes (its vocabulary is %lld), so "
         "%s cannot be read: put its tokenizer.json into %s, name it, --tokenizer_file "
         "FILE, or give token numbers, --prompt_tokens 1,2,3",
         (long long)s->spec.vocab, option, s->path);
}

const char *prompt_name(Arena *mem, const Prompt *p) {
    if (p->number) return arena_printf(mem, "prompt %d", p->number);
    if (!p->file) return "the prompt";
    const char *file = strcmp(p->file, "-") != 0 ? p->file : "the standard input";
    return arena_printf(mem, "the prompt in line %lld of %s", (long long)p->line, file);
}

static Tokens encode(Arena *mem, const Tokenizer *t, const Prompt *p) {
    uint64_t bad = 0;
    int64_t count;
    int32_t *id = prompt_encode(mem, t, p->text, p->bytes, &count, &bad);
    if (bad)
        fprintf(stderr,
                "stator: warning: %llu sequences of %s are not valid UTF-8 and "
                "count as U+FFFD\n",
                (unsigned long long)bad, prompt_name(mem, p));
    return (Tokens){id, (int)count, (int)count};
}

static Prompt prompt_of_text(Arena *mem, const Wording *w, Prompt p, const char *s,
                             size_t n) {
    if (n > TEXT_MAX_PROMPT_BYTES)
        fail(EXIT_CONFIG, "%s is above 64 MiB", prompt_name(mem, &p));
    p.text = s;
    p.bytes = n;
    p.tokens = w->tokenizer ? encode(mem, w->tokenizer, &p) : tokens_of_bytes(mem, s, n);
    return p;
}

/* Without a prompt a text begins with bos, or with what ends the one before. */
static Prompt prompt_of_begin(Arena *mem, const Wording *w) {
    int64_t begin = source_first_token(&w->source->spec, w->tokenizer);
    if (begin < 0)
        fail(EXIT_CONFIG,
             "no prompt: write one of --prompt TEXT, --prompt_file FILE and "
             "--prompt_tokens 1,2,3; the model knows no token that begins a text");
    Prompt p = {0};
    p.tokens = (Tokens){NEW_ARRAY(mem, int32_t, 1), 1, 1};
    p.tokens.id[0] = (int32_t)begin;
    return p;
}

static void check_prompt(Arena *mem, const Wording *w, const Prompt *p) {
    int64_t vocab = w->source->spec.vocab;
    if (p->tokens.n == 0)
        fail(EXIT_CONFIG, "%s is empty; a model needs one token to go on",
             prompt_name(mem, p));
    for (int i = 0; i < p->tokens.n; i++)
        if (p->tokens.id[i] >= vocab)
            fail(EXIT_CONFIG,
                 "byte %d of %s is %d, the vocabulary of the model is 0..%lld", i + 1,
                 prompt_name(mem, p), p->tokens.id[i], (long long)vocab - 1);
}

typedef struct PromptList {
    Prompt *item;
    int n, cap;
} PromptList;

/* Of a file, or of the standard input for "-", without a byte order mark. */
static char *read_prompts(Arena *mem, const char *file, size_t *n) {
    const char *path = strcmp(file, "-") != 0 ? file : "/dev/stdin";
    char *s = file_read_to_end(mem, path, TEXT_MAX_PROMPT_BYTES, n, EXIT_DATA);
    size_t mark = utf8_mark(s, *n);
    *n -= mark;
    return s + mark;
}

static void add_lines(Arena *mem, const Wording *w, const char *file, PromptList *list) {
    size_t n, size;
    int64_t line = 1;
    const char *rest = read_prompts(mem, file, &n), *end = rest + n;
    for (const char *s; (s = line_next(&rest, end, &size)); line++) {
        if (size && s[size - 1] == '\r') size--;
        if (!size) continue;
        Prompt p = {.file = file, .line = line};
        PUSH(mem, list->item, list->n, list->cap, prompt_of_text(mem, w, p, s, size));
    }
    if (!list->n) fail(EXIT_CONFIG, "%s has no line with a prompt", file);
}

/* One of `all` that the command line has. */
static void add_text(Arena *mem, const Wording *w, const char *s, int all,
                     PromptList *list) {
    Prompt p = {.number = all > 1 ? list->n + 1 : 0};
    PUSH(mem, list->item, list->n, list->cap, prompt_of_text(mem, w, p, s, strlen(s)));
}

Prompt *prompts_read(Arena *mem, const Options *o, const Wording *w, int *n) {
    const Source *s = w->source;
    PromptList list = {0};
    int ntext;
    const char **text = option_list(o, "--prompt", &ntext);
    const char *file = option_text(o, "--prompt_file");
    const char *lines = option_text(o, "--prompt_lines");
    int ntokens;
    const char **tokens = option_list(o, "--prompt_tokens", &ntokens);
    int given =
        (ntext + o->nwords > 1) + (file != NULL) + (lines != NULL) + (ntokens > 0);
    if (given > 1)
        fail(
            EXIT_CONFIG,
            "more than one prompt: write prompts behind the model (or --prompt TEXT), or "
            "one of --prompt_file FILE, --prompt_lines FILE and --prompt_tokens 1,2,3");
    if (!ntokens && given)
        check_words(s, w, file ? "--prompt_file" : lines ? "--prompt_lines" : "--prompt");
    int all = o->nwords - 1 + ntext;
    for (int i = 1; i < o->nwords; i++) add_text(mem, w, o->word[i], all, &list);
    for (int i = 0; i < ntext; i++) add_text(mem, w, text[i], all, &list);
    if (file) {
        size_t size;
        const char *whole = read_prompts(mem, file, &size);
        PUSH(mem, list.item, list.n, list.cap,
             prompt_of_text(mem, w, (Prompt){0}, whole, size));
    }
    if (lines) add_lines(mem, w, lines, &list);
    for (int i = 0; i < ntokens; i++)
        PUSH(mem, list.item, list.n, list.cap,
             ((Prompt){.number = ntokens > 1 ? i + 1 : 0,
                       .tokens = tokens_parse(mem, tokens[i], s->spec.vocab)}));
    if (!given) PUSH(mem, list.item, list.n, list.cap, prompt_of_begin(mem, w));
    for (int i = 0; i < list.n; i++) check_prompt(mem, w, &list.item[i]);
    *n = list.n;
    return list.item;
}

/* ---- output ---- */

/* Is the name of this special token a text to stop at? It is printed nowhere, so that the
 * stream never sees it. */
static bool is_stop(const Tokenizer *t, const TextPrinter *to, int token) {
    size_t n;
    const char *s = tokenizer_piece(t, token, false, &n);
    for (int i = 0; i < to->nstop; i++)
        if (strlen(to->stop[i]) == n && !memcmp(to->stop[i], s, n)) return true;
    return false;
}

/* The bytes of a token; a token beyond the bytes prints as U+FFFD: byte 255 begins no
 * character. Special tokens and those beyond the tokenizer have no text. False: ends here. */
static bool put_piece(Output *out, TextPrinter *to, int token) {
    const Tokenizer *t = out->w->tokenizer;
    if (!t) return text_printer_put(to, (unsigned char)MIN(token, 255));
    if (token >= tokenizer_vocab(t)) return true;
    if (tokenizer_special(t, token)) return !is_stop(t, to, token);
    size_t n;
    const char *s = tokenizer_piece(t, token, !out->begun, &n);
    out->begun = true;
    for (size_t i = 0; i < n; i++)
        if (!text_printer_put(to, (unsigned char)s[i])) return false;
    return true;
}

void output_open(Arena *mem, Output *out, const Wording *w, const Prompt *p, FILE *to) {
    *out = (Output){.w = w, .prompt = p, .to = to};
    out->text = text_new(mem);
    out->ids = text_new(mem);
    out->logprobs = text_new(mem);
    if (w->numbers) return;
    bool echo = w->echo && !w->json;
    TextPrinter *prompt = text_printer_new(mem, echo ? to : NULL, NULL, NULL, 0);
    bool each_byte = w->tokenizer && tokenizer_falls_back(w->tokenizer);
    prompt->each_byte = each_byte;
    for (int i = 0; i < p->tokens.n; i++) put_piece(out, prompt, p->tokens.id[i]);
    text_printer_end(prompt);
    out->stream = text_printer_new(mem, w->json ? NULL : to, w->json ? &out->text : NULL,
                                   w->stop, w->nstop);
    out->stream->each_byte = each_byte;
}

static double log_probability(const float *scores, int64_t vocab, int token) {
    double best = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocab; i++) best = fmax(best, scores[i]);
    for (int64_t i = 0; i < vocab; i++) sum += exp(scores[i] - best);
    return scores[token] - best - log(sum);
}

bool output_token(Output *out, int token, const float *scores, int64_t vocab) {
    const char *comma = out->count++ ? "," : "";
    if (out->w->json) {
        text_add(&out->ids, "%s%d", comma, token);
        text_add(&out->logprobs, "%s", comma);
        json_write_double(&out->logprobs,
                          (double)(float)log_probability(scores, vocab, token));
    }
    if (out->stream) return put_piece(out, out->stream, token);
    if (out->w->json) return true;
    fprintf(out->to, "%s%d", comma, token);
    fflush(out->to);
    return true;
}

static void print_json(Output *out, int64_t sample, const char *why) {
    Text t = text_new(out->text.mem);
    const Prompt *p = out->prompt;
    text_add(&t, "{\"prompt\":");
    if (p->text)
        json_write_bytes(&t, p->text, p->bytes);
    else
        text_add(&t, "null");
    if (p->line) text_add(&t, ",\"line\":%lld", (long long)p->line);
    text_add(&t, ",\"prompt_tokens\":[");
    for (int i = 0; i < p->tokens.n; i++)
        text_add(&t, "%s%d", i ? "," : "", p->tokens.id[i]);
    text_add(&t, "],\"sample\":%lld,\"text\":", (long long)sample);
    if (out->stream)
        json_write_bytes(&t, out->text.s, out->text.n);
    else
        text_add(&t, "null");
    text_add(&t, ",\"tokens\":[");
    text_add_bytes(&t, out->ids.s, out->ids.n);
    text_add(&t, "],\"logprobs\":[");
    text_add_bytes(&t, out->logprobs.s, out->logprobs.n);
    text_add(&t, "],\"ended_by\":\"%s\"}", why);
    fwrite(t.s, 1, t.n, out->to);
}

void output_close(Output *out, int64_t sample, const char *why) {
    if (out->stream) text_printer_end(out->stream);
    if (out->w->json) print_json(out, sample, why);
    putc('\n', out->to);
}
