/* timeline.c - tasks over time as a picture: where boxes are, colours that are told apart,
 * how long the text gets. */
#include "runtime/run/timeline.h"
#include "frontend/plan/plan.h"
#include "svg_text.h"
#include <math.h>

static char *draw(const Timeline *l) {
    Text t = timeline_svg(mem(), l);
    svg_expect_well_formed(t.s);
    EXPECT_INT(t.n, strlen(t.s));
    return t.s;
}

/* A schedule whose tasks take 1, backward 2, its halves 1 each. */
static Timeline planned(const char *name, int stages, int each, int micro) {
    static double flops[64][TASK_KINDS];
    for (int c = 0; c < ARRAY_LEN(flops); c++)
        memcpy(flops[c], (double[]){0, 1, 2, 1, 1}, sizeof flops[c]);
    const PipeSchedule *s = schedule_make(mem(), name, stages, stages * each, micro);
    return plan_schedule_timeline(mem(), s, (const double(*)[TASK_KINDS])flops);
}

/* Two rows over 4 seconds on 760 pixels from 84 on. */
TEST(boxes_are_where_they_belong) {
    TimelineBox a[] = {{0, 1, TASK_FORWARD, 0, 3}, {2, 4, TASK_BACKWARD, 0, 12}};
    TimelineBox b[] = {{1, 2, TASK_FORWARD, 0, 3}};
    TimelineRow rows[] = {{"stage 0", a, 2}, {"stage 1", b, 1}};
    Timeline l = {.title = "a & b",
                  .row = rows,
                  .nrows = 2,
                  .end = 4,
                  .axis = "%",
                  .axis_end = 100};
    EXPECT_NEAR(timeline_idle(&l), 0.5, 1e-12);
    char *svg = draw(&l);
    EXPECT_PART(svg, "class=\"F0\" d=\"M84.00 76.1h189.00v25.8h-189.00z\"");
    EXPECT_PART(svg, "class=\"B0\" d=\"M464.00 76.1h379.00v25.8h-379.00z\"");
    EXPECT_PART(svg, "class=\"F0\" d=\"M274.00 110.1h189.00v25.8h-189.00z\"");
    EXPECT_PART(svg, "<text x=\"654.0\" y=\"92.5\">12</text>");
    EXPECT_PART(svg, ">a &amp; b</text>");
    EXPECT_PART(svg, ">stage 1</text>");
    EXPECT(!strstr(svg, "chunks of a stage") && !strstr(svg, "weights"));
    EXPECT_INT(svg_count(svg, "class=\"idle\""), 3); /* one is in the legend */
}

TEST(every_task_of_a_schedule_is_a_box) {
    static const struct {
        const char *name;
        int stages, each, micro;
        const char *title;
    } cases[] = {
        {"1f1b", 4, 1, 8, "1f1b, 4 stages, 8 micro-batches: stages wait 27.3 % of"},
        {"1f1b", 2, 2, 4, "1f1b, 2 stages, 4 micro-batches: stages wait 11.1 % of"},
        {"zero_bubble_h1", 4, 1, 8, "zero_bubble_h1, 4 stages, 8 micro-batches"},
        {"zero_bubble_v", 4, 2, 8, "zero_bubble_v, 4 stages, 8 micro-batches"}};
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        Timeline l =
            planned(cases[i].name, cases[i].stages, cases[i].each, cases[i].micro);
        char *svg = draw(&l);
        int boxes = 0;
        for (int k = 0; k < l.nrows; k++) boxes += l.row[k].n;
        EXPECT_INT(svg_count(svg, "zM") + svg_count(svg, "z\"/>"), boxes);
        EXPECT_PART(svg, cases[i].title);
        EXPECT((strstr(svg, "chunks of a stage") != NULL) == (cases[i].each > 1));
    }
}

/* What a schedule does by number of chunk is a shade from 0 on. */
TEST(shades_are_the_chunks_of_a_stage) {
    Timeline l = planned("zero_bubble_v", 2, 2, 4);
    for (int k = 0; k < 2; k++) {
        bool seen[2] = {false, false};
        for (int i = 0; i < l.row[k].n; i++) {
            EXPECT(l.row[k].box[i].shade < 2);
            seen[l.row[k].box[i].shade] = true;
        }
        EXPECT(seen[0] && seen[1]);
    }
}

/* ---- colours ---- */

/* Lightness (CIE L*) of "#rrggbb". */
static double lightness(const char *hex) {
    static const double weight[] = {0.2126, 0.7152, 0.0722};
    long colour = strtol(hex + 1, NULL, 16);
    double y = 0;
    for (int i = 0; i < 3; i++) {
        double v = (double)(colour >> (16 - 8 * i) & 255) / 255;
        y += weight[i] * (v <= 0.04045 ? v / 12.92 : pow((v + 0.055) / 1.055, 2.4));
    }
    return y > 0.008856 ? 116 * cbrt(y) - 16 : 903.3 * y;
}

static double lightness_of(const char *style, const char *class) {
    const char *at = strstr(style, arena_printf(mem(), ".%s{fill:", class));
    EXPECT(at != NULL);
    return lightness(strchr(at, '#'));
}

/* On either ground kinds are as far apart in grey as their own shades, or farther; numbers
 * can be read. */
static void expect_told_apart(const char *style, const char *other) {
    static const char kinds[] = "FBIW";
    double below = -1;
    for (int k = 0; kinds[k]; k++) {
        double first = lightness_of(style, arena_printf(mem(), "%c0", kinds[k]));
        double last = lightness_of(style, arena_printf(mem(), "%c1", kinds[k]));
        double number = lightness_of(other, arena_printf(mem(), "%c text", kinds[k]));
        double idle = lightness_of(style, "idle");
        EXPECT(last - first > 4 && first - below > 5);
        EXPECT(fabs(idle - first) > 6 && fabs(idle - last) > 6);
        EXPECT(fabs(number - first) > 40 && fabs(number - last) > 40);
        below = last;
    }
}

TEST(kinds_are_told_apart_without_colours) {
    Timeline l = planned("zero_bubble_v", 2, 2, 4);
    TimelineBox *first = &l.row[0].box[0];
    first[1].kind = TASK_BACKWARD;
    char *light = draw(&l), *dark = strstr(light, "@media");
    EXPECT(dark != NULL);
    expect_told_apart(light, light);
    expect_told_apart(dark, light);
}

/* ---- many tasks ---- */

TEST(many_tasks_are_some_megabytes) {
    Timeline l = planned("zero_bubble_h1", 8, 1, 512);
    char *svg = draw(&l);
    printf("  8 stages, 512 micro-batches: %zu bytes\n", strlen(svg));
    EXPECT(strlen(svg) < 1000000);
    EXPECT_INT(svg_count(svg, "zM") + svg_count(svg, "z\"/>"), 3 * 8 * 512);
    l = planned("1f1b", 8, 4, 512);
    EXPECT(strlen(draw(&l)) < 3000000);
}

/* Boxes that nobody could see are drawn together, and what is seen stays as busy. */
TEST(more_tasks_than_can_be_drawn) {
    Timeline l = planned("1f1b", 64, 1, 8192);
    char *svg = draw(&l);
    printf("  64 stages, 8192 micro-batches: %zu bytes\n", strlen(svg));
    EXPECT(strlen(svg) < 3000000);
    double drawn = 0;
    /* Not by strstr, which with sanitizers goes to the end each time. */
    for (const char *at = svg; *at; at++) {
        if (at[0] != 'v' || strncmp(at, "v7.6h", 5)) continue;
        const char *width = at;
        while (*width != 'h') width--;
        drawn += atof(width + 1) / (64 * 2400);
    }
    printf("  %.1f %% of the plot, %.1f %% is busy\n", 100 * drawn,
           100 * (1 - timeline_idle(&l)));
    EXPECT(drawn > 0.8 * (1 - timeline_idle(&l)) && drawn < 1 - timeline_idle(&l));
}

TEST(a_picture_is_written_whole) {
    Timeline l = planned("gpipe", 2, 1, 2);
    const char *path = in_temp("schedule.svg");
    Text picture = timeline_svg(mem(), &l);
    EXPECT_INT(file_write_atomic(path, picture.s, picture.n), 0);
    EXPECT_STR(file_read(mem(), path, 1 << 20, NULL, EXIT_DATA), draw(&l));
    EXPECT(file_write_atomic(in_temp("none/schedule.svg"), picture.s, picture.n) != 0);
    EXPECT(!file_exists(in_temp("none")));
}

/* ---- the command ---- */

#define TINY "../configs/gpt2-tiny.yaml"

static const char *plan_words(const char *svg, const char *more) {
    return arena_printf(mem(), "plan %s/%s --svg %s %s", tests_dir(), TINY, svg, more);
}

TEST(plan_draws_the_schedule) {
    static const char words[] = "-n 2 --parallel_config.pipeline_stage 2 "
                                "--parallel_config.micro_batch_num 4";
    const char *svg = in_temp("schedule.svg");
    RUN_EXPECT(0, plan_words(svg, words));
    const char *share = strstr(said(), "bubble ");
    EXPECT(share != NULL);
    double idle = strtod(share + strlen("bubble "), NULL);
    const char *picture = file_read(mem(), svg, 1 << 20, NULL, EXIT_DATA);
    svg_expect_well_formed(picture);
    EXPECT_PART(picture, arena_printf(mem(),
                                      ">1f1b, 2 stages, 4 micro-batches: stages "
                                      "wait %.1f %% of the time</text>",
                                      idle));
    EXPECT_INT(svg_count(picture, "zM") + svg_count(picture, "z\"/>"), 2 * 2 * 4);
    RUN_EXPECT(0, plan_words(svg, arena_printf(mem(), "%s --json", words)));
    EXPECT(said()[0] == '{');
}

TEST(plan_refuses_to_draw_one_stage) {
    const char *svg = in_temp("none.svg");
    RUN_EXPECT(EXIT_CONFIG, plan_words(svg, "-n 2"));
    SAID_EXPECT("there is one stage, and so no schedule to draw");
    SAID_EXPECT("--parallel_config.pipeline_stage 2");
    EXPECT(!file_exists(svg));
    RUN_EXPECT(EXIT_DATA, plan_words(in_temp("no/folder.svg"),
                                     "-n 2 --parallel_config.pipeline_stage 2"));
    SAID_EXPECT("cannot write ");
}
