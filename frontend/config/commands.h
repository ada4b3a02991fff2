/* commands.h - the commands of stator: main.c's table calls these. Each takes the words
 * after "stator" (argv[0] is the command's own name) and returns the exit code; user
 * failures leave through fail() with the codes of base.h. */
#ifndef STATOR_COMMANDS_H
#define STATOR_COMMANDS_H
#include "base/base.h"

/* stator train CONFIG.yaml [--a.b.c VALUE ...]. Exit codes: 0 done; 1 the loss is not a
 * number any more; EXIT_HUNG a rank hangs; EXIT_SIGNALLED stopped by a signal after a
 * save. */
int cmd_train(int argc, char **argv);
/* stator plan CONFIG.yaml [-n RANKS] [--json] [--a.b.c VALUE ...]: what training it would
 * cost. EXIT_MEMORY, after the plan, when that needs more than
 * context.max_device_memory. */
int cmd_plan(int argc, char **argv);
/* stator search CONFIG.yaml -n RANKS [--machine FILE] [--json] [--write FILE] [--a.b.c VALUE
 * ...]: the fastest strategy. EXIT_MEMORY: none fits. */
int cmd_search(int argc, char **argv);
/* stator layer CONFIG.yaml -n RANKS [--machine FILE] [--layer_bytes BYTES] [--a.b.c VALUE ...]:
 * the fastest placements inside of a layer. EXIT_MEMORY: none fit. */
int cmd_layer(int argc, char **argv);
/* stator simulate CONFIG.yaml [-n RANKS] [--steps N] [--a.b.c VALUE ...]: all ranks of its
 * strategy in this process. EXIT_DIFFERS: they do not compute what one rank does. */
int cmd_simulate(int argc, char **argv);
/* stator calibrate [-n 1,2,4] [--output FILE.yaml]: what this machine does in a second. */
int cmd_calibrate(int argc, char **argv);
/* stator eval CONFIG.yaml|RUN|CHECKPOINT|HF_DIR [--data PATH | --endings FILE] [--a.b.c
 * VALUE ...]: the loss on data. EXIT_DIVERGED: it is not a number. */
int cmd_eval(int argc, char **argv);
int cmd_predict(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_tokenizer(int argc, char **argv);
int cmd_preprocess(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
/* stator import [-n RANKS] [-o FILE.yaml] COMMAND ...: a command line of Megatron-LM as a
 * configuration. */
int cmd_import(int argc, char **argv);
int cmd_export(int argc, char **argv);
/* stator launch -n N [options] COMMAND ...: the command on several ranks under mpirun.
 * Its exit code is that of the rank that failed first; 128 + signal for one that was
 * killed. */
int cmd_launch(int argc, char **argv);
enum { EXIT_DIVERGED = 1, EXIT_DIFFERS = 1, EXIT_SIGNALLED = 75 };

/* Names in a run folder. */
#define RUN_CONFIG       "config.yaml"
#define RUN_CHECKPOINTS  "ckpt"
#define RUN_BEST         "best" /* a folder like RUN_CHECKPOINTS, of one */
#define RUN_METRICS      "metrics.jsonl"
#define RUN_PRODUCTS     "products.txt" /* the form of each matrix product */
#define RUN_SCHEDULE     "schedule.svg"
#define RUN_TIMELINE_CSV "timeline.csv"
#define RUN_TIMELINE_SVG "timeline.svg"
#define RUN_PROFILE      "profile"            /* a folder */
#define RUN_TRACE        "profile/trace.json" /* of all ranks */
#define RUN_RANK_TRACE   "profile/trace.rank%d.json"
#define RUN_PREDICTED    "predicted.json" /* with context.machine */
#define RUN_OPS          "profile/ops.txt"
#define RUN_MODULE       "model.ir" /* the user's module */
#define RUN_VALIDATION   "valid.jsonl"
#define RUN_SAMPLES      "samples.jsonl"
#define RUN_LOGS         "logs"

/* The state object in a checkpoint's manifest.json, as cmd_train writes it:
 *   "step"         updates done
 *   "seed"         of the run
 *   "config_hash"  of all keys that change what is computed
 *   "threads"      that computed it: the order of sums depends on their number
 *   "data"         {"type", "path", "batch", "seq", "shuffle", "next_batch", "samples":
 *                  used, "order": a mark of that of GPTDataset}
 *   "model"        the ModelSpec as the object of a Hugging Face config.json, or null for
 *                  a model.file; predict builds the model from this alone */

#endif
