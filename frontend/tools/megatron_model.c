/* megatron_model.c - the model of a command line of Megatron-LM: its sizes, vocabulary and types of
 * numbers. */
#include "frontend/config/run_tokenizer.h"
#include "frontend/tools/megatron_parts.h"

/* ---- model ---- */

static const char *positions_of(const Megatron *m) {
    const char *type = WORD(m, position_embedding_type, "learned_absolute");
    if (GIVEN(m, use_rotary_position_embeddings)) type = "rope";
    if (GIVEN(m, no_position_embedding) && strcmp(type, "rope") != 0) type = "none";
    return type;
}

/* Megatron-LM rounds 8/3 hidden_size down to a multiple of 64. */
static int64_t width_of_mlp(const Megatron *m, int64_t hidden) {
    int64_t width = GIVEN(m, swiglu) ? (int64_t)(4.0 * (double)hidden * 2 / 3) / 64 * 64
                                     : times_capped(4, hidden);
    return COUNT(m, ffn_hidden_size, width);
}

static void add_positions(Megatron *m) {
    const char *type = positions_of(m);
    bool stretched = GIVEN(m, use_rope_scaling) || GIVEN(m, rope_scaling_type);
    if (GIVEN(m, rope_scaling_type) && !IS(m, rope_scaling_type, "llama3"))
        fail(EXIT_CONFIG, "--rope-scaling-type %.60s: not there; llama3 is",
             WORD(m, rope_scaling_type, ""));
    megatron_add(m, MODEL "position_embedding_type", "%s", type);
    ADD(m, max_position_embeddings, MODEL "max_position_embeddings", NULL);
    if (strcmp(type, "rope") != 0) return;
    if (stretched && GIVEN(m, rotary_seq_len_interpolation_factor))
        fail(EXIT_CONFIG,
             "--use-rope-scaling and --rotary-seq-len-interpolation-factor: not "
             "there together");
    if (stretched) {
        megatron_add(m, MODEL "extend_method", "LLAMA3");
        ADD(m, rope_scaling_factor, MODEL "scaling_factor.factor", "8");
    } else if (GIVEN(m, rotary_seq_len_interpolation_factor)) {
        megatron_add(m, MODEL "extend_method", "PI");
        ADD(m, rotary_seq_len_interpolation_factor, MODEL "scaling_factor.factor", NULL);
    }
}

/* "4095,0" or "(4095, 0)": keys before a query, and behind it. --sliding-window is the pre_tokens of a
 * band in MindSpeed-LLM: keys before a query too. */
static void add_window(Megatron *m) {
    long long before, behind;
    const char *text = WORD(m, window_size, NULL);
    if (text && GIVEN(m, sliding_window))
        fail(EXIT_CONFIG, "--window-size and --sliding-window: keep one");
    if (GIVEN(m, sliding_window))
        megatron_add(m, MODEL "sliding_window", "%lld",
                     (long long)COUNT(m, sliding_window, 0) + 1);
    if (!text) return;
    bool read = sscanf(text, "(%lld ,%lld )", &before, &behind) == 2 ||
                sscanf(text, "%lld ,%lld", &before, &behind) == 2;
    if (!read || before < -1 || before > INT32_MAX || behind > 0)
        fail(EXIT_CONFIG,
             "--window-size %.60s: write the keys before a query and 0, such as 4095,0",
             text);
    if (before >= 0) megatron_add_count(m, MODEL "sliding_window", before + 1);
}

static void add_biases(Megatron *m) {
    bool biases = !GIVEN(m, disable_bias_linear), gelu = !GIVEN(m, swiglu);
    megatron_add(m, MODEL "add_bias_linear", "%s", biases ? "True" : "False");
    megatron_add(m, MODEL "add_qkv_bias", "%s",
                 biases || GIVEN(m, add_qkv_bias) ? "True" : "False");
    megatron_add(m, MODEL "hidden_act", "%s", gelu ? "gelu" : "swiglu");
    if (gelu && (!biases || GIVEN(m, no_bias_gelu_fusion)))
        megatron_note(
            m,
            "gelu: Megatron-LM fuses no bias here and takes erf, this has the form with "
            "tanh");
}

static void check_spec(const Megatron *m) {
    static const char name[] = "mindspeed_llm.tasks.models.spec.qwen3_spec";
    const int id = MEGATRON_spec;
    if (!GIVEN(m, spec)) return;
    bool known = m->flag[id].n == 2 && IS(m, spec, name) &&
                 !strcmp(m->flag[id].word[1], "layer_spec");
    if (known && GIVEN(m, qk_layernorm)) return;
    fail(EXIT_CONFIG, "--spec %.100s%s", WORD(m, spec, ""),
         known ? " is there with --qk-layernorm alone"
               : " asks for what is not there: layers by a Python module; write a "
                 "model.file");
}

void megatron_add_model(Megatron *m) {
    static const MegatronId needed[] = {MEGATRON_num_layers, MEGATRON_hidden_size,
                                        MEGATRON_num_attention_heads,
                                        MEGATRON_seq_length};
    for (int i = 0; i < ARRAY_LEN(needed); i++) megatron_need(m, needed[i]);
    check_spec(m);
    bool rms = GIVEN(m, normalization) && !strcmp(WORD(m, normalization, ""), "RMSNorm");
    bool llama = rms && GIVEN(m, swiglu) && !strcmp(positions_of(m), "rope");
    megatron_add(m, MODEL "type", "%s", llama ? "LlamaConfig" : "GPT2Config");
    if (!rms && !GIVEN(m, normalization))
        megatron_add(m, MODEL "normalization", "LayerNorm");
    ADD(m, num_layers, MODEL "num_layers", NULL);
    ADD(m, hidden_size, MODEL "hidden_size", NULL);
    ADD(m, num_attention_heads, MODEL "num_heads", NULL);
    ADD(m, seq_length, MODEL "seq_length", NULL);
    megatron_add_count(m, MODEL "ffn_hidden_size",
                       width_of_mlp(m, COUNT(m, hidden_size, 0)));
    if (GIVEN(m, group_query_attention))
        ADD(m, num_query_groups, MODEL "n_kv_heads", "1");
    add_positions(m);
    add_window(m);
    add_biases(m);
    megatron_add(m, MODEL "tie_word_embeddings", "%s",
                 GIVEN(m, untie_embeddings_and_output_weights) ? "False" : "True");
    ADD(m, hidden_dropout, MODEL "dropout_prob", "0.1");
    ADD(m, hidden_dropout, MODEL "hidden_dropout_prob", "0.1");
    ADD(m, attention_dropout, MODEL "attention_probs_dropout_prob", "0.1");
}

/* ---- vocabulary ---- */

/* Those that the type of the tokenizer takes; others may be given along. */
static TokenizerSpec files_of(const Megatron *m) {
    TokenizerSpec s = {0};
    const char *model = WORD(m, tokenizer_model, WORD(m, tokenizer_name_or_path, NULL));
    bool any = !GIVEN(m, tokenizer_type), bpe = IS(m, tokenizer_type, "GPT2BPETokenizer");
    if (IS(m, tokenizer_type, "NullTokenizer")) return s;
    if ((any || bpe) && GIVEN(m, vocab_file) && GIVEN(m, merge_file)) {
        s.vocab_file = WORD(m, vocab_file, NULL);
        s.merge_file = WORD(m, merge_file, NULL);
    } else if (!bpe && model && dir_exists(model)) {
        s = tokenizer_of_folder(m->mem, model);
    }
    return s;
}

/* What files of a tokenizer say, read once: keys are made many times. */
typedef struct MegatronFiles {
    const char *names;
    int64_t tokens, end; /* tokens 0: none of them is there */
    const struct MegatronFiles *next;
} MegatronFiles;

static void read_files(MegatronFiles *f, const TokenizerSpec *s) {
    const char *file = s->vocab_file ? s->vocab_file : s->tokenizer_file;
    if (!file || !file_exists(file) || (s->merge_file && !file_exists(s->merge_file)))
        return;
    Arena *own = arena_new();
    const Tokenizer *t = tokenizer_open(own, s);
    f->tokens = tokenizer_vocab(t);
    f->end = tokenizer_eod(t);
    arena_free(own);
}

static const char *or_none(const char *s) {
    return s ? s : "";
}

static const MegatronFiles *files_say(const Megatron *m, const TokenizerSpec *s) {
    const char *names =
        arena_printf(m->mem, "%s\n%s\n%s\n%s", or_none(s->type), or_none(s->vocab_file),
                     or_none(s->merge_file), or_none(s->tokenizer_file));
    for (const MegatronFiles *f = *m->files; f; f = f->next)
        if (!strcmp(f->names, names)) return f;
    MegatronFiles *f = NEW(m->mem, MegatronFiles);
    f->names = names;
    read_files(f, s);
    f->next = *m->files;
    *m->files = f;
    return f;
}

/* NullTokenizer has one more than it is given, which ends a document. */
static int64_t tokens_of(const Megatron *m, const TokenizerSpec *s) {
    int64_t n = COUNT(m, vocab_size, 0), of_files = files_say(m, s)->tokens;
    if (IS(m, tokenizer_type, "NullTokenizer")) n += n > 0;
    if (of_files) n = of_files;
    if (n < 1)
        fail(EXIT_CONFIG,
             "how many tokens? No file of a tokenizer that is here says it: write "
             "--padded-vocab-size N, or --vocab-size N, which is padded as Megatron-LM "
             "does");
    return n;
}

/* The token that ends a document: that of the files, where they are there; NullTokenizer's is the one
 * behind all others; -1: nothing here says it. */
static int64_t end_of(const Megatron *m, const TokenizerSpec *s) {
    enum { GPT2_END = 50256 };
    int64_t end = -1;
    if (files_say(m, s)->tokens) {
        end = files_say(m, s)->end;
    } else if (IS(m, tokenizer_type, "NullTokenizer")) {
        end = COUNT(m, vocab_size, -1);
    } else if (IS(m, tokenizer_type, "GPT2BPETokenizer")) {
        end = GPT2_END;
    }
    return end;
}

/* Where something depends on it. */
static void add_end(Megatron *m, const TokenizerSpec *s) {
    if (!GIVEN(m, reset_position_ids) && !GIVEN(m, reset_attention_mask) &&
        !GIVEN(m, eod_mask_loss))
        return;
    int64_t end = end_of(m, s);
    if (end >= 0)
        megatron_add_count(m, DATA "eod", end);
    else
        megatron_note(m, "no file of a tokenizer that is here says which token ends a "
                         "document: write " DATA "eod");
}

bool megatron_has_data(const Megatron *m) {
    return GIVEN(m, data_path) || GIVEN(m, train_data_path) || GIVEN(m, valid_data_path);
}

void megatron_add_vocabulary(Megatron *m, const MegatronSizes *s) {
    TokenizerSpec files = files_of(m);
    int64_t to = times_capped(COUNT(m, make_vocab_size_divisible_by, 128), s->tp);
    if (to < 1 || to > INT32_MAX)
        fail(EXIT_CONFIG, "--make-vocab-size-divisible-by: write 1 or more");
    int64_t size = COUNT(m, padded_vocab_size, 0);
    if (!size) {
        int64_t tokens = tokens_of(m, &files);
        if (tokens > INT32_MAX) fail(EXIT_CONFIG, "--vocab-size: too many tokens");
        size = round_up(tokens, to);
        if (size > tokens)
            megatron_note(m,
                          "vocabulary: %lld tokens, %lld with those that pad it to a "
                          "multiple of %lld",
                          (long long)tokens, (long long)size, (long long)to);
    }
    megatron_add_count(m, MODEL "vocab_size", size);
    if (s->tp > 1) megatron_add(m, PART "vocab_emb_dp", "False");
    if (!megatron_has_data(m)) return; /* nothing is tokenized */
    if (files.vocab_file) megatron_add(m, DATA "vocab_file", "%s", files.vocab_file);
    if (files.merge_file) megatron_add(m, DATA "merge_file", "%s", files.merge_file);
    if (files.tokenizer_file)
        megatron_add(m, DATA "tokenizer_file", "%s", files.tokenizer_file);
    add_end(m, &files);
}

/* ---- types ---- */

/* Gradients of fp16 are float16 unless a flag says otherwise, those of bf16 are float32, as
 * Megatron-LM has it. */
static void add_gradients(Megatron *m) {
    bool narrow = GIVEN(m, fp16) ? !GIVEN(m, accumulate_allreduce_grads_in_fp32)
                                 : GIVEN(m, bf16) && GIVEN(m, grad_reduce_in_bf16);
    if (narrow) megatron_add(m, MODEL "accumulate_allreduce_grads_in_fp32", "False");
}

/* Of products that tensor parallelism splits. */
static void add_sums(Megatron *m) {
    if (GIVEN(m, fp16) ||
        GIVEN(m, bf16)) /* a search may split what the script does not */
        megatron_add(m, MODEL "allreduce_activations_in_fp32", "False");
}

void megatron_add_types(Megatron *m) {
    bool f16 = GIVEN(m, fp16);
    if (f16 && GIVEN(m, bf16)) fail(EXIT_CONFIG, "--fp16 and --bf16: keep one");
    megatron_add(m, MODEL "compute_dtype", "%s",
                 f16              ? "float16"
                 : GIVEN(m, bf16) ? "bfloat16"
                                  : "float32");
    add_gradients(m);
    add_sums(m);
    if (!f16) return;
    if (REAL(m, loss_scale, 0) != 0) { /* 0 is a dynamic one */
        ADD(m, loss_scale, WRAP "loss_scale", NULL);
        return;
    }
    ADD(m, initial_loss_scale, WRAP "scale_sense.loss_scale_value", "4294967296");
    megatron_add_count(m, WRAP "scale_sense.scale_window",
                       (int64_t)REAL(m, loss_scale_window, 1000));
    ADD(m, hysteresis, WRAP "hysteresis", "2");
    ADD(m, min_loss_scale, WRAP "min_loss_scale", "1.0");
}
