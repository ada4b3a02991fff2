/* text_stream.h - the bytes of one file, decompressed on the way when its name ends in
 * .gz (gzip, RFC 1952, members one after another) or .zst (zstd frames, RFC 8878). */
#ifndef STATOR_TEXT_STREAM_H
#define STATOR_TEXT_STREAM_H
#include "base/base.h"
#include <signal.h>
#include <stdatomic.h>

typedef struct TextStream TextStream;

/* What ends waiting, once it is not 0: a signal, and the end of the work in another thread. Each
 * may be NULL. */
typedef struct TextStop {
    const volatile sig_atomic_t *by_signal;
    const atomic_bool *by_work;
} TextStop;

/* What is no regular file, a named pipe say, is waited for until `stop`, which fails with
 * EXIT_DATA. Fails with it too when the file cannot be opened. */
TextStream *text_stream_open(const char *path, TextStop stop);
/* Up to `size` bytes to out; 0 is the end. Fails with EXIT_DATA for a read error and for
 * damaged or truncated compressed data, naming the offset in the file. */
size_t text_stream_read(TextStream *s, void *out, size_t size);
/* Bytes of the file read so far. */
uint64_t text_stream_offset(const TextStream *s);
void text_stream_close(TextStream *s);

/* "gzip" or "zstd" if a file that begins with bytes[n] is compressed so, else NULL. */
const char *text_stream_packing(const void *bytes, size_t n);
/* Length of `path` without .gz, .zst or .zstd. */
size_t text_stream_stem(const char *path);

#endif
