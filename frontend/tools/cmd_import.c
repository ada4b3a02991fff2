/* cmd_import.c - the command import: a command line of Megatron-LM, or a YAML file of
 * MindSpeed-Core-MS, as a configuration. */
#include "frontend/config/commands.h"
#include "frontend/config/config.h"
#include "frontend/config/options.h"
#include "frontend/model/job.h"
#include "frontend/tools/megatron.h"
#include <ctype.h>

/* The text is a line of the file, whatever was on the command line. */
static void add_comment(Text *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void add_comment(Text *out, const char *fmt, ...) {
    char line[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    text_add(out, "# %s\n", make_printable(line, LINES_NONE));
}

static void add_idle(Text *out, const Megatron *m) {
    for (int i = 0; i < MEGATRON_FLAGS; i++)
        if (m->flag[i].given && megatron_flag[i].kind == MEGATRON_IDLE)
            add_comment(out, "%s has no effect: %s", megatron_name(m->mem, i),
                        megatron_flag[i].what);
    for (int i = 0; i < m->nidle; i++) add_comment(out, "%s", m->idle[i]);
}

static Text import_text(const Megatron *m, const Config *cfg) {
    Text out = text_new(m->mem);
    add_comment(&out, "What %s %s, as stator import reads it (docs/megatron.md).",
                m->program[0] ? m->program : "a training",
                m->file ? "of MindSpeed-Core-MS says" : "of Megatron-LM was given");
    for (int i = 0; i < m->nnotes; i++) add_comment(&out, "%s", m->note[i]);
    add_idle(&out, m);
    config_print_given(cfg, &out);
    return out;
}

/* ---- what is wrong with the keys ---- */

static bool says_key(const char *what, const char *key, size_t n) {
    for (; *what; what++)
        if (!strncmp(what, key, n) && !isalnum((unsigned char)what[n]) &&
            what[n] != '_' && what[n] != '.')
            return true;
    return false;
}

/* The flag of "--KEY=VALUE", with its words; NULL: none that was given says it. */
static const char *flag_of_key(const Megatron *m, const char *key) {
    for (int i = 0; i < MEGATRON_FLAGS; i++) {
        MegatronKind kind = megatron_flag[i].kind;
        if (!m->flag[i].given || (kind != MEGATRON_TO && kind != MEGATRON_OWN)) continue;
        if (!says_key(megatron_flag[i].what, key + 2, strcspn(key + 2, "="))) continue;
        Text t = text_new(m->mem);
        text_add(&t, "%s", megatron_name(m->mem, i));
        for (int k = 0; k < m->flag[i].n; k++) text_add(&t, " %s", m->flag[i].word[k]);
        return t.s;
    }
    return NULL;
}

static const char *next_line(const char *line) {
    line += strcspn(line, "\n");
    return line + (*line == '\n');
}

/* The message with the flag in the place of a key that nobody wrote, and of its line and caret. */
static char *retold(const Megatron *m, const char *message) {
    Text t = text_new(m->mem);
    for (const char *line = message; *line; line = next_line(line)) {
        int at, col, begin = 0;
        const char *flag = NULL;
        if (sscanf(line, "command line:%d:%d: error: %n", &at, &col, &begin) == 2 &&
            begin && at > 0 && at <= m->nkeys)
            flag = flag_of_key(m, m->key[at - 1]);
        if (flag) text_add(&t, "stator: error: %s: ", flag);
        if (flag) line += begin;
        text_add_bytes(&t, line, (size_t)(next_line(line) - line));
        if (flag) line = next_line(next_line(line));
    }
    if (t.n && t.s[t.n - 1] == '\n') t.s[--t.n] = 0;
    return t.s;
}

/* Fails where the strategy does not fit the model. */
static Config *config_of(const Options *o, const Megatron *m) {
    Catch c;
    if (CATCH(c)) {
        Config *planned = config_load(o->mem, NULL, m->nkeys, m->key);
        planned->run_mode =
            RUN_TRAIN; /* weights may be there or not: the flags say the model */
        planned->resume_or_finetune_checkpoint = planned->init_from = "";
        PassOptions passes = strategy_pass_options(planned);
        job_build_step(job_to_plan(o->mem, planned), &passes);
        Config *cfg = config_load(o->mem, NULL, m->nkeys, m->key);
        catch_end(&c);
        return cfg;
    }
    if (c.code != EXIT_CONFIG || m->file) catch_again(&c);
    fail_again(c.code, retold(m, c.message));
}

int cmd_import(int argc, char **argv) {
    Options *o = options_take(COMMAND_import, argc, argv);
    if (!o) return 0;
    const char *path = option_text(o, "--output");
    if (!o->nwords)
        fail(EXIT_CONFIG,
             "which command? stator import [-n RANKS] [-o FILE.yaml] torchrun ... "
             "pretrain_gpt.py --num-layers ..., or a YAML file of MindSpeed-Core-MS");
    if (path) file_check_written(path);
    Megatron *m = megatron_read(o->mem, o->nwords, o->word);
    megatron_keys(m, option_int(o, "-n", 0));
    Text text = import_text(m, config_of(o, m));
    for (int i = 0; i < m->nnotes; i++) say_aside("note: %s", m->note[i]);
    if (path)
        file_write(path, text.s, text.n, EXIT_DATA);
    else
        fwrite(text.s, 1, text.n, stdout);
    arena_free(o->mem);
    return 0;
}
