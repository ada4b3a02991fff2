/* mindspeed.h - a YAML file of MindSpeed-Core-MS as flags of Megatron-LM. For megatron_read.c. */
#ifndef STATOR_MINDSPEED_H
#define STATOR_MINDSPEED_H
#include "frontend/tools/megatron.h"

typedef struct MindSpeed MindSpeed;

/* Gives what the file says. Fails with EXIT_CONFIG, at the place, for names that are not known,
 * that change what is computed and are not there, or whose values are none. */
MindSpeed *mindspeed_read(Megatron *m, const char *path);
/* Gives what MindSpeed-Core-MS takes for flags that nothing says, once all are read. */
void mindspeed_defaults(MindSpeed *s);

#endif
