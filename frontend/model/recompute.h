/* recompute.h - from the keys of recompute_config to what pass remake takes. */
#ifndef STATOR_RECOMPUTE_H
#define STATOR_RECOMPUTE_H
#include "frontend/config/config.h"

struct Strategy;

/* Sets what the strategy makes again; its degrees are known. Fails with EXIT_CONFIG at the
 * key for what is wrong. */
void recompute_of_config(Config *cfg, struct Strategy *s);
/* Has each chunk the layers that are counted? Fails with EXIT_CONFIG at the key. */
void recompute_check_counts(const struct Strategy *s, const int64_t *layers, int chunks);
/* Names that values of a layer have in the placement that their readers want, where it is
 * another than their own: `norm` and `norm.gathered`. */
#define RECOMPUTE_GATHERED ".gathered"
#endif
