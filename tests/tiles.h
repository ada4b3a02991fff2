/* tiles.h - tile registers (AMX) for tests on a CPU that has none: their instructions raise an
 * illegal instruction, and what catches it does what they would do. So code for tiles is run as
 * it is, only slowly. */
#ifndef STATOR_TESTS_TILES_H
#define STATOR_TESTS_TILES_H

/* From here on in this process; target_open takes tiles for a feature of the host then. Nothing
 * where the CPU has them. Skips the test on a CPU without AVX512-BF16, which every CPU with tiles
 * has. */
void tiles_need(void);

/* Fails unless so many instructions that multiply tiles have been done in place of the CPU; where
 * that does them itself they are not counted. */
void tiles_expect_dots(long least);

#endif
