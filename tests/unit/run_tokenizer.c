/* run_tokenizer.c - the tokenizer that belongs to a run, by the commands: a text is
 * tokenized and cached, the tokenizer goes along into folders and exports, and predict takes
 * and gives words. */
#include "frontend/config/run_tokenizer.h"
#include "base/json.h"
#include "frontend/config/config_state.h"
#include "runs.h"
#include "runtime/data/data.h"
#include "tokenizer.h"

static const char yaml[] =
    "seed: 7\n"
    "model:\n"
    "  model_config: {type: GPT2Config, vocab_size: %d, seq_length: 32, hidden_size: 16, "
    "num_layers: 1, num_heads: 2}\n"
    "train_dataset:\n"
    "  data_loader: {type: TextFile, dataset_dir: text.txt, split: \"80,20\"}\n"
    "processor: {tokenizer: {type: GPT2Tokenizer, tokenizer_file: %s}}\n"
    "runner_config: {max_steps: 4, batch_size: 2, eval_iters: 1}\n"
    "context: {threads: 1}\n"
    "callbacks:\n"
    "  - {type: CheckpointMonitor, save_checkpoint_steps: 2}\n"
    "output_dir: run\n";

/* Runs a line in the temporary folder, S being the program; returns its output. */
static char *say(int want, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static char *say(int want, const char *fmt, ...) {
    char words[2048];
    va_list ap;
    va_start(ap, fmt);
    EXPECT(vsnprintf(words, sizeof words, fmt, ap) < (int)sizeof words);
    va_end(ap);
    const char *line = arena_printf(mem(), "cd '%s' && exec 2>&1; S='%s/stator'; %s",
                                    temp_dir(), BUILD_DIR, words);
    FILE *f = popen(line, "r");
    EXPECT(f);
    char *out = arena_alloc(mem(), 1 << 16);
    size_t n = fread(out, 1, (1 << 16) - 1, f);
    out[n] = 0;
    int status = pclose(f);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != want)
        test_fail(__FILE__, __LINE__, "%s: status %d, wanted %d:\n%s", words, status,
                  want, out);
    return out;
}

static char *text_in(const char *name) {
    return file_read(mem(), in_temp(name), 1 << 26, NULL, EXIT_DATA);
}

/* A text, a tokenizer of it in tok/, and a configuration for both. */
static void prepare(const char *tokenizer, int vocab) {
    runs_text();
    say(0, "$S tokenizer train --input text.txt --vocab-size 300 --output tok");
    write_text(in_temp("c.yaml"), arena_printf(mem(), yaml, vocab, tokenizer));
}

static char *caches(void) {
    return say(0, "ls | grep -c 'text.txt.tokens_.*cache' || true");
}

TEST_LABEL(RANKS);

TEST_LIMIT(a_text_is_tokenized_once, 120) {
    prepare("tok/tokenizer.json", 304);
    char *first = say(0, "$S train c.yaml");
    EXPECT_PART(first, "validation");
    EXPECT_STR(caches(), "1\n");
    /* A pair that preprocess makes has its tokenizer beside it. */
    say(0, "$S preprocess --input text.txt --tokenizer-file tok/tokenizer.json "
           "--output-prefix p");
    EXPECT(file_exists(in_temp("p_text_document.tokenizer/tokenizer.json")));
    say(0, "$S train c.yaml --output_dir run2 "
           "--tokenizer_file null --train_dataset.data_loader.type MegatronIndexed "
           "--dataset_dir p_text_document --train_dataset.data_loader.split '[]'");
    EXPECT(file_exists(in_temp("run2/tokenizer.json")));
    const char *file = text_in("text.txt");
    Arena *own = arena_new();
    TokenizerSpec spec = {.tokenizer_file = in_temp("tok/tokenizer.json")};
    Tokenizer *t = tokenizer_open(own, &spec);
    Ids all = encode(own, t, file, strlen(file), false);
    /* In file order the samples are the tokens of the whole text. */
    char *samples =
        say(0, "$S inspect c.yaml --train_dataset.data_loader.shuffle False --split "
               "train --samples 1 --json");
    Text want = text_new(own);
    for (int i = 32; i < 36; i++) text_add(&want, "%s%d", i > 32 ? "," : "", all.id[i]);
    char *flat = samples, *to = flat;
    for (char *p = samples; *p; p++)
        if (*p != ' ') *to++ = *p;
    *to = 0;
    EXPECT_PART(flat, want.s);
    EXPECT_STR(caches(), "1\n");
    arena_free(own);
}

TEST_LIMIT(caches_that_are_damaged_or_of_another_text, 120) {
    prepare("tok/tokenizer.json", 304);
    say(0, "$S train c.yaml --train_steps 1");
    say(0,
        "for f in text.txt.tokens_*; do printf x | dd of=$f bs=1 seek=200 conv=notrunc; "
        "done");
    EXPECT_PART(say(0, "$S train c.yaml --train_steps 1 --resume never"),
                "is made again");
    say(0, "echo more >>text.txt; $S train c.yaml --train_steps 1 --resume never");
    EXPECT_STR(caches(), "2\n");
    say(0,
        "mkdir there; $S train c.yaml --train_steps 1 --resume never "
        "--train_dataset.data_loader.data_cache_path there; ls there | grep -c tokens_");
}

/* The token between two texts is one of tokenizer_config.json, so tokens depend on that too. */
TEST_LIMIT(another_end_of_texts_is_another_cache, 120) {
    prepare("tok/tokenizer.json", 304);
    say(0, "mkdir texts; cp text.txt texts/a.txt; cp text.txt texts/b.txt");
    const char *run =
        "$S train c.yaml --train_steps 1 --resume never --dataset_dir texts "
        "--train_dataset.data_loader.data_cache_path there";
    say(0, "%s", run);
    say(0, "%s", run);
    EXPECT_STR(say(0, "ls there | wc -l"), "1\n");
    say(0, "echo '{\"eos_token\": \"a\"}' >tok/tokenizer_config.json");
    say(0, "%s", run);
    EXPECT_STR(say(0, "ls there | wc -l"), "2\n");
}

/* However it is named, and whatever caches lie in it: they are no text. */
TEST_LIMIT(a_folder_has_the_same_tokens_at_every_start, 120) {
    static const char *const names[] = {"texts",   "texts/",  "texts//",
                                        "texts/.", "./texts", "texts/a/.."};
    static const char inspect[] = "$S inspect %s/c.yaml --split train --samples 0 "
                                  "--tokenizer_file %s/tok/tokenizer.json";
    prepare("tok/tokenizer.json", 304);
    say(0, "mkdir -p texts/a; cp text.txt texts/a/b; echo more >texts/c");
    const char *here = arena_printf(mem(), inspect, ".", ".");
    const char *want = say(0, "%s --dataset_dir texts", here);
    for (int i = 0; i < ARRAY_LEN(names); i++)
        EXPECT_STR(say(0, "%s --dataset_dir %s", here, names[i]), want);
    EXPECT_STR(
        say(0, "cd texts; %s --dataset_dir .", arena_printf(mem(), inspect, "..", "..")),
        want);
    EXPECT_STR(say(0, "ls -A | grep tokens_ | wc -l"), "1\n");
    EXPECT_STR(say(0, "find texts -type f | wc -l"), "2\n");
    say(0, "%s --dataset_dir texts/c --model.model_config.seq_length 1", here);
    say(0,
        "rm texts.tokens_*; %s --dataset_dir texts "
        "--train_dataset.data_loader.data_cache_path texts",
        here);
    EXPECT_STR(say(0, "find texts -type f | wc -l"), "4\n");
    EXPECT_STR(say(0, "%s --dataset_dir texts", here), want);
}

static int64_t tokens_of(const char *name) {
    DataGptSpec gpt = {.samples = -1,
                       .epochs = 1,
                       .tokenizer_file = in_temp("tok/tokenizer.json"),
                       .cache_path = in_temp("cache")};
    DataSpec spec = {.type = "TextFile",
                     .path = in_temp(name),
                     .batch = 1,
                     .seq = 1,
                     .vocab = 304,
                     .gpt = &gpt};
    Data *d = data_open(mem(), &spec);
    int64_t n = d->tokens;
    data_close(d);
    return n;
}

/* Caches of a file and of a folder with that file alone are others. */
TEST_LIMIT(each_file_of_a_folder_ends, 120) {
    prepare("tok/tokenizer.json", 304);
    say(0,
        "mkdir one two; cp text.txt one/a; cp text.txt two/a; cp text.txt two/b; >one/b");
    int64_t n = tokens_of("text.txt");
    for (int again = 0; again < 2; again++) {
        EXPECT_INT(tokens_of("one"), n + 1);
        EXPECT_INT(tokens_of("two"), 2 * (n + 1));
        EXPECT_INT(tokens_of("text.txt"), n);
    }
}

/* Where none can be written a line says so. */
TEST_LIMIT(a_cache_that_cannot_be_written_is_told, 120) {
    prepare("tok/tokenizer.json", 304);
    EXPECT_PART(say(0, "echo >file; $S train c.yaml --train_steps 1 "
                       "--train_dataset.data_loader.data_cache_path file/folder"),
                "cannot be written");
}

TEST_LIMIT(the_tokenizer_goes_along, 120) {
    static const char *const places[] = {"run", "run/ckpt", "hf", "back", "moved"};
    static const char *const along[] = {"chat_template.jinja", "special_tokens_map.json",
                                        "added_tokens.json"};
    prepare("tok/tokenizer.json", 304);
    for (int i = 0; i < ARRAY_LEN(along); i++)
        write_text(in_temp(arena_printf(mem(), "tok/%s", along[i])), along[i]);
    say(0,
        "$S train c.yaml && $S convert --to hf run hf && $S convert --to stator hf back "
        "&& mv run/ckpt moved && rm -r tok");
    say(0, "cp -r moved run/ckpt; rm -r run/ckpt/step*");
    const char *first = text_in("run/tokenizer.json");
    for (int i = 0; i < ARRAY_LEN(places); i++) {
        EXPECT_STR(text_in(arena_printf(mem(), "%s/tokenizer.json", places[i])), first);
        for (int k = 0; k < ARRAY_LEN(along); k++)
            EXPECT_STR(text_in(arena_printf(mem(), "%s/%s", places[i], along[k])),
                       along[k]);
    }
    EXPECT_PART(text_in("hf/tokenizer_config.json"), "\"eos_token\": \"<|endoftext|>\"");
    EXPECT_PART(text_in("hf/generation_config.json"), "\"eos_token_id\": 299");
    const char *words = "--greedy --max_new_tokens 5 'one and' 2>/dev/null";
    char *want = say(0, "$S predict moved %s", words);
    EXPECT(!strncmp(want, "one and", 7) && strlen(want) > 8);
    EXPECT_STR(say(0, "$S predict moved/step_00000004 %s", words), want);
    EXPECT_STR(say(0, "$S predict hf %s", words), want);
    EXPECT_STR(say(0, "$S predict back %s", words), want);
}

/* Documents end with what config.json says, texts that are made with what
 * generation_config.json says; who names a token means both. */
TEST_LIMIT(training_keeps_both_ends, 120) {
    static const char ends[] = "grep -h -o 'eos_token_id.*' out/config.json "
                               "out/generation_config.json; rm -r out again";
    prepare("tok/tokenizer.json", 304);
    say(0, "$S train c.yaml && $S convert --to hf run hf");
    write_text(in_temp("hf/generation_config.json"), "{\"eos_token_id\": [5, 299]}");
    say(0, "$S train c.yaml --init_from hf --output_dir again && "
           "$S train again/config.yaml --train_steps 6 && "
           "$S convert --to hf again out");
    EXPECT_STR(say(0, "%s", ends), "eos_token_id\": 299,\neos_token_id\": [5, 299]\n");
    say(0, "$S train c.yaml --init_from hf --model.model_config.eos_token 3 "
           "--output_dir again && $S convert --to hf again out");
    EXPECT_STR(say(0, "%s", ends), "eos_token_id\": 3,\neos_token_id\": 3\n");
}

/* A folder of Hugging Face's without tokenizer.json says whose vocab.json it has. */
TEST_LIMIT(vocab_and_merges_of_a_folder, 120) {
    static const char ask[] = "$S predict hf --greedy --max_new_tokens 5 'one and'";
    prepare("tok/tokenizer.json", 304);
    say(0, "$S train c.yaml && $S convert --to hf run hf");
    char *want = say(0, "%s 2>/dev/null", ask);
    say(0, "rm hf/tokenizer*.json; cp tok/vocab.json tok/merges.txt hf");
    EXPECT_STR(say(0, "%s 2>/dev/null", ask), want); /* model_type gpt2 */
    write_text(in_temp("hf/tokenizer_config.json"),
               "{\"tokenizer_class\": \"GPT2Tokenizer\", \"bos_token\": "
               "\"<|endoftext|>\", \"eos_token\": null}");
    EXPECT_STR(say(0, "%s 2>/dev/null", ask), want);
    TokenizerSpec spec = tokenizer_of_folder(mem(), in_temp("hf"));
    EXPECT_INT(tokenizer_bos(tokenizer_open(mem(), &spec)), 299);
    write_text(in_temp("hf/tokenizer_config.json"),
               "{\"tokenizer_class\": \"Qwen2Tokenizer\"}");
    EXPECT_PART(say(EXIT_DATA, "%s", ask), "tokenizer_class is Qwen2Tokenizer, and");
    say(0, "$S predict hf --greedy --max_new_tokens 5 --prompt_tokens 1,2");
    EXPECT_PART(say(EXIT_DATA, "$S convert --to hf hf hf2"),
                "save a tokenizer.json beside");
    say(0, "rm hf/tokenizer_config.json; sed -i 's/\"gpt2\"/\"qwen2\"/' hf/config.json");
    EXPECT_FAIL(tokenizer_open(mem(), &spec), EXIT_DATA, "model_type is qwen2");
}

/* One pair, not a blend of words. */
TEST_LIMIT(a_pair_with_a_blank_in_its_name, 120) {
    prepare("null", 304);
    say(0, "mkdir 'my data'; $S preprocess --input text.txt --tokenizer-file "
           "tok/tokenizer.json --text-documents line --output-prefix 'my data/p'");
    say(0,
        "$S train c.yaml --train_dataset.data_loader.type GPTDataset --dataset_dir null "
        "--train_dataset.data_loader.data_path 'my data/p_text_document'");
    EXPECT(file_exists(in_temp("run/tokenizer.json")));
    say(0, "$S predict run one && $S eval run");
}

/* Documents end with the token that preprocess put there, whatever ends a text of the model. */
TEST_LIMIT(ends_of_documents_are_the_tokenizers, 120) {
    static const char words[] =
        "c.yaml --train_dataset.data_loader.type GPTDataset --dataset_dir "
        "d_text_document "
        "--train_dataset.data_loader.reset_position_ids True --tokenizer_file null "
        "--model.model_config.eos_token 3";
    prepare("tok/tokenizer.json", 304);
    say(0, "$S preprocess --input text.txt --text-documents line --append-eod "
           "--tokenizer-file tok/tokenizer.json --output-prefix d");
    const char *inspect =
        arena_printf(mem(), "$S inspect %s --split train --samples 0,1,2", words);
    const char *want = say(0, "%s --train_dataset.data_loader.eod 299", inspect);
    EXPECT_STR(say(0, "%s", inspect), want);
    EXPECT(strcmp(say(0, "%s --train_dataset.data_loader.eod 3", inspect), want));
    EXPECT_PART(say(0, "$S train %s", words),
                "documents end with token 299, as their tokenizer says; the "
                "model's eos_token is 3, which --train_dataset.data_loader.eod 3 takes");
    EXPECT_PART(say(0, "grep eod: run/config.yaml"), "eod: 299");
    /* Inspecting asks the weights as training does. */
    write_text(in_temp("w.yaml"),
               "init_from: hf\nseed: 7\ntrain_dataset:\n  data_loader:\n"
               "    {type: GPTDataset, dataset_dir: d_text_document, split: '80,20',\n"
               "     reset_position_ids: True}\n"
               "runner_config: {max_steps: 4, batch_size: 2, eval_iters: 1}\n");
    say(0, "$S convert --to hf run hf && grep -q '\"eos_token_id\": 3' hf/config.json");
    EXPECT_STR(say(0, "$S inspect w.yaml --split train --samples 0,1,2"), want);
}

/* Of a pair without one beside it, and of a model whose keys do not say how its texts end. */
TEST_LIMIT(a_named_tokenizer_says_what_ends_documents, 120) {
    const char *words =
        "c.yaml --train_dataset.data_loader.type GPTDataset --dataset_dir "
        "e_text_document --train_dataset.data_loader.reset_position_ids True "
        "--model.model_config.vocab_size 50300";
    prepare("tok/tokenizer.json", 304);
    say(0, "$S preprocess --input text.txt --text-documents line --append-eod "
           "--tokenizer-file tok/tokenizer.json --output-prefix e; rm -r *.tokenizer");
    const char *inspect =
        arena_printf(mem(), "$S inspect %s --split train --samples 0,1,2", words);
    const char *want = say(0, "%s --train_dataset.data_loader.eod 299", inspect);
    EXPECT_STR(say(0, "%s", inspect), want);
    EXPECT(strcmp(say(0, "%s --tokenizer_file null", inspect), want));
    EXPECT(!strstr(say(0, "$S train %s", words), "documents end with"));
    say(0, "grep 'eos_token: 299' run/config.yaml && $S convert --to hf run hf && grep "
           "-q '\"eos_token_id\": 299' hf/config.json");
    EXPECT_PART(say(0, "rm -r run; $S train %s --tokenizer_file null", words),
                "documents end with token 50256, the default of "
                "model.model_config.eos_token: there is no tokenizer that says so; "
                "another one is --train_dataset.data_loader.eod N");
    EXPECT(!strstr(say(0,
                       "rm -r run; $S train %s --tokenizer_file null "
                       "--model.model_config.eos_token 50256",
                       words),
                   "documents end with"));
    EXPECT_PART(say(EXIT_CONFIG,
                    "$S train %s --tokenizer_file null --model.model_config.vocab_size "
                    "304",
                    words),
                "hint: --train_dataset.data_loader.eod N");
}

TEST_LIMIT(words_of_predict, 120) {
    prepare("tok/tokenizer.json", 300);
    say(0, "$S train c.yaml --train_steps 150 --lr_schedule.learning_rate 1.e-2");
    /* Several prompts, samples and stops; lines of the input; no prompt. */
    char *json = say(0, "$S predict run 'one and' two --num_samples 2 --max_new_tokens 6 "
                        "--json --prompt three 2>/dev/null");
    int lines = 0;
    for (char *p = json, *end; *p; p = end + 1, lines++) {
        end = strchr(p, '\n');
        const Json *v =
            json_parse(mem(), "line", p, (size_t)(end - p), 1 << 20, EXIT_DATA);
        static const char *const prompts[] = {"one and", "two", "three"};
        EXPECT_STR(json_string(json_need(v, "prompt")), prompts[lines / 2]);
        EXPECT_INT(json_i64(json_need(v, "sample"), 0, 9), lines % 2);
        EXPECT_INT(json_need(v, "tokens")->n, json_need(v, "logprobs")->n);
        for (const Json *e = json_need(v, "logprobs")->first; e; e = e->next)
            EXPECT(json_f64(e) < 0 && json_f64(e) > -20);
        EXPECT_STR(json_string(json_need(v, "ended_by")), "length");
        /* The text is that of the tokens. */
        Text ids = text_new(mem());
        for (const Json *e = json_need(v, "tokens")->first; e; e = e->next)
            text_add(&ids, " %d", (int)e->i);
        char *text =
            say(0, "$S tokenizer decode --tokenizer-file run/tokenizer.json%s", ids.s);
        Text valid = text_new(mem());
        json_write_bytes(&valid, text, strlen(text));
        if (!strstr(valid.s, "\xEF\xBF\xBD"))
            EXPECT_STR(json_string(json_need(v, "text")), text);
    }
    EXPECT_INT(lines, 6);
    char *both = say(0, "printf 'one\\n\\ntwo\\r\\n' | $S predict run --prompt_lines - "
                        "--max_new_tokens 3 2>/dev/null");
    EXPECT(!strncmp(both, "== 1 of 2\none", 13) && strstr(both, "\n== 2 of 2\ntwo"));
    char *file = say(0, "printf 'one and' | $S predict run --prompt_file - "
                        "--max_new_tokens 3 2>/dev/null");
    EXPECT(!strncmp(file, "one and", 7));
    say(0, "$S predict run --max_new_tokens 3 >out && test -s out");
    EXPECT_PART(say(EXIT_DATA, "$S predict run --max_new_tokens 3 2>&1 >/dev/full"),
                "stator: error: cannot write to stdout: No space left on device");
    char *all =
        say(0, "$S predict run --max_new_tokens 12 --greedy --no_prompt 'one and' "
               "2>/dev/null");
    while (*all && !((*all >= 'a' && *all <= 'z') || (*all >= '0' && *all <= '9'))) all++;
    EXPECT(*all); /* it has learned some words */
    char *cut =
        say(0,
            "$S predict run --max_new_tokens 12 --greedy --no_prompt 'one and' --stop "
            "never --stop '%.1s' 2>&1 >/dev/null",
            all);
    EXPECT_PART(cut, "ended by stop text");
    /* The same as numbers. */
    char *ids = say(0, "$S tokenizer encode --tokenizer-file run/tokenizer.json one and");
    for (char *p = ids; *p; p++)
        if (*p == ' ' || *p == '\n') *p = p[1] ? ',' : 0;
    EXPECT_STR(
        say(0,
            "$S predict run --greedy --prompt_tokens %s --max_new_tokens 4 "
            "2>/dev/null",
            ids),
        say(0, "$S predict run --greedy 'one and' --max_new_tokens 4 2>/dev/null"));
    EXPECT_PART(say(2, "$S predict run one --prompt_file x"), "more than one prompt");
    EXPECT_PART(say(2, "$S predict run one --tokens --stop x"), "prints token numbers");
}

TEST_LIMIT(refused, 60) {
    prepare("tok/tokenizer.json", 299);
    EXPECT_PART(say(2, "$S train c.yaml"), "has 300 ids, the model a vocabulary of 299");
    EXPECT_PART(say(2, "$S plan c.yaml"), "hint: vocab_size 300");
    prepare("none.json", 304);
    EXPECT_PART(say(3, "$S train c.yaml"), "c.yaml:6:62: error: cannot open none.json");
    EXPECT_PART(
        say(2, "$S train c.yaml --tokenizer_file null --model.model_config.vocab_size "
               "300"),
        "stator tokenizer train --input");
    prepare("tok/tokenizer.json", 304);
    say(0, "$S train c.yaml --train_steps 2 && $S tokenizer train --input text.txt "
           "--vocab-size 320 --output tok && cp tok/tokenizer.json run/ckpt");
    EXPECT_PART(say(2, "$S predict run one"), "they do not belong together");
    say(0, "echo '{}' >run/ckpt/tokenizer.json");
    EXPECT_PART(say(3, "$S predict run one"), "run/ckpt/tokenizer.json:1:1: error:");
    say(0, "$S predict run --prompt_tokens 1,2 --tokens");
    EXPECT_PART(say(0, "$S predict run --prompt_tokens 1,2"),
                "note: without the tokenizer");
    /* Data that are tokens need none. */
    say(0, "$S preprocess --input text.txt --tokenizer-file tok/tokenizer.json "
           "--output-prefix p && echo '[]' >p_text_document.tokenizer/tokenizer.json");
    EXPECT_PART(say(0, "$S train c.yaml --output_dir run3 --tokenizer_file null "
                       "--train_dataset.data_loader.type MegatronIndexed --dataset_dir "
                       "p_text_document --train_dataset.data_loader.split '[]' "
                       "--model.model_config.vocab_size 320"),
                "note: the run keeps no tokenizer");
#define PAIR                                                                             \
    "c.yaml --train_dataset.data_loader.type MegatronIndexed --dataset_dir "             \
    "p_text_document --train_dataset.data_loader.split '[]' "                            \
    "--model.model_config.vocab_size 320 --tokenizer_file none.json"
    EXPECT_PART(say(3, "$S train " PAIR), "error: cannot open none.json");
    EXPECT_PART(say(3, "$S train " PAIR),
                "hint: --train_dataset.data_loader.tokenizer_file null: data that are");
    EXPECT_PART(say(0, "$S plan " PAIR), "note: command line:5: cannot open none.json");
#undef PAIR
    EXPECT_PART(say(2,
                    "$S preprocess --input text.txt --tokenizer-file tok/tokenizer.json "
                    "--output-prefix q >/dev/null; $S plan c.yaml --tokenizer_file null "
                    "--dataset_dir null --train_dataset.data_loader.type GPTDataset "
                    "--train_dataset.data_loader.data_path "
                    "'[p_text_document, q_text_document]' "
                    "--model.model_config.vocab_size 320"),
                "differ: the same number is another text");
}

/* Where a tokenizer puts a space before a text, none is shown, as in predict. */
TEST_LIMIT(a_text_of_no_prompt_begins_as_that_of_predict, 120) {
    prepare(runs_golden("tokenizers/llama2.json"), 408);
    write_text(in_temp("text.txt"), arena_printf(mem(), "%0*d", 9000, 0));
    say(0, "sed -i 's/000/ the/g' text.txt");
    say(0, "$S train c.yaml --train_steps 60 --lr_schedule.learning_rate 1.e-1 "
           "--sample_every 60 --sample_tokens 4 --model.model_config.do_sample False");
    char *want = say(0, "$S predict run --greedy --max_new_tokens 4 --json 2>/dev/null");
    char *got = say(0, "cat run/samples.jsonl");
    const Json *a = json_parse(mem(), "got", got, strlen(got), 1 << 20, EXIT_DATA);
    const Json *b = json_parse(mem(), "want", want, strlen(want), 1 << 20, EXIT_DATA);
    EXPECT_STR(json_string(json_need(a, "text")), json_string(json_need(b, "text")));
    EXPECT_STR(json_string(json_need(a, "text")), "the the the the");
}

/* Some tokenizers put a space before a text: an ending has none twice. */
TEST_LIMIT(endings_follow_their_context, 120) {
    static const char *const names[] = {"llama2", "qwen2"};
    static const char *const end[] = {"one", "two and three"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        const char *json =
            runs_golden(arena_printf(mem(), "tokenizers/%s.json", names[i]));
        TokenizerSpec spec = {.tokenizer_file = json};
        Tokenizer *t = tokenizer_open(mem(), &spec);
        prepare(json, (int)tokenizer_vocab(t));
        write_text(in_temp("e.jsonl"),
                   arena_printf(mem(),
                                "{\"ctx\": \"and so\", \"endings\": [\"%s\", \"%s\"], "
                                "\"label\": 0}\n",
                                end[0], end[1]));
        size_t want = 0, ctx = encode(mem(), t, "and so", 6, false).n;
        for (int k = 0; k < 2; k++) {
            const char *all = arena_printf(mem(), "and so %s", end[k]);
            want += encode(mem(), t, all, strlen(all), false).n - ctx;
        }
        char *said = say(0, "$S train c.yaml --resume never --train_steps 1 && "
                            "$S eval run --endings e.jsonl --json");
        EXPECT_PART(said, arena_printf(mem(), "\"tokens\": %zu", want));
    }
}

/* Cut anywhere, the ids of the parts are those of the whole. */
TEST(cuts) {
    static const char *const names[] = {"gpt2",    "neox",   "llama2", "llama2_metaspace",
                                        "mistral", "llama3", "qwen2"};
    static const char text[] = "if (a == b) { return  x; }  The cat's 12345 caf\xC3\xA9s "
                               "\xE4\xBD\xA0\xE5\xA5\xBD "
                               "and\n\n  more words, isn't it? a b c 1 2 3 ... end";
    Arena *own = arena_new();
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        TokenizerSpec spec = {.tokenizer_file = runs_golden(
                                  arena_printf(own, "tokenizers/%s.json", names[i]))};
        Tokenizer *t = tokenizer_open(own, &spec);
        Ids want = encode(own, t, text, strlen(text), false);
        for (size_t most = 40; most < sizeof text; most++) {
            Ids got = {NEW_ARRAY(own, int32_t, 1000), 0, 0};
            int parts = 0;
            for (size_t at = 0, next, n = strlen(text); at < n; at += next, parts++) {
                size_t size = tokenizer_cut(t, text + at, n - at, most, &next);
                EXPECT(size <= most && next >= size && next <= size + 1);
                Ids part = encode(own, t, text + at, size, false);
                memcpy(got.id + got.n, part.id, part.n * sizeof *part.id);
                got.n += part.n;
            }
            EXPECT(most >= strlen(text) || parts > 1);
            if (got.n != want.n || memcmp(got.id, want.id, got.n * sizeof *got.id) != 0)
                test_fail(__FILE__, __LINE__, "%s: other ids in parts of %zu", names[i],
                          most);
        }
    }
    arena_free(own);
}

/* The texts of a model that `source` names, with the prompt's tokens. */
static char *texts_of(const char *source) {
    return say(0,
               "$S predict %s --greedy --max_new_tokens 5 --json 'one and' 2>/dev/null",
               source);
}

/* What eval says of a text for the model that `source` names. */
static char *loss_of(const char *source) {
    return say(0, "$S eval %s --data text.txt --json 2>/dev/null | sed 's/\"seconds.*//'",
               source);
}

/* Makes a file of another tokenizer at `path`. */
static void replace(const char *path) {
    say(0,
        "printf 'and one two three and one, and one and one\\n%%.0s' 1 2 3 >other.txt && "
        "$S tokenizer train --input other.txt --vocab-size 264 --output other && "
        "cp other/tokenizer.json %s",
        path);
}

/* transformers has one of its own for some models. */
TEST_LIMIT(a_tokenizer_that_transformers_does_not_take, 120) {
    static const char note[] = "note: AutoTokenizer of transformers 5";
    static const char *const more[] = {
        "", "--model.model_config.type LlamaConfig",
        "--model.model_config.type LlamaConfig --model.model_config.add_qkv_bias True"};
    prepare("tok/tokenizer.json", 304);
    for (int i = 0; i < ARRAY_LEN(more); i++) {
        const char *out = say(0,
                              "rm -rf run hf; $S train c.yaml --train_steps 2 %s && "
                              "$S convert --to hf run hf 2>&1",
                              more[i]);
        test_at("%s", more[i]);
        EXPECT((strstr(out, note) != NULL) == (i == 2));
    }
}

/* Another tokenizer, none, or one beside the data alone: the folder of the weights has it or not. */
TEST_LIMIT(keys_name_the_tokenizer_of_predict, 120) {
    static const char *const named[] = {
        "d.yaml", "hf --tokenizer_file tok/tokenizer.json",
        "n.yaml --processor.tokenizer.tokenizer_file tok/tokenizer.json",
        "hf --train_dataset.data_loader.vocab_file tok/vocab.json "
        "--train_dataset.data_loader.merge_file tok/merges.txt"};
    prepare("tok/tokenizer.json", 304);
    say(0, "$S train c.yaml && $S convert --to hf run hf && "
           "sed 's/^output_dir.*/load_checkpoint: hf/' c.yaml >d.yaml && "
           "sed /^processor/d d.yaml >n.yaml");
    char *want = texts_of("run");
    for (int other = 0; other < 2; other++) {
        say(0, "rm -f hf/tokenizer*");
        if (other) replace("hf");
        for (int i = 0; i < ARRAY_LEN(named); i++) EXPECT_STR(texts_of(named[i]), want);
        say(0, "rm -rf out; $S convert --to hf d.yaml out && cmp tok/tokenizer.json "
               "out/tokenizer.json");
        if (other) EXPECT(strcmp(texts_of("n.yaml"), want) != 0);
    }
    say(0, "rm hf/tokenizer*");
    EXPECT_PART(say(2, "$S predict n.yaml one"), "name it, --tokenizer_file FILE, or");
    char *bytes = texts_of("hf --train_dataset.data_loader.tokenizer_type ByteTokenizer");
    EXPECT_PART(bytes, "\"prompt_tokens\":[111,110,101,32,97,110,100]");
    say(0,
        "mkdir p.tokenizer && cp tok/tokenizer.json p.tokenizer && "
        "sed -i 's/TextFile, dataset_dir: text.txt/GPTDataset, dataset_dir: p/' n.yaml");
    EXPECT_STR(texts_of("n.yaml"), want);
}

/* The file that the keys name has become another, or has moved. */
TEST_LIMIT(a_run_goes_by_its_copy, 120) {
    static const char *const own[] = {"run/config.yaml", "./run/config.yaml",
                                      "far/config.yaml"};
    static const char *const flag[] = {"--tokenizer_file moved.json",
                                       "--processor.tokenizer.tokenizer_file moved.json"};
    static const char elsewhere[] =
        "--output_dir far --callbacks.CheckpointMonitor.directory ck";
    prepare("tok/tokenizer.json", 304);
    say(0, "$S train c.yaml && $S train c.yaml %s && cp tok/tokenizer.json kept.json",
        elsewhere);
    char *want = texts_of("run"), *far = texts_of("far");
    char *loss = loss_of("run");
    replace("tok/tokenizer.json");
    EXPECT(strcmp(loss_of("c.yaml"), loss) != 0);
    EXPECT(strcmp(texts_of("c.yaml"), want) != 0);
    say(0, "mv kept.json moved.json");
    for (int gone = 0; gone < 2; gone++) {
        if (gone) say(0, "rm -r tok");
        EXPECT_STR(loss_of("run"), loss);
        for (int i = 0; i < ARRAY_LEN(own); i++) {
            EXPECT_STR(texts_of(own[i]), i == 2 ? far : want);
            if (i < 2) EXPECT_STR(loss_of(own[i]), loss);
            char *said = say(0, "$S predict %s one", own[i]);
            EXPECT(!strstr(said, "is not there"));
            say(0,
                "rm -rf out; $S convert --to hf %s out && cmp moved.json "
                "out/tokenizer.json",
                own[i]);
        }
    }
    EXPECT_STR(texts_of("c.yaml"), want);
    EXPECT_STR(loss_of("c.yaml"), loss);
    EXPECT_PART(say(0, "$S convert --to hf --force c.yaml out"),
                "note: c.yaml:6: train_dataset.data_loader.tokenizer_file "
                "tok/tokenizer.json is not there: takes run/ckpt/tokenizer.json");
    say(0, "sed 's|tokenizer_file: .*}}|tokenizer_file: \"\", vocab_file: tok/v.json, "
           "merges_file: tok/m.txt}}|' c.yaml >v.yaml");
    EXPECT_PART(say(0, "$S convert --to hf --force v.yaml out && cmp moved.json "
                       "out/tokenizer.json"),
                "data_loader.vocab_file tok/v.json is not there: takes run/ckpt/");
    for (int i = 0; i < ARRAY_LEN(flag); i++)
        EXPECT_STR(texts_of(arena_printf(mem(), "run/config.yaml %s", flag[i])), want);
    replace("moved.json");
    for (int i = 0; i < ARRAY_LEN(flag); i++) {
        char *with = arena_printf(mem(), "run/config.yaml %s", flag[i]);
        EXPECT(strcmp(texts_of(with), want) != 0);
        EXPECT(strcmp(loss_of(with), loss) != 0);
    }
    EXPECT(strcmp(loss_of("run --tokenizer_file moved.json"), loss) != 0);
    EXPECT_PART(say(EXIT_DATA, "$S predict run --tokenizer_file none.json one"),
                "command line:1:18: error: train_dataset.data_loader.tokenizer_file: "
                "cannot open none.json");
    say(0, "rm run/tokenizer* run/ckpt/tokenizer*");
    static const char *const command[] = {"predict c.yaml one",
                                          "convert --to hf c.yaml d",
                                          "convert --to stator run/config.yaml d"};
    for (int i = 0; i < ARRAY_LEN(command); i++) {
        char *said = say(EXIT_DATA, "$S %s", command[i]);
        EXPECT_PART(said, "train_dataset.data_loader.tokenizer_file: cannot open "
                          "tok/tokenizer.json: No such file");
        EXPECT_PART(said, i < 2 ? "c.yaml:6:" : "run/config.yaml:");
    }
    say(0, "$S predict c.yaml --prompt_tokens 1,2 --tokens");
}

/* The type of files is what an empty one is; bytes have none. */
TEST(of_a_folder_whatever_its_type_is_called) {
    static const char *const from[] = {"init_from", "pretrained_model_dir",
                                       "load_checkpoint"};
    static const char *const types[] = {"''", "GPT2BPETokenizer", "ByteTokenizer"};
    write_text(in_temp("tokenizer.json"), "{}");
    for (int i = 0; i < ARRAY_LEN(from); i++)
        for (int k = 0; k < ARRAY_LEN(types); k++) {
            const char *text = arena_printf(mem(),
                                            "%s: %s\ntrain_dataset: {data_loader: "
                                            "{type: TextFile, tokenizer_type: %s}}\n",
                                            from[i], temp_dir(), types[k]);
            Config *cfg = config_parse(mem(), "t.yaml", text, strlen(text));
            TokenizerSpec s = run_tokenizer(mem(), cfg);
            test_at("%s", text);
            EXPECT((s.tokenizer_file != NULL) == (k < 2));
            config_note_idle(cfg);
            EXPECT_INT(cfg->n_notes, 0);
        }
}
