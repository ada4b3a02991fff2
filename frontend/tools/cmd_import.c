/* cmd_import.c - the command import: a command line of Megatron-LM, or a YAML file of
 * MindSpeed-Core-MS, as a configuration. */
#include "frontend/config/commands.h"
#include "frontend/config/config.h"
#include "frontend/config/options.h"
#include "frontend/tools/megatron.h"

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
    Text text = import_text(m, config_load(o->mem, NULL, m->nkeys, m->key));
    for (int i = 0; i < m->nnotes; i++) say_aside("note: %s", m->note[i]);
    if (path)
        file_write(path, text.s, text.n, EXIT_DATA);
    else
        fwrite(text.s, 1, text.n, stdout);
    arena_free(o->mem);
    return 0;
}
