/* train_strategy.c - from the words of the command to a configuration with a strategy: the one
 * that it says, or with parallel_mode 2 one that is looked for. */
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/config/options.h"
#include "frontend/model/run_folder.h"
#include "frontend/search/automatic.h"
#include "frontend/search/search.h"
#include "frontend/train/rank_memory.h"
#include "frontend/train/train.h"
#include "runtime/comm/agree.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/rt.h"

typedef struct Words {
    Train *t;
    int argc;
    char **argv;
    ConfigWords given;
    int ranks;
    double room_bytes; /* free memory of a rank, the least of all */
    /* on rank 0, where the strategy is asked for: */
    ConfigWords found;
    const char *said; /* about it */
} Words;

void train_say_notes(const Train *t, int first) {
    for (int i = first; i < t->job.cfg->n_notes && comm_rank() == 0; i++)
        fprintf(stderr, "note: %s\n", t->job.cfg->notes[i]);
}

/* The config.yaml of a run says its folder as it was said, which a copied or moved run, or one that
 * was started elsewhere, is not in. */
static void check_own_folder(const Config *cfg, const char *path) {
    Arena *mem = cfg->state->mem;
    const char *folder = path_folder(mem, path);
    if (strcmp(path_name(path), RUN_CONFIG) || config_by_flag(cfg, "output_dir") ||
        !folder_has(mem, folder, RUN_METRICS) ||
        same_folder(folder, cfg->output_dir[0] ? cfg->output_dir : "."))
        return;
    config_refuse(
        cfg, "output_dir", NULL,
        arena_printf(mem, "--output_dir %s to go on with that run, or --output_dir %s",
                     folder, cfg->output_dir),
        "output_dir is %s, but this is the config.yaml of the run in %s", cfg->output_dir,
        folder);
}

static void look_at_config(void *context) {
    Words *w = context;
    Train *t = w->t;
    const Options *o = options_read(t->mem, COMMAND_train, w->argc, w->argv);
    if (!o || (!o->nwords && !o->nflags))
        fail(EXIT_CONFIG, "stator train needs a configuration: stator train CONFIG.yaml "
                          "[--a.b.c VALUE ...]");
    w->given = (ConfigWords){config_files(t->mem, o->nwords ? o->word[0] : NULL),
                             o->nflags, o->flag};
    t->job.cfg = config_load_of(t->mem, w->given.files, o->nflags, o->flag);
    if (o->nwords) check_own_folder(t->job.cfg, o->word[0]);
    RunMode mode = t->job.cfg->run_mode;
    const char *name = config_value(t->job.cfg, t->mem, "run_mode");
    if (mode == RUN_PREDICT || mode == RUN_EVAL)
        config_refuse(t->job.cfg, "run_mode", NULL,
                      arena_printf(t->mem, "stator %s, or run_mode train", name),
                      "run_mode is %s, the command is train", name);
}

/* ---- the strategy of parallel_mode 2 ---- */

/* Do these words ask for as many sequences a step of as many ranks as run? */
static bool is_alike(const Words *w, const ConfigWords *of) {
    Arena *mem = w->t->mem;
    const Config *c = config_load_of(mem, of->files, of->nflags, of->flag);
    int64_t sequences = c->runner_config_batch_size * c->parallel_config_micro_batch_num;
    return !automatic_asked(c) && config_ranks(c) == w->ranks &&
           sequences * c->parallel_config_data_parallel ==
               search_sequences(mem, w->given.files, w->given.nflags, w->given.flag,
                                w->ranks);
}

/* The strategy of the run that is gone on with. False: there is none that this run can have. */
static bool keeps_strategy(Words *w) {
    Arena *mem = w->t->mem;
    const char *file;
    if (!train_goes_on(w->t, RUN_CONFIG, &file) || !file) return false;
    w->found = automatic_words_of(mem, &w->given, file);
    if (!is_alike(w, &w->found)) return false;
    w->said = arena_printf(mem, "parallel_mode 2: the strategy stays that of %s", file);
    return true;
}

/* On rank 0, which opens what the configuration names without the others. */
static void look_for_strategy(void *context) {
    Words *w = context;
    Catch caught;
    comm_alone(true);
    if (CATCH(caught)) {
        if (!keeps_strategy(w))
            w->found =
                automatic_words(w->t->mem, &w->given, w->ranks, w->room_bytes, &w->said);
        catch_end(&caught);
    }
    comm_alone(false);
    if (caught.code) fail_again(caught.code, caught.message);
}

static double least_room_bytes(const Config *cfg) {
    uint64_t bytes = MIN(rank_memory_left().bytes, (uint64_t)INT64_MAX);
    rt_count_threads((int)cfg->context_threads);
    int64_t room = plan_room_bytes(cfg, rt_threads(), (int64_t)bytes);
    return -(double)comm_max_i64(-room);
}

enum { BETWEEN_FLAGS = '\x1e' }; /* which no value has */

/* Rank 0 searches for all. */
static void choose_strategy(Words *w) {
    Train *t = w->t;
    Text flags = text_new(t->mem);
    if (!automatic_asked(t->job.cfg)) return;
    comm_barrier();
    w->room_bytes = least_room_bytes(t->job.cfg);
    w->ranks = comm_size();
    watch_task("search for a strategy", -1, false);
    agree_with_rank_0(t->mem, look_for_strategy, w);
    watch_task("start of the run", -1, false);
    for (int i = 0; i < w->found.nflags; i++)
        text_add(&flags, "%s%c", w->found.flag[i], BETWEEN_FLAGS);
    char *text = comm_broadcast_text(t->mem, flags.s);
    ConfigWords all = {.files = w->given.files,
                       .flag = NEW_ARRAY(t->mem, char *, strlen(text) + 1)};
    for (char *p = text, *end; (end = strchr(p, BETWEEN_FLAGS)); p = end + 1) {
        *end = 0;
        all.flag[all.nflags++] = p;
    }
    t->job.cfg = config_load_of(t->mem, all.files, all.nflags, all.flag);
    Config *cfg = t->job.cfg;
    if (w->said) PUSH(t->mem, cfg->notes, cfg->n_notes, cfg->cap_notes, w->said);
}

/* Names that are made of that of a folder go behind it. */
static const char *without_slashes(Arena *mem, const char *folder) {
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    return arena_strndup(mem, folder, n);
}

void train_load_config(Train *t, int argc, char **argv) {
    Words words = {.t = t, .argc = argc, .argv = argv};
    agree_look(look_at_config, &words);
    ranks_agree_config(t);
    const Config *cfg = t->job.cfg;
    watch_set(cfg->runner_config_hang_seconds, cfg->runner_config_on_hang == ON_HANG_END);
    t->run_dir = cfg->output_dir[0] ? without_slashes(t->mem, cfg->output_dir) : ".";
    t->ckpt_dir = cfg->checkpoint_directory[0]
                      ? without_slashes(t->mem, cfg->checkpoint_directory)
                      : path_join(t->mem, t->run_dir, RUN_CHECKPOINTS);
    choose_strategy(&words);
    ranks_choose(t);
    train_say_notes(t, 0);
}
