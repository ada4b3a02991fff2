/* options.c - the words of commands by the one table, and what is made of the table: usage,
 * completion, the manual page. */
#include "../mem.h"
#include "../test.h"
#include "frontend/config/options_print.h"
#include <stdlib.h>

enum { MAX_WORDS = 16 };

/* Reads words parted by blanks. */
static Options *read_words(CommandId command, const char *words) {
    char *argv[MAX_WORDS] = {"command"}, *save;
    int argc = 1;
    for (char *w = strtok_r(arena_strdup(mem(), words), " ", &save); w;
         w = strtok_r(NULL, " ", &save)) {
        EXPECT(argc < MAX_WORDS);
        argv[argc++] = w;
    }
    return options_read(mem(), command, argc, argv);
}

#define READ(command, words) read_words(COMMAND_##command, words)
#define WRONG(command, words, message)                                                   \
    EXPECT_FAIL(READ(command, words), EXIT_CONFIG, message)

TEST(options_in_every_spelling) {
    Options *o = READ(preprocess, "--vocab_file a --merge-file=b=c --append_eod "
                                  "--workers 3 --input x y --input=z");
    EXPECT_STR(option_text(o, "--vocab-file"), "a");
    EXPECT_STR(option_text(o, "--merge-file"), "b=c");
    EXPECT(option_given(o, "--append-eod") && !option_given(o, "--output-prefix"));
    EXPECT(option_int(o, "--workers", 7) == 3 && option_int(o, "--log-interval", 7) == 7);
    EXPECT(!option_text(o, "--tokenizer-file") && o->nwords == 0);
    int n;
    const char **input = option_list(o, "--input", &n);
    EXPECT(n == 3 && !strcmp(input[0], "x") && !strcmp(input[2], "z"));
    o = READ(launch, "-np 4 --timeout=1.5 train c.yaml --timeout -n 2");
    EXPECT(option_int(o, "-n", 0) == 4 && option_number(o, "--timeout") == 1.5);
    EXPECT(o->nwords == 5 && !strcmp(o->word[4], "2")); /* the command's own */
    o = READ(launch, "-n 2 --program sleep --help");
    EXPECT_STR(option_text(o, "--program"), "sleep");
    EXPECT(o->nwords == 1 && !strcmp(o->word[0], "--help"));
    o = READ(tokenizer, "encode -x -- --vocab-file a");
    EXPECT(o->nwords == 4 && !option_given(o, "--vocab-file"));
    o = READ(convert, "from --to stator out");
    EXPECT(o->nwords == 2 && option_choice(o, "--to", 0) == 1);
    EXPECT(option_choice(READ(convert, "a"), "--to", -1) == -1);
}

TEST(keys_are_flags_for_the_configuration) {
    Options *o = READ(predict, "run --seed 7 --top_k=3 --greedy --context.cpu=native "
                               "--bare --prompt hi");
    EXPECT(o->nflags == 4 && o->nwords == 1 && option_given(o, "--greedy"));
    EXPECT_STR(o->flag[0], "--seed=7");
    EXPECT_STR(o->flag[1], "--model.model_config.top_k=3");
    EXPECT_STR(o->flag[2], "--context.cpu=native");
    EXPECT_STR(o->flag[3], "--bare");
    o = READ(train, "--profile runs/c.yaml --resume_training --dump_ir d");
    EXPECT(o->nwords == 1 && o->nflags == 3 && !strcmp(o->word[0], "runs/c.yaml"));
    EXPECT_STR(o->flag[0], "--profile");
    EXPECT_STR(o->flag[1], "--resume_training");
    o = READ(train, "c.yaml --profile True --profile=no --profile maybe --profile");
    EXPECT(o->nwords == 1 && o->nflags == 4);
    EXPECT_STR(o->flag[0], "--profile=True");
    EXPECT_STR(o->flag[1], "--profile=no");
    EXPECT_STR(o->flag[2], "--profile=maybe");
    EXPECT_STR(o->flag[3], "--profile");
    EXPECT(option_has_key(COMMAND_predict, "context.threads"));
    EXPECT(!option_has_key(COMMAND_plan, "context.threads"));
}

TEST(options_that_are_wrong) {
    WRONG(convert, "--ot hf",
          "unknown option --ot of stator convert: did you mean --to?");
    WRONG(convert, "a b c", "'c' is one word too many; stator help convert");
    WRONG(convert, "a b -n 2", "'-n' is one word too many; stator help convert");
    WRONG(train, "a -n 2", "stator launch -n RANKS train ... starts so many ranks");
    WRONG(convert, "--to onnx", "--to onnx: write hf or stator");
    WRONG(inspect, "--split dev", "write train, valid or test");
    WRONG(convert, "--force=1", "--force takes no value");
    WRONG(convert, "--to", "--to needs a value: --to hf|stator (was a bash array");
    WRONG(convert, "--to --force", "--to needs a value: --to hf|stator; one that looks");
    WRONG(convert, "--to hf --to hf", "--to is given twice");
    WRONG(launch, "-n", "-n needs a value: -n N");
    WRONG(launch, "-q 1 train", "unknown option -q of stator launch");
    WRONG(launch, "-n 0", "-n 0: write a whole number from 1 to 65536");
    WRONG(launch, "-n 99999999999999999999", "write a whole number");
    WRONG(launch, "--timeout nan", "--timeout nan: write a number above 0");
    WRONG(launch, "--program=-x", "--program needs a program");
    WRONG(preprocess, "--max-bad-lines -1", "write a whole number from 0 up");
    WRONG(preprocess, "--input a \\ --workers 2", "lone backslash");
    WRONG(preprocess, "--split-sentences", "BERT");
    WRONG(train, "c.yaml \\", "lone backslash");
    WRONG(train, "c.yaml --seed \\", "lone backslash");
    WRONG(predict, "run --tempreature 1", "stator predict: did you mean --temperature?");
    WRONG(plan, "c.yaml --jsn",
          "unknown option --jsn of stator plan: did you mean --json?");
    WRONG(predict, "run --max-new-token=4", "did you mean --max_new_tokens?");
    WRONG(eval, "run --dta x", "did you mean --data?");
    EXPECT_INT(READ(plan, "c.yaml --max_stepz 3")->nflags, 1); /* it is like a key */
    WRONG(tokenizer, "encode --allow", "unknown option --allow of stator tokenizer");
}

/* ---- what is made of the table ---- */

static char *made(void (*print)(FILE *out)) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    print(f);
    fclose(f);
    return text;
}

static void usages(FILE *out) {
    options_list(out);
    for (int c = 0; c < N_COMMANDS; c++) options_usage(out, (CommandId)c);
}

static void man(FILE *out) {
    options_man(out, "1.2");
}

static void bash(FILE *out) {
    options_completion(out, false);
}

/* Its options stand in the table once each, and in the usage and the completion. */
TEST(every_option_is_told) {
    const char *usage = made(usages), *completion = made(bash);
    for (int r = 0; r < n_options; r++) {
        char name[64];
        const OptionRow *row = &option_table[r];
        for (const char *at = row->names; option_next_name(&at, name);) {
            EXPECT(name[0] == '-' && row->help[0]);
            for (int k = r + 1; k < n_options; k++)
                EXPECT(option_table[k].command != row->command ||
                       strcmp(option_table[k].names, name));
            if (row->kind == OPTION_IDLE || row->kind == OPTION_REFUSED) continue;
            EXPECT(strstr(usage, name));
            EXPECT(strstr(completion, arena_printf(mem(), " %s", name)));
        }
    }
    for (const char *p = usage; *p; p += strcspn(p, "\n") + 1)
        EXPECT(strcspn(p, "\n") <= 100 && (p == usage || p[-1] == '\n'));
}

/* What bash makes of it: the words that could follow those of `line`. */
static const char *completed(const char *line, const char *last) {
    static char out[65536];
    const char *script = arena_printf(mem(), "%s/completion", temp_dir());
    char *text = made(bash);
    EXPECT(file_write_atomic(script, text, strlen(text)) == 0);
    FILE *f = popen(arena_printf(mem(),
                                 "bash -c 'source %s; COMP_WORDS=(stator %s \"%s\"); "
                                 "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _stator; "
                                 "echo \" ${COMPREPLY[*]} \"'",
                                 script, line, last),
                    "r");
    EXPECT(f != NULL);
    out[fread(out, 1, sizeof out - 1, f)] = 0;
    EXPECT(pclose(f) == 0);
    return out;
}

TEST(completion_of_bash) {
    EXPECT_STR(completed("", "pre"), " predict preprocess \n");
    EXPECT_STR(completed("convert --to", ""), " hf stator \n");
    EXPECT_STR(completed("train c.yaml", "--optimizer.t"), " --optimizer.type \n");
    EXPECT_STR(completed("launch -n 2", "tra"), " train \n");
    EXPECT_STR(completed("launch -n 2", "pre"), " predict \n");
    EXPECT_STR(completed("launch -n 2 predict run", "--js"), " --json \n");
    EXPECT(strstr(completed("train c.yaml --optimizer.type", ""), " AdamW "));
    EXPECT(!strstr(completed("convert", "--"), "--optimizer.type"));
    EXPECT(
        !strstr(completed("train", "--"), " --use_parallel ")); /* it changes nothing */
}

TEST(manual_page) {
    const char *page = made(man);
    EXPECT(!strncmp(page, ".TH STATOR 1 \"\" \"stator 1.2\"\n", 29));
    EXPECT(strstr(page, ".B \\-\\-prompt_tokens 1,2,3\n"));
    EXPECT(strstr(page, ".B \\-\\-optimizer.type\n"));
    static const char *const requests[] = {".TH ", ".SH ", ".SS ",  ".TP\n", ".PP\n",
                                           ".B ",  ".I ",  ".br\n", ".nf\n", ".fi\n"};
    for (const char *p = page; *p; p += strcspn(p, "\n") + 1) {
        bool known = *p != '.' && *p != '\'';
        for (int i = 0; i < ARRAY_LEN(requests) && !known; i++)
            known = !strncmp(p, requests[i], strlen(requests[i]));
        if (!known) test_fail(__FILE__, __LINE__, "%.*s", (int)strcspn(p, "\n"), p);
    }
}
