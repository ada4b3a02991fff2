/* rule.c - dimension rules: parsing, and binding the letters to sizes. */
#include "ir/ir.h"
#include <pthread.h>

static bool fault(char *why, size_t size, const char *message) {
    snprintf(why, size, "%s", message);
    return false;
}

/* A letter, or '.' for "...", may stand once in a term. */
static bool add_letter(Term *t, char letter, char *why, size_t size) {
    if (memchr(t->letter, letter, (size_t)t->n))
        return fault(why, size,
                     letter == '.' ? "'...' twice in one term"
                                   : "a letter is repeated in one term");
    if (t->n >= MAX_RANK) return fault(why, size, "a term has too many letters");
    t->letter[t->n++] = letter;
    return true;
}

static bool is_letter(char c) {
    return c >= 'a' && c <= 'z';
}

/* One term up to ',' or '->' or the end. */
static bool parse_term(Rule *r, Term *t, const char **at, char *why, size_t size) {
    const char *p = *at;
    t->n = 0;
    for (; *p && *p != ',' && *p != ';' && !begins_with(p, "->"); p++) {
        bool rest = begins_with(p, "...");
        char last = t->n ? t->letter[t->n - 1] : 0;
        if (*p == ' ' || (*p == '_' && t->n == 0)) continue;
        if (rest || is_letter(*p)) {
            if (!add_letter(t, *p, why, size)) return false;
            if (rest) p += 2;
        } else if (*p == '!' && is_letter(last)) {
            r->whole |= 1u << (last - 'a');
        } else {
            return fault(why, size, "a rule has letters a-z, '...', '!', ',' and '->'");
        }
    }
    *at = p;
    return true;
}

/* Terms separated by commas; an empty side has no terms. */
static bool parse_side(Rule *r, int base, int *n, const char **at, char *why,
                       size_t size) {
    *n = 0;
    while (**at == ' ') ++*at;
    if (!**at || begins_with(*at, "->")) {
        return true; /* nothing before the arrow: no operands */
    }
    for (;;) {
        if (base + *n >= MAX_TERMS) return fault(why, size, "a rule has too many terms");
        if (!parse_term(r, &r->term[base + *n], at, why, size)) return false;
        ++*n;
        if (**at != ',') return true;
        ++*at;
    }
}

/* "; g~h": g is split along with h. */
static bool parse_ties(Rule *r, const char **at, char *why, size_t size) {
    for (const char *p = *at; *p == ';'; *at = p) {
        p += strspn(p, "; ");
        bool good = is_letter(p[0]) && p[1] == '~' && is_letter(p[2]);
        if (!good) return fault(why, size, "after ';' come tied letters such as g~h");
        r->tied[p[2] - 'a'] = p[0];
        r->ties = true;
        p += 3;
    }
    return true;
}

/* The canonical text: `!` at the first occurrence of a letter only, `_` for a scalar. */
static void spell(Arena *mem, Rule *r) {
    Text t = text_new(mem);
    uint32_t seen = 0;
    for (int i = 0; i < r->nin + r->nout; i++) {
        if (i == r->nin)
            text_add_bytes(&t, "->", 2);
        else if (i)
            text_add_bytes(&t, ",", 1);
        if (!r->term[i].n) text_add_bytes(&t, "_", 1);
        for (int k = 0; k < r->term[i].n; k++) {
            char c = r->term[i].letter[k];
            uint32_t bit = c == '.' ? 0 : 1u << (c - 'a');
            text_add_bytes(&t, c == '.' ? "..." : &c, c == '.' ? 3 : 1);
            if (r->whole & bit & ~seen) text_add_bytes(&t, "!", 1);
            seen |= bit;
        }
    }
    for (int k = 0; k < ARRAY_LEN(r->tied); k++) {
        if (r->tied[k]) text_add(&t, "; %c~%c", r->tied[k], 'a' + k);
    }
    r->text = t.s;
}

const Rule *rule_parse(Arena *mem, const char *text, char *why, size_t why_size) {
    Rule *r = NEW(mem, Rule);
    const char *p = text;
    if (!parse_side(r, 0, &r->nin, &p, why, why_size)) return NULL;
    if (!begins_with(p, "->")) {
        fault(why, why_size, "a rule needs '->'");
        return NULL;
    }
    p += 2;
    if (!*p) {
        if (r->nin == MAX_TERMS) {
            fault(why, why_size, "a rule has too many terms");
            return NULL;
        }
        r->nout = 1;
    } else if (!parse_side(r, r->nin, &r->nout, &p, why, why_size)) {
        return NULL;
    }
    if (!parse_ties(r, &p, why, why_size)) return NULL;
    if (*p) {
        fault(why, why_size, "text after the end of a rule");
        return NULL;
    }
    spell(mem, r);
    return r;
}

const Rule *rule_of_terms(Arena *mem, const Rule *terms) {
    Rule *r = NEW(mem, Rule);
    *r = *terms;
    spell(mem, r);
    return r;
}

static int new_dim(Dims *d, char letter, int64_t size, bool whole) {
    if (d->n >= MAX_DIMS) return -1;
    d->letter[d->n] = letter;
    d->size[d->n] = size;
    d->whole[d->n] = whole;
    d->tied[d->n] = -1;
    d->most[d->n] = 0;
    return d->n++;
}

/* A binding that is not done. rest[0..nrest) are the ids of "..."; nrest -1 = not yet known. */
typedef struct Binding {
    Arena *mem;
    const Rule *r;
    Dims *d;
    int8_t rest[MAX_RANK];
    int nrest;
    int8_t id[26]; /* of a letter, and 1; 0: not yet known */
} Binding;

/* The id of dimension j of what the letter stands for; made at its first place. */
static int id_of(Binding *b, char c, int j, int64_t size) {
    if (c == '.') return b->nrest >= 0 ? b->rest[j] : new_dim(b->d, c, size, false);
    int8_t *id = &b->id[c - 'a'];
    if (!*id) *id = (int8_t)(new_dim(b->d, c, size, b->r->whole >> (c - 'a') & 1) + 1);
    return *id - 1;
}

/* Dimensions of the tensor that "..." of the term stands for; *why: they do not fit. */
static int rest_of(const Binding *b, const Term *t, const Type *ty, const char *who,
                   int nth, const char **why) {
    bool has_rest = memchr(t->letter, '.', (size_t)t->n) != NULL;
    bool known = !has_rest || b->nrest >= 0;
    int letters = t->n - has_rest, extra = ty->rank - letters;
    int want = has_rest && known ? b->nrest : 0;
    if (extra < 0 || (known && extra != want))
        *why = arena_printf(b->mem, "%s %d has %d dimensions, the rule %s wants %s%d",
                            who, nth, ty->rank, b->r->text, known ? "" : "at least ",
                            letters + want);
    return extra;
}

/* Binds a term that is "..." alone, as those of elementwise ops are; false: bind_term says why it
 * does not fit. */
static bool bind_rest(Binding *b, int slot, const Type *ty) {
    Dims *d = b->d;
    if (b->nrest < 0) {
        if (d->n + ty->rank > MAX_DIMS) return false;
        for (int j = 0; j < ty->rank; j++)
            b->rest[j] = (int8_t)new_dim(d, '.', ty->dim[j], false);
        b->nrest = ty->rank;
    }
    if (ty->rank != b->nrest) return false;
    for (int j = 0; j < ty->rank; j++) {
        if (d->size[b->rest[j]] != ty->dim[j]) return false;
        d->term[slot][j] = b->rest[j];
    }
    d->rank[slot] = ty->rank;
    return true;
}

/* Binds one term to a tensor's sizes. */
static const char *bind_term(Binding *b, int slot, const Type *ty, const char *who,
                             int nth) {
    const Term *t = &b->r->term[slot];
    const char *why = NULL;
    if (t->n == 1 && t->letter[0] == '.' && bind_rest(b, slot, ty)) return NULL;
    int extra = rest_of(b, t, ty, who, nth, &why), at = 0;
    if (why) return why;
    for (int k = 0; k < t->n; k++) {
        char c = t->letter[k];
        int count = c == '.' ? extra : 1;
        for (int j = 0; j < count; j++, at++) {
            int id = id_of(b, c, j, ty->dim[at]);
            if (id < 0) return "the rule has too many dimensions";
            if (c == '.') b->rest[j] = (int8_t)id;
            if (b->d->size[id] != ty->dim[at])
                return arena_printf(b->mem,
                                    "%s %d: dimension %d is %lld, but '%c' of %s is %lld",
                                    who, nth, at, (long long)ty->dim[at], c, b->r->text,
                                    (long long)b->d->size[id]);
            b->d->term[slot][at] = (int8_t)id;
        }
        if (c == '.') b->nrest = extra;
    }
    b->d->rank[slot] = ty->rank;
    return NULL;
}

/* Binds all operands, or all results, to terms from `base` on. */
static const char *bind_side(Binding *b, int base, int n, int want, Value **v,
                             const char *who) {
    if (n != want)
        return arena_printf(b->mem, "%d %ss, but the rule %s has %d", n, who, b->r->text,
                            want);
    for (int i = 0; i < n; i++) {
        const char *why = bind_term(b, base + i, &v[i]->ty, who, i);
        if (why) return why;
    }
    return NULL;
}

const char *rule_bind(Arena *mem, const Rule *r, int nin, Value **in, int nout,
                      Value **out, Dims *d) {
    Binding b = {.mem = mem, .r = r, .d = d, .nrest = -1};
    d->n = d->nin = d->nout = 0;
    memset(d->rank, 0, sizeof d->rank);
    const char *why = bind_side(&b, 0, nin, r->nin, in, "operand");
    if (why) return why;
    d->nin = nin;
    for (int k = 0; r->ties && k < ARRAY_LEN(r->tied); k++)
        if (r->tied[k] && b.id[k])
            d->tied[b.id[k] - 1] = (int8_t)(b.id[r->tied[k] - 'a'] - 1);
    if (!out) return NULL;
    d->nout = nout;
    return bind_side(&b, nin, nout, r->nout, out, "result");
}

static const Rule *row_rule[OP_COUNT];
static Arena *row_rule_mem;

static void parse_row_rules(void) {
    char why[200];
    row_rule_mem = arena_new();
    for (int k = 0; k < OP_COUNT; k++) {
        const char *text = optab[k].rule;
        if (!text && (optab[k].flags & F_MAP)) {
            text = optab[k].nin_min == 1 ? "...->..." : "...,...->...";
        }
        if (!text) continue;
        row_rule[k] = rule_parse(row_rule_mem, text, why, sizeof why);
        if (!row_rule[k]) die("rule of %s: %s", optab[k].name, why);
    }
}

const Rule *op_rule(const Op *op) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, parse_row_rules);
    const Attr *a = op_attr(op, "rule");
    return a ? a->rule : row_rule[op->kind];
}

bool op_dims(const Op *op, Dims *d) {
    const Rule *r = op_rule(op);
    if (!r) return false;
    Arena *mem = op->fn->mod->mem; /* for what is wrong only */
    const char *why = rule_bind(mem, r, op->nin, op->in, op->nout, op->out, d);
    if (why) die("%s: %s", optab[op->kind].name, why);
    return true;
}

bool op_placement_dims(const Op *op, Dims *d) {
    bool has_rule = op_dims(op, d);
    if (!has_rule) memset(d, 0, sizeof *d);
    return optab[op->kind].dims ? optab[op->kind].dims(op, d) : has_rule;
}

bool dims_same_order(const Dims *d, int a, int b) {
    return d->rank[a] == d->rank[b] &&
           !memcmp(d->term[a], d->term[b], (size_t)d->rank[a]);
}

uint32_t dims_mask(const Dims *d, int term) {
    uint32_t mask = 0;
    for (int k = 0; k < d->rank[term]; k++) mask |= 1u << d->term[term][k];
    return mask;
}

void dims_strides(const Dims *d, int term, int64_t stride[MAX_DIMS]) {
    int64_t s = 1;
    for (int i = 0; i < d->n; i++) stride[i] = 0;
    for (int i = d->rank[term] - 1; i >= 0; i--) {
        stride[d->term[term][i]] = s;
        s *= d->size[d->term[term][i]];
    }
}
