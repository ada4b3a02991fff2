/* Models and weights as files: Hugging Face folders in and out, config.json, the user's
 * own module. */
#include "model_case.h"
#include "passes/passes.h"

/* ---- Hugging Face folders ---- */

static void same_tensors(Arena *mem, const char *dir_a, const char *dir_b) {
    Safetensors *a = safetensors_open(mem, dir_a, EXIT_DATA);
    Safetensors *b = safetensors_open(mem, dir_b, EXIT_DATA);
    EXPECT_INT(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        const SafeTensor *t = &a->t[i], *u = safetensors_find(b, t->name);
        if (!u) u = safetensors_need(b, arena_printf(mem, "transformer.%s", t->name));
        EXPECT(t->dtype == u->dtype && t->rank == u->rank && t->bytes == u->bytes);
        EXPECT(!memcmp(t->dim, u->dim, sizeof t->dim));
        EXPECT(!memcmp(t->data, u->data, (size_t)t->bytes));
    }
    safetensors_close(a);
    safetensors_close(b);
}

TEST(hugging_face_round_trip) {
    for (int i = 0; i < ARRAY_LEN(golden); i++) {
        Arena *mem = arena_new();
        Case c = case_open(mem, golden[i]);
        Run r = case_run(&c, MODEL_TRAIN, "", "model");
        const char *dir = path_join(mem, temp_dir(), golden[i]);
        weights_save_hf(dir, &c.spec, r.f, weight_at, &r, DT_F32);
        same_tensors(mem, c.dir, dir);
        ModelSpec again = model_spec_of_hf(mem, dir);
        EXPECT_STR(model_spec_json(mem, &again, false),
                   model_spec_json(mem, &c.spec, false));
        const Json *g = json_read(mem, path_join(mem, dir, "generation_config.json"),
                                  4096, EXIT_DATA);
        EXPECT(json_get_bool(g, "_from_model_config", false));
        EXPECT(!json_get(g, "eos_token_id"));
        safetensors_close(c.expected);
        arena_free(mem);
    }
}

TEST(save_reports_what_cannot_be_written) {
    Arena *mem = arena_new();
    Case c = case_open(mem, "gpt2_tiny");
    Run r = case_run(&c, MODEL_TRAIN, "", "model");
    const char *file = path_join(mem, temp_dir(), "file");
    EXPECT(!file_write_atomic(file, "x", 1));
    EXPECT_FAIL(weights_save_hf(file, &c.spec, r.f, weight_at, &r, DT_F32),
                EXIT_CHECKPOINT, "cannot make");
    safetensors_close(c.expected);
    arena_free(mem);
}

/* A copy of a case's weights, for tests that change it. */
typedef struct Copy {
    Arena *mem;
    Case c;
    Run r;
    Safetensors *file;
    SafeTensor *t;
    int n;
    const char *dir;
} Copy;

static Copy copy_open(const char *name) {
    Arena *mem = arena_new();
    Copy k = {.mem = mem, .c = case_open(mem, name)};
    k.r = case_run(&k.c, MODEL_TRAIN, "", "model");
    for (int i = 0; i < k.r.f->narg; i++) {
        if (is_param(k.r.f, i))
            memset(k.r.arg[0][i]->data, 0, (size_t)type_bytes(&k.r.arg[0][i]->ty));
    }
    k.file = safetensors_open(mem, k.c.dir, EXIT_DATA);
    k.n = k.file->n;
    k.t = NEW_ARRAY(mem, SafeTensor, (size_t)k.n + 4);
    memcpy(k.t, k.file->t, (size_t)k.n * sizeof *k.t);
    k.dir = path_join(mem, temp_dir(), "copy");
    EXPECT(!dir_make(k.dir));
    return k;
}

static SafeTensor *copy_find(Copy *k, const char *name) {
    for (int i = 0; i < k->n; i++) {
        if (!strcmp(k->t[i].name, name)) return &k->t[i];
    }
    test_fail(__FILE__, __LINE__, "no tensor %s", name);
}

static void copy_load(Copy *k) {
    const char *path = path_join(k->mem, k->dir, "model.safetensors");
    EXPECT(!safetensors_write(path, k->t, k->n, NULL, NULL));
    weights_load_hf(k->dir, k->r.f, weight_at, &k->r);
}

static void copy_close(Copy *k) {
    safetensors_close(k->file);
    safetensors_close(k->c.expected);
    arena_free(k->mem);
}

static bool untouched(Copy *k) {
    Tensor *t = arg_named(&k->r, "wte.weight");
    for (int64_t i = 0; i < type_count(&t->ty); i++) {
        if (tensor_get(t, i) != 0) return false;
    }
    return true;
}

TEST(load_refuses_what_does_not_fit) {
    Copy k = copy_open("gpt2_tiny");
    SafeTensor *t = copy_find(&k, "h.2.ln_1.weight"), was = *t;
    t->name = "h.2.ln_9.weight";
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT, "missing: h.2.ln_1.weight [32]");
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT, "extra: h.2.ln_9.weight [32]");
    *t = was;
    t = copy_find(&k, "h.0.attn.c_attn.weight");
    was = *t;
    t->dim[0] = 96, t->dim[1] = 32;
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT,
                "shape: h.0.attn.c_attn.weight is [96,32], the model has [32,96]");
    *t = was;
    t = copy_find(&k, "ln_f.bias");
    was = *t;
    t->dtype = DT_I32;
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT, "type: ln_f.bias is I32");
    *t = was;
    EXPECT(untouched(&k));
    copy_load(&k);
    EXPECT(!untouched(&k));
    copy_close(&k);
}

TEST(load_passes_over_prefix_and_buffers) {
    Copy k = copy_open("gpt2_tiny");
    float mask[4] = {0};
    for (int i = 0; i < k.n; i++)
        k.t[i].name = arena_printf(k.mem, "transformer.%s", k.t[i].name);
    k.t[k.n++] = (SafeTensor){
        "transformer.h.0.attn.bias", DT_F32, 4, {1, 1, 2, 2}, mask, 0, NULL, 0};
    k.t[k.n++] = (SafeTensor){"h.3.attn.masked_bias", DT_F32, 0, {0}, mask, 0, NULL, 0};
    copy_load(&k);
    Tensor *wte = arg_named(&k.r, "wte.weight");
    EXPECT(!memcmp(wte->data, safetensors_need(k.file, "wte.weight")->data,
                   (size_t)type_bytes(&wte->ty)));
    k.t[k.n - 1].name = "h.x.attn.masked_bias";
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT, "extra: h.x.attn.masked_bias []");
    copy_close(&k);
}

TEST(load_takes_a_tied_head_only_if_equal) {
    Copy k = copy_open("gpt2_tiny");
    SafeTensor *head = &k.t[k.n];
    *head = *copy_find(&k, "wte.weight");
    head->name = "lm_head.weight";
    k.n++;
    copy_load(&k);
    char *other = NEW_ARRAY(k.mem, char, (size_t)head->bytes);
    memcpy(other, head->data, (size_t)head->bytes);
    other[5] ^= 1;
    head->data = other;
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT,
                "extra: lm_head.weight [96,32] (the model's");
    copy_close(&k);
}

TEST(load_widens_bf16) {
    Copy k = copy_open("gpt2_tiny");
    SafeTensor *t = copy_find(&k, "ln_f.weight");
    uint16_t half[32];
    for (int i = 0; i < 32; i++) half[i] = (uint16_t)(0x3f80 + i); /* 1 + i/128 */
    t->dtype = DT_BF16;
    t->data = half;
    copy_load(&k);
    Tensor *got = arg_named(&k.r, "ln_f.weight");
    for (int i = 0; i < 32; i++) EXPECT(tensor_get(got, i) == 1 + i / 128.0);
    copy_close(&k);
}

TEST(hugging_face_names_and_shapes) {
    Arena *mem = arena_new();
    Case c = case_open(mem, "llama_tied_mqa");
    Module *m = model_build(mem, &c.spec, (ModelShape){1, 2, 0}, MODEL_TRAIN);
    HfMap map = hf_map(mem, model_entry(m));
    Safetensors *file = safetensors_open(mem, c.dir, EXIT_DATA);
    EXPECT_INT(map.n, file->n);
    for (int i = 0; i < map.n; i++) {
        const SafeTensor *t = safetensors_need(file, map.t[i].name);
        EXPECT(t->rank == map.t[i].rank && safetensors_count(t) == map.t[i].count);
        for (int d = 0; d < t->rank; d++) EXPECT_INT(t->dim[d], map.t[i].dim[d]);
        EXPECT_INT(map.t[i].first, MAX(map.t[i].layer, 0) * map.t[i].count);
    }
    safetensors_close(file);
    safetensors_close(c.expected);
    arena_free(mem);
}

/* ---- config.json ---- */

#define GPT2                                                                             \
    "{\"model_type\":\"gpt2\",\"vocab_size\":50,\"n_positions\":16,\"n_layer\":2,"
#define LLAMA                                                                            \
    "{\"model_type\":\"llama\",\"vocab_size\":50,\"max_position_embeddings\":16,"        \
    "\"num_hidden_layers\":2,\"hidden_size\":24,\"intermediate_size\":40,"               \
    "\"num_attention_heads\":4"

TEST(config_json_of_gpt2) {
    Arena *mem = arena_new();
    ModelSpec s = spec_of(mem, GPT2 "\"n_embd\":24,\"n_head\":3,\"n_inner\":null,"
                                    "\"activation_function\":\"quick_gelu\","
                                    "\"eos_token_id\":49,\"pad_token_id\":50}");
    EXPECT(s.family == MODEL_GPT2 && s.hidden == 24 && s.head_dim == 8 && s.ffn == 96);
    EXPECT(s.act == MLP_FAST_GELU && s.tied && s.embd_dropout == 0.1);
    EXPECT(s.n_eos == 1 && s.eos[0] == 49 && s.pad_token == -1 && s.bos_token == -1);
    EXPECT_NEAR(s.output_std, 0.01, 1e-12);
    EXPECT_FAIL(spec_of(mem, GPT2 "\"n_embd\":25,\"n_head\":3}"), EXIT_CONFIG,
                "3 heads do not divide the width 25");
    EXPECT_FAIL(spec_of(mem, GPT2 "\"n_head\":3}"), EXIT_CONFIG, "n_embd");
    EXPECT_FAIL(spec_of(mem, GPT2 "\"n_embd\":24,\"n_head\":3,"
                                  "\"scale_attn_by_inverse_layer_idx\":true}"),
                EXIT_CONFIG, "scale_attn_by_inverse_layer_idx true is not supported");
    EXPECT_FAIL(spec_of(mem, GPT2 "\"n_embd\":24,\"n_head\":3,"
                                  "\"activation_function\":\"gelu_old\"}"),
                EXIT_CONFIG, "unknown activation_function 'gelu_old'");
    EXPECT_FAIL(spec_of(mem, "{\"model_type\":\"gpt3\"}"), EXIT_CONFIG,
                "models of kind 'gpt3' are not there");
    arena_free(mem);
}

TEST(config_json_of_llama) {
    Arena *mem = arena_new();
    ModelSpec s = spec_of(mem, LLAMA ",\"head_dim\":8,\"eos_token_id\":[3,4,60]}");
    EXPECT(s.family == MODEL_LLAMA && s.kv_heads == 4 && s.head_dim == 8 && s.gated);
    EXPECT(s.n_eos == 2 && s.eos[1] == 4 && !s.tied && s.norm_eps == 1e-6);
    s = spec_of(mem, LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\","
                           "\"rope_theta\":5e5}}");
    EXPECT(s.rope_base == 5e5 && s.head_dim == 6);
    s = spec_of(mem, LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},"
                           "\"rope_parameters\":{\"rope_type\":\"default\","
                           "\"rope_theta\":10000}}");
    EXPECT(s.rope.type == ROPE_LINEAR && s.rope.factor == 4 && s.rope_base == 1e4);
    s = spec_of(mem, LLAMA ",\"rope_scaling\":{},\"rope_parameters\":{\"rope_type\":"
                           "\"linear\",\"factor\":2}}");
    EXPECT(s.rope.type == ROPE_LINEAR && s.rope.factor == 2);
    EXPECT_FAIL(spec_of(mem, LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},"
                                   "\"rope_parameters\":{\"rope_theta\":5e5}}"),
                EXIT_CONFIG, "rope_theta 500000 does not count beside rope_scaling");
    EXPECT_FAIL(spec_of(mem, LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\"}}"),
                EXIT_CONFIG, "unknown rope_type 'longrope'");
    EXPECT_FAIL(spec_of(mem, LLAMA ",\"quantization_config\":{}}"), EXIT_CONFIG,
                "quantization_config is not supported");
    EXPECT_FAIL(spec_of(mem, LLAMA ",\"num_key_value_heads\":3}"), EXIT_CONFIG,
                "3 heads of keys and values do not divide 4 heads");
    EXPECT_FAIL(spec_of(mem, LLAMA ",\"head_dim\":7}"), EXIT_CONFIG,
                "rotary positions turn pairs");
    arena_free(mem);
}

/* ---- model.file ---- */

static const char *module_file(Arena *mem, const char *text) {
    const char *path = path_join(mem, temp_dir(), "m.ir");
    EXPECT(!file_write_atomic(path, text, strlen(text)));
    return path;
}

static Module *model_of_file(Arena *mem, const char *path) {
    size_t n;
    const char *text = file_read(mem, path, MODEL_MAX_BYTES, &n, EXIT_CONFIG);
    return model_parse(mem, path, text, n);
}

#define HEADER "module @m mesh() level(global)\n"
#define DATA   "%x: f32[2,3] {role=\"data\"}"

TEST(module_from_text) {
    Arena *mem = arena_new();
    Module *m = model_of_file(mem, path_join(mem, tests_dir(), "ir/tiny_gpt.ir"));
    EXPECT_STR(model_entry(m)->name, "gpt");
    HfMap map = hf_map(mem, model_entry(m));
    EXPECT_STR(map.t[0].name, "wte");
    EXPECT(map.n == 16 && map.t[4].layer == -1 && map.t[4].rank == 5);
    static const struct {
        const char *text, *part;
    } bad[] = {
        {HEADER "func @f(" DATA ") -> (f32[]) {\n  %s = sum %x {bt->_} : f32[]\n"
                "  return %s\n}\n",
         "0 functions of role model"},
        {HEADER
         "func @f:model(%w: f32[2,3] {role=\"param\"; init=\"ones\"}) -> (f32[]) {\n"
         "  %s = sum %w {bt->_} : f32[]\n  return %s\n}\n",
         "no argument of role tokens"},
        {HEADER "func @f:model(" DATA ") -> (f32[]) {\n  %s = sum %x {bt->_} : f32[]\n"
                "  return %s\n}\n",
         "no argument of role param"},
        {HEADER "func @f:model(" DATA ", %w: f32[2,3] {role=\"param\"}) -> (f32[]) {\n"
                "  %s = sum %w {bt->_} : f32[]\n  return %s\n}\n",
         "parameter %w of @f has no init"},
        {HEADER "func @f:model(" DATA
                ", %w: f32[2,3] {role=\"param\"; init=\"ones\"}) -> "
                "(f32[2,3]) {\n  %s = add %x, %w : f32[2,3]\n  return %s\n}\n",
         "must be the loss, f32[]"},
        {HEADER "func @f:model(" DATA
                ", %w: f32[2,3] {role=\"param\"; init=\"ones\"}) -> "
                "(f32[], f32[2,3], f32[2,3]) {\n  %y = add %x, %w : f32[2,3]\n"
                "  %s = sum %y {bt->_} : f32[]\n  return %s, %y, %y\n}\n",
         "@f returns %y twice"},
        {HEADER
         "func @f:model(%t: i32[2,3] {role=\"tokens\"}, %w: f32[4] {role=\"param\"; "
         "init=\"ones\"}) -> (f32[]) {\n  %s = sum %w {v->_} : f32[]\n  return %s\n}\n",
         "no argument of role labels"},
        {HEADER "func @f:model(%t: f32[] {role=\"lr\"}) -> (f32[]) {\n  return %t\n}\n",
         "argument %t of @f has role lr"},
        {HEADER "func @f:model(" DATA ", %y: f32[3] {role=\"data\"}, %w: f32[2,3] "
                "{role=\"param\"; init=\"ones\"}) -> (f32[]) {\n  %s = sum %w {bt->_} : "
                "f32[]\n  return %s\n}\n",
         "%y of @f has 3 samples, %x has 2"},
        {HEADER "func @f:model(%x: f32[] {role=\"data\"}, %w: f32[2,3] "
                "{role=\"param\"; init=\"ones\"}) -> (f32[]) {\n  %s = sum %w {bt->_} : "
                "f32[]\n  return %s\n}\n",
         "must be f32 or i32 with the samples of a batch as its first dimension"},
        {HEADER "func @f:model(" DATA
                ", %w: f32[2,3] {role=\"param\"; init=\"ones\"}) -> "
                "(f32[], f32[2,3]=%w) {\n  %s = sum %x {bt->_} : f32[]\n"
                "  %n = scale %w {by=2} : f32[2,3]\n  return %s, %n\n}\n",
         "result 1 of @f overwrites %w"},
        {HEADER "func @f:model(" DATA
                ", %w: f32[2,3] {role=\"param\"; init=\"ones\"}) -> "
                "(f32[]) {\n  %s = sum %w {bt->_} : f32[]\n  return %s\n}\n",
         "made of no argument of role tokens, labels or data"},
        {HEADER "func @f:model(" DATA ", %w: f32[2,3] {role=\"param\"; init=\"ones\"; "
                "stage=1}) -> (f32[]) {\n  %s = sum %x {bt->_} : f32[]\n  return %s\n}\n",
         "argument %w of @f has stage"},
        {HEADER "func @f:model(" DATA ", %w: f32[2,3] {role=\"param\"; init=\"ones\"; "
                "decay=2}) -> (f32[]) {\n  %s = sum %x {bt->_} : f32[]\n  return %s\n}\n",
         "decay=2; write decay=1"},
        {HEADER "func @f:model(" DATA ", %w: f32[2,3] {role=\"param\"; init=\"normal\"; "
                "std=-1}) -> (f32[]) {\n  %s = sum %x {bt->_} : f32[]\n  return %s\n}\n",
         "std is a number of at least 0"},
    };
    for (int i = 0; i < ARRAY_LEN(bad); i++)
        EXPECT_FAIL(model_of_file(mem, module_file(mem, bad[i].text)), EXIT_CONFIG,
                    bad[i].part);
    /* where the model begins */
    EXPECT_FAIL(model_of_file(mem, module_file(mem, bad[3].text)), EXIT_CONFIG,
                ".ir:2:1: error");
    EXPECT_FAIL(model_of_file(mem, "no_such.ir"), EXIT_CONFIG, "no_such.ir");
    arena_free(mem);
}

/* Layers that nobody reads are no layers: neither for stages nor for what backward makes again. */
TEST(what_nobody_reads_is_no_part_of_a_module) {
    Arena *mem = arena_new();
    const char *text =
        HEADER "func @layer(%x: f32[2,3], %w: f32[3,3]) -> (f32[2,3]) {\n"
               "  %y = dot %x, %w {bi,io->bo} : f32[2,3]\n  return %y\n}\n"
               "func @other(%x: f32[2,3], %w: f32[3,3]) -> (f32[2,3]) {\n"
               "  %y = dot %x, %w {bi,io->bo} : f32[2,3]\n  return %y\n}\n"
               "func @net:model(" DATA ", %w: f32[4,3,3] {role=\"param\"; init=\"ones\"})"
               " -> (f32[]) {\n"
               "  %y = call %x, %w {fn=@layer; times=4; carry=1; each=1} : f32[2,3]\n"
               "  %z = call %y, %w {fn=@other; times=4; carry=1; each=1} : f32[2,3]\n"
               "  %s = sum %y {bt->_} : f32[]\n  return %s\n}\n";
    Module *m = model_of_file(mem, module_file(mem, text));
    EXPECT_INT(module_layers(m), 4);
    EXPECT(!module_find(m, "other"));
    arena_free(mem);
}
