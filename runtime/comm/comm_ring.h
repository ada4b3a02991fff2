/* comm_ring.h - collectives as steps between neighbours, segment by segment. */
#ifndef STATOR_COMM_RING_H
#define STATOR_COMM_RING_H
#include "runtime/comm/comm_link.h"
#include "runtime/comm/comm_stream.h"

/* What a kind of collective does to its parts. */
typedef struct KindInfo {
    Side from, to;
    bool sliced; /* pieces are ranges of the whole payload */
    bool reduces, max;
    bool gathers;   /* pieces go around until everybody has all */
    bool exchanges; /* each pair of members exchanges on its own */
} KindInfo;
extern const KindInfo comm_kind_info[COMM_KINDS];

/* Staging that ring_run needs for these parts, and the run itself, which returns the
 * bytes that this rank sent. The piece that ends at member k is summed in the order k+1,
 * k+2, ... (mod n), k. */
int64_t ring_workspace_bytes(CommKind kind, int members, const CommPart *part, int n);
int64_t ring_run(CommKind kind, const CommGroup *g, const CommPart *part, int n,
                 void *workspace);

#endif
