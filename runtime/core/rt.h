/* rt.h - what generated code calls (rt.def), and the threads it runs on. */
#ifndef STATOR_RT_H
#define STATOR_RT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*RtBody)(void *ctx, int64_t begin, int64_t end, int64_t thread);

/* rt_parallel splits 0..n over the threads: with T = rt_threads(), part t is
 * [n*t/T, n*(t+1)/T) and body(ctx, part begin, part end, t) runs once for every part that
 * is not empty. The split depends on n and T alone, so the same program gives the same
 * bits. Returns when all parts are done. n <= 1 or T == 1 is one call on the calling
 * thread, as thread 0; a call from inside a part is one call too, with that part's thread
 * number (so that scratch memory by thread number is never shared). The pool is libgomp's,
 * as is oneDNN's.
 *
 * rt_parallel_balanced begins with the same parts, but calls body for pieces of them, and a
 * thread that has done its own part goes on with others': for bodies that give the same bits
 * however the items are cut and whichever thread runs them. Where other programs disturb one of
 * the cores the others do its work meanwhile.
 *
 * rt_collective: shape has for each part before, each, after, join_before, join_each,
 * join_after and the element type; after them a text that says where the op is, ended by
 * a zero. ws begins with n pairs of addresses (from, to); rt_collective_bytes(n) bytes of
 * it are for this call, the staging memory of comm_workspace_bytes follows them. */
#define PTR(type, name)                type *name
#define FUNC(type, name)               type name
#define I64(name)                      int64_t name
#define F64(name)                      double name
#define RT(result, name, params, what) result name params;
#include "runtime/core/rt.def"

enum { RT_PART_NUMBERS = 7, RT_LABEL_BYTES = 160 };
/* Of the workspace of a collective of n operands, in front of its staging: pointers and a
 * ticket. */
int64_t rt_collective_bytes(int64_t n);

/* Threads for rt_parallel, and for oneDNN when called from this thread. 0 means
 * STATOR_THREADS when that is set (EXIT_CONFIG when it is no number of threads), else
 * OMP_NUM_THREADS, else the share of rt_share_host or the cores that this process may
 * use. Two or more are bound, each to a core of its own, when there are enough cores that
 * no other rank runs on (unless STATOR_BIND=off, or a quota is less than the cores). More than 32
 * a core or than OpenMP gives fail with EXIT_CONFIG, more than the system gives with EXIT_MEMORY. Call it from the main thread, outside of
 * rt_parallel. */
void rt_set_threads(int threads);
/* The same number, of which none is started yet: for what only asks how many there are. Fails
 * with EXIT_CONFIG as above. */
void rt_count_threads(int threads);
int rt_threads(void);
/* Of each of so many ranks that share this host, as `stator launch` has them, where the
 * environment says nothing else. */
int rt_threads_of_ranks(int64_t ranks);
/* What STATOR_THREADS, or else the first number of OMP_NUM_THREADS, asks for; 0: neither
 * does. Fails as rt_set_threads does. */
int rt_threads_asked(void);
/* Of n threads that nobody asked for, what OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS leave. */
int rt_threads_left(int n);
enum { RT_THREADS_MOST = 4096 };
/* Other ranks of a run are on this host: threads of each, unless something else is said;
 * do they run on the same cores? */
void rt_share_host(int threads, bool same_cores);
/* For other threads that a bound one starts (they inherit its core): all cores again. */
void rt_unbind_thread(void);
/* Cores in this process's affinity mask, or those that the CPU quota of its cgroup is worth where
 * they are fewer; at least 1. */
int rt_cores(void);
/* By the quota alone; INT_MAX: there is none. */
int rt_quota_cores(void);
/* True, and a sentence in `out`, when there are more threads than cores to run them. */
bool rt_bind_warning(char *out, size_t size);

#endif
