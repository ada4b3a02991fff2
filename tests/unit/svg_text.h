/* svg_text.h - for tests of pictures: is a text an SVG, and what is in it? */
#ifndef STATOR_TESTS_SVG_TEXT_H
#define STATOR_TESTS_SVG_TEXT_H
#include "driven.h"

static inline int svg_count(const char *text, const char *part) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)); p += strlen(part)) n++;
    return n;
}

/* Tags balanced, no stray markup, no number that is not one, nothing from elsewhere. */
static inline void svg_expect_well_formed(const char *svg) {
    char open[32][32];
    int depth = 0;
    for (const char *p = strchr(svg, '<'); p; p = strchr(p, '<')) {
        const char *end = strchr(p, '>');
        EXPECT(end && !memchr(p + 1, '<', (size_t)(end - p - 1)));
        char name[32];
        EXPECT_INT(sscanf(p + 1, "%31[a-z/]", name), 1);
        if (name[0] == '/')
            EXPECT(depth > 0 && !strcmp(open[--depth], name + 1));
        else if (end[-1] != '/')
            strcpy(open[depth++], name);
        EXPECT(depth < 32);
        p = end;
    }
    EXPECT(depth == 0 && !strstr(svg, "nan\"") && !strstr(svg, "inf"));
    EXPECT(!strstr(svg, "nan ") && !strstr(svg, "nanL"));
    EXPECT(!strstr(svg, "<script") && !strstr(svg, "href") && !strstr(svg, "url("));
}

#endif
