/* peak.h - what this machine can do at best, measured: utilization is relative to it. */
#ifndef STATOR_PEAK_H
#define STATOR_PEAK_H

/* GFLOP/s in f32 of `threads` threads that do nothing but fused multiply-adds in the
 * widest registers the CPU has (an FMA counts 2). Takes about 0.1 s. */
double bench_fma_peak(int threads);
/* The same of products of bf16 summed in f32, on the unit that is named: AMX tiles or
 * AVX512-BF16 vectors. 0: the CPU has neither. */
double bench_bf16_peak(int threads, const char **unit);

#endif
