/* train_products.c - forms of matrix products over the life of a run: its folder keeps them,
 * and what goes on from a checkpoint has those of the run that made it. */
#include "codegen/product_choices.h"
#include "frontend/config/commands.h"
#include "frontend/plan/plan.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/store/ckpt_files.h"

enum { MOST_BYTES = 16 << 20 };

/* One that was moved out of the way will have its name again (ckpt_give_back). */
static bool has_checkpoint(const Train *t, const char *dir) {
    CkptEntry *entry;
    int n;
    if (ckpt_list(t->mem, dir, &entry, &n) != 0) return false;
    for (int i = 0; i < n; i++)
        if (!entry[i].tmp || ends_with(entry[i].name, CKPT_OLD_TMP)) return true;
    return false;
}

/* Of a run's folder, of its checkpoints', or of a checkpoint. */
static const char *file_near(const Train *t, const char *path, const char *name) {
    static const char *const way[] = {"", "..", "../.."};
    for (int i = 0; i < ARRAY_LEN(way); i++) {
        const char *dir = way[i][0] ? path_join(t->mem, path, way[i]) : path;
        const char *file = path_join(t->mem, dir, name);
        if (file_exists(file)) return file;
    }
    return NULL;
}

bool train_goes_on(const Train *t, const char *name, const char **file) {
    const char *how = t->job.cfg->resume;
    *file = NULL;
    if (!strcmp(how, "never")) return false;
    if (!strcmp(how, "auto") && !has_checkpoint(t, t->ckpt_dir))
        how = config_resume_else(t->job.cfg);
    if (!how[0]) return false;
    if (strcmp(how, "auto")) {
        *file = file_near(t, ckpt_of_latest(t->mem, how), name);
        return true;
    }
    *file = path_join(t->mem, t->ckpt_dir, name);
    if (!file_exists(*file)) *file = path_join(t->mem, t->run_dir, name);
    if (!file_exists(*file)) *file = NULL;
    return true;
}

void products_choose(Train *t) {
    ProductChoices *c = t->job.choices = plan_choices(t->mem, t->job.cfg);
    const char *file;
    if (comm_rank() != 0 || !train_goes_on(t, RUN_PRODUCTS, &file)) return;
    if (file) {
        c->given = file_read(t->mem, file, MOST_BYTES, NULL, EXIT_DATA);
        c->given_from = file;
    } else if (c->limit_seconds > 0) {
        fprintf(stderr, "note: the run that is gone on with has no " RUN_PRODUCTS
                        ": its products keep the form of the rule\n");
        c->limit_seconds = 0;
    }
}

/* 0 or errno. */
static int keep_in(const Train *t, const char *dir) {
    const char *text = product_choices_print(t->mem, t->job.choices);
    return file_write_atomic(path_join(t->mem, dir, RUN_PRODUCTS), text, strlen(text));
}

void products_keep(const Train *t) {
    int error = keep_in(t, t->run_dir);
    if (error)
        fail(EXIT_DATA, "cannot write " RUN_PRODUCTS " in %s: %s", t->run_dir,
             strerror(error));
}

void products_keep_beside(const Train *t) {
    const Config *cfg = t->job.cfg;
    bool elsewhere = cfg->checkpoint_directory[0] && file_exists(t->ckpt_dir);
    if (comm_rank() != 0 || !elsewhere || cfg->checkpoint_save_checkpoint_steps <= 0)
        return;
    int error = keep_in(t, t->ckpt_dir);
    if (error)
        fprintf(stderr, "WARNING: cannot write " RUN_PRODUCTS " in %s: %s\n", t->ckpt_dir,
                strerror(error));
}
