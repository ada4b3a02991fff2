/* f16c.h - f16 to f32 and back by the CPU's vectors, where it has them. */
#ifndef STATOR_F16C_H
#define STATOR_F16C_H
#include <stdbool.h>
#include <stdint.h>

/* Elements [begin, end), but for the last few; the first that is left is returned. Only
 * where f16c_works. */
bool f16c_works(void);
int64_t f16c_widen(float *to, const uint16_t *from, int64_t begin, int64_t end);
int64_t f16c_round(uint16_t *to, const float *from, int64_t begin, int64_t end);

#endif
