/* scan.h - the words of the IR's text: names, numbers, types, attributes. parse.c makes
 * functions and modules of them. Faults end in fail_at with EXIT_CONFIG. */
#ifndef STATOR_SCAN_H
#define STATOR_SCAN_H
#include "ir/ir.h"

typedef struct Scanner {
    Arena *mem;
    const char *file, *text, *p, *end;
    int line;
    const char *line_start;
    Module *m; /* its mesh names the axes of types */
    /* values of the function being read, by name */
    Value **slot;
    int nslots, nvalues;
    int nfuncs;
} Scanner;

/* Where the scanner is: of the character that comes next, for messages. */
SourcePos scan_at(const Scanner *ps);
#define syntax(ps, hint, ...) fail_at(EXIT_CONFIG, scan_at(ps), hint, __VA_ARGS__)

void scan_space(Scanner *ps); /* white space and comments */
bool scan_peek(Scanner *ps, const char *token);
bool scan_accept(Scanner *ps, const char *token); /* true: it was there and is read */
void scan_expect(Scanner *ps, const char *token);
/* [A-Za-z0-9_.#]+ */
const char *scan_id(Scanner *ps, const char *what);
int64_t scan_int(Scanner *ps);
Type scan_type(Scanner *ps);
Loc scan_loc(Scanner *ps);
/* Attributes without their braces; `spec` says which there may be, `owner` whose they are. */
Attr *scan_attrs(Scanner *ps, const char *spec, const char *owner);

#endif
