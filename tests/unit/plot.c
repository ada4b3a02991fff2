/* plot.c - the loss curve: ticks, ranges, gaps, extremes, well-formed output. */
#include "runtime/run/plot.h"
#include "runtime/run/svg.h"
#include "svg_text.h"

static char *draw(PlotSeries train, PlotSeries validation, const char *title) {
    Plot p = {.title = title, .train = train, .validation = validation};
    Text t = plot_svg(mem(), &p);
    svg_expect_well_formed(t.s);
    EXPECT_INT(t.n, strlen(t.s));
    return t.s;
}

TEST(round_ticks) {
    const struct {
        double lo, hi;
        int want;
        double first, step;
    } cases[] = {
        {0, 100, 5, 0, 20},  {1.7, 4.9, 6, 2, 0.5},          {-3, 7, 5, -2, 2},
        {0, 1e6, 8, 0, 1e5}, {2.301, 2.304, 6, 2.301, 5e-4}, {0.1, 0.9, 4, 0.2, 0.2}};
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        double first, step;
        svg_ticks(cases[i].lo, cases[i].hi, cases[i].want, &first, &step);
        EXPECT_NEAR(step, cases[i].step, 1e-9 * step);
        EXPECT_NEAR(first, cases[i].first, 1e-9);
    }
}

/* Two points: corners of the plot (72..836, 56..404), y with 5 % air. */
TEST(points_are_where_they_belong) {
    double x[] = {0, 100, 200}, y[] = {4, 3, 2};
    char *svg = draw((PlotSeries){x, y, 3}, (PlotSeries){0}, "a");
    EXPECT_PART(svg, "d=\"M72.0 71.8h0L454.0 230.0L836.0 388.2\"");
    EXPECT(strstr(svg, ">200</text>") && strstr(svg, ">2.5</text>"));
    EXPECT_PART(svg, "training 2.0000");
    EXPECT(!strstr(svg, "smoothed") && !strstr(svg, "validation"));
}

TEST(validation_and_smoothing) {
    double x[100], y[100], vx[] = {50, 100}, vy[] = {3.25, 3.125};
    for (int i = 0; i < 100; i++) x[i] = i + 1, y[i] = i % 2 ? 3.0 : 4.0;
    char *svg = draw((PlotSeries){x, y, 100}, (PlotSeries){vx, vy, 2}, "a");
    EXPECT(strstr(svg, "validation 3.1250") && svg_count(svg, "<circle") == 2);
    const char *value = strstr(svg, "smoothed ");
    EXPECT(value && fabs(atof(value + 9) - 3.5) < 0.2);
}

/* On a straight line a two-sided mean stays on the line, away from the ends. */
TEST(smoothing_does_not_lag) {
    double x[101], y[101];
    for (int i = 0; i < 101; i++) x[i] = i, y[i] = 101 - i;
    char *svg = draw((PlotSeries){x, y, 101}, (PlotSeries){0}, "a");
    EXPECT_INT(svg_count(svg, "L454.0 230.0L"),
               2); /* the middle point, raw and smoothed */
}

TEST(gaps) {
    double x[] = {1, 2, 3, 4, 5}, y[] = {4, NAN, 3, INFINITY, 2};
    char *svg = draw((PlotSeries){x, y, 5}, (PlotSeries){0}, "a");
    const char *line = strstr(svg, "class=\"line smooth\" d=\"");
    char *path = arena_strndup(mem(), line, strcspn(line, ">"));
    EXPECT(svg_count(path, "M") == 3 && svg_count(path, "L") == 0);
}

TEST(odd_ranges) {
    double x[] = {5, 5}, same[] = {2, 2}, zero[] = {0, 0}, huge[] = {-1.7e308, 1.7e308};
    double none[] = {NAN, NAN}, tiny[] = {0, 5e-324}, close[] = {1, 1 + 1e-15};
    double *all[] = {same, zero, huge, none, tiny, close};
    EXPECT_PART(draw((PlotSeries){0}, (PlotSeries){0}, ""), "</svg>");
    for (int i = 0; i < ARRAY_LEN(all); i++) {
        char *svg = draw((PlotSeries){x, all[i], 2}, (PlotSeries){x, all[i], 1}, NULL);
        EXPECT(svg_count(svg, "class=\"grid\"") >= 2 &&
               svg_count(svg, "class=\"grid\"") < 20);
    }
}

TEST(long_runs_keep_extremes) {
    enum { N = 1000000 };
    double *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++) x[i] = i, y[i] = 3;
    y[654321] = 9;
    y[123456] = 1;
    char *svg = draw((PlotSeries){x, y, N}, (PlotSeries){0}, "long");
    EXPECT(strlen(svg) < 100000);
    EXPECT(strstr(svg, " 71.8L") && strstr(svg, " 388.2L")); /* 9 and 1 */
    EXPECT_PART(svg, ">200k</text>");
    free(x);
    free(y);
}

TEST(titles_are_escaped) {
    char *svg = draw((PlotSeries){0}, (PlotSeries){0},
                     "<script>&\x01\xff\xc3\xa9\xe2\x82\xac\xe2\x82.");
    EXPECT_PART(svg, ">&lt;script&gt;&amp;?\?\xc3\xa9\xe2\x82\xac?\?.</text>");
    EXPECT(!strstr(svg, "<script"));
}

TEST(write) {
    char *path = path_join(mem(), temp_dir(), "loss.svg");
    double x[] = {1, 2}, y[] = {2, 1};
    Plot p = {.title = "t", .train = {x, y, 2}};
    Text picture = plot_svg(mem(), &p);
    EXPECT(file_write_atomic(path, picture.s, picture.n) == 0 &&
           file_write_atomic(path, picture.s, picture.n) == 0);
    EXPECT_STR(file_read(mem(), path, 1 << 20, NULL, EXIT_DATA), picture.s);
    EXPECT(file_write_atomic(path_join(mem(), temp_dir(), "none/loss.svg"), picture.s,
                             picture.n) != 0);
}
