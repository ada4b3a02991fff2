/* make_unicode_tables.c - writes runtime/text/unicode_tables.h from the Unicode Character
 * Database, as Debian 12's package unicode-data (15.0.0) has it:
 *     cc -o make_unicode_tables scripts/make_unicode_tables.c
 *     ./make_unicode_tables /usr/share/unicode/extracted/DerivedGeneralCategory.txt \
 *         >runtime/text/unicode_tables.h
 * Ranges are of \p{L} (Lu Ll Lt Lm Lo) and \p{N} (Nd Nl No). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CODE_POINTS = 0x110000, RANGES_A_LINE = 4 };

static unsigned char class_of[CODE_POINTS]; /* 'L', 'N' or 0 */

static void stop(const char *what, const char *where) {
    fprintf(stderr, "make_unicode_tables: %s: %s\n", what, where);
    exit(1);
}

/* Lines: "0041..005A    ; Lu # [26] ..." or "00AA ; Lo # ...", or comments. */
static void read_line(const char *line) {
    unsigned first, last;
    char category[3];
    if (sscanf(line, "%x..%x ; %2s", &first, &last, category) != 3) {
        if (sscanf(line, "%x ; %2s", &first, category) != 2) stop("not understood", line);
        last = first;
    }
    if (last < first || last >= CODE_POINTS) stop("bad range", line);
    if (category[0] != 'L' && category[0] != 'N') return;
    memset(class_of + first, category[0], last - first + 1);
}

static void write_ranges(const char *name, int class) {
    printf("\nstatic const UnicodeRange %s[] = {", name);
    int n = 0;
    for (unsigned c = 0; c < CODE_POINTS; c++) {
        if (class_of[c] != class) continue;
        unsigned first = c;
        while (c + 1 < CODE_POINTS && class_of[c + 1] == class) c++;
        printf("%s{0x%04X, 0x%04X},", n++ % RANGES_A_LINE ? " " : "\n    ", first, c);
    }
    printf("\n};\n");
}

int main(int argc, char **argv) {
    if (argc != 2) stop("usage", "make_unicode_tables DerivedGeneralCategory.txt");
    FILE *f = fopen(argv[1], "r");
    char line[512];
    if (!f) stop("cannot open", argv[1]);
    if (!fgets(line, sizeof line, f) || !strstr(line, "-15.0.0.txt"))
        stop("not the file of Unicode 15.0.0", argv[1]);
    while (fgets(line, sizeof line, f))
        if (line[0] != '#' && line[0] != '\n') read_line(line);
    fclose(f);
    printf("/* unicode_tables.h - letters and numbers of Unicode 15.0.0; made by\n"
           " * scripts/make_unicode_tables.c from DerivedGeneralCategory.txt. */\n"
           "#ifndef STATOR_UNICODE_TABLES_H\n#define STATOR_UNICODE_TABLES_H\n"
           "#include <stdint.h>\n\n"
           "/* first and last code point */\n"
           "typedef struct UnicodeRange {\n    uint32_t first, last;\n} UnicodeRange;\n");
    write_ranges("unicode_letters", 'L');
    write_ranges("unicode_numbers", 'N');
    printf("\n#endif\n");
    return 0;
}
