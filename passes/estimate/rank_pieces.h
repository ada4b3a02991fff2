/* rank_pieces.h - inside of rank_seconds.c: what the pieces of a stage's program do to the
 * clocks of its ranks, and who is to blame for it. */
#ifndef STATOR_RANK_PIECES_H
#define STATOR_RANK_PIECES_H
#include "passes/estimate/rank_run.h"

/* Why a rank is as late as it is, but for jitter: of all lateness on the way to its clock, who
 * is the majority of it and by how much, as in a vote where each second against takes one away
 * (Boyer and Moore, "MJRTY", 1991). */
typedef struct Cause {
    int who; /* a rank; behind all ranks a slow link */
    double by;
} Cause;

/* A collective in flight, of a rank. */
typedef struct Begun {
    Flight flight;
    double seconds; /* that it takes */
    double waits;   /* of this rank for other members, until all have begun */
    int axes;       /* of the group, see RankSums */
    Cause late;     /* of the member that began last */
} Begun;

/* A message in flight, of each pair. */
typedef struct Mail Mail;
struct Mail {
    double *sent,
        *taken;  /* when; once both are there: when it arrives, and is on its way */
    Cause *late; /* of the sender; then of the one that came last */
    Mail *next;
};
typedef struct MailBox {
    Mail *mail;
    bool is_sent, is_there;
    int uses;
} MailBox;

typedef struct Frame {
    int func, at;
    int64_t left;  /* runs */
    int event;     /* of its run, in the log */
    int under_way; /* collectives of its callers */
} Frame;

typedef struct Lanes { /* the ranks of a stage */
    const StageProgram *p;
    int stage;
    const int *of_all; /* by rank: its number of all ranks */
    double *clock;
    Cause *late;
    const double *factor;
    const SlowOfStage *slow;
    const RankGroups *groups;
    double **queued; /* by function, where there is a queue */
    double *
        sending; /* by rank: until when late collectives are in flight; NULL: there are none */
    Begun **begun;  /* by slot */
    int *under_way; /* slots, those of the last frame behind those of its callers */
    int nunder_way;
    Frame *frame;
    int depth;
    uint32_t number; /* of pieces that draw */
    double task_begin;
} Lanes;

typedef struct RankWalk {
    Arena *mem;
    const RankRun *run;
    Arena *out_mem;
    RankStep *out;
    int64_t step;
    RankShow show;
    Lanes *lanes;
    MailBox *box; /* by message */
    Mail *spare;
    double *draw;         /* by rank or group */
    double *waited;       /* by rank: scratch of an arrival */
    double *top, *length; /* by group */
    Cause *last;
    int *who;
} RankWalk;

/* The piece at which the last frame is, on all ranks of the stage; false: a message is missing. */
bool rank_piece_run(RankWalk *w, Lanes *l, const RankPiece *p);
void rank_enter(Lanes *l, int func, int64_t times); /* a frame more */
/* A rank has waited for another: its lateness is that one's. */
void rank_take_late(RankWalk *w, Cause *mine, const Cause *theirs, double waited);

#endif
