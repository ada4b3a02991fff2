/* Tests of what a search leaves behind: a record from which one that ended early goes on, and
 * the picture and the page of what was found. */
#include "base/json.h"
#include "frontend/config/config_state.h"
#include "frontend/search/record.h"
#include "frontend/search/report.h"
#include "svg_text.h"
#include <sys/time.h>

TEST_LABEL(SLOW);
TEST_LABEL(RELEASED);

static const char *const model =
    "model:\n  model_config: {type: GPT2Config, vocab_size: 2000, seq_length: 64, "
    "hidden_size: 128, num_layers: 4, num_heads: 4}\n"
    "runner_config: {batch_size: 4}\n";

static volatile sig_atomic_t stop;

static void on_alarm(int number) {
    stop = number;
}

static SearchOptions options(Arena *mem, const char *record, int ranks) {
    char *path = path_join(mem, temp_dir(), "a<b.yaml");
    EXPECT_INT(file_write_atomic(path, model, strlen(model)), 0);
    Machine *m = NEW(mem, Machine);
    *m = machine_plain;
    m->host_ranks = 2;
    m->hidden = 0.5;
    stop = 0;
    return (SearchOptions){.files = config_files(mem, path),
                           .cfg = config_load(mem, path, 0, NULL),
                           .machine = m,
                           .ranks = ranks,
                           .sequences = 16,
                           .tops = 2,
                           .record = record,
                           .stop = &stop};
}

static char *record_path(Arena *mem) {
    return path_join(mem, temp_dir(), "record");
}

static void same_result(const SearchResult *a, const SearchResult *b) {
    EXPECT(!a->stopped && !b->stopped);
    EXPECT_INT(a->ntop, b->ntop);
    EXPECT_INT(a->nfront, b->nfront);
    EXPECT_INT(a->planned, b->planned);
    for (int i = 0; i < a->ntop; i++) {
        const Verified *x = &a->top[i], *y = &b->top[i];
        EXPECT(x->seconds == y->seconds && x->bytes == y->bytes);
        EXPECT_INT(x->sent_bytes, y->sent_bytes);
        EXPECT_INT(x->nflags, y->nflags);
        for (int k = 0; k < x->nflags; k++) EXPECT_STR(x->flag[k], y->flag[k]);
    }
    for (int i = 0; i < a->nfront; i++) {
        EXPECT(a->front[i].seconds == b->front[i].seconds);
        EXPECT(a->front[i].bytes == b->front[i].bytes);
    }
}

/* ---- the record ---- */

TEST(a_search_that_was_stopped_goes_on) {
    Arena *mem = arena_new();
    char *path = record_path(mem);
    SearchOptions o = options(mem, NULL, 4);
    SearchResult whole = search_run(mem, &o);
    int early = 0;
    EXPECT(whole.ntop > 0 && whole.nfront > 0);
    signal(SIGALRM, on_alarm);
    for (int ms = 1; ms < 400; ms *= 4) {
        o = options(mem, path, 4);
        struct itimerval when = {.it_value = {.tv_usec = 1000 * ms}};
        setitimer(ITIMER_REAL, &when, NULL);
        SearchResult some = search_run(mem, &o);
        setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
        early += some.stopped;
        o = options(mem, path, 4);
        SearchResult rest = search_run(mem, &o);
        same_result(&whole, &rest);
        EXPECT_INT(whole.choices, rest.choices);
        EXPECT_INT(remove(path), 0);
    }
    EXPECT(early > 0);
    arena_free(mem);
}

static bool has_parts(const SearchResult *r) {
    for (int i = 0; i < r->nfront; i++)
        if (r->front[i].parts > 1) return true;
    return false;
}

/* Programs of micro-batches in parts are made where they may be among the fastest, or on the front. */
TEST_LIMIT(programs_that_are_not_made_change_no_answer, 180) {
    static const int ranks[] = {4, 6, 8};
    static const double rates[] = {1e9, 4e9, 16e9};
    bool parts = false;
    for (int i = 0; i < 9; i++) {
        Arena *mem = arena_new();
        SearchOptions o = options(mem, NULL, ranks[i % 3]);
        Machine m = *o.machine;
        char *narrow[] = {"--model.model_config.compute_dtype=bfloat16"};
        if (i % 2) o.cfg = config_load_of(mem, o.files, o.nflags = 1, o.flag = narrow);
        if (i / 3 == i % 3) o.limit_bytes = (double)plan_process_bytes(o.cfg) + 12e6;
        m.hidden = 0.25 * (1 + i % 4);
        for (int k = 0; k < LINK_LEVELS; k++) m.link[k].bytes_per_second = rates[i / 3];
        o.machine = &m;
        SearchResult some = search_run(mem, &o);
        o.all_programs = true;
        SearchResult all = search_run(mem, &o);
        test_at("case %d: %d ranks, %g bytes a second", i, o.ranks, rates[i / 3]);
        same_result(&all, &some);
        EXPECT(some.probes < all.probes);
        parts |= has_parts(&some);
        arena_free(mem);
    }
    EXPECT(parts);
}

/* Labels that are masked forbid parts; where nothing fits, choices of such programs are not looked at. */
TEST(nothing_fits_and_parts_are_refused) {
    Arena *mem = arena_new();
    char *path = path_join(mem, temp_dir(), "masked.yaml");
    const char *text =
        arena_printf(mem, "%s%s", model,
                     "train_dataset: {data_loader: {type: GPTDataset}}\nrunner_wrapper: "
                     "{calculate_per_token_loss: False}\n");
    EXPECT_INT(file_write_atomic(path, text, strlen(text)), 0);
    SearchOptions o = options(mem, NULL, 8);
    o.files = config_files(mem, path);
    o.cfg = config_load(mem, path, 0, NULL);
    o.limit_bytes = (double)plan_process_bytes(o.cfg) + 1e6;
    SearchResult r = search_run(mem, &o);
    EXPECT(!r.ntop && r.nfamilies > 0);
    for (int i = 0; i < r.nfamilies; i++)
        EXPECT(!r.family[i].fit && r.family[i].choices >= 0);
    arena_free(mem);
}

/* The record with its text changed by `from` -> `to`, and its sum as it is for that text. */
static void rewrite(Arena *mem, const char *path, const char *from, const char *to) {
    size_t n;
    char *text = file_read(mem, path, 1 << 24, &n, EXIT_DATA);
    char *rest = strchr(text, '\n') + 1, sum[HASH_HEX_BYTES];
    EXPECT_INT(strlen(from), strlen(to));
    int found = 0;
    for (char *p = rest; (p = strstr(p, from)); p += strlen(to)) {
        memcpy(p, to, strlen(to));
        found++;
    }
    EXPECT(found > 0);
    hash_hex(rest, n - (size_t)(rest - text), sum);
    memcpy(rest - HASH_HEX_BYTES, sum, HASH_HEX_BYTES - 1);
    EXPECT_INT(file_write_atomic(path, text, n), 0);
}

TEST(what_is_in_the_record_is_not_done_again) {
    Arena *mem = arena_new();
    char *path = record_path(mem);
    SearchOptions o = options(mem, path, 4);
    SearchResult first = search_run(mem, &o);
    char *sent =
        arena_printf(mem, "sent_bytes\": %lld", (long long)first.top[0].sent_bytes);
    char *other = arena_strdup(mem, sent);
    other[strlen(other) - 1] ^= 1;
    rewrite(mem, path, sent, other);
    SearchResult second = search_run(mem, &o);
    EXPECT_INT(second.top[0].sent_bytes, first.top[0].sent_bytes ^ 1);
    arena_free(mem);
}

static int code_of(Arena *mem, const SearchOptions *o, char *message) {
    Catch c;
    if (CATCH(c)) {
        search_run(mem, o);
        catch_end(&c);
        return 0;
    }
    snprintf(message, 200, "%.199s", c.message);
    return c.code;
}

TEST(a_record_of_something_else_is_refused) {
    Arena *mem = arena_new();
    char *path = record_path(mem), message[200];
    size_t n;
    EXPECT_INT(file_write_atomic(path, model, strlen(model)), 0);
    SearchOptions o = options(mem, path, 4);
    EXPECT_INT(code_of(mem, &o, message), EXIT_CONFIG);
    EXPECT(strstr(message, "is no record of a search"));
    EXPECT_STR(file_read(mem, path, 1 << 20, &n, EXIT_DATA), model);
    EXPECT_INT(remove(path), 0);
    search_run(mem, &o);
    SearchOptions other = options(mem, path, 2);
    EXPECT_INT(code_of(mem, &other, message), EXIT_CONFIG);
    EXPECT(strstr(message, "is of another search"));
    arena_free(mem);
}

TEST(a_damaged_record_counts_as_empty) {
    Arena *mem = arena_new();
    char *path = record_path(mem);
    size_t n;
    SearchOptions o = options(mem, path, 4);
    SearchResult whole = search_run(mem, &o);
    const char *text = file_read(mem, path, 1 << 24, &n, EXIT_DATA);
    for (int part = 1; part < 8; part++) { /* a bit, and an end that is missing */
        size_t at = n * (size_t)part / 8;
        char *bad = arena_strndup(mem, text, n);
        bad[at] ^= 1;
        test_at("byte %zu of %zu", at, n);
        EXPECT_INT(file_write_atomic(path, bad, part % 2 ? n : at), 0);
        Record *r = record_open(mem, path, "0123456789abcdef0123456789abcdef");
        EXPECT(!record_probe(r, (ProbeKey){1, 1, 1, 1, false, false}));
    }
    SearchResult again = search_run(mem, &o);
    same_result(&whole, &again);
    arena_free(mem);
}

/* The sum is right, and what it is the sum of is not: what a record of someone else may be. */
TEST(a_record_of_nonsense_counts_as_empty) {
    static const char *const change[][2] = {{"\"dp\": 1", "\"dq\": 1"},
                                            {"\"dp\": 1", "\"dp\": 7"},
                                            {"\"dp\": 1", "\"dp\":-1"},
                                            {"\"bytes\": [", "\"bytes\": 1"},
                                            {"\"pieces\": [[1", "\"pieces\": [1["},
                                            {"\"keys\": \"", "\"keys\": 1"}};
    Arena *mem = arena_new();
    char *path = record_path(mem);
    size_t n;
    SearchOptions o = options(mem, path, 4);
    SearchResult whole = search_run(mem, &o);
    const char *text = file_read(mem, path, 1 << 24, &n, EXIT_DATA);
    const char *kept = arena_strndup(mem, text, n);
    for (int i = 0; i < ARRAY_LEN(change); i++) {
        EXPECT_INT(file_write_atomic(path, kept, n), 0);
        rewrite(mem, path, change[i][0], change[i][1]);
        test_at("%s", change[i][1]);
        SearchResult again = search_run(mem, &o);
        same_result(&whole, &again);
    }
    arena_free(mem);
}

/* ---- the picture and the page ---- */

static Report report_of(Arena *mem, SearchOptions *o, SearchResult *r) {
    *o = options(mem, NULL, 4);
    *r = search_run(mem, o);
    return (Report){mem, o, r, 1};
}

TEST(the_front_has_nothing_that_something_else_beats) {
    Arena *mem = arena_new();
    SearchOptions o;
    SearchResult r;
    Report report = report_of(mem, &o, &r);
    int n;
    const Point *p = report_points(&report, &n);
    for (int i = 1; i < r.nfront; i++) {
        EXPECT(r.front[i].bytes > r.front[i - 1].bytes);
        EXPECT(r.front[i].seconds < r.front[i - 1].seconds);
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            EXPECT(p[i].c->number != p[k].c->number ||
                   p[i].c->no_overlap != p[k].c->no_overlap);
    int ahead = 0;
    for (int i = 0; i < r.nfamilies; i++) {
        const Family *f = &r.family[i];
        const Choice *c = f->fit ? report_ahead(&r, f) : NULL;
        if (f->fit) EXPECT(f->seconds >= 0.98 * r.top[0].seconds);
        if (!c) continue;
        ahead++;
        EXPECT(c->bytes <= f->bytes && c->seconds <= f->seconds);
    }
    EXPECT(ahead > 0);
    arena_free(mem);
}

TEST(the_picture_and_the_page_have_every_point) {
    Arena *mem = arena_new();
    SearchOptions o;
    SearchResult r;
    Report report = report_of(mem, &o, &r);
    int n;
    report_points(&report, &n);
    EXPECT(n > r.ntop && r.ntop > 0);
    Text svg = report_svg(&report), page = report_html(&report);
    svg_expect_well_formed(svg.s);
    EXPECT_INT(svg_count(svg.s, "<circle id="), n);
    EXPECT_INT(svg_count(page.s, "<circle id="), n);
    EXPECT_INT(svg_count(page.s, "<tr data-p="), n);
    EXPECT(strstr(page.s, "a&lt;b.yaml") && !strstr(page.s, "a<b"));
    EXPECT(!strstr(page.s, "src=") && !strstr(page.s, "href") && !strstr(page.s, "url("));
    EXPECT_INT(svg_count(page.s, "http"), 1); /* the name of SVG */
    EXPECT(strstr(page.s, r.top[0].flag[0]));
    arena_free(mem);
}

/* One choice is planned with several numbers of layers made again. */
TEST(all_that_is_planned_is_a_point) {
    Arena *mem = arena_new();
    SearchOptions o;
    SearchResult r;
    Report report = report_of(mem, &o, &r);
    int before, n;
    report_points(&report, &before);
    Verified *top = NEW_ARRAY(mem, Verified, (size_t)r.ntop + 1);
    memcpy(top, r.top, (size_t)r.ntop * sizeof *top);
    top[r.ntop] = top[0];
    top[r.ntop].c.remade++;
    top[r.ntop].bytes -= 100;
    r.top = top;
    r.ntop++;
    const Point *p = report_points(&report, &n);
    EXPECT_INT(n, before + 1);
    for (int i = 0; i < r.ntop; i++) EXPECT(p[i].c == &top[i].c);
    EXPECT_INT(svg_count(report_html(&report).s, ">planned</td>"), r.ntop);
    arena_free(mem);
}

TEST(json_has_what_the_table_has) {
    Arena *mem = arena_new();
    SearchOptions o;
    SearchResult r;
    Report report = report_of(mem, &o, &r);
    Text t = text_new(mem);
    report_json(&report, &t);
    const Json *v = json_parse(mem, "found", t.s, t.n, t.n, EXIT_DATA);
    const Json *best = json_need(v, "best");
    EXPECT_INT(json_need(v, "top")->n, r.ntop);
    EXPECT_INT(json_need(v, "front")->n, r.nfront);
    EXPECT_INT(json_need(v, "families")->n, r.nfamilies);
    EXPECT_INT(json_i64(json_need(best, "sent_bytes"), 0, INT64_MAX),
               r.top[0].sent_bytes);
    EXPECT(r.top[0].sent_bytes > 0);
    text_add(&t, "\n");
    Text people = text_new(mem);
    report_text(&report, &people);
    EXPECT(strstr(people.s, human((double)r.top[0].sent_bytes, "B").s));
    EXPECT(!strstr(people.s, "are not planned") && strstr(t.s, "\"gave_up\": false"));
    r.gave_up = true;
    report_text(&report, &people);
    report_json(&report, &t);
    EXPECT(strstr(people.s, "are not planned") && strstr(t.s, "\"gave_up\": true"));
    arena_free(mem);
}

/* A split that is left out says why: here the replicas are more than the sequences. */
TEST(what_does_not_divide_is_said) {
    Arena *mem = arena_new();
    SearchOptions o = options(mem, NULL, 4);
    o.sequences = 2;
    SearchResult r = search_run(mem, &o);
    int said = 0;
    for (int i = 0; i < r.nfamilies; i++)
        if (r.family[i].refused && r.family[i].pp)
            said += !strcmp(r.family[i].refused,
                            "2 sequences a step are not a multiple of 4 replicas");
    EXPECT_INT(said, 1);
    arena_free(mem);
}
