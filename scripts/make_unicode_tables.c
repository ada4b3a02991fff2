/* make_unicode_tables.c - writes the tables of runtime/text from the Unicode Character
 * Database, as Debian 12's package unicode-data (15.0.0) has it:
 *     cc -o make_unicode_tables scripts/make_unicode_tables.c
 *     ./make_unicode_tables /usr/share/unicode classes >runtime/text/unicode_tables.h
 *     ./make_unicode_tables /usr/share/unicode nfc >runtime/text/nfc_tables.h
 * The tables for NFC have the characters of Unicode 9.0 alone: those that the library
 * `tokenizers` normalizes. Of these no later version changes anything. Classes are \p{L} (Lu Ll
 * Lt Lm Lo), \p{N} (Nd Nl No), and \w as UTS 18, annex C, has it: Alphabetic, M, Nd, Pc and
 * Join_Control; written are those that are no letters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CODE_POINTS = 0x110000, RANGES_A_LINE = 4, PAIRS_A_LINE = 3, OTHERS_A_LINE = 11 };

static unsigned char is_letter[CODE_POINTS], is_number[CODE_POINTS], is_word[CODE_POINTS];
static unsigned char combining[CODE_POINTS], excluded[CODE_POINTS];
static unsigned first_of[CODE_POINTS], second_of[CODE_POINTS]; /* 0: none */
static unsigned char is_old[CODE_POINTS];                      /* in Unicode 9.0 */
static const char *folder;

static void stop(const char *what, const char *where) {
    fprintf(stderr, "make_unicode_tables: %s: %s\n", what, where);
    exit(1);
}

/* "0041..005A    ; Lu # [26] ..." or "00AA ; Lo # ...": what stands behind the ';'. */
typedef void RangeRead(unsigned first, unsigned last, const char *value);

static void read_ranges(const char *name, RangeRead *take) {
    char path[1024], line[512], value[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    if (!f) stop("cannot open", path);
    if (!fgets(line, sizeof line, f) || !strstr(line, "-15.0.0.txt"))
        stop("not the file of Unicode 15.0.0", path);
    while (fgets(line, sizeof line, f)) {
        unsigned first, last;
        if (line[0] == '#' || line[0] == '\n') continue;
        if (sscanf(line, "%x..%x ; %127s", &first, &last, value) != 3) {
            if (sscanf(line, "%x ; %127s", &first, value) != 2)
                stop("not understood", line);
            last = first;
        }
        if (last < first || last >= CODE_POINTS) stop("bad range", line);
        take(first, last, value);
    }
    fclose(f);
}

static void mark(unsigned char *table, unsigned first, unsigned last) {
    memset(table + first, 1, last - first + 1);
}

static void read_category(unsigned first, unsigned last, const char *category) {
    if (category[0] == 'L') mark(is_letter, first, last);
    if (category[0] == 'N') mark(is_number, first, last);
    if (category[0] == 'M' || !strcmp(category, "Nd") || !strcmp(category, "Pc"))
        mark(is_word, first, last);
}

static void read_core(unsigned first, unsigned last, const char *property) {
    if (!strcmp(property, "Alphabetic")) mark(is_word, first, last);
}

static void read_join(unsigned first, unsigned last, const char *property) {
    if (!strcmp(property, "Join_Control")) mark(is_word, first, last);
}

static void read_exclusion(unsigned first, unsigned last, const char *property) {
    if (!strcmp(property, "Full_Composition_Exclusion")) mark(excluded, first, last);
}

static void read_age(unsigned first, unsigned last, const char *version) {
    if (atof(version) <= 9.0) mark(is_old, first, last);
}

/* UnicodeData.txt: code;name;category;combining class;bidi;decomposition;... */
static void read_characters(void) {
    char path[1024], line[1024];
    snprintf(path, sizeof path, "%s/UnicodeData.txt", folder);
    FILE *f = fopen(path, "r");
    if (!f) stop("cannot open", path);
    while (fgets(line, sizeof line, f)) {
        char *field[6], *p = line;
        for (int i = 0; i < 6; i++) {
            field[i] = p;
            p = strchr(p, ';');
            if (!p) stop("not understood", line);
            *p++ = 0;
        }
        unsigned c = (unsigned)strtoul(field[0], NULL, 16);
        if (!is_old[c]) continue;
        combining[c] = (unsigned char)atoi(field[3]);
        if (field[5][0] && field[5][0] != '<' &&
            sscanf(field[5], "%x %x", &first_of[c], &second_of[c]) < 1)
            stop("no decomposition", field[5]);
    }
    fclose(f);
}

static void write_ranges(const char *name, const unsigned char *table) {
    printf("\nstatic const UnicodeRange %s[] = {", name);
    int n = 0;
    for (unsigned c = 0; c < CODE_POINTS; c++) {
        if (!table[c]) continue;
        unsigned first = c;
        while (c + 1 < CODE_POINTS && table[c + 1]) c++;
        printf("%s{0x%04X, 0x%04X},", n++ % RANGES_A_LINE ? " " : "\n    ", first, c);
    }
    printf("\n};\n");
}

static void write_classes(void) {
    printf("/* unicode_tables.h - letters, numbers and characters of words of Unicode "
           "15.0.0;\n"
           " * made by scripts/make_unicode_tables.c. */\n"
           "#ifndef STATOR_UNICODE_TABLES_H\n#define STATOR_UNICODE_TABLES_H\n"
           "#include <stdint.h>\n\n"
           "/* first and last code point */\n"
           "typedef struct UnicodeRange {\n    uint32_t first, last;\n} UnicodeRange;\n");
    write_ranges("unicode_letters", is_letter);
    write_ranges("unicode_numbers", is_number);
    for (unsigned c = 0; c < CODE_POINTS; c++) is_word[c] &= !is_letter[c];
    write_ranges("unicode_other_words", is_word);
}

static int becomes_one(unsigned c) {
    return first_of[c] && !second_of[c];
}

static void write_runs(void) {
    printf("\n};\n\nstatic const NfcRun nfc_runs[] = {");
    int n = 0;
    for (unsigned c = 0; c < CODE_POINTS; c++) {
        unsigned first = c;
        while (c < CODE_POINTS && becomes_one(c)) c++;
        if (c > first)
            printf("%s{0x%04X, %u},", n++ % RANGES_A_LINE ? " " : "\n    ", first,
                   c - first);
    }
    printf("\n};\n\nstatic const uint32_t nfc_others[] = {");
    n = 0;
    for (unsigned c = 0; c < CODE_POINTS; c++)
        if (becomes_one(c))
            printf("%s0x%04X,", n++ % OTHERS_A_LINE ? " " : "\n    ", first_of[c]);
}

static void write_pairs(const char *name, int alone) {
    printf("\n};\n\nstatic const NfcPair %s[] = {", name);
    int n = 0;
    for (unsigned c = 0; c < CODE_POINTS; c++)
        if (second_of[c] && excluded[c] == alone)
            printf("%s{0x%04X, 0x%04X, 0x%04X},", n++ % PAIRS_A_LINE ? " " : "\n    ", c,
                   first_of[c], second_of[c]);
}

static void write_nfc(void) {
    printf(
        "/* nfc_tables.h - canonical decompositions and combining classes of Unicode "
        "9.0;\n"
        " * made by scripts/make_unicode_tables.c. */\n"
        "#ifndef STATOR_NFC_TABLES_H\n#define STATOR_NFC_TABLES_H\n"
        "#include <stdint.h>\n\n"
        "/* first and last code point, their combining class (0 is left out) */\n"
        "typedef struct NfcClass {\n    uint32_t first, last;\n    uint8_t combining;\n"
        "} NfcClass;\n\n"
        "/* `n` code points from `first` on: each becomes one other, the next of "
        "nfc_others. "
        "*/\n"
        "typedef struct NfcRun {\n    uint32_t first, n;\n} NfcRun;\n\n"
        "/* A code point and the two that it is made of; those of nfc_alone are not put "
        "together\n * again. */\n"
        "typedef struct NfcPair {\n    uint32_t code, first, second;\n"
        "} NfcPair;\n\nstatic const NfcClass nfc_classes[] = {");
    int n = 0;
    for (unsigned c = 0; c < CODE_POINTS; c++) {
        if (!combining[c]) continue;
        unsigned first = c;
        while (c + 1 < CODE_POINTS && combining[c + 1] == combining[first]) c++;
        printf("%s{0x%04X, 0x%04X, %d},", n++ % PAIRS_A_LINE ? " " : "\n    ", first, c,
               combining[first]);
    }
    write_runs();
    write_pairs("nfc_pairs", 0);
    write_pairs("nfc_alone", 1);
    printf("\n};\n");
}

int main(int argc, char **argv) {
    if (argc != 3) stop("usage", "make_unicode_tables FOLDER classes|nfc");
    folder = argv[1];
    read_ranges("extracted/DerivedGeneralCategory.txt", read_category);
    read_ranges("DerivedCoreProperties.txt", read_core);
    read_ranges("PropList.txt", read_join);
    read_ranges("DerivedNormalizationProps.txt", read_exclusion);
    read_ranges("DerivedAge.txt", read_age);
    read_characters();
    if (!strcmp(argv[2], "classes"))
        write_classes();
    else if (!strcmp(argv[2], "nfc"))
        write_nfc();
    else
        stop("neither classes nor nfc", argv[2]);
    printf("\n#endif\n");
    return 0;
}
