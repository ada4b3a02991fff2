/* codegen.h - from a module to a program that runs. */
#ifndef STATOR_CODEGEN_H
#define STATOR_CODEGEN_H
#include "passes/passes.h"
#include "passes/pipe/schedule.h"
#include "runtime/run/op_rows.h"

/* Rows of products that have code of their own (rows_matmul.h); beyond that the units' peak
 * counts, not memory. */
enum { ROWS_MATMUL_MOST = 16 };

typedef struct CompileOptions {
    const char *cpu; /* NULL or "native": this host; see target_open */
    int threads;     /* 0: all cores */
    bool quick;      /* see target_hurry */
    bool lower_anew; /* whatever is kept; only modules of the same LLVM IR are found */
    struct ProductChoices
        *choices; /* of products (product_choices.h); NULL: the rule's */
    bool log_ops; /* tell op_log.h when ops begin and end, and perf their names */
    bool verbose; /* a line per pass and per stage of code generation to stderr */
    const char *memory_limit; /* context.max_device_memory as messages say it, or NULL */
    const char *memory_hint;  /* what to change where memory is not enough; NULL: as for
                                 training */
} CompileOptions;

/* With several ranks program_make is called by all, rank 0 compiles and the others get
 * its object. */

/* A compiled entry function with its memory plan. All memory it uses is one arena of
 * plan.total_bytes; nothing is allocated while it runs. */
typedef struct Program {
    Module *m;
    Func *entry;
    int stages; /* of the pipeline; entry is that of this rank's stage */
    /* By stage: its entry. Of other stages than this rank's only the arguments count, of
     * level local. */
    Func **step;
    MemoryPlan plan;
    void *arena;       /* NULL before program_allocate */
    void **arg, **ret; /* addresses of the entry's arguments and results */
    int threads;
    bool cached;                            /* the object came from the cache */
    double pass_seconds, codegen_seconds;   /* spent in program_make */
    const char *memory_limit, *memory_hint; /* of CompileOptions */
    const char *memory_where; /* which ranks have it, for messages; NULL: nothing */
    struct ProgramCode *code;
} Program;

/* "oneDNN 2.6.3, LLVM 19.1.7" */
const char *program_libraries(Arena *mem);
/* What the build is made of, as a hash: ranks of one run must have the same. */
const char *program_build_id(void);

/* Runs `passes` over a copy of m (which must end at level planned and have one entry function of
 * role step or model), generates or fetches the code and links it. Allocates no arena of numbers.
 * User failures: EXIT_CONFIG (module does not fit a pass, cpu unknown). */
Program *program_make(Arena *mem, const Module *m, const char *passes,
                      const PassOptions *po, const CompileOptions *co);
/* Bytes that it and so many besides have more than the limit; 0: none. */
uint64_t program_lacks(const Program *p, uint64_t beside_bytes, uint64_t limit_bytes);
/* Fails with EXIT_MEMORY, naming the classes and sizes of the plan, unless it and so many
 * bytes besides are within the limit, of which `limit` says whose it is (NULL:
 * context.max_device_memory), and `size` how large (NULL: in MB). */
void program_fit(const Program *p, uint64_t beside_bytes, uint64_t limit_bytes,
                 const char *limit, const char *size);
/* Maps and pre-faults the arena, zeroed. `shared` (or NULL) is a program whose arguments
 * of equal name, type and role param or cache are used instead of own ones; then those
 * have no bytes here. Fails with EXIT_MEMORY, naming the classes and sizes of the plan,
 * when plan.total_bytes and what the process has are more than limit_bytes (0 = no limit),
 * or memory_left has not that much. */
void program_allocate(Program *p, const Program *shared, uint64_t limit_bytes);
/* The same within the frame of `shared`, whose contents are lost: for a program that runs
 * between two runs of the other and gets all its other arguments again each time. Takes
 * memory of its own, as program_allocate does, when the frame is too small. */
void program_borrow(Program *p, const Program *shared, uint64_t limit_bytes);
/* Index of an entry argument by name; -1: none. */
int program_arg_named(const Program *p, const char *name);
/* Memory of the one of a role; NULL: none, as a stage that does not read it has. */
void *program_slot(const Program *p, ArgRole role);
/* All of its values, where there is one. */
void program_set(const Program *p, ArgRole role, const int32_t *value);
void program_run(Program *p);
void program_free(Program *p);
/* Of the step of a stage: its tasks in their order; *n of them. */
Task *program_tasks(Arena *mem, const Program *p, int *n);
/* The ops that code with log_ops tells of, by number; *n of them. */
OpRow *program_ops(Arena *mem, const Program *p, int *n);
/* One line per matmul with its implementation, for plan.json and -v. */
const char *program_describe(Arena *mem, const Program *p);

#endif
