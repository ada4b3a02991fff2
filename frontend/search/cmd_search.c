/* cmd_search.c - stator search: the fastest strategy of a configuration. */
#include "frontend/config/commands.h"
#include "frontend/config/config.h"
#include "frontend/config/options.h"
#include "frontend/search/report.h"
#include "runtime/core/free_memory.h"
#include "runtime/core/stop_signal.h"

static void write_text(const char *path, Text t) {
    file_write(path, t.s, t.n, EXIT_DATA);
}

static void write_best(Arena *mem, const SearchOptions *o, const Verified *v,
                       const char *path) {
    Config *cfg = config_load_of(mem, o->files, v->nflags, v->flag);
    const char *slash = strrchr(path, '/');
    size_t folder_bytes = slash ? (size_t)(slash - path) + 1 : 0;
    config_keep_files(cfg, arena_strndup(mem, path, folder_bytes));
    Text out = text_new(mem);
    config_print(cfg, &out);
    write_text(path, out);
}

static void write_report(const Options *o, const Report *r) {
    const char *svg = option_text(o, "--svg"), *html = option_text(o, "--html");
    Text out = text_new(r->mem);
    if (option_given(o, "--json"))
        report_json(r, &out);
    else
        report_text(r, &out);
    text_print(&out);
    if (svg) write_text(svg, report_svg(r));
    if (html) write_text(html, report_html(r));
}

static void check_files(const Options *o) {
    static const char *const option[] = {"--write", "--svg", "--html"};
    for (int i = 0; i < ARRAY_LEN(option); i++) {
        const char *path = option_text(o, option[i]);
        if (path) file_check_written(path);
    }
}

static SearchOptions read_options(Arena *mem, const Options *o) {
    SearchOptions s = search_options(mem, config_files(mem, o->word[0]), o->nflags,
                                     o->flag, (int)option_int(o, "-n", 0));
    s.tops = (int)option_int(o, "--top", s.tops);
    s.record = option_text(o, "--record");
    if (s.cfg->dump_ir[0])
        fprintf(stderr,
                "note: dump_ir has no effect: of all the programs of a search none "
                "is written; stator plan writes that of its answer\n");
    return s;
}

int cmd_search(int argc, char **argv) {
    double start = clock_seconds();
    const Options *o = options_take(COMMAND_search, argc, argv);
    if (!o) return 0;
    Arena *mem = o->mem;
    if (!o->nwords)
        fail(EXIT_CONFIG,
             "stator search needs a configuration: stator search CONFIG.yaml "
             "-n RANKS [--machine FILE.yaml]");
    check_files(o);
    SearchOptions s = read_options(mem, o);
    s.stop = stop_signal_catch();
    memory_keep(0); /* a tenth of a search */
    SearchResult r = search_run(mem, &s);
    Report report = {mem, &s, &r, clock_seconds() - start};
    write_report(o, &report);
    search_check_found(&s, &r);
    const char *path = option_text(o, "--write");
    if (path) write_best(mem, &s, &r.top[0], path);
    arena_free(mem);
    stop_signal_release();
    return r.stopped ? EXIT_SIGNALLED : 0;
}
