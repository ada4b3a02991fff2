/* peak.h - what this machine can do at best, measured: the base of every utilization. */
#ifndef STATOR_PEAK_H
#define STATOR_PEAK_H

/* GFLOP/s in f32 of `threads` threads that do nothing but fused multiply-adds in the
 * widest registers the CPU has (an FMA counts 2). Takes about 0.1 s. */
double bench_fma_peak(int threads);

/* GB/s of a[i] = b[i] + s * c[i] over arrays far larger than L2, 12 bytes counted per
 * element as STREAM's triad does (10^9 bytes a GB). Takes about 0.2 s and 96 MB; 0 when
 * that memory is not to be had. */
double bench_triad(int threads);

#endif
