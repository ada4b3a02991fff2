/* rank_table.h - RANK_TABLE.json: which rank of a run stands on which server, in the
 * format that MindSpore's tools write. */
#ifndef STATOR_RANK_TABLE_H
#define STATOR_RANK_TABLE_H
#include "base/base.h"

enum { RANK_TABLE_MAX_BYTES = 64 << 20, MAX_RANKS = 65536, MAX_HOST_BYTES = 255 };

typedef struct RankTable {
    int ranks;
    const char **host; /* by rank: a host name or an IPv4 address */
} RankTable;

/* Reads a table. Fails with EXIT_CONFIG, the place and what to write there, unless:
 * version is "1.0", status is "completed", server_count is the number of servers, every
 * server has a device, and rank_ids are 0..n-1 each once. Numbers may be strings, as the
 * tools write them. */
RankTable *rank_table_read(Arena *mem, const char *path);
/* The same for bytes[n]; `name` is the file named in messages. */
RankTable *rank_table_parse(Arena *mem, const char *name, const char *bytes, size_t n);

/* May this stand where a host is expected? Letters, digits, '.', '-' and '_', at most
 * MAX_HOST_BYTES, no '-' in front: it becomes a word of other programs' commands. */
bool host_name_good(const char *s);

#endif
