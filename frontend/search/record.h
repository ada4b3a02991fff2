/* record.h - what a search has found out, in a file, so that another run goes on with it: what
 * programs take of a rank, seconds of their pieces, plans. A search that looks something up and
 * finds it does what it would have done without, only sooner. */
#ifndef STATOR_RECORD_H
#define STATOR_RECORD_H
#include "frontend/plan/plan.h"
#include "frontend/search/probe.h"

typedef struct RecordedPlan {
    char keys[HASH_HEX_BYTES]; /* hash of the flags that it was made with */
    PlanCost cost;
    const char *why; /* it was refused; NULL: it was planned */
} RecordedPlan;

typedef struct Record Record;

/* Reads the file, if it is there. `hash` says what is searched, and with what program. Fails
 * with EXIT_CONFIG for the file of another search and for a file of something else; one that is
 * damaged counts as empty, and a line on stderr says so. path NULL: nothing is kept. */
Record *record_open(Arena *mem, const char *path, const char *hash);

/* Without its program (Probe.size). NULL: it is not there. */
const Probe *record_probe(const Record *r, ProbeKey key);
/* where: which groups have ranks of several hosts, below 2^52. */
const ProbeSeconds *record_pieces(const Record *r, ProbeKey key, int batch,
                                  uint64_t where);
const RecordedPlan *record_plan(const Record *r, const char *keys);

/* These write the file when it is a second old. */
void record_add_probe(Record *r, const Probe *p);
void record_add_pieces(Record *r, ProbeKey key, int batch, uint64_t where,
                       const ProbeSeconds *t);
void record_add_plan(Record *r, const RecordedPlan *p);
/* Writes it, whole or not at all, at the end, where the answer is there: a failure is a note. */
void record_finish(Record *r);

#endif
