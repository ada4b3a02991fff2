/* commands.h - the commands of stator: main.c's table calls these. What each does and its exit
 * codes are in commands.def. Each takes the words after "stator" (argv[0] is the command's own
 * name) and returns the exit code; user failures leave through fail() with the codes of base.h. */
#ifndef STATOR_COMMANDS_H
#define STATOR_COMMANDS_H
#include "base/base.h"

#define COMMAND(name, ...) int cmd_##name(int argc, char **argv);
#include "frontend/config/commands.def"
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
