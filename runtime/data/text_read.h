/* text_read.h - records (one per document) out of many text files, in order and with
 * bounded memory: loose JSON (an object per line) or plain text, as they are or
 * compressed with gzip (.gz) or zstd (.zst). */
#ifndef STATOR_TEXT_READ_H
#define STATOR_TEXT_READ_H
#include "runtime/core/buffer.h"
#include "runtime/text/text_stream.h"

/* A line or document of more bytes is not read: what a document costs in memory is a
 * multiple of its size. */
#define TEXT_RECORD_MAX      ((size_t)32 << 20)
#define TEXT_RECORD_TOO_LONG "longer than 32 MiB"

/* What of a file of plain text is a document. */
typedef enum TextDocument {
    TEXT_FILE,       /* the whole file */
    TEXT_BLANK_LINE, /* a run of lines without a blank one among them */
    TEXT_LINE        /* each line that is not blank */
} TextDocument;

typedef enum TextFormat { TEXT_BY_NAME, TEXT_JSON, TEXT_PLAIN } TextFormat;

typedef struct TextSpec {
    const char *const *inputs; /* files and glob patterns; files of a pattern sorted */
    int ninputs;
    TextFormat format;
    TextDocument document;
} TextSpec;

typedef struct TextRecord {
    size_t begin, n; /* in the batch's text, without the line end */
    int64_t line;    /* its first line, from 1 */
    int file;
    bool plain;    /* not JSON */
    bool too_long; /* a line above TEXT_RECORD_MAX: left out, n is 0 */
} TextRecord;

typedef struct TextBatch {
    Buffer text, records; /* records: TextRecord[] */
    uint64_t bytes;       /* of input that it was made from, decompressed */
} TextBatch;

static inline const TextRecord *text_records(const TextBatch *b, size_t *n) {
    *n = b->records.n / sizeof(TextRecord);
    return (const TextRecord *)(const void *)b->records.p;
}

/* Is line s[n] nothing but spaces? Readers of loose JSON pass it over. */
bool text_line_is_blank(const char *s, size_t n);

typedef struct TextReader TextReader;

/* Expands the patterns and looks at every file before the first is read. Fails with
 * EXIT_DATA when one is missing, a folder or cannot be read, and with EXIT_CONFIG when
 * the format is to follow from a name that does not tell it. */
TextReader *text_read_open(Arena *mem, const TextSpec *spec);

/* From then on `stop` ends waiting for a pipe, with EXIT_DATA. */
void text_read_stop_at(TextReader *r, TextStop stop);

/* Fills the batch (cleared first) with whole records of about `bytes` in all, at least
 * one. False at the end of the last file. Blank lines of JSON are passed over. Fails with
 * EXIT_DATA for a read error, a damaged or truncated compressed file (file and offset),
 * a file that is one JSON array, and plain text with too large a document. */
bool text_read_batch(TextReader *r, TextBatch *batch, size_t bytes);

/* Paths by TextRecord.file. */
int text_read_files(const TextReader *r);
const char *text_read_path(const TextReader *r, int file);
bool text_read_plain(const TextReader *r, int file);
/* Bytes on disk read so far, and in all (0: not known, a pipe is among them). Any thread
 * may ask. */
uint64_t text_read_done(const TextReader *r);
uint64_t text_read_total(const TextReader *r);
/* Closes what is open; also after a failure. */
void text_read_close(TextReader *r);

#endif
