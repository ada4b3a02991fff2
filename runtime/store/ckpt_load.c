/* ckpt_load.c - loading checkpoints: which one, whether it fits the model; see ckpt.h. */
#define _GNU_SOURCE
#include "runtime/store/ckpt_fill.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#define MAX_LAYOUT (256u << 20)

/* ---- does it fit the model? ---- */

static const char *shape_text(Arena *mem, const char *type, int rank,
                              const int64_t *dim) {
    Text t = text_new(mem);
    text_add(&t, "%s[", type);
    text_add_ints(&t, ",", dim, rank);
    text_add(&t, "]");
    return t.s;
}

static bool same_shape(const CkptRow *a, const CkptTensor *b) {
    bool rounds =
        a->dtype == DT_F32 && dtype_is_float(b->dtype) && dtype_bytes[b->dtype] == 2;
    return (a->dtype == (int)b->dtype || rounds) && a->rank == b->rank &&
           !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof a->dim[0]);
}

static const char *tensor_of(const CkptTensor *t) {
    return t->tensor ? t->tensor : t->name;
}

/* Rows of one tensor in their order: streams are read forward only. */
static int compare_wanted(const void *a, const void *b) {
    const Wanted *x = a, *y = b;
    if (x->t->file != y->t->file) return x->t->file - y->t->file;
    int c = strcmp(tensor_of(x->t), tensor_of(y->t));
    if (c || x->layout.first == y->layout.first) return c;
    return x->layout.first < y->layout.first ? -1 : 1;
}

/* The first of what is wanted of a tensor; n: how many. */
static Wanted *find_wanted(const Load *l, const CkptRow *row, int *n) {
    int low = 0, high = l->n;
    while (low < high) {
        int mid = (low + high) / 2;
        const CkptTensor *t = l->wanted[mid].t;
        int c = t->file != row->kind ? t->file - row->kind
                                     : strcmp(tensor_of(t), row->tensor);
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    for (*n = 0; low + *n < l->n; ++*n) {
        const CkptTensor *t = l->wanted[low + *n].t;
        if (t->file != row->kind || strcmp(tensor_of(t), row->tensor)) break;
    }
    return &l->wanted[low];
}

/* Sets what is wanted of each row, or l->misfit at the first difference. */
static void match_rows(Load *l) {
    for (int i = 0; i < l->table.n; i++) {
        const CkptRow *row = &l->table.row[i];
        RowTarget *target = &l->target[i];
        if (!l->want[row->kind]) continue;
        l->misfit_kind = row->kind;
        target->wanted = find_wanted(l, row, &target->n);
        if (!target->n) {
            l->misfit = arena_printf(
                l->mem, "%s has a tensor '%s' (%s), which the model does not have",
                load_table_name(l, row->kind), row->tensor,
                shape_text(l->mem, row->type_name, row->rank, row->dim));
            return;
        }
        for (int k = 0; k < target->n; k++) {
            const CkptTensor *t = target->wanted[k].t;
            target->wanted[k].found = true;
            target->wanted[k].stored = (DType)row->dtype;
            if (same_shape(row, t)) continue;
            l->misfit = arena_printf(
                l->mem, "tensor '%s' is %s in %s and %s in the model", row->tensor,
                shape_text(l->mem, row->type_name, row->rank, row->dim),
                load_table_name(l, row->kind),
                shape_text(l->mem, dtype_name[t->dtype], t->rank, t->dim));
            return;
        }
    }
}

/* In the order of the model. */
static void match_wanted(Load *l) {
    const CkptTensor *first = NULL;
    for (int i = 0; i < l->n; i++)
        if (!l->wanted[i].found && (!first || l->wanted[i].t < first))
            first = l->wanted[i].t;
    if (!first) return;
    l->misfit_kind = first->file;
    l->misfit = arena_printf(l->mem, "%s has no tensor '%s', which the model has",
                             load_table_name(l, first->file), tensor_of(first));
}

static void match(Load *l) {
    l->target = NEW_ARRAY(l->mem, RowTarget, (size_t)l->table.n + 1);
    l->wanted = NEW_ARRAY(l->mem, Wanted, (size_t)l->n + 1);
    for (int i = 0; i < l->n; i++)
        l->wanted[i] = (Wanted){&l->t[i], ckpt_layout(&l->t[i], l->mesh), false};
    if (l->n > 1) qsort(l->wanted, (size_t)l->n, sizeof *l->wanted, compare_wanted);
    match_rows(l);
    if (!l->misfit) match_wanted(l);
}

/* ---- one checkpoint ---- */

static const char *read_layout(Load *l, CkptStream *s, uint64_t bytes,
                               const char **text) {
    if (bytes > MAX_LAYOUT) return CKPT_LAYOUT " is too large";
    char *all = arena_alloc(l->mem, bytes + 1);
    const char *wrong = stream_pull(s, all, bytes);
    if (!wrong) wrong = stream_check(s);
    if (!wrong && strlen(all) != bytes) wrong = CKPT_LAYOUT " has a zero byte";
    *text = all;
    return wrong;
}

/* On rank 0: the text of layout.json, or what the headers of whole files say. */
static const char *read_table(Load *l, const char **text) {
    Arena *mem = arena_new();
    Safetensors *st[CKPT_FILES] = {NULL};
    const char *wrong = NULL;
    bool whole = l->m.version == CKPT_WHOLE;
    for (int i = 0; i < l->m.nfiles && !wrong; i++) {
        const CkptFile *f = &l->m.file[i];
        bool layout = f->rank < 0;
        if (!layout && !(whole && l->want[f->kind])) continue;
        CkptStream s;
        wrong = stream_open(&s, mem, l->folder, f, layout);
        if (!wrong)
            wrong = layout ? read_layout(l, &s, f->bytes, text)
                           : stream_header(&s, &st[f->kind]);
        stream_close(&s);
    }
    if (!wrong && whole)
        *text = table_text_of_files(l->mem, (const Safetensors *const *)st).s;
    if (wrong) wrong = arena_strdup(l->mem, wrong);
    arena_free(mem);
    return wrong;
}

/* What a file has on every host that shares its disk, and no copy of it on another: a copy may
 * be damaged where nobody looks. "": there is none. */
static const char *identity(Arena *mem, const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return "";
    return arena_printf(mem, "%llu %lld %lld.%09ld", (unsigned long long)st.st_ino,
                        (long long)st.st_size, (long long)st.st_ctim.tv_sec,
                        st.st_ctim.tv_nsec);
}

/* On all ranks: which see the very folder of rank 0, whose manifest has this text? */
static void find_remote(Load *l, bool root, const char *text) {
    const char *mine, *here;
    here = identity(l->mem, path_join(l->mem, l->folder, CKPT_MANIFEST));
    bool same = !strcmp(here, group_share(&l->group, l->mem, here));
    bool seen = root;
    Catch c;
    if (!root && same && CATCH(c)) { /* one that it cannot read it does not see */
        seen = !manifest_fetch(l->mem, l->folder, &mine) && !strcmp(mine, text);
        catch_end(&c);
    }
    group_find_remote(&l->group, l->mem, seen);
}

/* The manifest and the table, as rank 0 finds them, on all ranks. */
static const char *read_head(Load *l) {
    const char *text = "", *wrong = NULL;
    bool root = l->group.alone || l->group.rank == 0;
    if (root) wrong = manifest_fetch(l->mem, l->folder, &text);
    wrong = group_agree_wrong(&l->group, l->mem, wrong);
    if (wrong) return wrong;
    text = group_share(&l->group, l->mem, text);
    wrong = manifest_parse(l->mem, text, &l->m);
    if (wrong || l->m.version > CKPT_VERSION) return wrong;
    find_remote(l, root, text);
    text = "";
    if (root) wrong = manifest_sizes(l->mem, l->folder, &l->m);
    if (root && !wrong) wrong = read_table(l, &text);
    wrong = group_agree_wrong(&l->group, l->mem, wrong);
    if (wrong) return wrong;
    return table_parse(l->mem, group_share(&l->group, l->mem, text), &l->table);
}

static CkptExplain *explain;
static void *explain_context;

void ckpt_explain(CkptExplain *with, void *context) {
    explain = with;
    explain_context = context;
}

/* Parameters are compared before the states of the optimizer. */
static _Noreturn void refuse_misfit(const Load *l) {
    bool model = l->misfit_kind == CKPT_MODEL;
    const char *why = explain ? explain(explain_context, l->m.state_json) : "";
    fail(EXIT_CHECKPOINT,
         "checkpoint %s is of another %s: %s%s. Use the configuration it was trained "
         "with, another folder (--output_dir DIR)%s, or --resume never to start anew",
         l->folder, model ? "model" : "optimizer (optimizer.type)", l->misfit, why,
         model ? "" : " and its weights alone (--init_from)");
}

/* NULL or what is damaged; fails when the checkpoint is good but not for this model. On
 * all ranks the same. */
static const char *load_folder(Load *l) {
    const char *wrong = read_head(l);
    if (wrong) return wrong;
    if (l->m.version > CKPT_VERSION)
        fail(EXIT_CHECKPOINT,
             "checkpoint %s has format version %lld; this stator reads up "
             "to %d: use the newer one that wrote it",
             l->folder, (long long)l->m.version, CKPT_VERSION);
    match(l);
    wrong = group_agree_wrong(&l->group, l->mem, fill_tensors(l));
    if (!wrong && l->misfit) refuse_misfit(l);
    return wrong;
}

static Load load_of(Arena *mem, const char *folder, CkptGroup group, CkptTensor *t,
                    int n) {
    Load l = {.mem = mem, .folder = folder, .group = group, .t = t, .n = n};
    l.want[CKPT_MODEL] = true;
    for (int i = 0; i < n; i++) {
        check(t[i].file >= 0 && t[i].file < CKPT_FILES);
        l.want[t[i].file] = true;
    }
    l.mesh = ckpt_mesh(t, n);
    check(!l.mesh || group.rank < mesh_ranks(l.mesh) * ckpt_stages(t, n));
    return l;
}

static void hand_out(const Load *l, char **state_json, int64_t *step) {
    if (state_json) *state_json = arena_strdup(l->mem, l->m.state_json);
    if (step) *step = l->m.step;
}

static void load_one(Load *l, char **state_json, int64_t *step) {
    const char *wrong = load_folder(l);
    if (wrong)
        fail(EXIT_CHECKPOINT, "checkpoint %s cannot be used: %s", l->folder, wrong);
    hand_out(l, state_json, step);
}

void ckpt_load_dir(Arena *mem, const char *folder, CkptTensor *t, int n,
                   char **state_json, int64_t *step) {
    Load l = load_of(mem, folder, group_of_comm(), t, n);
    load_one(&l, state_json, step);
}

void ckpt_load_rank(Arena *mem, const char *folder, int rank, CkptTensor *t, int n) {
    Load l = load_of(mem, folder, group_alone(rank, 1), t, n);
    load_one(&l, NULL, NULL);
}

/* ---- the newest ---- */

typedef struct Steps {
    int error; /* of listing the folder */
    int n;
    int64_t *step;  /* finished checkpoints, newest first */
    int64_t newest; /* that any rank sees; -1: none */
    int seen_by;
} Steps;

/* Rank 0's list on all ranks. */
static void share_steps(Steps *s, Arena *mem, const CkptGroup *group) {
    Text text = text_new(mem);
    text_add(&text, "%d", s->error);
    for (int i = 0; i < s->n; i++) text_add(&text, " %lld", (long long)s->step[i]);
    const int64_t *newest = group_gather(group, mem, &s->newest, sizeof s->newest);
    for (int r = 0; r < group->ranks; r++) {
        if (newest[r] <= s->newest) continue;
        s->newest = newest[r];
        s->seen_by = r;
    }
    const char *shared = group_share(group, mem, text.s);
    char *p;
    s->error = (int)strtol(shared, &p, 10);
    s->step = NEW_ARRAY(mem, int64_t, strlen(p));
    for (s->n = 0; *p;) s->step[s->n++] = strtoll(p, &p, 10);
}

static Steps list_steps(Arena *mem, const char *dir, const CkptGroup *group) {
    CkptEntry *e;
    int n;
    Steps s = {.newest = -1, .seen_by = group->rank};
    s.error = ckpt_list(mem, dir, &e, &n);
    s.step = NEW_ARRAY(mem, int64_t, (size_t)n);
    for (int i = 0; i < n; i++)
        if (!e[i].tmp) s.step[s.n++] = e[i].step;
    if (s.n) s.newest = s.step[0];
    if (!group->alone) share_steps(&s, mem, group);
    return s;
}

/* The newest good one; false and what is damaged in each. */
static bool load_newest(Load *l, const char *dir, const Steps *s, Text *damaged,
                        Text *log) {
    for (int i = 0; i < s->n; i++) {
        char name[CKPT_NAME_BYTES];
        ckpt_name(s->step[i], name);
        Load one = *l;
        one.folder = path_join(l->mem, dir, name);
        const char *wrong = load_folder(&one);
        if (!wrong && one.m.step != s->step[i]) wrong = "the manifest is of another step";
        if (!wrong) {
            *l = one;
            return true;
        }
        text_add(damaged, "\n  %s: %s", name, wrong);
        if (log) text_add(log, "checkpoint %s/%s is damaged: %s\n", dir, name, wrong);
    }
    return false;
}

static void say_far(const Load *l, Text *log) {
    if (l->group.nremote && log)
        text_add(log,
                 "%d of %d ranks (the first: rank %d on %s) do not see %s of rank 0 and "
                 "get what they hold from it\n",
                 l->group.nremote, l->group.ranks, l->group.first_remote,
                 l->group.remote_host, l->folder);
}

bool ckpt_load_latest(Arena *mem, const char *dir, CkptTensor *t, int n,
                      char **state_json, int64_t *step, Text *log) {
    Load l = load_of(mem, dir, group_of_comm(), t, n);
    Steps s = list_steps(mem, dir, &l.group);
    if (s.error && s.error != ENOENT)
        fail(EXIT_CHECKPOINT, "cannot read the folder %s: %s", dir, strerror(s.error));
    if (s.n == 0 && s.newest >= 0)
        fail(EXIT_CHECKPOINT,
             "rank 0 sees no checkpoint in %s, but rank %d sees one of step %lld: copy "
             "that folder to the host of rank 0, or start with resume: never",
             dir, group_process(&l.group, s.seen_by), (long long)s.newest);
    if (s.n == 0) return false;
    if (s.newest > s.step[0] && log)
        text_add(log,
                 "rank %d sees a checkpoint of step %lld in %s; rank 0, which "
                 "decides, sees none above step %lld\n",
                 group_process(&l.group, s.seen_by), (long long)s.newest, dir,
                 (long long)s.step[0]);
    Text damaged = text_new(mem);
    if (!load_newest(&l, dir, &s, &damaged, log))
        fail(EXIT_CHECKPOINT, "none of the checkpoints in %s is good:%s", dir, damaged.s);
    say_far(&l, log);
    hand_out(&l, state_json, step);
    return true;
}
