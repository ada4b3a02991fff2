/* Tests of the measured timeline (the key profile) on real ranks: tasks happen in the order
 * of the schedule, one after the other, and after what they need. */
#include "passes/pipe/schedule.h"
#include "profiled.h"
#include "ranks.h"
#include "svg_text.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

enum { STAGES = 4, MICRO = 8, FIRST = 2, LAST = 4, STEPS = 5 };

/* A row of timeline.csv. */
typedef struct Timed {
    int step, rank, stage;
    Task task;
    double begin, end;
} Timed;

static Timed *read_timeline(const char *run, int *n) {
    static const char head[] = "step,rank,stage,task,begin_seconds,end_seconds\n";
    char *text =
        file_read(mem(), path_join(mem(), run, "timeline.csv"), 1 << 24, NULL, EXIT_DATA);
    EXPECT(!strncmp(text, head, strlen(head)));
    Timed *rows = NULL;
    int cap = 0;
    char *save = NULL, *line = strtok_r(text + strlen(head), "\n", &save);
    for (*n = 0; line; line = strtok_r(NULL, "\n", &save)) {
        Timed t;
        char kind;
        EXPECT_INT(sscanf(line, "%d,%d,%d,%d%c%d,%lf,%lf", &t.step, &t.rank, &t.stage,
                          &t.task.chunk, &kind, &t.task.micro, &t.begin, &t.end),
                   8);
        t.task.kind = (TaskKind)(strchr(task_letter, kind) - task_letter);
        PUSH(mem(), rows, *n, cap, t);
    }
    return rows;
}

/* The first half of backward of the first chunk is nothing: nobody waits for it. */
static bool is_nothing(Task t) {
    return t.kind == TASK_INPUTS && t.chunk == 0;
}

/* The rows are those of the schedule, step by step, stage by stage, task by task, and a stage
 * does one thing at a time. */
static void expect_order(const PipeSchedule *s, const Timed *row, int n, int each) {
    int at = 0;
    for (int step = FIRST; step <= LAST; step++)
        for (int k = 0; k < s->stages; k++) {
            double free = 0;
            for (int i = 0; i < s->stage[k].n; i++) {
                Task want = s->stage[k].task[i];
                if (is_nothing(want)) continue;
                EXPECT(at < n);
                const Timed *t = &row[at++];
                EXPECT_STR(task_text(mem(), t->task), task_text(mem(), want));
                EXPECT(t->step == step && t->stage == k && t->rank == k * each);
                EXPECT(t->begin >= free && t->end > t->begin && t->end < 60);
                free = t->end;
            }
        }
    EXPECT_INT(at, n);
}

/* Of a task of a step; NULL: there is none. */
static const Timed *find(const Timed *row, int n, int step, TaskKind kind, int chunk,
                         int micro) {
    for (int i = 0; i < n; i++)
        if (row[i].step == step && row[i].task.kind == kind &&
            row[i].task.chunk == chunk && row[i].task.micro == micro)
            return &row[i];
    return NULL;
}

/* That which makes the gradient of the chunk's input; of the first chunk all of backward. */
static bool gives_gradient(Task t) {
    return t.kind == TASK_BACKWARD || t.kind == TASK_INPUTS ||
           (t.chunk == 0 && t.kind == TASK_WEIGHTS);
}

static void expect_after(const Timed *t, const Timed *needed) {
    EXPECT(needed != NULL);
    if (t->begin >= needed->end) return;
    test_fail(__FILE__, __LINE__, "step %d: %s begins at %.9f, before %s ends at %.9f",
              t->step, task_text(mem(), t->task), t->begin,
              task_text(mem(), needed->task), needed->end);
}

static void expect_needs(const PipeSchedule *s, const Timed *row, int n) {
    int met = 0;
    for (int i = 0; i < n; i++) {
        const Timed *t = &row[i];
        int c = t->task.chunk, m = t->task.micro;
        TaskKind gradient = s->stage[0].n == 2 * MICRO * s->chunks / s->stages
                                ? TASK_BACKWARD
                                : TASK_INPUTS;
        bool forward = t->task.kind == TASK_FORWARD, back = gives_gradient(t->task);
        if (forward && c)
            expect_after(t, find(row, n, t->step, TASK_FORWARD, c - 1, m)), met++;
        if (!forward) expect_after(t, find(row, n, t->step, TASK_FORWARD, c, m)), met++;
        if (back && c + 1 < s->chunks)
            expect_after(t, find(row, n, t->step, gradient, c + 1, m)), met++;
        if (t->task.kind == TASK_WEIGHTS && c)
            expect_after(t, find(row, n, t->step, TASK_INPUTS, c, m)), met++;
    }
    printf("  %s: %d tasks in order, %d after what they need\n", s->name, n, met);
}

#define PIPE "--parallel_config.pipeline_stage 4 --parallel_config.micro_batch_num 8 "
#define RECORD                                                                           \
    "--profile True --profile_start_step 2 --profile_stop_step 4 "                       \
    "--model.model_config.num_layers 8 --runner_config.max_steps 5 "                     \
    "--callbacks.CheckpointMonitor.save_checkpoint_steps 0 "

static void expect_as_planned(const char *name, int chunks, int replicas) {
    const char *run = in_temp("run");
    ranks_run(STAGES * replicas, runs_small_config(STEPS, 0), run,
              arena_printf(mem(),
                           PIPE RECORD "--parallel_config.pp_interleave_num %d "
                                       "--parallel_config.data_parallel %d "
                                       "--parallel.pipeline_config.pipeline_scheduler %s",
                           chunks, replicas, name));
    int n;
    const Timed *row = read_timeline(run, &n);
    const PipeSchedule *s = schedule_make(mem(), name, STAGES, STAGES * chunks, MICRO);
    expect_order(s, row, n, replicas);
    expect_needs(s, row, n);
    const char *svg =
        file_read(mem(), path_join(mem(), run, "timeline.svg"), 1 << 20, NULL, EXIT_DATA);
    svg_expect_well_formed(svg);
    EXPECT_PART(svg,
                arena_printf(mem(), "%s, 4 stages, 8 micro-batches, step 4: ", name));
    profiled_remove_maps(run);
    remove_all(run);
}

TEST_LIMIT(tasks_of_1f1b_are_as_planned, 120) {
    expect_as_planned("1f1b", 1, 1);
}

TEST_LIMIT(tasks_of_1f1b_with_chunks_are_as_planned, 120) {
    expect_as_planned("1f1b", 2, 1);
}

TEST_LIMIT(tasks_of_zero_bubble_h1_are_as_planned, 120) {
    expect_as_planned("zero_bubble_h1", 1, 1);
}

TEST_LIMIT(tasks_of_zero_bubble_v_are_as_planned, 120) {
    expect_as_planned("zero_bubble_v", 2, 1);
}

/* The first rank of each stage records. */
TEST_LIMIT(tasks_of_stages_of_two_ranks, 120) {
    expect_as_planned("1f1b", 1, 2);
}

/* ---- the run folder ---- */

static bool has_file(const char *run, const char *name) {
    return file_exists(path_join(mem(), run, name));
}

static bool from_cache(const char *run) {
    const Json *plan =
        json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 24, EXIT_DATA);
    return json_bool(json_need(plan, "from_cache"));
}

static bool code_records(const char *cache) {
    return system(arena_printf(mem(), "grep -rq rt_op_begin '%s'", cache)) == 0;
}

/* Code that records and code that does not are two in the cache; the plan and all numbers are
 * the same; the schedule is drawn in any case. */
TEST_LIMIT(code_that_records_is_kept_apart, 120) {
    static const char *const more[] = {"", "--profile True", "", "--profile True"};
    const char *config = runs_small_config(4, 4), *first = in_temp("run0");
    setenv("STATOR_CACHE", in_temp("cache"), 1);
    for (int i = 0; i < ARRAY_LEN(more); i++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        ranks_run(2, config, run,
                  arena_printf(mem(), "--parallel_config.pipeline_stage 2 %s", more[i]));
        EXPECT(from_cache(run) == (i > 1));
        EXPECT(code_records(in_temp("cache")) == (i > 0));
        EXPECT(has_file(run, "schedule.svg"));
        EXPECT(has_file(run, "timeline.csv") == (i % 2 == 1));
        EXPECT(has_file(run, "timeline.svg") == (i % 2 == 1));
        if (i % 2 == 1) EXPECT_INT(profiled_remove_maps(run), 2);
        runs_expect_same_losses(first, run, 4);
        runs_expect_same_tensors(first, run, 4);
    }
    RUN_EXPECT(0,
               arena_printf(mem(), "plan %s --parallel_config.pipeline_stage 2 --svg %s",
                            config, in_temp("plan.svg")));
    EXPECT(same_file(in_temp("plan.svg"), path_join(mem(), first, "schedule.svg")));
}

TEST_LIMIT(what_cannot_be_recorded_is_said, 120) {
    const char *config = runs_small_config(4, 0), *run = in_temp("run");
    ranks_run(1, config, run, "--profile True");
    EXPECT(!has_file(run, "timeline.csv") && !has_file(run, "schedule.svg"));
    profiled_remove_maps(run);
    remove_all(run);
    ranks_run(2, config, run,
              "--parallel_config.pipeline_stage 2 --profile True --profile_start_step 5");
    SAID_EXPECT("nothing is recorded (profile): of the steps 5 to 10 this run does none, "
                "it goes from 1 to 4");
    EXPECT(!has_file(run, "timeline.csv") && has_file(run, "schedule.svg"));
    EXPECT(!has_file(run, "profile"));
    remove_all(run);
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(),
                                         "train %s --profile True --profile_start_step 3 "
                                         "--profile_stop_step 2",
                                         config));
    SAID_EXPECT("profile_stop_step 2 is before profile_start_step 3");
}
