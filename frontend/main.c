/* main.c - the command stator: finds the command's function, and the help. */
#include "frontend/config/commands.h"
#include "frontend/config/config.h"
#include "frontend/config/key.h"
#include "frontend/config/options_print.h"
#include "frontend/launch/launch.h"
#include "runtime/comm/comm_launcher.h"
#include "runtime/core/stop_signal.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef STATOR_VERSION
#define STATOR_VERSION "0.1"
#endif

static int (*const command_run[N_COMMANDS])(int argc, char **argv) = {
#define COMMAND(name, ...) cmd_##name,
#include "frontend/config/commands.def"
};

static void usage(FILE *out) {
    fputs("stator compiles a GPT-style model into one native program and trains it.\n\n"
          "usage:\n",
          out);
    options_list(out);
    fputs("  stator --version\n\n", out);
}

static int command_find(const char *name) {
    for (int c = 0; c < N_COMMANDS; c++)
        if (!strcmp(command_table[c].name, name)) return c;
    return -1;
}

static const char *command_near(const char *name) {
    const char *names[N_COMMANDS];
    for (int c = 0; c < N_COMMANDS; c++) names[c] = command_table[c].name;
    return nearest_name(name, names, N_COMMANDS);
}

/* " (did you mean X?)" of the command, section or key that is probably meant, or a sentence; "": none
 * is. */
static void topic_near(const char *word, char *text, size_t size) {
    Arena *mem = arena_new();
    const char *near = command_near(word);
    if (!near) near = key_nearest_section(mem, word);
    if (!near) near = key_nearest(word);
    bool sentence = near && strchr(near, ' ');
    snprintf(text, size, !near ? "" : sentence ? ": %s" : " (did you mean %s?)", near);
    arena_free(mem);
}

static void help_on(const char *word) {
    char near[600];
    int c = command_find(word);
    if (c >= 0) {
        options_usage(stdout, (CommandId)c);
        return;
    }
    if (config_help(stdout, word)) return;
    topic_near(word, near, sizeof near);
    fail(EXIT_CONFIG,
         "no command, section or key is called '%.100s'%s; stator help lists commands "
         "and sections, docs/keys.md keys",
         word, near);
}

static bool is_version(const char *word) {
    static const char *const words[] = {"--version", "-V", "-v", "version"};
    return is_one_of(word, words, ARRAY_LEN(words));
}

int cmd_help(int argc, char **argv) {
    Arena *mem = arena_new();
    const Options *o = options_read(mem, COMMAND_help, argc, argv);
    const bool usual = o, man = o && option_given(o, "--man");
    const char *word = o && o->nwords ? o->word[0] : NULL; /* of argv */
    arena_free(mem);
    if (man) {
        options_man(stdout, STATOR_VERSION);
    } else if (word) {
        help_on(word);
    } else if (usual) {
        usage(stdout);
        config_help(stdout, NULL);
        fputs("\nstator help SECTION lists the keys of a section, stator help KEY says "
              "what "
              "one does.\n",
              stdout);
    }
    return 0;
}

int cmd_completion(int argc, char **argv) {
    Arena *mem = arena_new();
    const Options *o = options_read(mem, COMMAND_completion, argc, argv);
    const char *shell = o && o->nwords ? o->word[0] : "";
    if (o && strcmp(shell, "bash") && strcmp(shell, "zsh"))
        fail(EXIT_CONFIG, "stator completion %.50s: write bash or zsh", shell);
    if (o) options_completion(stdout, !strcmp(shell, "zsh"));
    arena_free(mem);
    return 0;
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

/* launch has a word of its own for it; the other two write nothing. */
static void refuse_copies(int c) {
    bool harmless = c == COMMAND_launch || c == COMMAND_help || c == COMMAND_completion;
    const char *launcher = harmless ? NULL : launcher_of_copies();
    if (launcher) launch_refuse_alone(command_table[c].name, launcher);
}

int main(int argc, char **argv) {
    fill_standard_files();
    signal(SIGXFSZ,
           SIG_IGN); /* a limit to the size of a file is told, like a full disk */
    if (argc > 1 && command_find(argv[1]) == COMMAND_train) stop_signals_hold();
    launch_rank_start();
    if (argc < 2) {
        usage(stderr);
        return EXIT_CONFIG;
    }
    const char *name = argv[1];
    if (is_version(name)) {
        puts("stator " STATOR_VERSION);
        return printed(0);
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) name = "help";
    int c = command_find(name);
    if (c < 0) {
        const char *near = command_near(name);
        fail(EXIT_CONFIG, "unknown command '%.100s'%s%s%s; stator help lists all", name,
             near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    bool ranks = command_table[c].flags & COMMAND_RANKS;
    if (ranks && wants_help(argc - 1, argv + 1)) {
        options_usage(stdout, (CommandId)c); /* before there are ranks */
        return printed(0);
    }
    refuse_copies(c);
    int code = command_run[c](argc - 1, argv + 1);
    return c == COMMAND_train ? code : printed(code);
}
