/* config_json.c - a Hugging Face config.json says to stator what it says to transformers, or is
 * refused at its place. */
#include "../mem.h"
#include "command.h"
#include "frontend/model/generation.h"
#include "frontend/model/model.h"

#define SIZES                                                                            \
    "\"vocab_size\":50,\"max_position_embeddings\":16,\"num_hidden_layers\":2,"          \
    "\"hidden_size\":32,\"intermediate_size\":40,\"num_attention_heads\":4,\"num_key_"   \
    "value_heads\":4"
#define GPT2                                                                             \
    "\"vocab_size\":50,\"n_positions\":16,\"n_layer\":2,\"n_embd\":32,\"n_head\":4"

static ModelSpec spec_of(const char *type, const char *more) {
    const char *sizes = strcmp(type, "gpt2") ? SIZES : GPT2;
    char *text = arena_printf(mem(), "{\"model_type\":\"%s\",%s%s}", type, sizes, more);
    return model_spec_of_json(mem(), "config.json", text, strlen(text));
}
#define REFUSED(type, more, part)                                                        \
    EXPECT_FAIL((void)spec_of(type, more), EXIT_CONFIG, part)

static const char *const families[] = {"gpt2",  "llama", "mistral",
                                       "qwen2", "qwen3", "gpt_neox"};

static void expect_keys(const char *family) {
    (void)spec_of(family, ",\"is_causal\":true,\"transformers_weights\":null");
    REFUSED(family, ",\"is_causal\":false", "tokens that follow");
    REFUSED(family, ",\"is_causal\":null", "tokens that follow");
    REFUSED(family, ",\"transformers_weights\":\"other.safetensors\"",
            "transformers_weights is not supported");
}

TEST(keys_of_all_families) {
    for (int i = 0; i < ARRAY_LEN(families); i++) expect_keys(families[i]);
}

TEST(layers_of_a_mistral_are_alike) {
#define WINDOW ",\"sliding_window\":5"
    EXPECT_INT(spec_of("mistral", WINDOW ",\"layer_types\":[\"sliding_attention\","
                                         "\"sliding_attention\"]")
                   .window,
               5);
    EXPECT_INT(spec_of("mistral",
                       WINDOW ",\"layer_types\":[\"full_attention\",\"full_attention\"]")
                   .window,
               0);
    EXPECT_INT(spec_of("mistral", WINDOW ",\"layer_types\":null").window, 5);
    REFUSED("mistral",
            WINDOW ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
            "layers of type sliding_attention are not supported");
    REFUSED("mistral",
            WINDOW ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
            "layers of type full_attention are not supported");
    REFUSED("mistral", WINDOW ",\"layer_types\":[3]", "string");
}

TEST(a_window_that_is_turned_off_where_that_does_not_count) {
    REFUSED("mistral", WINDOW ",\"use_sliding_window\":false",
            "use_sliding_window false does not count in a Mistral");
    EXPECT_INT(spec_of("mistral", ",\"sliding_window\":null,\"use_sliding_window\":false")
                   .window,
               0);
}

static void expect_windows(const char *type) {
#define ON ",\"use_sliding_window\":true,\"sliding_window\":5"
    EXPECT_INT(spec_of(type, ON).window,
               0); /* 28 layers without, as transformers has it */
    EXPECT_INT(spec_of(type, ON ",\"max_window_layers\":2").window, 0);
    EXPECT_INT(spec_of(type, ",\"use_sliding_window\":true,\"sliding_window\":null,"
                             "\"max_window_layers\":0")
                   .window,
               0);
    EXPECT_INT(spec_of(type, ON ",\"max_window_layers\":0,\"layer_types\":"
                                "[\"full_attention\",\"full_attention\"]")
                   .window,
               0);
    REFUSED(type, ON ",\"max_window_layers\":1",
            "a window in some layers of a Qwen is not supported");
    REFUSED(type, ",\"layer_types\":[\"sliding_attention\"]",
            "layers of type sliding_attention are not supported in a Qwen");
}

TEST(windows_of_a_qwen_that_no_layer_has) {
    expect_windows("qwen2");
    expect_windows("qwen3");
}

static void expect_unknown(const char *type) {
    test_at("%s", type);
    REFUSED(type, "", "hint: gpt2, llama, mistral, qwen2, qwen3 or gpt_neox");
}

TEST(names_that_are_not_known) {
    REFUSED("llama", ",\"rope_scaling\":{\"rope_type\":\"su\",\"factor\":2}",
            "hint: default, linear, dynamic, llama3 or yarn");
    static const char *const others[] = {"gemma",     "mixtral", "opt",
                                         "qwen2_moe", "phi3",    "lama"};
    for (int i = 0; i < ARRAY_LEN(others); i++) expect_unknown(others[i]);
    REFUSED("llama", ",\"hidden_act\":\"silo\"", "hint: silu");
}

TEST(sizes_that_are_missing) {
    static const char *const said[][3] = {
        {"llama", "hidden_size", "and a whole number"},
        {"gpt2", "n_positions", "and the most tokens of a text"},
        {"llama", "max_position_embeddings", "and the most tokens of a text"},
        {"gpt_neox", "max_position_embeddings", "and the most tokens of a text"}};
    for (int i = 0; i < ARRAY_LEN(said); i++) {
        test_at("%s %s", said[i][0], said[i][1]);
        const char *sizes = strcmp(said[i][0], "gpt2") ? SIZES : GPT2;
        char *text = arena_printf(mem(), "{\"model_type\":\"%s\",%s}", said[i][0], sizes);
        strstr(text, said[i][1])[0] = 'x';
        EXPECT_FAIL(
            (void)model_spec_of_json(mem(), "config.json", text, strlen(text)),
            EXIT_CONFIG,
            arena_printf(mem(), "hint: write \"%s\": %s", said[i][1], said[i][2]));
    }
}

TEST(rotary_positions_of_gpt_neox_have_names_of_their_own) {
    ModelSpec s = spec_of("gpt_neox", ",\"rotary_emb_base\":500,\"rotary_pct\":0.5");
    EXPECT(s.rope_base == 500 && s.rotary_percent == 0.5);
    s = spec_of("gpt_neox", ",\"rope_theta\":10000,\"partial_rotary_factor\":0.25");
    EXPECT(s.rope_base == 10000 && s.rotary_percent == 0.25);
    s = spec_of("gpt_neox",
                ",\"rope_theta\":700,\"rope_parameters\":{\"rope_type\":"
                "\"default\",\"rope_theta\":700,\"partial_rotary_factor\":0.5}");
    EXPECT(s.rope_base == 700 && s.rotary_percent == 0.5);
    REFUSED("gpt_neox", ",\"rope_theta\":500",
            "rope_theta 500 does not count: rotary_emb_base is 10000");
    REFUSED("gpt_neox", ",\"rotary_pct\":0.5,\"partial_rotary_factor\":0.25",
            "partial_rotary_factor 0.25 does not count: rotary_pct is 0.5");
    REFUSED("gpt_neox", ",\"head_dim\":16", "head_dim 16 does not count");
    EXPECT_INT(spec_of("gpt_neox", ",\"head_dim\":8").head_dim, 8);
}

TEST(positions_before_stretching_in_two_places) {
#define YARN                                                                             \
    ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,\"rope_theta\":100"
    EXPECT_INT(
        spec_of("llama", YARN ",\"original_max_position_embeddings\":8}").rope.original,
        8);
    EXPECT_INT(
        spec_of("llama", YARN "},\"original_max_position_embeddings\":8").rope.original,
        8);
    EXPECT_INT(spec_of("llama", YARN ",\"original_max_position_embeddings\":8},"
                                     "\"original_max_position_embeddings\":8")
                   .rope.original,
               8);
    REFUSED("llama",
            YARN ",\"original_max_position_embeddings\":8},"
                 "\"original_max_position_embeddings\":4",
            "original_max_position_embeddings 4 does not count");
}

/* As in transformers: null is as false. */
TEST(bounds_of_yarn_are_cut_unless_it_says_otherwise) {
    EXPECT(!spec_of("llama", YARN "}").rope.exact);
    EXPECT(!spec_of("llama", YARN ",\"truncate\":true}").rope.exact);
    EXPECT(spec_of("llama", YARN ",\"truncate\":false}").rope.exact);
    EXPECT(spec_of("llama", YARN ",\"truncate\":null}").rope.exact);
}

TEST(rotary_positions_of_kinds_of_layers_are_refused) {
    REFUSED("qwen2",
            ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\","
            "\"rope_theta\":100,\"factor\":4}}",
            "rotary positions of kinds of layers are not supported");
}

TEST(sizes_of_gpt2_have_two_names) {
    EXPECT_INT(spec_of("gpt2", ",\"num_attention_heads\":4,\"hidden_size\":32").heads, 4);
    REFUSED("gpt2", ",\"num_attention_heads\":2",
            "num_attention_heads 2 does not count: n_head is 4");
    REFUSED("gpt2", ",\"num_hidden_layers\":3", "n_layer is 2");
    REFUSED("gpt2", ",\"hidden_size\":64", "n_embd is 32");
    REFUSED("gpt2", ",\"max_position_embeddings\":32", "n_positions is 16");
}

/* ---- beside generation_config.json ---- */

static ModelSpec spec_of_folder(const char *name, const char *config,
                                const char *generation) {
    char *dir = temp(name);
    EXPECT_INT(dir_make(dir), 0);
    write_text(path_join(mem(), dir, "config.json"),
               arena_printf(mem(), "{\"model_type\":\"llama\"," SIZES "%s}", config));
    if (generation)
        write_text(path_join(mem(), dir, "generation_config.json"), generation);
    return model_spec_of_hf(mem(), dir);
}

TEST(older_folders_have_choices_in_config_json) {
    ModelSpec s = spec_of_folder("a", ",\"repetition_penalty\":1.5", NULL);
    EXPECT(s.choices.given[CHOICE_PENALTY] && s.choices.value[CHOICE_PENALTY] == 1.5);
    EXPECT(s.choices.given[CHOICE_DO_SAMPLE] && s.choices.value[CHOICE_DO_SAMPLE] == 0);
    s = spec_of_folder("b", ",\"repetition_penalty\":1.5", "{}");
    EXPECT(!s.choices.given[CHOICE_PENALTY]);
    (void)spec_of_folder("c", ",\"num_beams\":2,\"min_length\":5,\"length_penalty\":1",
                         NULL);
    EXPECT_STR(generation_file(mem(), temp("b")), "generation_config.json");
    EXPECT_STR(generation_file(mem(), temp("c")), "config.json");
    EXPECT_STR(generation_left_out(mem(), temp("c"), 0, NULL), "num_beams, min_length");
    s = spec_of_folder("c", "", NULL);
    EXPECT(!s.choices.given[CHOICE_PENALTY] && !s.choices.given[CHOICE_DO_SAMPLE]);
}

TEST(the_token_that_begins_a_text) {
    EXPECT_INT(spec_of_folder("a", ",\"bos_token_id\":5", NULL).bos_token, 5);
    EXPECT_INT(spec_of_folder("b", ",\"bos_token_id\":5", "{}").bos_token, 5);
    EXPECT_INT(
        spec_of_folder("c", ",\"bos_token_id\":5", "{\"bos_token_id\":7}").bos_token, 7);
    EXPECT_INT(spec_of_folder("d", "", "{\"bos_token_id\":7}").bos_token, 7);
    EXPECT_INT(
        spec_of_folder("e", ",\"bos_token_id\":5", "{\"bos_token_id\":50}").bos_token, 5);
}

TEST(several_prompts_of_numbers) {
    PREDICT(golden("llama_tiny"), "--greedy", "--tokens", "--max_new_tokens", "3",
            "--prompt_tokens", "1,2,3", "--prompt_tokens", "4,5");
    worked();
    EXPECT_PART(printed, "== 1 of 2");
    EXPECT_PART(printed, "== 2 of 2");
    PREDICT(golden("llama_tiny"), "--prompt_tokens", "1", "--prompt_tokens", "9999999");
    refused(EXIT_CONFIG, "9999999");
}
