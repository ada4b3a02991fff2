/* recompute.h - from the keys of recompute_config to what pass remake takes. */
#ifndef STATOR_RECOMPUTE_H
#define STATOR_RECOMPUTE_H
#include "frontend/config/config.h"

typedef struct Recompute {
    const char *remake, *full; /* as in PassOptions; NULL: none */
} Recompute;

/* Fails with EXIT_CONFIG at the key for what is wrong or not there yet. */
Recompute recompute_of_config(Config *cfg);
#endif
