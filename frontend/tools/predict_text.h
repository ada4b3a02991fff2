/* predict_text.h - what predict goes on with and what it prints: prompts as tokens, and new
 * tokens as text, token numbers or JSON lines. */
#ifndef STATOR_PREDICT_TEXT_H
#define STATOR_PREDICT_TEXT_H
#include "frontend/config/options.h"
#include "frontend/model/source.h"
#include "frontend/tools/text.h"

typedef struct Prompt {
    int number;       /* among several of the command line, from 1; 0: it is alone */
    const char *file; /* it is a line of this one, "-" is the standard input; or NULL */
    int64_t line;     /* there, from 1; else 0 */
    const char *text; /* as it was given; NULL: as numbers, or not at all */
    size_t bytes;
    Tokens tokens; /* with what the tokenizer's template puts before a text */
} Prompt;

/* How a model's tokens are text. */
typedef struct Wording {
    const Source *source;
    const Tokenizer *tokenizer; /* NULL: bytes, or token numbers alone */
    bool numbers;               /* prints token numbers */
    bool json;
    bool echo; /* prints the prompt too */
    const char **stop;
    int nstop;
} Wording;

/* Opens the tokenizer of the source if text goes in or out. Fails with EXIT_CONFIG for
 * options that do not go together and for a tokenizer with more ids than the model. */
Wording wording_new(Arena *mem, const Options *o, const Source *s);

/* For messages: "the prompt", "prompt 2", "the prompt in line 3 of FILE". */
const char *prompt_name(Arena *mem, const Prompt *p);

/* The prompts of the options and the words behind the first, at least one. */
Prompt *prompts_read(Arena *mem, const Options *o, const Wording *w, int *n);

/* One text on its way out. */
typedef struct Output {
    const Wording *w;
    const Prompt *prompt;
    FILE *to;
    TextPrinter *stream; /* NULL: numbers */
    Text text;           /* JSON: what was printed else */
    Text ids, logprobs;  /* JSON */
    int64_t count;
    bool begun; /* a piece of text came before */
} Output;

/* Begins the text behind a prompt; with --echo, where it is no JSON, prints the prompt. What it is
 * made of is in mem, and `out` must stay where it is until output_close. */
void output_open(Arena *mem, Output *out, const Wording *w, const Prompt *p, FILE *to);
/* Log-probability of `token` among f32 scores[vocab], for JSON. False when a stop text is
 * complete. */
bool output_token(Output *out, int token, const float *scores, int64_t vocab);
/* Ends it, with a line end. `sample` counts the texts of this prompt from 0. */
void output_close(Output *out, int64_t sample, const char *why);

#endif
