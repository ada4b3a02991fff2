/* import_unused.c - stator import tells of flags that change nothing beside the others. */
#include "../mem.h"
#include "../test.h"
#include "frontend/tools/megatron.h"

static const char base[] =
    "pretrain_gpt.py --num-layers 8 --hidden-size 192 --num-attention-heads 6 "
    "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 2 "
    "--global-batch-size 32 --train-iters 100 --lr 1e-3 --vocab-size 1000 "
    "--tokenizer-type NullTokenizer ";

static Megatron *made_of(const char *more, int ranks) {
    char *word[128];
    int n = 0;
    char *text = arena_printf(mem(), "%s%s", base, more);
    for (char *p = text; (p = strtok(p, " ")); p = NULL) word[n++] = p;
    Megatron *m = megatron_read(mem(), n, word);
    megatron_keys(m, ranks);
    return m;
}

/* Names of the flags that are told, with a blank behind each. */
static const char *unused(const char *more) {
    const Megatron *m = made_of(more, 4);
    Text t = text_new(mem());
    for (int i = 0; i < m->nidle; i++)
        text_add(&t, "%.*s ", (int)strcspn(m->idle[i], " "), m->idle[i]);
    return t.n ? t.s : "";
}

TEST(flags_without_the_one_that_they_belong_to) {
    static const char *const of[][3] = {
        {"--num-query-groups 2", "--group-query-attention", "--num-query-groups "},
        {"--use-rope-scaling", "--position-embedding-type rope", "--use-rope-scaling "},
        {"--loss-scale 1024", "--fp16", "--loss-scale "},
        {"--sgd-momentum 0.8", "--optimizer sgd", "--sgd-momentum "},
        {"--save-interval 3", "--save /tmp/x", "--save-interval "},
        {"--finetune", "--load /tmp/x", "--finetune "},
        {"--recompute-num-layers 2 --recompute-method block",
         "--recompute-granularity full", "--recompute-method --recompute-num-layers "},
        {"--split 8,1,1", "--data-path /tmp/x", "--split "},
        {"--sequence-parallel", "--tensor-model-parallel-size 2",
         "--sequence-parallel "}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        EXPECT_STR(unused(of[i][0]), of[i][2]);
        EXPECT_STR(unused(arena_printf(mem(), "%s %s", of[i][0], of[i][1])), "");
    }
}

TEST(why_one_has_no_effect_is_told) {
    static const struct {
        const char *flag, *said;
        int ranks;
    } of[] = {{"--position-embedding-type rope --use-rotary-position-embeddings",
               "--position-embedding-type has no effect beside "
               "--use-rotary-position-embeddings: it is for ",
               4},
              {"--use-distributed-optimizer",
               "--use-distributed-optimizer has no effect on 1 "
               "rank: it is for ",
               1},
              {"--num-query-groups 2",
               "--num-query-groups has no effect beside these flags: it "
               "is for ",
               1}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        const Megatron *m = made_of(of[i].flag, of[i].ranks);
        EXPECT_INT(m->nidle, 1);
        EXPECT_PART(m->idle[0], of[i].said);
    }
}

/* Of two that say one thing one can be left out, and the other then counts. */
TEST(of_two_that_say_one_thing_one_is_told) {
    EXPECT_STR(unused("--position-embedding-type rope --use-rotary-position-embeddings"),
               "--position-embedding-type ");
}

/* A flag whose value is that without it is read all the same. */
TEST(defaults_that_are_given_are_not_told) {
    EXPECT_STR(unused(""), "");
    EXPECT_STR(
        unused("--hidden-dropout 0.1 --attention-dropout 0.1 --lr-decay-style linear "
               "--position-embedding-type learned_absolute --optimizer adam "
               "--weight-decay 0.01 --tensor-model-parallel-size 1 "
               "--pipeline-model-parallel-size 1 --context-parallel-size 1 "
               "--ffn-hidden-size 768 --seed 1234 --lr-warmup-iters 0 --min-lr 0 "
               "--make-vocab-size-divisible-by 128 --clip-grad 1.0"),
        "");
}
