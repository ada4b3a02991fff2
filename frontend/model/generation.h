/* generation.h - generation_config.json of a Hugging Face folder: where texts end and how
 * their tokens are chosen. */
#ifndef STATOR_GENERATION_H
#define STATOR_GENERATION_H
#include "base/json.h"
#include "frontend/model/model.h"
#include "runtime/text/sampler.h"
#include "runtime/text/tokenizer.h"

/* What the file in `dir` says, if there is one, into s->ends and s->choices. Choices are read
 * as transformers means them: one that names some and not do_sample never samples, and one
 * that samples without top_k takes 50. Fails with EXIT_CONFIG at its place, but not on a number out of
 * range, which generation_sampling refuses where it counts. */
void generation_read(Arena *mem, const char *dir, ModelSpec *s);
/* The text of such a file. */
char *generation_json(Arena *mem, const ModelSpec *s);
/* A flag that does what a key of the file would. */
typedef struct GenerationFlag {
    const char *key, *flag;
    bool given;
} GenerationFlag;
/* The file in `dir` that says how tokens are chosen: generation_config.json, or config.json of folders
 * from before there was one. */
const char *generation_file(Arena *mem, const char *dir);
/* Keys of that file that would change texts and have no place in a ModelSpec, with
 * commas between them; NULL: there are none, or no file. Behind a key that is one of n flags stands that
 * flag; where it is given the key is left out. */
const char *generation_left_out(Arena *mem, const char *dir, int n,
                                const GenerationFlag *flag);

/* The choices as members of an object: what generation_write_choices writes, with `before`
 * before each, is what generation_read_choices takes. */
TokenChoices generation_read_choices(const Json *object);
void generation_write_choices(Text *t, const TokenChoices *c, const char *before);

/* How tokens are chosen: by the keys that were given, else by the choices of the model (none of
 * them do_sample where temperature, top_k or top_p is given: who gives these wants to sample),
 * else by the defaults of the keys; `greedy`: always the best token. Fails with EXIT_CONFIG where a
 * choice of the model counts and is out of range. */
Sampling generation_sampling(const Config *cfg, const ModelSpec *s, bool greedy);
/* "top_k 20, top_p 0.8": what of it is of the model and counts; NULL: nothing. */
const char *generation_taken(Arena *mem, const Config *cfg, const ModelSpec *s,
                             bool greedy);

/* Where texts end: is it a token of the model's or of its tokenizer's (or NULL) that ends one? All
 * that are, *n of them. Tokens of a text, prompt included, before which none of them comes. */
bool generation_ends(const ModelSpec *s, const Tokenizer *t, int64_t token);
int *generation_end_tokens(Arena *mem, const ModelSpec *s, const Tokenizer *t, int *n);
int64_t generation_least(const Config *cfg, int64_t prompt);

#endif
