/* recompute.h - from the keys of recompute_config to what pass remake takes. */
#ifndef STATOR_RECOMPUTE_H
#define STATOR_RECOMPUTE_H
#include "frontend/config/config.h"

struct Strategy;

/* Sets what the strategy makes again; its degrees are known. Fails with EXIT_CONFIG at the
 * key for what is wrong. */
void recompute_of_config(Config *cfg, struct Strategy *s);
/* Keys of layers that are made again in part. As numbers of layers they are about the chunks of their
 * configuration; names, True and False are about every layer. */
enum { RECOMPUTE_PARTS = 2 };
extern const char *const recompute_part_keys[RECOMPUTE_PARTS];
/* Does the configuration have numbers of layers in the nth of these keys? */
bool recompute_counts(const Config *cfg, int nth);
/* The nth of these keys has its default. */
void recompute_part_default(Config *cfg, int nth);
/* Can n layers of a chunk that has so many be made again? A number for all chunks (not `each`) is no
 * mistake where one has the embedding or the head alone. */
bool recompute_count_fits(int64_t n, int64_t layers, bool each);
/* Has each chunk the layers that are counted? Fails with EXIT_CONFIG at the key. */
void recompute_check_counts(const struct Strategy *s, const int64_t *layers, int chunks);
/* Names that values of a layer have in the placement that their readers want, where it is
 * another than their own: `norm` and `norm.gathered`. */
#define RECOMPUTE_GATHERED ".gathered"
#endif
