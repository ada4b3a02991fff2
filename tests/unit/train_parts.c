/* Tests of stator train: parts of the data for validation and test that are short. */
#include "runs.h"

TEST_LABEL(QUICK);

enum { DOCUMENTS = 40 };

/* Documents of 10 tokens each. */
static const char *pair(void) {
    Text t = text_new(mem());
    const char *lines = in_temp("lines.txt"), *prefix = in_temp("pair");
    for (int i = 0; i < DOCUMENTS; i++) text_add(&t, "text %5d\n", i * i);
    write_text(lines, t.s);
    RUN_EXPECT(0, arena_printf(mem(),
                               "preprocess --input %s --output-prefix %s "
                               "--text-documents line --tokenizer-type ByteTokenizer",
                               lines, prefix));
    return arena_printf(mem(), "%s_text_document", prefix);
}

static void train(const char *data, const char *split) {
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --resume never --dataset_dir %s "
                               "--train_dataset.data_loader.split %s "
                               "--runner_config.eval_iters 2",
                               runs_small_config(3, 0), in_temp("run"), data, split));
}

/* Two batches are 8 sequences of 16. */
TEST_LIMIT(a_part_that_is_gone_through_again, 120) {
    const char *data =
        arena_printf(mem(), "%s --train_dataset.data_loader.type GPTDataset", pair());
    train(data, "30,9,1");
    SAID_EXPECT("note: the valid part has 90 tokens, and its 2 batches of 4 sequences "
                "take 128: they go through it about 1.42 times");
    SAID_EXPECT("note: the test part has 10 tokens, and its 2 batches of 4 sequences "
                "take 128: they go through it about 12.8 times");
    SAID_EXPECT("test at step 3: loss ");
    train(data, "13,14,13");
    EXPECT(!strstr(said(), "go through it"));
    SAID_EXPECT("test at step 3: loss ");
}

TEST_LIMIT(a_test_part_below_a_batch, 120) {
    pair();
    train(in_temp("lines.txt"), "7,3,1");
    SAID_EXPECT("note: the test split is not as large as a batch of 4 samples: there is "
                "no test at the end");
    SAID_EXPECT("note: the valid part has ");
    SAID_EXPECT(" samples, 1 batch of 4: a validation takes these, and not the 2 of ");
    EXPECT(!strstr(said(), "test at step"));
}
