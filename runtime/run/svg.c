/* svg.c - see svg.h. */
#include "runtime/run/svg.h"
#include "base/utf8.h"
#include <math.h>

/* Text and grid have contrast on both grounds. */
static const char light_style[] = "text{font:13px system-ui,sans-serif;fill:#444}\n"
                                  ".title{font-size:17px;font-weight:600;fill:#111}\n"
                                  ".ground{fill:#ffffff}\n"
                                  ".grid{stroke:#e3e3e3;stroke-width:1}\n"
                                  ".axis{stroke:#888;stroke-width:1}\n";
static const char dark_style[] = "text{fill:#bbb}\n"
                                 ".title{fill:#eee}\n"
                                 ".ground{fill:#16181c}\n"
                                 ".grid{stroke:#2c3036}\n"
                                 ".axis{stroke:#777}\n";

void svg_escape(Text *t, const char *s) {
    for (size_t left = strlen(s); left;) {
        int n = utf8_check(s, left);
        bool refused = n == 0 || (unsigned char)*s < 0x20 || *s == 0x7f ||
                       (n == 3 && !memcmp(s, "\xef\xbf", 2) && (s[2] & 0x3e) == 0x3e);
        if (refused)
            text_add(t, "?");
        else if (*s == '<')
            text_add(t, "&lt;");
        else if (*s == '>')
            text_add(t, "&gt;");
        else if (*s == '&')
            text_add(t, "&amp;");
        else
            text_add_bytes(t, s, (size_t)n);
        s += MAX(n, 1);
        left -= (size_t)MAX(n, 1);
    }
}

void svg_begin(Text *t, int width, int height, const char *title, const char *light,
               const char *dark) {
    text_add(t,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
             "width=\"%d\" height=\"%d\" role=\"img\">\n<title>",
             width, height, width, height);
    svg_escape(t, title);
    text_add(t, "</title>\n<style>\n%s%s", light_style, light);
    text_add(t, "@media (prefers-color-scheme:dark){\n%s%s}\n</style>\n", dark_style,
             dark);
    text_add(t, "<rect class=\"ground\" width=\"%d\" height=\"%d\"/>\n", width, height);
}

void svg_text(Text *t, double x, double y, const char *attributes, const char *s) {
    text_add(t, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    svg_escape(t, s);
    text_add(t, "</text>\n");
}

void svg_ticks(double lo, double hi, int want, double *first, double *step) {
    double rough = (hi - lo) / MAX(want, 1);
    double power = pow(10, floor(log10(rough))), part = rough / power;
    *step = power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
    *first = ceil(lo / *step - 1e-9) * *step;
}

/* What stands at a tick: 1500 as 1.5k and so on. */
static void tick_label(double v, double step, char out[32]) {
    double least = fabs(v) < step * 1e-6 ? 0 : v;
    static const struct {
        double unit;
        const char *letter;
    } scales[] = {{1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    for (int i = 0; i < ARRAY_LEN(scales); i++) {
        if (fabs(least) < scales[i].unit || step < scales[i].unit / 10) continue;
        snprintf(out, 32, "%.10g%s", least / scales[i].unit, scales[i].letter);
        return;
    }
    snprintf(out, 32, "%.10g", least);
}

/* The i-th tick of an axis that ends at `last`. */
static bool tick_at(double lo, double hi, double last, int want, int i, double *v,
                    char label[32]) {
    enum { MOST = 40 };
    double first, step;
    svg_ticks(lo, hi, want, &first, &step);
    *v = first + i * step;
    tick_label(*v, step, label);
    return i < MOST && *v <= last;
}

void svg_axis_x(Text *t, double lo, double hi, double slack, int want, int left,
                int width, double bottom) {
    char label[32];
    double v, last = hi + slack * (hi - lo);
    for (int i = 0; tick_at(lo, hi, last, want, i, &v, label); i++) {
        double x = left + (v - lo) / (hi - lo) * width;
        text_add(t, "<path class=\"axis\" d=\"M%.1f %.1fv5\"/>\n", x, bottom);
        svg_text(t, x, bottom + 20, "text-anchor=\"middle\"", label);
    }
    text_add(t, "<path class=\"axis\" d=\"M%d %.1fh%d\"/>\n", left, bottom, width);
}

void svg_axis_y(Text *t, double lo, double hi, int want, int left, int width, int top,
                int height) {
    char label[32];
    double v;
    for (int i = 0; tick_at(lo, hi, hi, want, i, &v, label); i++) {
        double y = top + (hi - v) / (hi - lo) * height;
        text_add(t, "<path class=\"grid\" d=\"M%d %.1fh%d\"/>\n", left, y, width);
        svg_text(t, left - 8, y + 4, "text-anchor=\"end\"", label);
    }
}
