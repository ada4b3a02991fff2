/* data_tensors.c - ready batches: tensor `tokens` [steps, batch, seq+1] of a safetensors
 * file, in file order. */
#include "runtime/data/data_reader.h"
#include "runtime/store/safetensors.h"

typedef struct TensorSource {
    Safetensors *file;
    const unsigned char *bytes;
    int token_bytes;
} TensorSource;

/* One of the spec's sizes against the file's. */
static int64_t same_size(const Data *d, const char *what, int64_t spec, int64_t file) {
    if (spec && spec != file)
        fail(EXIT_DATA,
             "%s: tensor `tokens` has %s %lld, the configuration says %lld: make them "
             "equal",
             d->path, what, (long long)file, (long long)spec);
    return file;
}

static void tensors_open(Arena *mem, Data *d) {
    TensorSource *x = NEW(mem, TensorSource);
    d->state = x;
    x->file = safetensors_open(mem, d->path, EXIT_DATA);
    const SafeTensor *t = safetensors_need(x->file, "tokens");
    if ((t->dtype != DT_I32 && t->dtype != DT_I64) || t->rank != 3)
        fail(EXIT_DATA,
             "%s: tensor `tokens` is %s with %d dimensions; it must be I32 or I64 "
             "[steps, batch, seq_length + 1]",
             d->path, t->type_name, t->rank);
    if (t->dim[0] < 1 || t->dim[1] < 1 || t->dim[2] < 2)
        fail(EXIT_DATA,
             "%s: tensor `tokens` is [%lld, %lld, %lld]; it must be [steps, batch, "
             "seq_length + 1] with 1, 1 and 2 at least",
             d->path, (long long)t->dim[0], (long long)t->dim[1], (long long)t->dim[2]);
    d->batch = same_size(d, "a batch of", d->batch, t->dim[1]);
    d->seq = same_size(d, "a sequence length of", d->seq, t->dim[2] - 1);
    d->steps_available = t->dim[0];
    d->samples = t->dim[0] * t->dim[1];
    d->tokens = d->samples * t->dim[2];
    d->shuffle = false;
    x->bytes = t->data;
    x->token_bytes = dtype_bytes[t->dtype];
}

static void tensors_read(const Data *d, int64_t sample, int64_t from, int64_t n,
                         int32_t *out) {
    const TensorSource *x = d->state;
    int64_t limit = data_token_limit(d);
    size_t size = (size_t)x->token_bytes;
    const unsigned char *p = x->bytes + (size_t)(sample * (d->seq + 1) + from) * size;
    for (int64_t i = 0; i < n; i++, p += size) {
        int32_t narrow;
        int64_t token;
        memcpy(&narrow, p, sizeof narrow);
        if (size == sizeof narrow)
            token = narrow;
        else
            memcpy(&token, p, sizeof token);
        if (token < 0 || token >= limit)
            data_fail_token(d, "%s: tokens[%lld, %lld, %lld]: token %lld", d->path,
                            (long long)(sample / d->batch),
                            (long long)(sample % d->batch), (long long)(from + i),
                            (long long)token);
        out[i] = (int32_t)token;
    }
}

static void tensors_close(Data *d) {
    TensorSource *x = d->state;
    if (x && x->file) safetensors_close(x->file);
    if (x) x->file = NULL;
}

const DataReader data_tensors = {"TensorBatches", true,          tensors_open,
                                 tensors_read,    tensors_close, NULL};
