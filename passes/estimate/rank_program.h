/* rank_program.h - the step of every rank, as short as its seconds need: stretches of compute
 * between two communications, and these. The ranks of a stage share its program. */
#ifndef STATOR_RANK_PROGRAM_H
#define STATOR_RANK_PROGRAM_H
#include "passes/estimate/step_parts.h"
#include "passes/pipe/schedule.h"

typedef enum RankPieceKind {
    RANK_COMPUTE,
    RANK_COLLECTIVE, /* at once, or begun */
    RANK_ARRIVE,     /* the wait for one that was begun */
    RANK_CALL,       /* of a function that communicates */
    RANK_DRAIN,      /* the queue of ops runs empty: func_time_drain */
    RANK_SEND,
    RANK_RECEIVE,
    RANK_SENT,
    RANK_PIECES
} RankPieceKind;

typedef struct RankPiece {
    RankPieceKind kind;
    double seconds; /* of compute, of a collective */
    double
        queued; /* of compute: of ops of this function; of a drain: to put them there */
    Axes axes;  /* of a collective, and of its arrive */
    int op;     /* OpKind of a collective, and of that of an arrive */
    bool pairs; /* all members send each other, not in a ring */
    int slot;   /* of a collective that is begun, and of its arrive; else -1 */
    int callee;
    int64_t times;
    int message; /* in the parts' list */
    bool is_task;
    Task task; /* compute or call of the entry: the task that it is */
} RankPiece;

typedef struct RankFunc {
    RankPiece *piece;
    int n, cap;
    bool communicates; /* or calls one that does */
    bool begins;       /* collectives */
} RankFunc;

typedef struct StageProgram {
    RankFunc *func; /* by Func.nth, callees first */
    int nfuncs, entry, slots;
    int tasks;
} StageProgram;

typedef struct RankProgram {
    StepParts parts;
    StageProgram *stage;
    int ranks; /* of a stage */
} RankProgram;
/* Pieces that a rank of each stage goes through in a step, all stages together. */
double rank_program_pieces(const RankProgram *p);

/* entry[s]: the planned step of stage s, of ranks of `threads` threads each. */
RankProgram rank_program(Arena *mem, const Machine *m, const Func *const *entry,
                         int stages, int threads);
#endif
