/* ckpt_save.c - saving checkpoints; see ckpt.h. The order of the calls is the point: each
 * one leaves the folder in a state from which loading finds a complete checkpoint. Rank 0
 * makes the folder and gives it its name; each rank writes its own files into it. */
#define _GNU_SOURCE
#include "base/json.h"
#include "runtime/comm/watch.h"
#include "runtime/store/ckpt_shard.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Save {
    Arena *mem;
    const char *dir;
    char name[CKPT_NAME_BYTES], tmp[CKPT_NAME_BYTES + 4], old[CKPT_NAME_BYTES + 8];
    char token[CKPT_NAME_BYTES]; /* file in tmp by which ranks know that they see it */
    int dir_fd, tmp_fd;
    CkptGroup group;
    const CkptSave *what; /* [1], or [ranks] when one process plays all */
    int played;
    bool published;  /* on rank 0: the checkpoint has its name */
    const int *copy; /* of each tensor, that is written; NULL: the first */
    Text table;
    Manifest manifest;
    CkptShard *shard; /* [nshards]; those of remote ranks come last */
    int nshards;
    CkptFile *file; /* [ranks][CKPT_FILES] as written; no name: none */
    char *why;
    size_t why_size;
} Save;

static int give_up(Save *s, int error, const char *doing, const char *name) {
    snprintf(s->why, s->why_size, "cannot %s %s/%s: %s", doing, s->dir, name,
             strerror(error));
    return error;
}

/* Of a file of the checkpoint. */
static int give_up_file(Save *s, int error, const char *doing, const char *name) {
    char path[2 * sizeof s->tmp];
    snprintf(path, sizeof path, "%s/%s", s->tmp, name);
    return give_up(s, error, doing, path);
}

static bool is_root(const Save *s) {
    return s->group.rank == 0;
}

static int agree(Save *s, int error) {
    return group_agree(&s->group, error, s->why, s->why_size);
}

/* Everything that can be wrong with the arguments, before the disk is touched. */

static int check_state(Save *s) {
    const char *state_json = s->what->state_json;
    s->manifest.state_json = state_json ? state_json : "{}";
    Catch c;
    if (CATCH(c)) {
        json_want(ckpt_state_parse(s->mem, "state", s->manifest.state_json), JSON_OBJECT);
        catch_end(&c);
        return 0;
    }
    snprintf(s->why, s->why_size, "the state to save is not valid JSON: %s",
             catch_text(&c));
    return EINVAL;
}

static int plan_shard(Save *s, int rank, const CkptSave *what) {
    CkptShard *shard = &s->shard[s->nshards++];
    const ShardFile *bad =
        shard_plan(s->mem, shard, s->manifest.version, rank, what->t, what->n, s->copy);
    if (!bad) return 0;
    snprintf(s->why, s->why_size, "%s: two tensors of one name, or a bad shape",
             bad->as.name);
    return EINVAL;
}

/* This rank's own files, or those of all ranks that this process plays. */
static int plan_own(Save *s) {
    int error = 0;
    s->nshards = 0;
    for (int r = 0; r < s->played && !error; r++)
        error = plan_shard(s, s->played > 1 ? r : s->group.rank, &s->what[r]);
    return error;
}

/* As if the first of copies were written: tells all that is wrong with the tensors. */
static int plan(Save *s) {
    const CkptTensor *t = s->what->t;
    int n = s->what->n, stages = ckpt_stages(t, n);
    const Mesh *mesh = ckpt_mesh(t, n);
    check(!mesh || mesh_ranks(mesh) * stages == s->group.ranks);
    s->manifest.version = ckpt_all_whole(t, n) ? CKPT_WHOLE
                          : ckpt_by_rows(t, n) ? CKPT_STAGES
                                               : CKPT_PARTS;
    s->table = table_text(s->mem, t, n, NULL);
    s->shard = NEW_ARRAY(s->mem, CkptShard, (size_t)s->group.ranks);
    s->file = NEW_ARRAY(s->mem, CkptFile, (size_t)s->group.ranks * CKPT_FILES);
    char mine[HASH_HEX_BYTES];
    hash_hex(s->table.s, s->table.n, mine);
    if (strcmp(mine, group_share(&s->group, s->mem, mine))) {
        snprintf(s->why, s->why_size, "it has other tensors to save than rank 0");
        return EINVAL;
    }
    return plan_own(s);
}

/* The folder. */

/* The lock tells a run that starts that it is no leftover; it is shared with the other
 * ranks, so that it lasts as long as any of them writes. */
static int make_folder(Save *s) {
    int error = dir_make(s->dir);
    if (error) return give_up(s, error, "create", "");
    s->dir_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir_fd < 0) return give_up(s, errno, "open", "");
    error = ckpt_remove(s->dir_fd, s->tmp);
    if (error && error != ENOENT) return give_up(s, error, "clear the leftover", s->tmp);
    if (mkdirat(s->dir_fd, s->tmp, 0755) != 0) return give_up(s, errno, "create", s->tmp);
    ckpt_reach("folder");
    s->tmp_fd = openat(s->dir_fd, s->tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->tmp_fd < 0) return give_up(s, errno, "open", s->tmp);
    if (flock(s->tmp_fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return 0;
    close(s->tmp_fd);
    s->tmp_fd = -1; /* not ours any more */
    return give_up(s, EBUSY, "lock", s->tmp);
}

static int make_token(Save *s) {
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return give_up(s, errno, "name a file in", s->tmp);
    snprintf(s->token, sizeof s->token, "token_%016llx%016llx",
             (unsigned long long)random[0], (unsigned long long)random[1]);
    Text text = text_new(s->mem);
    text_add(&text, "ranks that see this share the folder\n");
    int error = shard_write_text(s->tmp_fd, s->token, &text, NULL);
    flock(s->tmp_fd, LOCK_SH);
    return error ? give_up_file(s, error, "write", s->token) : 0;
}

static bool see_folder(Save *s) {
    const char *tmp = path_join(s->mem, s->dir, s->tmp);
    int fd = open(tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return false;
    if (faccessat(fd, s->token, F_OK, 0) != 0) {
        close(fd);
        return false;
    }
    flock(fd, LOCK_SH | LOCK_NB);
    s->tmp_fd = fd;
    return true;
}

/* Where all see one folder, those that hold the same share the writing. */
static int share_copies(Save *s) {
    const CkptTensor *t = s->what->t;
    int n = s->what->n;
    bool shared = false;
    s->copy = ckpt_share(s->mem, t, n);
    for (int i = 0; i < n; i++) shared |= s->copy[i] > 0;
    if (!shared) return 0;
    if (s->manifest.version != CKPT_STAGES) s->manifest.version = CKPT_SHARED;
    s->table = table_text(s->mem, t, n, s->copy);
    return plan_own(s);
}

/* Which ranks write into rank 0's folder themselves? The others' files rank 0 writes. */
static int share_out(Save *s) {
    if (s->group.alone) return share_copies(s);
    const char *token = group_share(&s->group, s->mem, s->token);
    snprintf(s->token, sizeof s->token, "%s", token);
    group_find_remote(&s->group, s->mem, is_root(s) || see_folder(s));
    int error = s->group.nremote ? 0 : share_copies(s);
    if (error || !is_root(s)) return error;
    if (unlinkat(s->tmp_fd, s->token, 0) != 0)
        return give_up_file(s, errno, "delete", s->token);
    for (int r = 1; r < s->group.ranks; r++) {
        error = s->group.remote[r] ? plan_shard(s, r, s->what) : 0;
        if (error) return error;
    }
    return 0;
}

/* The files. */

/* Reserves the room of all files before the first is written. */
static int create_files(Save *s) {
    for (int i = 0; i < s->nshards; i++)
        for (int k = 0; k < CKPT_FILES; k++) {
            const ShardFile *f = &s->shard[i].file[k];
            int error = f->there && s->tmp_fd >= 0 ? shard_create(f, s->tmp_fd) : 0;
            if (error) return give_up_file(s, error, "create and reserve", f->as.name);
        }
    ckpt_reach("reserved");
    return 0;
}

/* The first failure stays; data of a remote rank are taken in any case. */
static void write_shard(Save *s, CkptShard *shard, int *error) {
    Arena *mem = arena_new(); /* there may be thousands of remote ranks */
    CkptPipe pipe, *from = NULL;
    char *chunk = NULL;
    if (!s->group.alone && s->group.remote[shard->rank]) {
        pipe = pipe_of(mem, shard->rank, shard_data_bytes(shard));
        chunk = arena_alloc(mem, CKPT_CHUNK_BYTES);
        from = &pipe;
    }
    for (int k = 0; k < CKPT_FILES; k++) {
        ShardFile *f = &shard->file[k];
        if (!f->there || (*error && !from)) continue;
        int failed = shard_write(f, s->tmp_fd, from, chunk);
        if (failed && !*error) *error = give_up_file(s, failed, "write", f->as.name);
        s->file[shard->rank * CKPT_FILES + k] = f->as;
    }
    arena_free(mem);
}

/* A remote rank sends; all others write, and rank 0 then what the remote ones send. */
static int write_files(Save *s) {
    int error = 0;
    if (!is_root(s) && s->tmp_fd < 0) {
        CkptPipe to = pipe_of(s->mem, 0, shard_data_bytes(&s->shard[0]));
        shard_send(&s->shard[0], &to);
        return 0;
    }
    for (int i = 0; i < s->nshards; i++) write_shard(s, &s->shard[i], &error);
    if (error || is_root(s)) return error;
    error = dir_sync(s->tmp_fd);
    return error ? give_up(s, error, "sync", s->tmp) : 0;
}

static void gather_files(Save *s) {
    if (s->group.alone) return;
    size_t each = sizeof(CkptFile) * CKPT_FILES;
    const CkptFile *all =
        group_gather(&s->group, s->mem, &s->file[s->group.rank * CKPT_FILES], each);
    for (int r = 1; r < s->group.ranks; r++)
        if (!s->group.remote[r])
            memcpy(&s->file[r * CKPT_FILES], &all[r * CKPT_FILES], each);
}

static int write_manifest(Save *s) {
    Manifest *m = &s->manifest;
    int most = s->group.ranks * CKPT_FILES, error;
    m->file = NEW_ARRAY(s->mem, CkptFile, (size_t)most + 1);
    if (m->version != CKPT_WHOLE) {
        CkptFile *f = &m->file[m->nfiles++];
        *f = ckpt_file(m->version, CKPT_MODEL, -1);
        error = shard_write_text(s->tmp_fd, f->name, &s->table, f);
        if (error) return give_up_file(s, error, "write", f->name);
    }
    for (int i = 0; i < most; i++)
        if (s->file[i].name[0]) m->file[m->nfiles++] = s->file[i];
    Text text = manifest_text(s->mem, m);
    error = shard_write_text(s->tmp_fd, CKPT_MANIFEST, &text, NULL);
    if (!error) error = dir_sync(s->tmp_fd);
    return error ? give_up_file(s, error, "write", CKPT_MANIFEST) : 0;
}

static int move(const Save *s, const char *from, const char *to) {
    return renameat(s->dir_fd, from, s->dir_fd, to) == 0 ? 0 : errno;
}

/* Where a file system cannot exchange two names, as NFS, the old one goes first: of a kill between
 * the two the checkpoint before that step is left. */
static int exchange(const Save *s) {
    bool done = renameat2(s->dir_fd, s->tmp, s->dir_fd, s->name, RENAME_EXCHANGE) == 0;
    int error = done ? 0 : errno;
    if (error == EINVAL || error == ENOSYS) {
        ckpt_remove(s->dir_fd, s->old);
        error = move(s, s->name, s->old);
        ckpt_reach("moved");
        if (!error && (error = move(s, s->tmp, s->name))) move(s, s->old, s->name);
    }
    if (!error) ckpt_reach("exchanged");
    return error;
}

/* Gives the folder its name. One of that step may be there already (saved again after
 * going back): then the two change names, and the old one is the .tmp, or the .old.tmp. */
static int publish(Save *s) {
    ckpt_reach("rename.before");
    int error = move(s, s->tmp, s->name);
    if (error == ENOTEMPTY || error == EEXIST) error = exchange(s);
    if (error) return give_up(s, error, "rename a complete checkpoint to", s->name);
    ckpt_reach("rename.after");
    s->published = true;
    error = dir_sync(s->dir_fd);
    return error ? give_up(s, error, "sync the folder of", s->name) : 0;
}

/* After this point the new checkpoint is good; errors are still told. */

static int point_latest(Save *s) {
    int error = ckpt_point_latest(s->mem, s->dir, s->name);
    if (error) return give_up(s, error, "write", "latest");
    ckpt_reach("latest");
    return 0;
}

/* Renamed first, so that a half-deleted checkpoint never looks like one. */
static int delete_one(Save *s, const char *name) {
    char tmp[CKPT_NAME_BYTES + 4];
    snprintf(tmp, sizeof tmp, "%s.tmp", name);
    int error = ckpt_remove(s->dir_fd, tmp);
    if (error && error != ENOENT) return give_up(s, error, "delete", tmp);
    if (renameat(s->dir_fd, name, s->dir_fd, tmp) != 0)
        return give_up(s, errno, "delete", name);
    ckpt_reach("delete");
    error = ckpt_remove(s->dir_fd, tmp);
    return error ? give_up(s, error, "delete", tmp) : 0;
}

/* One that cannot be read for the moment does not count: nothing is deleted in its favour. */
static bool is_intact(Save *s, const char *name) {
    Manifest m;
    Catch c;
    if (!CATCH(c)) return false;
    bool intact = !manifest_read(s->mem, path_join(s->mem, s->dir, name), &m);
    catch_end(&c);
    return intact;
}

/* Damaged ones do not count towards `keep`; steps after this one are not touched. */
static int delete_older(Save *s) {
    CkptEntry *e;
    int n, intact = 0;
    if (!s->what->keep) return 0;
    int error = ckpt_list(s->mem, s->dir, &e, &n);
    if (error) return give_up(s, error, "list", "");
    for (int i = 0; i < n; i++) {
        if (e[i].tmp || e[i].step > s->manifest.step) continue;
        if (intact < s->what->keep) {
            intact += e[i].step == s->manifest.step || is_intact(s, e[i].name);
            continue;
        }
        int failed = e[i].step == s->what->spare ? 0 : delete_one(s, e[i].name);
        if (failed && !error) error = failed;
    }
    return error;
}

/* The whole. */

static int make_on_root(Save *s) {
    if (!is_root(s)) return 0;
    int error = make_folder(s);
    return error || s->group.alone ? error : make_token(s);
}

static int finish_on_root(Save *s) {
    if (!is_root(s)) return 0;
    int error = write_manifest(s);
    if (!error) error = publish(s);
    return s->published ? -error : error;
}

static int tidy_on_root(Save *s) {
    if (!is_root(s)) return 0;
    int error = point_latest(s);
    return -(error ? error : delete_older(s));
}

/* Nothing but a failed attempt, or the old one after an exchange, is .tmp now. */
static void remove_tmp(Save *s) {
    bool mine = is_root(s) && s->tmp_fd >= 0;
    if (s->tmp_fd >= 0) close(s->tmp_fd);
    agree(s, 0); /* the others have closed theirs */
    if (!mine) return;
    ckpt_remove(s->dir_fd, s->tmp);
    /* where neither got the name, the old one is all that is left of the step */
    if (faccessat(s->dir_fd, s->name, F_OK, 0) == 0) ckpt_remove(s->dir_fd, s->old);
}

/* What is said of a disk that does not answer. */
static int watched(Save *s, int (*work)(Save *s)) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", s->dir, s->tmp);
    watch_file(path);
    int error = work(s);
    watch_file(NULL);
    return error;
}

static int save(Save *s) {
    int error = plan(s);
    if (!error) error = check_state(s);
    error = agree(s, error);
    if (error) return error;
    error = agree(s, watched(s, make_on_root));
    if (!error) error = agree(s, share_out(s));
    if (!error) error = agree(s, watched(s, create_files));
    if (!error) error = agree(s, watched(s, write_files));
    if (!error) gather_files(s);
    if (!error) error = agree(s, watched(s, finish_on_root));
    remove_tmp(s);
    if (!error) error = agree(s, tidy_on_root(s));
    if (s->dir_fd >= 0) close(s->dir_fd);
    return error;
}

static void say_far(const Save *s) {
    if (s->group.nremote)
        snprintf(s->why, s->why_size,
                 "%d of %d ranks (the first: rank %d on %.200s) do not see %s of rank 0, "
                 "which writes what they hold; it needs the disk for all",
                 s->group.nremote, s->group.ranks, s->group.first_remote,
                 s->group.remote_host, s->dir);
}

static int save_as(Save s) {
    check(s.what->step >= 0 && s.what->n >= 0 && s.what->keep >= 0);
    check(s.played > 0 && s.why_size > 0);
    s.manifest.step = s.what->step;
    s.mem = arena_new();
    s.dir_fd = s.tmp_fd = -1;
    s.why[0] = 0;
    ckpt_name(s.manifest.step, s.name);
    snprintf(s.tmp, sizeof s.tmp, "%s.tmp", s.name);
    snprintf(s.old, sizeof s.old, "%s" CKPT_OLD_TMP, s.name);
    int error = save(&s);
    if (!error) say_far(&s);
    arena_free(s.mem);
    return error;
}

int ckpt_save(const char *dir, const CkptSave *what, char *why, size_t why_size) {
    return save_as((Save){.dir = dir,
                          .group = group_of_comm(),
                          .what = what,
                          .played = 1,
                          .why = why,
                          .why_size = why_size});
}

int ckpt_save_ranks(const char *dir, const CkptSave *what, int ranks, char *why,
                    size_t why_size) {
    return save_as((Save){.dir = dir,
                          .group = group_alone(0, ranks),
                          .what = what,
                          .played = ranks,
                          .why = why,
                          .why_size = why_size});
}
