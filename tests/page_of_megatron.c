/* page_of_megatron.c - docs/megatron.md, made from megatron.def and mindspeed.def; see pages.h. */
#include "frontend/tools/megatron.h"
#include "tests/pages.h"

/* ---- a YAML file of MindSpeed-Core-MS ---- */

typedef enum RowKind { FLAG, UNLESS, KEY, IDLE, VALUES, OWNS } RowKind;

typedef struct Row {
    const char *path;
    RowKind kind;
    const char *to, *value, *word;
} Row;

static const Row rows[] = {
#define ROW(path, kind, to)            {path, kind, to, NULL, NULL},
#define VALUE(path, value, flag, word) {path, VALUES, flag, value, word},
#define OWN(path, take, what)          {path, OWNS, what, NULL, NULL},
#include "frontend/config/mindspeed.def"
};

static const char *said_of(Arena *mem, const Row *r) {
    static const char *const around[][2] = {
        [FLAG] = {"`", "`"},   [UNLESS] = {"`", "` where it is False"},
        [KEY] = {"`", "`"},    [IDLE] = {"no effect: ", ""},
        [VALUES] = {"`", "`"}, [OWNS] = {"", ""}};
    bool flag = r->kind == FLAG || r->kind == UNLESS || r->kind == VALUES;
    if (!r->to[0]) return "as without it";
    const char *to =
        flag ? megatron_name(mem, megatron_find(r->to, strlen(r->to))) : r->to;
    const char *word = r->word ? r->word : "";
    return arena_printf(mem, "%s%s%s%s%s", around[r->kind][0], to, word[0] ? " " : "",
                        word, around[r->kind][1]);
}

static void write_mindspeed(FILE *out) {
    Arena *mem = arena_new();
    fputs("\n## YAML of MindSpeed-Core-MS\n\n"
          "A name that is no flag above; one that is, in a group such as "
          "`training_config`, is that flag.\n\n"
          "| name | what becomes of it |\n|---|---|\n",
          out);
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        const Row *r = &rows[i];
        fprintf(out, "| `%s%s%s` | %s |\n", r->path, r->value ? ": " : "",
                r->value ? r->value : "", said_of(mem, r));
    }
    arena_free(mem);
}

/* ---- all ---- */

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
    "And back: `stator export` prints a strategy, such as what `stator search --write` "
    "found, as flags\n"
    "of Megatron-LM, and tells on stderr of each key that no flag says. They take the "
    "place "
    "of those of\n"
    "your script: delete what it has of parallelism, batches, recomputation and the "
    "distributed optimizer.\n"
    "What is said of the model stays as it is. Read again by `stator import` they are "
    "the "
    "same plan, but for\n"
    "what such lines say, `parallel.overlap`, and rows that another number of ranks adds "
    "to "
    "a vocabulary.\n\n"
    "    stator search gpt.yaml -n 64 --machine machines/a100.yaml --write best.yaml\n"
    "    torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} \\\n"
    "        ${TRAINING_ARGS[@]} $(stator export best.yaml)\n\n"
    "Ranks are those of the launcher's words (`--nproc_per_node` times `--nnodes`, "
    "`--worker_num`, `-n` of\n"
    "mpirun or srun, of which `--ntasks-per-node` needs `--nodes`), or of `-n RANKS` "
    "before "
    "the command. A\n"
    "YAML file of MindSpeed-Core-MS "
    "is read in place of the command, and flags behind it count more:\n\n"
    "    stator import -n 64 -o gpt.yaml pretrain_gpt.yaml --train-iters 1000\n\n"
    "Every default of "
    "Megatron-LM, or of MindSpeed-Core-MS, "
    "that\n"
    "differs from the one here is written into the file. A flag that is not in the "
    "tables "
    "below, or\n"
    "that changes what is computed and is not there, is refused.\n\n"
    "A run begins with step 1, and what its folder has goes aside (`resume: never`), "
    "unless `--load` is\n"
    "given, without `--finetune` and `--no-load-optim`. With the folder of `--save` it "
    "goes on from\n"
    "there; with another one from that, each time the command is given, as Megatron-LM "
    "does:\n"
    "`--resume auto` goes on from it once, and then from what the run itself has saved. "
    "All\n"
    "checkpoints of a command line are kept "
    "(`callbacks.CheckpointMonitor.keep_checkpoint_max`).\n\n"
    "The same, and yet other numbers: first weights and dropout follow from random "
    "numbers of\n"
    "their own, which no strategy changes; gelu has the form with tanh, as Megatron-LM's "
    "fused\n"
    "one has; a warm-up of a part of the decay takes whole steps. The order of samples "
    "is that of\n"
    "Megatron-LM; validation takes the same ones each time ([data.md](data.md)).\n\n"
    "The file is read as any other ([keys.md](keys.md)): the names on the right are its "
    "keys.\n";

void page_of_megatron(FILE *out) {
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
    write_mindspeed(out);
    arena_free(mem);
}
