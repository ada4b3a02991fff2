/* tokenizer_along.c - files that belong to a tokenizer and are only taken along with it. */
#include "tokenizer.h"
#include <sys/stat.h>
#include <unistd.h>

static char *in_dir(Arena *mem, const char *dir, const char *name) {
    return path_join(mem, path_join(mem, temp_dir(), dir), name);
}

static void put(Arena *mem, const char *dir, const char *name, const char *text,
                size_t n) {
    EXPECT_INT(dir_make(path_join(mem, temp_dir(), dir)), 0);
    EXPECT_INT(file_write_atomic(in_dir(mem, dir, name), text, n), 0);
}

static Tokenizer *open_in(Arena *mem, const char *dir) {
    TokenizerSpec spec = {.tokenizer_file = in_dir(mem, dir, "tokenizer.json")};
    return tokenizer_open(mem, &spec);
}

static void write_to(Arena *mem, const Tokenizer *t, const char *dir) {
    tokenizer_write(t, path_join(mem, temp_dir(), dir));
}

static const char template[] = "{{ x }}\r\n\0\xFF";

static void expect_template(Arena *mem, const char *dir) {
    size_t n;
    char *got =
        file_read(mem, in_dir(mem, dir, "chat_template.jinja"), 4096, &n, EXIT_DATA);
    EXPECT(n == sizeof template && !memcmp(got, template, n));
}

/* Byte for byte, also into the folder that they come from. */
TEST(goes_along_as_it_is) {
    Arena *mem = arena_new();
    write_to(mem, train_on(mem, story, 270), "a");
    put(mem, "a", "chat_template.jinja", template, sizeof template);
    Tokenizer *t = open_in(mem, "a");
    EXPECT_STR(tokenizer_files(mem, t),
               "tokenizer.json, tokenizer_config.json, chat_template.jinja");
    write_to(mem, t, "b");
    expect_template(mem, "b");
    EXPECT_INT(encode(mem, open_in(mem, "b"), "the cat", 7, false).n,
               encode(mem, t, "the cat", 7, false).n);
    EXPECT(!file_exists(in_dir(mem, "b", "added_tokens.json")));
    write_to(mem, t, "a");
    expect_template(mem, "a");
    EXPECT(!unlink(in_dir(mem, "a", "tokenizer_config.json"))); /* none of GPT-2's */
    TokenizerSpec pair = {.type = "GPT2Folder",
                          .vocab_file = in_dir(mem, "a", "vocab.json"),
                          .merge_file = in_dir(mem, "a", "merges.txt")};
    write_to(mem, tokenizer_open(mem, &pair), "c");
    expect_template(mem, "c");
    arena_free(mem);
}

TEST(of_another_tokenizer_does_not_stay) {
    Arena *mem = arena_new();
    Tokenizer *t = train_on(mem, story, 270);
    write_to(mem, t, "a");
    put(mem, "a", "chat_template.jinja", template, sizeof template);
    put(mem, "a", "mine.jinja", "x", 1);
    write_to(mem, t, "a"); /* the same tokenizer: somebody has put it there */
    expect_template(mem, "a");
    write_to(mem, train_on(mem, story, 271), "a");
    EXPECT(!file_exists(in_dir(mem, "a", "chat_template.jinja")));
    EXPECT(file_exists(in_dir(mem, "a", "mine.jinja")));
    arena_free(mem);
}

/* Those by name go along as well, and a list of them in tokenizer_config.json. */
TEST(named_templates_go_along) {
    static const char config[] =
        "{\"eos_token\": \"<|endoftext|>\", \"chat_template\": [{\"name\": \"default\", "
        "\"template\": \"{{ x }}\"}, {\"name\": \"rag\", \"template\": \"\"}]}";
    Arena *mem = arena_new();
    Tokenizer *t = train_on(mem, story, 270);
    write_to(mem, t, "a");
    put(mem, "a", "tokenizer_config.json", config, sizeof config - 1);
    put(mem, "a/additional_chat_templates", "tool_use.jinja", "T", 1);
    put(mem, "a/additional_chat_templates", "rag.jinja", "R", 1);
    put(mem, "a/additional_chat_templates", "README", "x", 1);
    Tokenizer *read = open_in(mem, "a");
    EXPECT_STR(
        tokenizer_files(mem, read),
        "tokenizer.json, tokenizer_config.json, additional_chat_templates/rag.jinja,"
        " additional_chat_templates/tool_use.jinja");
    write_to(mem, read, "b");
    EXPECT_STR(
        file_read(mem, in_dir(mem, "b", "tokenizer_config.json"), 4096, NULL, EXIT_DATA),
        config);
    char *rag = in_dir(mem, "b", "additional_chat_templates/rag.jinja");
    EXPECT_STR(file_read(mem, rag, 4096, NULL, EXIT_DATA), "R");
    EXPECT(file_exists(in_dir(mem, "b", "additional_chat_templates/tool_use.jinja")));
    EXPECT(!file_exists(in_dir(mem, "b", "additional_chat_templates/README")));
    write_to(mem, train_on(mem, story, 271), "b");
    EXPECT(!file_exists(in_dir(mem, "b", "additional_chat_templates")));
    arena_free(mem);
}

TEST(that_cannot_be_taken_along) {
    Arena *mem = arena_new();
    write_to(mem, train_on(mem, story, 270), "a");
    put(mem, "a", "added_tokens.json", "{}", 2);
    char *path = in_dir(mem, "a", "added_tokens.json");
    EXPECT_INT(truncate(path, TOKENIZER_MAX_ALONG_BYTES), 0);
    open_in(mem, "a");
    EXPECT_INT(truncate(path, TOKENIZER_MAX_ALONG_BYTES + 1), 0);
    EXPECT_FAIL(open_in(mem, "a"), EXIT_DATA, "a/added_tokens.json");
    EXPECT(!unlink(path) && !mkfifo(path, 0600));
    EXPECT_FAIL(open_in(mem, "a"), EXIT_DATA, "added_tokens.json is not a regular file");
    arena_free(mem);
}
