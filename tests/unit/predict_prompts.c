/* predict_prompts.c - several prompts: which of them a message is of, and the lines of a
 * file that they are in. */
#include "command.h"

static char *byte_model(void) {
    Arena *mem = arena_new();
    char *dir = temp("bytes");
    ModelSpec spec = spec_of_yaml(
        mem, "model: {model_config: {type: LlamaConfig, vocab_size: 256, seq_length: 32,"
             " hidden_size: 16, num_layers: 1, num_heads: 2, ffn_hidden_size: 24}}\n");
    Func *f;
    Weights w = make_weights(mem, &spec, &f);
    weights_save_hf(dir, &spec, f, weight_of, &w, DT_F32);
    arena_free(mem);
    return dir;
}

#define LONG "0123456789012345678901234567890123456789"

TEST(lines_of_prompts) {
    char *dir = byte_model(), *file = temp("p.txt");
    write_text(file, "\r\none\n\n\ntwo\r\n");
    PREDICT(dir, "--prompt_lines", file, "--json", "--max_new_tokens", "1");
    worked();
    EXPECT_PART(printed, "{\"prompt\":\"one\",\"line\":2,\"prompt_tokens\":");
    EXPECT_PART(printed, "\n{\"prompt\":\"two\",\"line\":5,\"prompt_tokens\":");
    PREDICT(dir, "--prompt", "one", "--json", "--max_new_tokens", "1");
    worked();
    EXPECT_PART(printed, "{\"prompt\":\"one\",\"prompt_tokens\":");
    write_text(file, "one\n\n" LONG "\ntwo\n");
    PREDICT(dir, "--prompt_lines", file, "--max_new_tokens", "1");
    refused(EXIT_CONFIG, "the prompt in line 3 of ");
    EXPECT_PART(message, "p.txt has 40 tokens and the model's context 32");
    write_text(file, "one\n01234567\n");
    PREDICT(dir, "--prompt_lines", file, "--max_decode_length", "8");
    refused(EXIT_CONFIG, "p.txt has 8 tokens and max_decode_length is 8");
    EXPECT_PART(message, "the prompt in line 2 of ");
}

TEST(the_second_prompt_is_named) {
    char *dir = byte_model();
    PREDICT(dir, "one", LONG, "--prompt", "two");
    refused(EXIT_CONFIG, "prompt 2 has 40 tokens");
    PREDICT(dir, "one", "--prompt", "");
    refused(EXIT_CONFIG, "prompt 2 is empty");
    PREDICT(dir, LONG);
    refused(EXIT_CONFIG, "the prompt has 40 tokens");
}

/* A byte order mark is no text, in a file of one prompt and in one of lines. */
TEST(a_byte_order_mark_is_no_prompt) {
    static char *const option[] = {"--prompt_file", "--prompt_lines"};
    char *dir = byte_model(), *file = temp("p.txt");
    for (int mark = 0; mark < 2; mark++)
        for (int i = 0; i < 2; i++) {
            write_text(file, mark ? "\xEF\xBB\xBFone" : "one\xEF\xBB\xBF");
            PREDICT(dir, option[i], file, "--json", "--max_new_tokens", "1");
            worked();
            EXPECT_PART(printed, mark ? "\"prompt\":\"one\"," : "one\xEF\xBB\xBF\",");
            EXPECT_PART(printed,
                        mark ? "\"prompt_tokens\":[111,110,101]," : ",239,187,191],");
        }
    write_text(file, "\xEF\xBB\xBF");
    PREDICT(dir, "--prompt_file", file);
    refused(EXIT_CONFIG, "the prompt is empty");
}
