/* main.c - the command stator: finds the command's function, and the help. */
#include "frontend/config/commands.h"
#include "frontend/config/config.h"
#include "frontend/launch/launch.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef STATOR_VERSION
#define STATOR_VERSION "0.1"
#endif

static int cmd_help(int argc, char **argv);

typedef struct Command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *line; /* of the list of commands */
    const char *help; /* what follows the command's usage */
} Command;

static const Command commands[] = {
    {"train", cmd_train, "train CONFIG.yaml [--a.b.c VALUE ...]   compile and train",
     "Trains the model of a configuration file. Every key is also a flag;\n"
     "stator help SECTION lists the keys of a section.\n"
     "  --init_from DIR        start from a Hugging Face folder or a checkpoint; "
     "without\n"
     "                         a model section its config.json defines the model\n"
     "  --output_dir DIR       the run folder: config.yaml, plan.json, metrics.jsonl,\n"
     "                         loss.svg, logs, ckpt\n"
     "  --resume auto|never|DIR  auto goes on from the newest good checkpoint\n"
     "  --dump FILE.safetensors  logits and gradients of the first step, final weights\n"
     "  --dump_ir DIR          the program after every pass\n"
     "SIGTERM, SIGINT, SIGHUP, SIGUSR1 and a stdout that nobody reads any more end it\n"
     "after the running step with a checkpoint.\n"
     "Exit codes: 0 done, 1 diverged, 2 configuration, 3 data, 4 checkpoint, 5 memory,\n"
     "6 a rank hangs, 75 stopped by a signal.\n"},
    {"plan", cmd_plan, "plan CONFIG.yaml [-n RANKS] [--a.b.c VALUE ...]  what it takes",
     "Says what training would take, on any number of ranks, without them, their memory\n"
     "or the data: where every parameter lies, the collectives of a step and their\n"
     "bytes, the memory of a rank, parameters and flops. Takes the keys of train, and\n"
     "  -n RANKS   so many ranks: data_parallel follows when it is not given\n"
     "  --json     the plan for programs, as train writes it to plan.json\n"
     "Exit codes: 0 done, 2 configuration, 5 above context.max_device_memory.\n"},
    {"predict", cmd_predict, "predict RUN|CHECKPOINT|HF_DIR --prompt TEXT  generate text",
     "stator predict --help lists its options.\n"},
    {"convert", cmd_convert, "convert --to hf|stator FROM TO          weights in and out",
     "--to hf writes config.json and model.safetensors of a run or a checkpoint;\n"
     "--to stator makes a checkpoint of weights from a Hugging Face folder.\n"},
    {"preprocess", cmd_preprocess,
     "preprocess --input F... --output-prefix P  text to ids",
     "stator preprocess --help lists its options.\n"},
    {"inspect", cmd_inspect,
     "inspect FILE|CONFIG.yaml               what it holds; sound?",
     "stator inspect --help says what can be looked at.\n"},
    {"tokenizer", cmd_tokenizer, "tokenizer train|encode|decode ...        text and ids",
     "stator tokenizer --help lists its options.\n"},
    {"launch", cmd_launch, "launch -n N COMMAND ...                 it on several ranks",
     "stator launch --help lists its options.\n"},
    {"help", cmd_help, "help [COMMAND|SECTION]                  this list, or more", ""},
};

static void usage(FILE *out) {
    fputs("stator compiles a GPT-style model into one native program and trains it.\n\n"
          "usage:\n",
          out);
    for (int i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(out, "  stator %s\n", commands[i].line);
    fputs("  stator --version\n\n", out);
}

static const Command *command_find(const char *name) {
    for (int i = 0; i < ARRAY_LEN(commands); i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    return NULL;
}

static const char *command_near(const char *name) {
    const char *names[ARRAY_LEN(commands)];
    for (int i = 0; i < ARRAY_LEN(commands); i++) names[i] = commands[i].name;
    return nearest_name(name, names, ARRAY_LEN(commands));
}

static int cmd_help(int argc, char **argv) {
    if (argc < 2) {
        usage(stdout);
        config_help(stdout, NULL);
        fputs("\nstator help SECTION lists the keys of a section.\n", stdout);
        return 0;
    }
    const Command *c = command_find(argv[1]);
    if (c) {
        fprintf(stdout, "stator %s\n\n%s", c->line, c->help);
        return 0;
    }
    if (config_help(stdout, argv[1])) return 0;
    fail(EXIT_CONFIG,
         "no command and no section of the configuration is called '%.100s'; "
         "stator help lists both",
         argv[1]);
}

static bool wants_help(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return true;
    return false;
}

/* Files that are opened must not become stdin, stdout or stderr. */
static void fill_standard_files(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        if (open("/dev/null", O_RDWR) != fd) _exit(EXIT_CONFIG); /* nobody to tell */
        if (fd == STDOUT_FILENO) setenv(LAUNCH_CLOSED_ENV, "1", 1);
    }
}

/* What was printed has gone out, or the exit code says that it has not. A run has its work
 * in files, and goes on when nobody reads the terminal any more. */
static int printed(int code) {
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (!lost) return code;
    fprintf(stderr, "stator: error: cannot write to stdout: %s\n", strerror(errno));
    return code ? code : EXIT_DATA;
}

int main(int argc, char **argv) {
    fill_standard_files();
    launch_rank_start();
    if (argc < 2) {
        usage(stderr);
        return EXIT_CONFIG;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
        puts("stator " STATOR_VERSION);
        return printed(0);
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) name = "help";
    const Command *c = command_find(name);
    if (!c) {
        const char *near = command_near(name);
        fail(EXIT_CONFIG, "unknown command '%.100s'%s%s%s; stator help lists all", name,
             near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    bool helps = c->run == cmd_train || c->run == cmd_plan; /* others do it themselves */
    if (helps && wants_help(argc - 1, argv + 1)) {
        char *words[] = {"help", (char *)(uintptr_t)c->name};
        return printed(cmd_help(2, words));
    }
    int code = c->run(argc - 1, argv + 1);
    return c->run == cmd_train || c->run == cmd_launch ? code : printed(code);
}
