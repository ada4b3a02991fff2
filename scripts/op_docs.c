/* op_docs.c - a step of the build: docs/ops.md from the op table.
 *     op_docs ir/ops.def > docs/ops.md
 * The columns come from optab, sections and sentences from the comments of the file: one
 * between dashes begins a section, one above an empty line introduces it, one above a row
 * says what that op, and those below up to the next comment, do. An op without a sentence
 * is an error. */
#include "ir/ir.h"
#include <ctype.h>
#include <stdlib.h>

static const char page_head[] =
    "# The ops\n\n"
    "Every op of the IR. This page is made from `ir/ops.def` (`cmake --build build "
    "--target\n"
    "docs`); change it there. [ir.md](ir.md) has the text around them,\n"
    "[add-an-op.md](add-an-op.md) how one is added.\n\n"
    "- **operands**: how many it takes, and how many results it makes (`n`: as many as "
    "its\n"
    "  operands or attributes say).\n"
    "- **rule**: a letter per dimension, a scalar is `_`; `c!` must not be split over "
    "ranks;\n"
    "  `; g~h`: g is split along with h. *given*: the text has it; *may be given*: else "
    "all\n"
    "  have one shape.\n"
    "- **types**: of the elements of operands and results; the last one of the operands\n"
    "  stands for all further ones. *float*: all of one type. `#0`: like operand 0; *sum "
    "of\n"
    "  #0*: what that is summed in, f32 at least; *declared*: as the text says.\n"
    "- **attributes**: those in brackets may be left out.\n";

static const struct {
    unsigned flag;
    const char *name, *meaning;
} flag_text[] = {
    {F_LINEAR, "linear", "a sum over ranks may be done after it"},
    {F_MAP, "elementwise", "goes into a kernel with its neighbours"},
    {F_REDUCE, "reduction", "over the letters that the result lacks, in a kernel too"},
    {F_VIEW, "view", "its results are the buffers of its operands"},
    {F_MOVE, "moves", "elements only change places"},
    {F_INPLACE, "in place", "the first result may overwrite the first operand"},
    {F_ADDENDS, "addends", "operands after the second are added to the result"},
    {F_PLUS, "plus", "the sum of its two operands"},
    {F_DENSE, "dense", "its work is the product of all its letters, at least"},
    {F_COMM, "communicates", "talks to other ranks (from level local on)"},
    {F_RANDOM, "random",
     "drops a share `p` of its elements at random, in training alone"},
    {F_FILL, "constant", "`value` in every element"},
    {F_CAST, "cast", "its operand in another element type"},
    {F_TYPELESS, "typeless", "elements of any type as they are"},
    {F_ROUNDS, "rounds", "computes in f32 at least and rounds to the type of operand 0"},
    {F_EXACT, "exact", "in bf16 or f16 training nothing that it reads is rounded"},
    {F_LOOKUP, "lookup", "of operand 0 it reads no more than it gives"},
    {F_TOUCHES, "touches",
     "its result is operand 0 with the last operand added to some elements"},
    {F_SCALE, "scaling", "its operand times `by`"},
    {F_CALL, "call", "runs a function"},
    {F_RANK, "by rank", "differs from rank to rank by itself (from level local on)"},
};

static const char *const kind_text[] = {"integer",   "number", "text", "rule", "function",
                                        "dimension", "axes",   "type", "op"};

/* ---- cells ---- */

static void write_count(int least, int most) {
    if (most < 0)
        printf("%d or more", least);
    else if (least == most)
        printf("%d", least);
    else
        printf("%d to %d", least, most);
}

static void write_operands(const OpInfo *op) {
    write_count(op->nin_min, op->nin_max);
    if (op->nout < 0)
        printf(" → n");
    else
        printf(" → %d", op->nout);
}

static void write_rule(const OpInfo *op) {
    AttrKind kind;
    bool optional, attribute = attr_spec_find(op->attrs, "rule", &kind, &optional);
    if (op->rule)
        printf("`%s`", op->rule);
    else if (attribute)
        printf(optional ? "may be given" : "given");
    else
        printf(op->flags & F_MAP ? "one shape" : "");
}

/* Equal ones in a row are counted: "3 float". */
static void write_types(const char *from, const char *end) {
    static const char *const name[] = {['f'] = "float",
                                       ['g'] = "any float",
                                       ['w'] = "f32 or f64",
                                       ['i'] = "i32",
                                       ['*'] = "any"};
    for (const char *p = from, *next; p < end; p = next) {
        for (next = p; next < end && *next == *p;) next++;
        printf("%s", p == from ? "" : ", ");
        if (next - p > 1) printf("%d ", (int)(next - p));
        printf("%s", name[(unsigned char)*p]);
    }
}

static void write_result_types(const char *types) {
    for (const char *p = types; *p; p++) {
        static const char *const name[] = {['i'] = "i32",
                                           ['w'] = "f32 or f64",
                                           ['s'] = "sum of #0",
                                           ['d'] = "declared",
                                           ['*'] = "declared"};
        printf("%s", p == types ? "" : ", ");
        if (isdigit((unsigned char)*p))
            printf("#%c", *p);
        else
            printf("%s", name[(unsigned char)*p]);
    }
}

static void write_attributes(const OpInfo *op) {
    int n = 0;
    for (const char *p = op->attrs; *p; p += strcspn(p, " "), p += *p == ' ') {
        int key = (int)strcspn(p, ":");
        bool optional = p[key + 2] == '?';
        printf("%s%s`%.*s` %s%s", n++ ? ", " : "", optional ? "[" : "", key, p,
               kind_text[strchr(attr_kind_letter, p[key + 1]) - attr_kind_letter],
               optional ? "]" : "");
    }
}

static void write_flags(const OpInfo *op) {
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(flag_text); i++) {
        if (op->flags & flag_text[i].flag)
            printf("%s%s", n++ ? ", " : "", flag_text[i].name);
    }
    if (op->expand) printf("%scomposite", n++ ? ", " : "");
    if (op->vjp) printf("%sgradient", n++ ? ", " : "");
}

static void write_row(const OpInfo *op, const char *meaning) {
    const char *arrow = strstr(op->types, "->");
    printf("| `%s` | ", op->name);
    write_operands(op);
    printf(" | ");
    write_rule(op);
    printf(" | ");
    write_types(op->types, arrow);
    printf(arrow > op->types ? " → " : "→ ");
    write_result_types(arrow + 2);
    printf(" | ");
    write_attributes(op);
    printf(" | ");
    write_flags(op);
    printf(" | %s |\n", meaning);
}

/* ---- the file ---- */

typedef struct Page {
    Arena *mem;
    const char *path;
    int line;
    char *comment;       /* the last one, in one line; NULL: none since a row or blank */
    char *sentence;      /* of the rows */
    const char *first;   /* op that the sentence was written for */
    bool table, started; /* a table is open; a section was begun */
    int rows;
} Page;

static void stop(const Page *p, const char *what) {
    fprintf(stderr, "op_docs: %s:%d: %s\n", p->path, p->line, what);
    exit(1);
}

/* The words of the comment that begins at *at, which moves past it. */
static char *read_comment(Page *p, const char **at) {
    const char *from = *at + 2, *end = strstr(from, "*/");
    if (!end) stop(p, "a comment without end");
    Text t = text_new(p->mem);
    for (const char *c = from; c < end;) {
        const char *word = c + strspn(c, " \n");
        if (word > c && memchr(c, '\n', (size_t)(word - c)) && *word == '*') word++;
        word += strspn(word, " \n");
        c = word + strcspn(word, " \n");
        if (c > end) c = end;
        if (c > word) text_add(&t, "%s%.*s", t.n ? " " : "", (int)(c - word), word);
    }
    for (const char *c = *at; c < end; c++) p->line += *c == '\n';
    *at = end + 2;
    return t.n ? t.s : "";
}

static void begin_section(Page *p, const char *title) {
    size_t n = strlen(title);
    if (n < 11 || strncmp(title, "---- ", 5) || strcmp(title + n - 5, " ----"))
        stop(p, "a section is /* ---- title ---- */");
    printf("\n## %.*s\n", (int)n - 10, title + 5);
    p->table = false;
    p->started = true;
}

static void introduce(Page *p) {
    if (p->comment && p->started) printf("\n%s\n", p->comment);
    p->comment = p->sentence = NULL;
}

static void add_row(Page *p, const char *name) {
    int kind = op_kind(name);
    if (kind < 0) stop(p, "a row that optab lacks: build again");
    if (p->comment) {
        p->sentence = p->comment;
        p->first = optab[kind].name;
        p->comment = NULL;
    }
    if (!p->sentence || !p->started) stop(p, "an op needs a comment above its row");
    if (!p->table)
        printf("\n| op | operands | rule | types | attributes | flags | meaning |\n"
               "|---|---|---|---|---|---|---|\n");
    p->table = true;
    p->rows++;
    bool own = p->first == optab[kind].name;
    write_row(&optab[kind],
              own ? p->sentence : arena_printf(p->mem, "see `%s`", p->first));
}

/* One line that is no comment. */
static void read_line(Page *p, const char *line, size_t n) {
    static const char *const macro[] = {"OP(", "MAP(", "COMPOSITE("};
    for (int i = 0; i < ARRAY_LEN(macro); i++) {
        size_t m = strlen(macro[i]);
        if (strncmp(line, macro[i], m)) continue;
        add_row(p, arena_strndup(p->mem, line + m, strcspn(line + m, ", ")));
        return;
    }
    if (!n) introduce(p);
}

static void write_roles(void) {
    printf("\n## Roles of arguments\n\nWhat the attribute `role` binds an argument of an "
           "entry to (`ir/roles.def`).\n\n| role | argument |\n|---|---|\n");
#define ARG(name, batch, meaning) printf("| `%s` | %s |\n", #name, meaning);
#include "ir/roles.def"
#undef ARG
}

static void write_page(Page *p, const char *text) {
    fputs(page_head, stdout);
    printf("- **flags**: *composite*: written with other ops before code is made;\n"
           "  *gradient*: one flows through it");
    for (int i = 0; i < ARRAY_LEN(flag_text); i++)
        printf(";\n  *%s*: %s", flag_text[i].name, flag_text[i].meaning);
    printf(".\n");
    for (const char *at = text; *at; p->line++) {
        if (!strncmp(at, "/*", 2)) {
            p->comment = read_comment(p, &at);
            if (!strncmp(p->comment, "--", 2)) begin_section(p, p->comment);
            if (!strncmp(p->comment, "--", 2)) p->comment = NULL;
        } else {
            read_line(p, at, strcspn(at, "\n"));
        }
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    write_roles();
    if (p->rows != OP_COUNT) stop(p, "not every row of optab is here: build again");
}

int main(int argc, char **argv) {
    size_t n;
    if (argc != 2) {
        fprintf(stderr, "usage: op_docs ir/ops.def > docs/ops.md\n");
        return 1;
    }
    Page p = {.mem = arena_new(), .path = argv[1], .line = 1};
    write_page(&p, file_read(p.mem, argv[1], 1 << 20, &n, EXIT_DATA));
    arena_free(p.mem);
    return fflush(stdout) || ferror(stdout) ? 1 : 0;
}
