/* product_choices.c - see product_choices.h. */
#include "codegen/product_choices.h"
#include "codegen/cache.h"
#include "codegen/kept.h"
#include "codegen/product_trial.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/peak.h"
#include "runtime/core/stop_signal.h"
#include <stdlib.h>

enum { MOST_CHOICES = 100000, SAY_SECONDS = 5 };

static const char machine_word[] = "machine ";

/* ---- text ---- */

static void add_choice(Text *t, const ProductChoice *c) {
    text_add(t, "%s %.0f %.0f %s\n", c->form, 1e9 * c->seconds, 1e9 * c->rule_seconds,
             c->shape);
}

static const char *print(Arena *mem, const char *machine, const ProductChoice *item,
                         int n) {
    Text t = text_new(mem);
    text_add(
        &t,
        "# Form of each matrix product, nanoseconds of a run in it and in the rule's "
        "form, shape.\n%s%s\n",
        machine_word, machine);
    for (int i = 0; i < n; i++) add_choice(&t, &item[i]);
    return t.s;
}

const char *product_choices_print(Arena *mem, const ProductChoices *c) {
    return print(mem, c->machine ? c->machine : "", c->item, c->n);
}

/* "gemm 61200 65000 SHAPE"; false: it is no choice. The text is the user's or of a file that
 * others may have written, so its form is held against the ones that there are. */
static bool choice_read(Arena *mem, const char *line, size_t n, ProductChoice *c) {
    char *text = arena_strndup(mem, line, n), *form = text, *end;
    char *rest = strchr(text, ' ');
    if (!rest) return false;
    *rest++ = 0;
    double time[2];
    for (int i = 0; i < 2; i++) {
        time[i] = strtod(rest, &end);
        if (end == rest || *end != ' ' || !(time[i] >= 0 && time[i] < 1e15)) return false;
        rest = end + 1;
    }
    *c = (ProductChoice){form, rest, 1e-9 * time[0], 1e-9 * time[1]};
    return product_form_known(form) && *rest;
}

typedef struct Table {
    const char *machine; /* NULL: no line says it */
    ProductChoice *item;
    int n, cap, bad; /* lines that say nothing */
} Table;

static const ProductChoice *find(const ProductChoice *item, int n, const char *shape) {
    for (int i = 0; i < n; i++)
        if (!strcmp(item[i].shape, shape)) return &item[i];
    return NULL;
}

static Table table_read(Arena *mem, const char *text) {
    Table t = {0};
    for (const char *p = text; p && *p; p += strcspn(p, "\n"), p += *p == '\n') {
        size_t n = strcspn(p, "\n"), word = sizeof machine_word - 1;
        ProductChoice c;
        if (!n || *p == '#') continue;
        if (n > word && !strncmp(p, machine_word, word))
            t.machine = arena_strndup(mem, p + word, n - word);
        else if (t.n < MOST_CHOICES && choice_read(mem, p, n, &c))
            PUSH(mem, t.item, t.n, t.cap, c);
        else
            t.bad++;
    }
    return t;
}

/* ---- the machine ---- */

static const char *machine_text(Arena *mem, const Target *target, int threads) {
    return arena_printf(mem, "%s, %s, %d lanes, %d thread%s, oneDNN %s", cpu_model(mem),
                        target->cpu, target->lanes, threads, threads == 1 ? "" : "s",
                        dnnl_version_text(mem));
}

/* A file for each machine, instruction set, number of threads, library and build. */
static void file_key(Arena *mem, const Target *target, const char *machine,
                     char key[CACHE_KEY_CHARS]) {
    Text t = text_new(mem);
    text_add(&t, "products\n%s\n%s\n", kept_build_id(), machine);
    target_describe(target, &t);
    cache_key(t.s, t.n, key);
}

/* ---- deciding ---- */

typedef struct Decision {
    ProductChoices *c;
    Arena *mem;
    const Target *target;
    int threads;
    Table given, file;
    char key[CACHE_KEY_CHARS];
    double deadline, said;    /* said: when, 0: nothing yet */
    int left, measured, lost; /* lost: forms of `given` that are not there */
    int small;                /* not to be measured */
    bool late;                /* some were not measured */
} Decision;

static void read_file(Decision *d) {
    if (!(d->c->limit_seconds > 0)) return;
    file_key(d->mem, d->target, d->c->machine, d->key);
    d->file = table_read(d->mem, cache_get_text(d->mem, d->key));
}

/* Somebody may have written the file meanwhile; who comes last has its lines too. */
static void write_file(Decision *d) {
    if (!d->measured) return;
    Table now = table_read(d->mem, cache_get_text(d->mem, d->key));
    for (int i = 0; i < d->file.n; i++)
        if (!find(now.item, now.n, d->file.item[i].shape))
            PUSH(d->mem, now.item, now.n, now.cap, d->file.item[i]);
    const char *text = print(d->mem, d->c->machine, now.item, now.n);
    cache_put_text(d->key, text);
}

static void say_progress(Decision *d) {
    double now = clock_seconds();
    if (now - d->said < SAY_SECONDS || now >= d->deadline) return;
    if (d->said > 0)
        fprintf(stderr, "note: measured %d matrix products, %d are left\n", d->measured,
                d->left);
    else
        fprintf(
            stderr,
            "note: measuring the forms of matrix products of %d shapes, at most %.3g s "
            "(context.measure_products_seconds)\n",
            d->left, d->deadline - now);
    d->said = now;
}

static ProductChoice measured(Decision *d, const ProductShape *s, const char *shape) {
    ProductTrial trial;
    ProductChoice choice = {product_rule, shape, 0, 0};
    say_progress(d);
    watch_progress(); /* others may wait for this rank */
    d->left--;
    if (stop_signal_taken()) d->deadline = 0; /* who wants to end need not wait for all */
    if (!product_try(d->target, s, d->deadline, &trial)) {
        d->late = true;
        return choice;
    }
    choice = (ProductChoice){trial.form, shape, trial.seconds, trial.rule_seconds};
    PUSH(d->mem, d->file.item, d->file.n, d->file.cap, choice);
    d->measured++;
    return choice;
}

static bool is_there(const Decision *d, const ProductShape *s, const char *form) {
    ProductCode code;
    char why[400];
    bool there = product_code_make(s, form, d->target->lanes, &code, why, sizeof why);
    if (there) dnnl_matmul_free(code.matmul);
    return there;
}

/* What is known of the shape without measuring. */
static const ProductChoice *known(Decision *d, const ProductShape *s, const char *shape) {
    const ProductChoice *c = find(d->given.item, d->given.n, shape);
    if (c && is_there(d, s, c->form)) return c;
    d->lost += c != NULL;
    if (c) return NULL;
    c = find(d->file.item, d->file.n, shape);
    return c && is_there(d, s, c->form) ? c : NULL;
}

static void decide(Decision *d, const ProductShape *shape, int n) {
    ProductChoices *c = d->c;
    const ProductShape **wanted = NEW_ARRAY(d->mem, const ProductShape *, (size_t)n + 1);
    for (int i = 0; i < n; i++) {
        const char *text = product_shape_text(c->mem, &shape[i]);
        if (find(c->item, c->n, text)) continue;
        const ProductChoice *k = known(d, &shape[i], text);
        ProductChoice choice = {product_rule, text, 0, 0};
        if (k) choice.form = arena_strdup(c->mem, k->form);
        if (k) choice.seconds = k->seconds, choice.rule_seconds = k->rule_seconds;
        /* of fewer threads products are over before these meet */
        bool worth = shape[i].threads == d->threads;
        if (!k && worth && c->limit_seconds > 0) wanted[d->left++] = &shape[i];
        d->small += !k && !worth;
        PUSH(c->mem, c->item, c->n, c->cap, choice);
    }
    for (int i = 0, m = d->left; i < m; i++) {
        const char *text = product_shape_text(d->mem, wanted[i]);
        ProductChoice *at = (ProductChoice *)(uintptr_t)find(c->item, c->n, text);
        ProductChoice found = measured(d, wanted[i], at->shape);
        *at = found;
    }
}

static void say(const Decision *d) {
    const ProductChoices *c = d->c;
    const char *from = c->given_from ? c->given_from : "the run";
    bool other = d->given.machine && strcmp(d->given.machine, c->machine) != 0;
    if (d->given.bad)
        say_aside("warning: %d lines of %s are no choices of a product", d->given.bad,
                  from);
    if (other)
        say_aside("note: the products of this run have the forms of %s, chosen on '%s'; "
                  "this is '%s'",
                  from, d->given.machine, c->machine);
    if (d->lost)
        say_aside("note: %d of the forms in %s are not there on this machine: these "
                  "products have the rule's, and other last bits",
                  d->lost, from);
    if (c->limit_seconds > 0 && c->n && d->small == c->n)
        say_aside(
            "note: context.measure_products_seconds: no product is large enough for "
            "%d threads, and smaller ones are not measured",
            d->threads);
    if (d->late)
        fprintf(
            stderr,
            "note: there was no time or memory to measure all products "
            "(context.measure_products_seconds): the others have the form of the rule "
            "in this run; a new run goes on\n");
}

/* Rank 0's, or the only process's. */
static void decide_here(ProductChoices *c, const ProductShape *shape, int n,
                        const Target *target, int threads) {
    double start = clock_seconds();
    Decision d = {.c = c, .mem = arena_new(), .target = target, .threads = threads};
    bool first = !c->machine;
    if (first) c->machine = machine_text(c->mem, target, threads);
    d.deadline = start + c->limit_seconds - c->spent_seconds;
    d.given = table_read(d.mem, c->given);
    read_file(&d);
    decide(&d, shape, n);
    write_file(&d);
    if (!first) d.given.machine = NULL; /* said before */
    say(&d);
    c->spent_seconds += d.measured ? clock_seconds() - start : 0;
    arena_free(d.mem);
}

/* ---- several ranks ---- */

/* The shapes of all ranks, on all of them; *n of them. */
static ProductShape *gather(Arena *mem, const ProductShape *shape, int *n) {
    int most = (int)comm_max_i64(*n), ranks = comm_size();
    ProductShape *mine = NEW_ARRAY(mem, ProductShape, (size_t)most + 1);
    for (int i = 0; i <= most; i++) mine[i] = product_shape_clear();
    for (int i = 0; i < *n; i++) mine[i] = shape[i];
    size_t bytes = (size_t)most * sizeof *mine;
    ProductShape *all = most ? comm_gather(mem, mine, bytes) : NULL;
    ProductShape *there = NEW_ARRAY(mem, ProductShape, (size_t)(most * ranks) + 1);
    *n = 0;
    for (int i = 0; i < most * ranks; i++)
        if (all[i].c.rank) there[(*n)++] = all[i];
    return there;
}

/* What rank 0 has, instead of what was there. */
static void receive(ProductChoices *c, const char *text) {
    Table t = table_read(c->mem, text);
    c->item = t.item;
    c->n = t.n;
    c->cap = t.cap;
    c->machine = t.machine;
}

void product_choices_add(ProductChoices *c, const ProductShape *shape, int n,
                         const Target *target, int threads) {
    if (!c->together || comm_size() == 1) {
        decide_here(c, shape, n, target, threads);
        return;
    }
    Arena *mem = arena_new();
    ProductShape *all = gather(mem, shape, &n);
    if (comm_rank() == 0) decide_here(c, all, n, target, threads);
    const char *text = comm_rank() == 0 ? product_choices_print(mem, c) : "";
    text = comm_broadcast_text(mem, text);
    if (comm_rank() != 0) receive(c, text);
    arena_free(mem);
}

const char *product_choices_form(const ProductChoices *c, const char *shape) {
    const ProductChoice *found = find(c->item, c->n, shape);
    check(found);
    return strcmp(found->form, product_rule) ? found->form : NULL;
}
