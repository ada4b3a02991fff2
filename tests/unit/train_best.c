/* Tests of the checkpoint with the lowest validation loss over several starts of a run. */
#include "frontend/config/commands.h"
#include "ranks.h"
#include "runtime/store/ckpt_files.h"

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

/* Validates and saves at steps 4, 8 and 12, with a loss that falls. */
#define VALIDATES                                                                        \
    "--train_dataset.data_loader.split 8,2 --runner_config.eval_interval 4 "             \
    "--runner_config.eval_iters 2 --lr_schedule.learning_rate 1e-2 "                     \
    "--lr_schedule.total_steps 12 "
#define KEEPS_BEST "--callbacks.CheckpointMonitor.save_best True "

static const char *train(int ranks, const char *more) {
    const char *run = in_temp("run"), *config = runs_small_config(12, 4);
    ranks_run(ranks, config, run, arena_printf(mem(), VALIDATES "%s", more));
    return run;
}

static const char *from_step(int step) {
    return arena_printf(mem(), "--resume %s/step_%08d ", in_temp("run/ckpt"), step);
}

static bool has(const char *folder, int step) {
    return file_exists(arena_printf(mem(), "%s/%s/step_%08d/manifest.json",
                                    in_temp("run"), folder, step));
}

/* Weights that a run has left behind are not beside the losses of what it has become. */
static void leaves_a_branch(const char *how) {
    const char *run = train(1, KEEPS_BEST);
    EXPECT(has(RUN_BEST, 12));
    train(1,
          arena_printf(mem(), "%s %s --runner_config.max_steps 10", from_step(8), how));
    EXPECT(!has(RUN_BEST, 12) && has(RUN_BEST ".before-1", 12));
    size_t n; /* its own configuration is with it */
    EXPECT_PART(file_read(mem(), in_temp("run/" RUN_BEST ".before-1/config.yaml"),
                          1 << 20, &n, EXIT_DATA),
                "max_steps: 12");
    EXPECT(!strstr(runs_points(run), "\"step\": 12"));
}

TEST_LIMIT(a_branch_that_saves_no_best, 120) {
    leaves_a_branch("");
}

TEST_LIMIT(a_branch_that_does_not_validate, 120) {
    leaves_a_branch("--runner_config.eval_iters 0");
}

/* Its loss is its own, whatever other files say of that step. */
TEST_LIMIT(the_loss_is_in_the_checkpoint, 120) {
    const char *run = train(1, KEEPS_BEST "--runner_config.max_steps 8");
    EXPECT(has(RUN_BEST, 8));
    const char *path = path_join(mem(), run, RUN_VALIDATION);
    EXPECT_INT(system(arena_printf(mem(),
                                   "sed -i 's/\"step\": 8, \"valid_loss\": [0-9.]*/"
                                   "\"step\": 8, \"valid_loss\": 99/' %s",
                                   path)),
               0);
    EXPECT_PART(runs_points(run), "\"valid_loss\": 99\n");
    train(1, KEEPS_BEST "--lr_schedule.learning_rate 100 "
                        "--runner_config.max_steps 10");
    EXPECT(has(RUN_BEST, 8) && !has(RUN_BEST, 10));
}

/* A loss on other samples is not compared, nor is that of the step where the run goes on. */
TEST_LIMIT(a_loss_of_other_samples, 120) {
    const char *other = in_temp("other.txt"), *run = in_temp("run");
    Text text = text_new(mem());
    for (int i = 0; i < 400; i++) text_add(&text, "%d.", i * i);
    write_text(other, text.s);
    const char *const change[] = {arena_printf(mem(), "--eval_dataset_dir %s", other),
                                  "--runner_config.eval_iters 3",
                                  "--train_dataset.data_loader.split 6,4",
                                  "--runner_config.batch_size 3"};
    for (int i = 0; i < ARRAY_LEN(change); i++) {
        const char *to = arena_printf(mem(), KEEPS_BEST "%s", change[i]);
        remove_all(run);
        train(1, KEEPS_BEST "--runner_config.max_steps 8");
        train(1, to);
        SAID_EXPECT("note: validation takes other samples than before");
        SAID_EXPECT(
            "note: the loss of the best checkpoint is of other validation samples");
        EXPECT(has(RUN_BEST ".before-1", 8) && has(RUN_BEST, 12));
        EXPECT(!strstr(said(), RUN_BEST "/step_00000008"));
        train(1, to);
        EXPECT(!strstr(said(), "other validation") && has(RUN_BEST, 12));
        EXPECT(!strstr(said(), "other samples"));
    }
}

/* Wherever they lie; and a run that is done keeps its best. */
TEST_LIMIT(the_same_samples_under_another_name, 120) {
    const char *other = in_temp("other.txt"), *run = in_temp("run");
    Text text = text_new(mem());
    for (int i = 0; i < 400; i++) text_add(&text, "%d.", i * i);
    write_text(other, text.s);
    const char *keeps = KEEPS_BEST "--eval_dataset_dir %s %s";
    train(1, arena_printf(mem(), keeps, other, "--runner_config.max_steps 8"));
    const char *again = arena_printf(mem(), "%s/../%s/other.txt", temp_dir(),
                                     strrchr(temp_dir(), '/') + 1);
    train(1, arena_printf(mem(), keeps, again, ""));
    EXPECT(!strstr(said(), "other validation") && !strstr(said(), "other samples"));
    train(1, arena_printf(mem(), keeps, again, "--runner_config.eval_iters 3"));
    SAID_EXPECT("note: validation takes other samples than before");
    EXPECT(file_exists(path_join(mem(), run, RUN_BEST "/latest")));
    EXPECT(!file_exists(path_join(mem(), run, RUN_BEST ".before-1")));
}

TEST_LIMIT(a_loss_that_is_taken_more_often_is_of_the_same_samples, 120) {
    train(1, KEEPS_BEST "--runner_config.max_steps 8");
    train(1, KEEPS_BEST "--runner_config.eval_interval 2");
    EXPECT(!strstr(said(), "other validation") && !strstr(said(), "other samples"));
    EXPECT(!has(RUN_BEST ".before-1", 8));
}

static void lose_last_checkpoint(const char *run) {
    remove_all(path_join(mem(), run, RUN_CHECKPOINTS "/step_00000012"));
}

/* A run that was killed between its best checkpoint and the next of the others. */
static void comes_again(int ranks) {
    const char *run = train(ranks, KEEPS_BEST), *before = runs_points(run);
    for (int i = 0; i < 2; i++) {
        lose_last_checkpoint(run);
        train(ranks, KEEPS_BEST);
        SAID_EXPECT("resumed after step 8");
        EXPECT(has(RUN_BEST, 12) && !has(RUN_BEST ".before-1", 12));
        EXPECT(!strstr(said(), "lowest validation loss"));
        EXPECT_STR(runs_points(run), before);
    }
    lose_last_checkpoint(run);
    train(ranks, KEEPS_BEST "--optimizer.beta1 0.8");
    EXPECT(has(RUN_BEST ".before-1", 12));
}

TEST_LIMIT(a_step_that_comes_again, 120) {
    comes_again(1);
}

TEST_LABEL_OF(a_step_that_comes_again_on_ranks, RELEASED);
TEST_LIMIT(a_step_that_comes_again_on_ranks, 120) {
    comes_again(2);
}

/* Writes `to` over where the state of a checkpoint has `from`. */
static void edit_state(const char *folder, int step, const char *from, const char *to) {
    const char *path =
        arena_printf(mem(), "%s/%s/step_%08d", in_temp("run"), folder, step);
    Manifest m;
    EXPECT(!manifest_read(mem(), path, &m));
    char *state = arena_strdup(mem(), m.state_json), *at = strstr(state, from);
    EXPECT(at != NULL);
    memcpy(at, to, strlen(to));
    m.state_json = state;
    Text text = manifest_text(mem(), &m);
    file_write(path_join(mem(), path, CKPT_MANIFEST), text.s, text.n, EXIT_DATA);
}

/* Older versions left it to the points; where these are gone too, nothing is compared. */
TEST_LIMIT(a_loss_that_is_not_in_the_checkpoint, 120) {
    const char *worse = KEEPS_BEST "--lr_schedule.learning_rate 100 "
                                   "--runner_config.max_steps %d";
    const char *run = train(1, KEEPS_BEST "--runner_config.max_steps 8");
    edit_state(RUN_BEST, 8, "\"valid_loss\"", "\"valid_lost\"");
    train(1, arena_printf(mem(), worse, 10));
    EXPECT(has(RUN_BEST, 8) && !has(RUN_BEST, 10));
    EXPECT(remove(path_join(mem(), run, RUN_VALIDATION)) == 0);
    train(1, arena_printf(mem(), worse, 12));
    SAID_EXPECT("note: the loss of the best checkpoint is not known");
    EXPECT(has(RUN_BEST ".before-1", 8) && has(RUN_BEST, 12));
}

/* A key that the version did not have, which saved the checkpoints, is no difference. */
TEST_LIMIT(a_step_that_comes_again_of_fewer_keys, 120) {
    const char *run = train(1, KEEPS_BEST);
    lose_last_checkpoint(run);
    for (int i = 0; i < 2; i++) {
        const char *folder = i ? RUN_BEST : RUN_CHECKPOINTS;
        edit_state(folder, i ? 12 : 8, "\"optimizer.beta1\"", "\"optimizer.old_1\"");
        edit_state(folder, i ? 12 : 8, "\"config_hash\":\"", "\"config_hash\":\"old");
    }
    train(1, KEEPS_BEST);
    EXPECT(!strstr(said(), "the configuration is not the one"));
    EXPECT(has(RUN_BEST, 12) && !has(RUN_BEST ".before-1", 12));
}

/* But one that it did not have and that is given now is, unless it says what was done anyway. */
TEST_LIMIT(a_key_that_was_not_known, 120) {
    static const struct Case {
        const char *more, *note;
    } c[] = {{"--optimizer.eps 1e-8", NULL},
             {"--optimizer.eps 1e-7", "; optimizer.eps was not known and is 1e-07"}};
    train(1, "--runner_config.max_steps 4");
    edit_state(RUN_CHECKPOINTS, 4, "\"optimizer.eps\"", "\"optimizer.old\"");
    edit_state(RUN_CHECKPOINTS, 4, "\"config_hash\":\"", "\"config_hash\":\"old");
    for (int i = 0; i < ARRAY_LEN(c); i++) {
        train(1, arena_printf(mem(), "%s --runner_config.max_steps 4", c[i].more));
        EXPECT(!strstr(said(), "the configuration is not the one") == !c[i].note);
        if (c[i].note) SAID_EXPECT(c[i].note);
    }
}

/* What is left out now and was given then, as this version has it without, is no difference; what
 * the kind of model has otherwise is. */
TEST_LIMIT(a_key_that_is_left_out, 120) {
    const char *config = runs_small_config(4, 4), *run = in_temp("run");
    static const struct Case {
        const char *type, *percent;
        bool same;
    } c[] = {{"LlamaConfig", "1", true},
             {"LlamaConfig", "0.25", false},
             {"GPTNeoXConfig", "1", false},
             {"GPTNeoXConfig", "0.25", true}};
    for (int i = 0; i < ARRAY_LEN(c); i++) {
        const char *type =
            arena_printf(mem(), "--model.model_config.type %s ", c[i].type);
        remove_all(run);
        ranks_run(1, config, run,
                  arena_printf(mem(), "%s --model.model_config.rotary_percent %s", type,
                               c[i].percent));
        ranks_run(1, config, run, type);
        test_at("%s %s", c[i].type, c[i].percent);
        EXPECT(!strstr(said(), "the configuration is not the one") == c[i].same);
    }
}
