/* peak.h - what this machine can do at best, measured: utilization is relative to it. */
#ifndef STATOR_PEAK_H
#define STATOR_PEAK_H
#include "base/base.h"

/* As long as measuring a peak may take for the best of the moments to be the machine's. */
#define PEAK_SECONDS 0.1
/* GFLOP/s in f32 of `threads` threads that do nothing but fused multiply-adds in the
 * widest registers the CPU has (an FMA counts 2). Takes about `seconds`, at least some tenths
 * of a millisecond. */
double peak_fma(int threads, double seconds);
/* Products of numbers of bf16 that tile registers make for one of f32 (codegen/gemm_tiles.c). */
#define F32_PRODUCTS_BY_TILES 6
/* The same of products of f32 on the unit that is named: tile registers, which multiply f32 as
 * sums of numbers of bf16, where they are faster at that, else fused multiply-adds. The time goes
 * to the faster one, after a short look at both. */
double peak_f32(int threads, double seconds, const char **unit);
/* The same of products of bf16 summed in f32, on the unit that is named: AMX tiles or
 * AVX512-BF16 vectors. 0: the CPU has neither, or its vectors are slower at that than at fused
 * multiply-adds of f32 (Intel's, which leave it to the tiles), which then multiply bf16 too. */
double peak_bf16(int threads, double seconds, const char **unit);
/* Asks Linux for tile registers, which it gives to processes that ask for them, and then to all
 * threads: are they given? */
bool tiles_granted(void);
/* Bytes a second that `threads` threads read and write together: a[i] = b[i] + c * d[i], three
 * moves an element, over much more than caches hold. Takes at most 0.3 s; 0: there is no
 * memory for it. */
double memory_bandwidth(int threads);
/* The same in so many bytes, where those are fewer: what a program of that size reads and writes
 * at best, from caches if it lies in them. */
double memory_bandwidth_within(int threads, uint64_t bytes);

/* Of this host, as /proc/cpuinfo has it, printable: "AMD EPYC"; "unknown CPU". */
const char *cpu_model(Arena *mem);

#endif
