/* megatron.h - a command line of Megatron-LM or MindSpeed as a configuration: its words, by the
 * table megatron.def, and the keys that they become. A YAML file of MindSpeed-Core-MS stands for
 * such words (mindspeed.h). */
#ifndef STATOR_MEGATRON_H
#define STATOR_MEGATRON_H
#include "base/base.h"

typedef enum MegatronId {
#define FLAG(name, ...) MEGATRON_##name,
#include "frontend/config/megatron.def"
    MEGATRON_FLAGS
} MegatronId;

typedef enum MegatronKind {
    MEGATRON_TO,
    MEGATRON_OWN,
    MEGATRON_IDLE,
    MEGATRON_ONLY,
    MEGATRON_NOT
} MegatronKind;

enum { MEGATRON_MANY = -1 };

typedef struct MegatronFlag {
    const char *name; /* "num_layers" */
    int words;        /* behind it; MEGATRON_MANY: any number */
    MegatronKind kind;
    const char *what, *value; /* see megatron.def */
} MegatronFlag;
extern const MegatronFlag megatron_flag[MEGATRON_FLAGS];
/* "--num-layers" */
const char *megatron_name(Arena *mem, int id);

/* What was given. */
typedef struct Megatron {
    Arena *mem;
    const char *program; /* pretrain_gpt.py, or a YAML file; "" */
    bool file;           /* it is a YAML file */
    int64_t ranks;       /* of the launcher's words; 0: they do not say */
    const char *unread;  /* words of a launcher that are no number; NULL: none */
    struct {
        bool given;
        char **word;
        int n;
    } flag[MEGATRON_FLAGS];
    char **key; /* what it becomes: "--a.b.c=VALUE" */
    int nkeys, cap_keys;
    const char **note; /* lines for people: what is not quite the same */
    int nnotes, cap_notes;
    const char *
        *idle; /* lines: flags, and names of a YAML file, that have no effect, and why */
    int nidle, cap_idle;
    const struct MegatronFiles *
        *files; /* of tokenizers that were read (megatron_model.c) */
    int64_t
        micro_batches; /* of a step, for each replica; 0: --global-batch-size says it */
} Megatron;

/* The flag that a name is, with '-' or '_'; -1: none. */
int megatron_find(const char *name, size_t n);
/* Gives a flag its words, instead of those that it had. Fails as megatron_read. */
void megatron_give(Megatron *m, int id, int n, char **word);

/* Reads words such as "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 ...", or the flags
 * alone; before them may be a YAML file of MindSpeed-Core-MS (mindspeed.h). Of a flag that is given twice the last counts. Fails with EXIT_CONFIG for flags that
 * are not known, that change what is computed and are not there, or whose words are too many or
 * too few. */
Megatron *megatron_read(Arena *mem, int n, char **word);

/* Fills key, note and idle, for so many ranks (0: those of the launcher's words). Fails with EXIT_CONFIG
 * where flags are missing, or do not go together as Megatron-LM asks. */
void megatron_keys(Megatron *m, int64_t ranks);

#endif
