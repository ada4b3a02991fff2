/* run_tokenizer.h - the tokenizer that belongs to a run: that of the configuration, of the
 * data, or of the folder that the weights come from. */
#ifndef STATOR_RUN_TOKENIZER_H
#define STATOR_RUN_TOKENIZER_H
#include "frontend/config/config.h"
#include "runtime/text/tokenizer.h"

enum { TOKENIZER_KEYS = 3 };

/* The tokenizer that the keys name; a field that they leave out is NULL. */
TokenizerSpec tokenizer_of_keys(const Config *cfg);
/* The same; else of the one beside the data
 * (data_tokenizer_dir); else of tokenizer_of_folder of init_from or load_checkpoint, or of
 * output_dir when these are gone. All fields are NULL when there is none. Fails with EXIT_CONFIG
 * when the pairs of a blend were made by several. */
TokenizerSpec run_tokenizer(Arena *mem, const Config *cfg);
/* Does the spec name files, so that tokens are no bytes? */
bool run_tokenizer_found(const TokenizerSpec *s);
/* The keys of its files; what one names; of them all the first whose file a message names, or is
 * not there. NULL: none. */
extern const char *const tokenizer_keys[TOKENIZER_KEYS];
const char *tokenizer_key_file(const Config *cfg, int key);
const char *tokenizer_key_said(const Config *cfg, const char *message);
const char *tokenizer_key_gone(const Config *cfg);
/* Does it say that tokens are bytes? */
bool tokenizer_is_bytes(const TokenizerSpec *s);

/* The files of the tokenizer in a Hugging Face folder, a run folder, a folder of checkpoints
 * or a checkpoint: tokenizer.json, or vocab.json and merges.txt; all NULL: it has none. */
TokenizerSpec tokenizer_of_folder(Arena *mem, const char *dir);
/* The folder with the tokenizer that made the pair PREFIX.bin/.idx (either name will do). */
const char *data_tokenizer_dir(Arena *mem, const char *prefix);
/* The tokenizer.json beside the pairs of the data, which may be a blend: of those that have
 * one it is the same, else this fails with EXIT_CONFIG. NULL: none has one. */
const char *data_tokenizer(Arena *mem, const Config *cfg);

#endif
