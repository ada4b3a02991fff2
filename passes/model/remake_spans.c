/* remake_spans.c - see remake_spans.h. */
#include "passes/model/remake_spans.h"
#include "passes/model/made_again.h"

typedef struct Reader {
    Arena *mem;
    const char *text;
    int chunk;
    int64_t at, end; /* layers of the model: done, and up to the end of the chunk */
    RemakeSpans spans;
} Reader;

static void add_span(Reader *r, int64_t end, int64_t together, const char *policy) {
    RemakeSpans *s = &r->spans;
    RemakeSpan *last = s->n ? &s->span[s->n - 1] : NULL;
    if (end <= r->at) return;
    r->at = end;
    if (last && together == 1 && last->together == 1 &&
        made_again_same(last->policy, policy))
        last->end = end;
    else
        PUSH(r->mem, s->span, s->n, s->cap, ((RemakeSpan){end, together, policy}));
}

static _Noreturn void refuse(const Reader *r) {
    fail(EXIT_CONFIG,
         "remake '%.200s': write layers and what is made again of them, \"2:full;norm\", "
         "and '|' between chunks",
         r->text);
}

static int64_t number(const Reader *r, const char **at) {
    int64_t n = 0;
    if (**at < '0' || **at > '9') refuse(r);
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        n = n * 10 + (**at - '0');
        if (n > 1000000000) refuse(r);
    }
    return n;
}

/* One span, up to `end` of the text. */
static void read_span(Reader *r, const char *at, const char *end) {
    const char *colon = memchr(at, ':', (size_t)(end - at));
    int64_t count = r->end - r->at, together = 1;
    if (colon) {
        if (*at != 'x') count = number(r, &at);
        if (*at == 'x') {
            at++;
            together = number(r, &at);
        }
        if (at != colon || !together) refuse(r);
        at++;
    }
    if (count > r->end - r->at)
        fail(EXIT_CONFIG,
             "%lld layers of chunk %d are to be made again, it has %lld left",
             (long long)count, r->chunk, (long long)(r->end - r->at));
    const char *policy = end > at ? arena_strndup(r->mem, at, (size_t)(end - at)) : NULL;
    add_span(r, r->at + count, MIN(together, MAX(count, 1)), policy);
}

static void read_chunk(Reader *r, const char *at, int64_t layers) {
    r->end = r->at + layers;
    for (size_t n = strcspn(at, ";|"); n || at[n] == ';'; n = strcspn(at, ";|")) {
        read_span(r, at, at + n);
        at += n;
        if (*at != ';') break;
        at++;
    }
    add_span(r, r->end, 1, NULL);
}

RemakeSpans remake_spans_parse(Arena *mem, const char *text, const int64_t *layers,
                               int chunks) {
    Reader r = {.mem = mem, .text = text};
    int n = 1;
    for (const char *p = text; *p; p++) n += *p == '|';
    if (n != 1 && n != chunks)
        fail(EXIT_CONFIG, "remake is said of %d chunks, the model has %d", n, chunks);
    for (int c = 0; c < chunks; c++) {
        r.chunk = c;
        /* what is said of all chunks is nothing of one without layers */
        read_chunk(&r, n == 1 && !layers[c] ? "" : text, layers[c]);
        if (n > 1 && c + 1 < chunks) text = strchr(text, '|') + 1;
    }
    return r.spans;
}
