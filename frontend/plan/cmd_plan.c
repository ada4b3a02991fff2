/* cmd_plan.c - stator plan: what training would take, on any number of ranks. */
#include "frontend/config/commands.h"
#include "frontend/plan/plan.h"
#include <errno.h>
#include <stdlib.h>

typedef struct Options {
    const char *config; /* NULL: flags only */
    char **flags;
    int nflags;
    int64_t ranks; /* 0: those of the strategy */
    bool json;
} Options;

static int64_t read_ranks(const char *text) {
    char *end;
    errno = 0;
    long long n = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || errno || n < 1 || n > 1 << 20)
        fail(EXIT_CONFIG, "-n wants a number of ranks, 1 to %d", 1 << 20);
    return n;
}

static Options read_options(Arena *mem, int argc, char **argv) {
    Options o = {.flags = NEW_ARRAY(mem, char *, (size_t)argc + 1)};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            o.json = true;
        else if (!strcmp(argv[i], "-n"))
            o.ranks = read_ranks(i + 1 < argc ? argv[++i] : NULL);
        else if (i == 1 && strncmp(argv[i], "--", 2))
            o.config = argv[i];
        else
            o.flags[o.nflags++] = argv[i];
    }
    if (argc < 2)
        fail(EXIT_CONFIG, "stator plan needs a configuration: stator plan CONFIG.yaml "
                          "[-n RANKS] [--json] [--a.b.c VALUE ...]");
    return o;
}

int cmd_plan(int argc, char **argv) {
    double start = clock_seconds();
    Arena *mem = arena_new();
    Options o = read_options(mem, argc, argv);
    Config *cfg = config_load(mem, o.config, o.nflags, o.flags);
    Plan p = plan_of_config(mem, cfg, o.ranks);
    Text out = text_new(mem);
    if (o.json) {
        text_add(&out, "{\n");
        plan_json(&p, &out);
        text_add(&out, "\n}\n");
    } else {
        plan_print(mem, &p, clock_seconds() - start, &out);
    }
    if (fwrite(out.s, 1, out.n, stdout) != out.n || fflush(stdout))
        fail(EXIT_DATA, "cannot write the plan: %s", strerror(errno));
    plan_check_memory(&p);
    arena_free(mem);
    return 0;
}
