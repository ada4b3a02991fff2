/* megatron_read.c - the words of a command line of Megatron-LM, with a YAML file of MindSpeed-Core-MS
 * in their place; see megatron.h. */
#include "frontend/tools/mindspeed.h"
#include <errno.h>
#include <stdlib.h>

/* ---- the launcher ---- */

/* 0: it is no number of ranks. */
static int64_t count_of(const char *text) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    return errno || end == text || *end || n < 1 || n > 1 << 20 ? 0 : n;
}

/* What the words of launchers say; 0: nothing. */
typedef struct Launcher {
    int64_t per_host, hosts;        /* of torchrun: processes of a host, hosts */
    int64_t tasks, per_node, nodes; /* of mpirun, msrun and srun */
} Launcher;

static const struct {
    const char *name; /* with '_' for '-' */
    size_t field;
} launcher_flag[] = {{"nproc_per_node", offsetof(Launcher, per_host)},
                     {"nnodes", offsetof(Launcher, hosts)},
                     {"worker_num", offsetof(Launcher, tasks)},
                     {"n", offsetof(Launcher, tasks)},
                     {"np", offsetof(Launcher, tasks)},
                     {"ntasks", offsetof(Launcher, tasks)},
                     {"ntasks_per_node", offsetof(Launcher, per_node)},
                     {"nodes", offsetof(Launcher, nodes)},
                     {"N", offsetof(Launcher, nodes)}};

/* -n 8, -n8, --ntasks 8 and --ntasks=8 */
static void read_launcher_flag(Megatron *m, Launcher *l, const char *word,
                               const char *next) {
    char *name = arena_strdup(m->mem, word + strspn(word, "-"));
    const char *value = next;
    if (strchr(name, '=')) {
        value = word + strcspn(word, "=") + 1;
        name[strcspn(name, "=")] = 0;
    } else if (word[1] != '-' && name[0] && strspn(name + 1, "0123456789")) {
        value = word + 2;
        name[1] = 0;
    }
    for (char *p = name; *p; p++)
        if (*p == '-') *p = '_';
    for (int i = 0; i < ARRAY_LEN(launcher_flag); i++) {
        if (strcmp(name, launcher_flag[i].name) != 0) continue;
        int64_t n = count_of(value);
        *(int64_t *)((char *)l + launcher_flag[i].field) = n;
        if (!n)
            m->unread =
                arena_printf(m->mem, "%.*s %.60s", (int)strcspn(word, "="), word, value);
    }
}

/* 0: they do not say. srun's --ntasks-per-node is a limit where --ntasks is given, and each of its
 * tasks may be a torchrun, which starts the ranks of a host. */
static int64_t ranks_of(const Launcher *l) {
    int64_t tasks = l->tasks;
    if (!tasks && l->nodes && (l->per_node || l->per_host))
        tasks = times_capped(l->nodes, MAX(l->per_node, 1));
    if (!l->per_host) return tasks;
    return times_capped(l->per_host, l->hosts ? l->hosts : MAX(tasks, 1));
}

/* Letters alone say it behind these programs, and not behind others. Open MPI's -N, which is of a
 * host, is left to -n RANKS. */
static void read_launcher(Megatron *m, int n, char **word) {
    static const char *const launchers[] = {"srun",    "mpirun",  "mpiexec",
                                            "orterun", "prterun", "mpiexec.hydra"};
    static const char *const others[] = {
        "nice",   "ionice",  "numactl", "taskset",  "conda",  "micromamba", "mamba",
        "sudo",   "ssh",     "nsys",    "env",      "bash",   "sh",         "time",
        "python", "python3", "timeout", "torchrun", "stdbuf", "perf",       "ncu"};
    static const char switches[] = "-EHKOQVXZhklsuv"; /* letters of srun without a word */
    Launcher l = {0};
    const char *launcher = "";
    for (int i = 0; i < n; i++) {
        const char *name = path_name(word[i]), *before = i ? word[i - 1] : "";
        bool value = strlen(before) == 2 && before[0] == '-' && /* srun -J nice */
                     !strchr(switches, before[1]);
        if (is_one_of(name, launchers, ARRAY_LEN(launchers))) launcher = name;
        if (!value && is_one_of(name, others, ARRAY_LEN(others))) launcher = "";
        bool srun = !strcmp(launcher, "srun"), letter = word[i][1] != '-';
        bool per_host = word[i][0] == '-' && word[i][1] == 'N' && !srun;
        if (word[i][0] == '-' && !per_host && (!letter || launcher[0]))
            read_launcher_flag(m, &l, word[i], i + 1 < n ? word[i + 1] : "");
    }
    m->ranks = m->unread ? 0 : ranks_of(&l);
}

/* Scripts of Megatron-LM and MindSpeed that train something else. */
static void refuse_other_scripts(const char *path) {
    static const char *const others[] = {
        "pretrain_bert.py", "pretrain_t5.py",   "pretrain_mamba.py",
        "pretrain_vlm.py",  "pretrain_ict.py",  "pretrain_retro.py",
        "pretrain_vit.py",  "posttrain_gpt.py", "pretrain_vision_classify.py",
        "pretrain_mllm.py", "train_rl.py",      "pretrain_vision_inpaint.py"};
    const char *name = path_name(path);
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
    if (begins_with(word, "moe-") || begins_with(word, "moe_"))
        fail(EXIT_CONFIG, "--%.*s asks for what is not there: mixtures of experts",
             (int)MIN(n, 100), word);
    const char *names[MEGATRON_FLAGS];
    for (int i = 0; i < MEGATRON_FLAGS; i++) names[i] = megatron_name(mem, i);
    const char *near =
        nearest_name(arena_printf(mem, "--%.*s", (int)n, word), names, MEGATRON_FLAGS);
    fail(EXIT_CONFIG,
         "--%.*s is no flag of Megatron-LM that is known here%s%s%s leave it out%s if it "
         "changes nothing that is computed (docs/megatron.md lists those that are known)",
         (int)MIN(n, 100), word, near ? ": did you mean " : ";", near ? near : "",
         near ? "? Or" : "", near ? "," : "");
}

/* A line broken with a blank behind its backslash hands over the backslash. */
static void refuse_backslash(const char *word) {
    if (!strcmp(word, "\\") || !strcmp(word, "\\ "))
        fail(EXIT_CONFIG,
             "a word that is only a backslash: remove the blank behind that of the "
             "script");
}

/* A flag, and the words behind it up to the next one. */
static int words_of_flag(int n, char **word) {
    int taken = 1;
    if (begins_with(word[0], "--") && strchr(word[0], '=')) return taken;
    while (taken < n && !begins_with(word[taken], "--")) taken++;
    return taken;
}

static void read_flag(Megatron *m, int n, char **word) {
    for (int i = 0; i < n; i++) refuse_backslash(word[i]);
    if (!begins_with(word[0], "--") || !word[0][2])
        fail(EXIT_CONFIG,
             "'%.100s' is no flag of Megatron-LM: --name, and its words behind it",
             word[0]);
    const char *name = word[0] + 2;
    size_t length = strcspn(name, "=");
    int id = megatron_find(name, length);
    if (id < 0) unknown_flag(m->mem, name, length);
    char **value = word + 1;
    int values = n - 1;
    if (name[length]) {
        value = NEW(m->mem, char *);
        value[values++] = word[0] + 2 + length + 1;
    }
    megatron_give(m, id, values, value);
}

/* Adds what is wrong with the flag; other failures are not of the command line. */
static bool try_flag(Megatron *m, int n, char **word, Text *wrong) {
    Catch c;
    if (CATCH(c)) {
        read_flag(m, n, word);
        catch_end(&c);
        return true;
    }
    if (c.code != EXIT_CONFIG) catch_again(&c);
    text_add(wrong, "%s%s", wrong->n ? "\n" : "", c.message);
    return false;
}

/* All mistakes of flags are told at once. */
static void read_flags(Megatron *m, int n, char **word) {
    enum { MOST_SHOWN = 20 };
    Text wrong = text_new(m->mem);
    Text rest = text_new(m->mem);
    int mistakes = 0;
    for (int at = 0, words; at < n; at += words) {
        words = words_of_flag(n - at, word + at);
        mistakes +=
            !try_flag(m, words, word + at, mistakes < MOST_SHOWN ? &wrong : &rest);
    }
    if (mistakes > MOST_SHOWN)
        text_add(&wrong, "\nand %d more errors", mistakes - MOST_SHOWN);
    if (mistakes) fail_again(EXIT_CONFIG, wrong.s);
}

Megatron *megatron_read(Arena *mem, int n, char **word) {
    Megatron *m = NEW(mem, Megatron);
    m->files = NEW(mem, const struct MegatronFiles *);
    m->mem = mem;
    int at = words_of_launcher(n, word);
    m->program = at ? word[at - 1] : "";
    read_launcher(m, at - 1, word);
    MindSpeed *file = NULL;
    if (at < n && is_yaml_name(word[at])) {
        m->program = word[at];
        m->file = true;
        file = mindspeed_read(m, word[at++]);
    }
    if (!at && n && !begins_with(word[0], "-"))
        fail(EXIT_CONFIG,
             "no script was found: no word ends in .py, and '%.100s' is no flag of "
             "Megatron-LM",
             word[0]);
    read_flags(m, n - at, word + at);
    if (file) mindspeed_defaults(file);
    return m;
}
