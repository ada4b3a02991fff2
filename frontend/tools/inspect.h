/* inspect.h - what stator inspect says about each kind of file; private to the command.
 * Each prints what the file holds to stdout and fails when it is not sound: EXIT_DATA for
 * data, tokenizers and metrics, EXIT_CHECKPOINT for weights. */
#ifndef STATOR_INSPECT_H
#define STATOR_INSPECT_H
#include "frontend/config/options.h"

/* Samples of a configuration's data as training sees them. */
void inspect_samples(const Options *o);
/* `path` names the pair with or without .bin/.idx. Every token is read; with vocab > 0
 * each must be below it. */
void inspect_indexed(Arena *mem, const char *path, int64_t vocab);
/* A file, an index of shards, or a folder with one of them. */
void inspect_safetensors(Arena *mem, const char *path);
/* One folder with a manifest.json: checksums of all files too. */
void inspect_checkpoint(Arena *mem, const char *folder);
/* All checkpoints of a folder, newest first; each damaged one is named. */
void inspect_checkpoints(Arena *mem, const char *folder);
void inspect_metrics(Arena *mem, const char *path);
/* tokenizer.json, vocab.json or merges.txt (the other one next to it), with any prefix,
 * or a folder with them. */
void inspect_tokenizer(Arena *mem, const char *path);

#endif
