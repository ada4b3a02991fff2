/* megatron_read.c - the words of a command line of Megatron-LM, with a YAML file of MindSpeed-Core-MS
 * in their place, and the page about both; see megatron.h. */
#include "frontend/tools/mindspeed.h"
#include <errno.h>
#include <stdlib.h>

/* ---- the launcher ---- */

static int64_t count_of(const char *name, const char *text) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < 1 || n > 1 << 20)
        fail(EXIT_CONFIG, "%.60s %.60s: write the ranks as -n RANKS before the command",
             name, text);
    return n;
}

/* Of torchrun, torch.distributed.launch, msrun, mpirun and srun: ranks, or of each of so many
 * hosts. */
static void read_launcher(Megatron *m, int n, char **word) {
    static const char *const each[] = {"nproc_per_node", "ntasks_per_node"};
    static const char *const hosts[] = {"nnodes", "nodes", "N"};
    static const char *const all[] = {"worker_num", "n", "np", "ntasks"};
    int64_t per_host = 0, host = 1, ranks = 0;
    for (int i = 0; i < n; i++) {
        if (word[i][0] != '-') continue;
        char *name = arena_strdup(m->mem, word[i] + strspn(word[i], "-"));
        char *equals = strchr(name, '=');
        if (equals) *equals = 0;
        for (char *p = name; *p; p++)
            if (*p == '-') *p = '_';
        const char *flag = arena_strndup(m->mem, word[i], strcspn(word[i], "="));
        const char *value = equals ? equals + 1 : i + 1 < n ? word[i + 1] : "";
        if (is_one_of(name, each, ARRAY_LEN(each))) per_host = count_of(flag, value);
        if (is_one_of(name, hosts, ARRAY_LEN(hosts))) host = count_of(flag, value);
        if (is_one_of(name, all, ARRAY_LEN(all))) ranks = count_of(flag, value);
    }
    m->ranks = per_host ? per_host * host : ranks;
}

/* Scripts of Megatron-LM and MindSpeed that train something else. */
static void refuse_other_scripts(const char *path) {
    static const char *const others[] = {
        "pretrain_bert.py", "pretrain_t5.py",   "pretrain_mamba.py",
        "pretrain_vlm.py",  "pretrain_ict.py",  "pretrain_retro.py",
        "pretrain_vit.py",  "posttrain_gpt.py", "pretrain_vision_classify.py",
        "pretrain_mllm.py", "train_rl.py",      "pretrain_vision_inpaint.py"};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (is_one_of(name, others, ARRAY_LEN(others)))
        fail(EXIT_CONFIG,
             "%s trains something else than a GPT on tokens; what is imported is the "
             "command of pretrain_gpt.py",
             name);
}

/* Words before the flags: up to the script. */
static int words_of_launcher(int n, char **word) {
    for (int i = 0; i < n; i++) {
        if (!ends_with(word[i], ".py")) continue;
        refuse_other_scripts(word[i]);
        return i + 1;
    }
    return 0;
}

/* ---- all ---- */

static _Noreturn void unknown_flag(Arena *mem, const char *word, size_t n) {
    if (!strncmp(word, "moe-", 4) || !strncmp(word, "moe_", 4))
        fail(EXIT_CONFIG, "--%.*s asks for what is not there: mixtures of experts",
             (int)MIN(n, 100), word);
    const char *names[MEGATRON_FLAGS];
    for (int i = 0; i < MEGATRON_FLAGS; i++) names[i] = megatron_name(mem, i);
    const char *near =
        nearest_name(arena_printf(mem, "--%.*s", (int)n, word), names, MEGATRON_FLAGS);
    fail(EXIT_CONFIG,
         "--%.*s is no flag of Megatron-LM that is known here%s%s%s; leave it out if it "
         "changes "
         "nothing that is computed (docs/megatron.md lists those that are known)",
         (int)MIN(n, 100), word, near ? ": did you mean " : "", near ? near : "",
         near ? "?" : "");
}

/* A line broken with a blank behind its backslash hands over the backslash. */
static void refuse_backslash(const char *word) {
    if (!strcmp(word, "\\") || !strcmp(word, "\\ "))
        fail(EXIT_CONFIG,
             "a word that is only a backslash: remove the blank behind that of the "
             "script");
}

static int read_flag(Megatron *m, int n, char **word) {
    refuse_backslash(word[0]);
    if (strncmp(word[0], "--", 2) || !word[0][2])
        fail(EXIT_CONFIG,
             "'%.100s' is no flag of Megatron-LM: --name, and its words behind it",
             word[0]);
    const char *name = word[0] + 2;
    size_t length = strcspn(name, "=");
    int id = megatron_find(name, length), taken = 1;
    if (id < 0) unknown_flag(m->mem, name, length);
    char **value = word + 1;
    int values = 0;
    if (name[length]) {
        value = NEW(m->mem, char *);
        value[values++] = word[0] + 2 + length + 1;
    } else {
        while (taken < n && strncmp(word[taken], "--", 2)) {
            refuse_backslash(word[taken++]);
            values++;
        }
    }
    megatron_give(m, id, values, value);
    return taken;
}

static bool is_yaml(const char *word) {
    return ends_with(word, ".yaml") || ends_with(word, ".yml");
}

Megatron *megatron_read(Arena *mem, int n, char **word) {
    Megatron *m = NEW(mem, Megatron);
    m->mem = mem;
    int at = words_of_launcher(n, word);
    m->program = at ? word[at - 1] : "";
    read_launcher(m, at - 1, word);
    MindSpeed *file = NULL;
    if (at < n && is_yaml(word[at])) {
        m->program = word[at];
        m->file = true;
        file = mindspeed_read(m, word[at++]);
    }
    while (at < n) at += read_flag(m, n - at, word + at);
    if (file) mindspeed_defaults(file);
    return m;
}

/* ---- the page ---- */

static const char *said(Arena *mem, const MegatronFlag *f) {
    switch (f->kind) {
    case MEGATRON_TO:
        return f->value[0] ? arena_printf(mem, "`%s`: %s", f->what, f->value)
                           : arena_printf(mem, "`%s`", f->what);
    case MEGATRON_OWN:
        return f->what;
    case MEGATRON_IDLE:
        return arena_printf(mem, "no effect: %s", f->what);
    case MEGATRON_ONLY:
        return arena_printf(mem, "only %s; not there: %s", f->value, f->what);
    case MEGATRON_NOT:
        return arena_printf(mem, "refused; not there: %s", f->what);
    }
    die("kind %d", (int)f->kind);
}

static const char page_head[] =
    "# Coming from Megatron-LM or MindSpeed\n\n"
    "This page is made from `frontend/config/megatron.def` and `mindspeed.def`; change "
    "them.\n\n"
    "`stator import` reads the command line that starts a training of Megatron-LM, of\n"
    "`pretrain_gpt.py`, and writes the configuration that trains the same here. Put it "
    "before "
    "the\n"
    "command in your script, so that the shell expands what it would:\n\n"
    "    stator import -o gpt.yaml torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\\n"
    "        ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]} ...\n"
    "    stator plan gpt.yaml                 # what it takes: memory, messages, flops\n"
    "    stator plan gpt.yaml --machine machines/a100.yaml      # and seconds\n"
    "    stator simulate gpt.yaml             # all its ranks, with numbers, on this "
    "machine\n"
    "    stator search gpt.yaml -n 64 --machine machines/a100.yaml  # a faster "
    "strategy\n\n"
    "Ranks are those of the launcher's words (`--nproc_per_node` times `--nnodes`, "
    "`--worker_num`,\n"
    "`-n` of mpirun or srun), or of `-n RANKS` before the command. A YAML file of "
    "MindSpeed-Core-MS\n"
    "is read in place of the command, and flags behind it count more:\n\n"
    "    stator import -n 64 -o gpt.yaml pretrain_gpt.yaml --train-iters 1000\n\n"
    "Every default of "
    "Megatron-LM, or of MindSpeed-Core-MS, "
    "that\n"
    "differs from the one here is written into the file. A flag that is not in the "
    "tables "
    "below, or\n"
    "that changes what is computed and is not there, is refused.\n\n"
    "The same, and yet other numbers: first weights and dropout follow from random "
    "numbers of\n"
    "their own, which no strategy changes; gelu has the form with tanh, as Megatron-LM's "
    "fused\n"
    "one has; a warm-up of a part of the decay takes whole steps. The order of samples "
    "is that "
    "of\n"
    "Megatron-LM ([data.md](data.md)).\n\n"
    "The file is read as any other ([keys.md](keys.md)): the names on the right are its "
    "keys.\n";

void megatron_write_docs(FILE *out) {
    static const struct {
        const char *group; /* NULL: a flag */
        MegatronId id;
    } row[] = {
#define GROUP(name)     {name, MEGATRON_FLAGS},
#define FLAG(name, ...) {NULL, MEGATRON_##name},
#include "frontend/config/megatron.def"
    };
    Arena *mem = arena_new();
    fputs(page_head, out);
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        if (row[i].group)
            fprintf(out, "\n## %s\n\n| flag | what becomes of it |\n|---|---|\n",
                    row[i].group);
        else
            fprintf(out, "| `%s` | %s |\n", megatron_name(mem, (int)row[i].id),
                    said(mem, &megatron_flag[row[i].id]));
    }
    mindspeed_write_docs(out);
    arena_free(mem);
}
