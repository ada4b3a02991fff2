/* page_of_keys.c - docs/keys.md, made from the key table; see pages.h. */
#include "frontend/config/config_state.h"
#include "tests/pages.h"

/* Keys, and when they have no effect. */
static const char *const needs[][2] = {
#define NEEDS(path, condition, why) {path, why},
#include "frontend/config/keys.def"
};

/* A table cell: '|' would end it. */
static void write_cell(FILE *out, const char *s) {
    fputc(' ', out);
    for (; *s; s++) {
        if (*s == '|') fputc('\\', out);
        fputc(*s, out);
    }
    fputs(" |", out);
}

static void write_other_names(FILE *out) {
    fputs("\n## Other names\n\n| name | key |\n|---|---|\n", out);
    for (int i = 0; i < n_key_aliases; i++)
        fprintf(out, "| `%s` | `%s` |\n", key_aliases[i].path, key_aliases[i].target);
}

/* A table for each kind of model that has any. */
static void write_model_defaults(FILE *out, Arena *a) {
    const Key *type = &key_table[key_find("model.model_config.type")];
    Config *cfg = NEW(a, Config);
    for (int i = 0; i < n_key_defaults; i++) {
        const KeyDefault *d = &key_defaults[i];
        cfg->model_type = d->model;
        if (!i || d->model != d[-1].model)
            fprintf(out, "\n## Defaults of a %s\n\n| key | default |\n|---|---|\n",
                    key_text(a, type, cfg, false));
        fprintf(out, "| `%s` | %s |\n", d->path, d->def);
    }
}

static void write_needs(FILE *out) {
    fputs("\n## Keys that act only with others\n\n| key | has no effect when "
          "|\n|---|---|\n",
          out);
    for (int i = 0; i < ARRAY_LEN(needs); i++)
        fprintf(out, "| `%s` | %s |\n", needs[i][0], needs[i][1]);
}

static const char page_head[] =
    "# Configuration keys\n\n"
    "Every key of a configuration file, and every flag: `--section.key VALUE`.\n"
    "This page is made from `frontend/config/keys.def` and `keys_elsewhere.def`; change "
    "it "
    "there.\n\n"
    "A file may name others to start from: `base_config: [a.yaml, b.yaml]`, relative to\n"
    "itself. Of two base files the later one replaces whole sections of the earlier "
    "one;\n"
    "the file itself goes over them key by key; flags go over everything, also over "
    "what\n"
    "files say of the same thing under another name (`micro_batch_num`,\n"
    "`grad_accumulation_step`, `gradient_accumulation_steps`) or in other words\n"
    "(`optimizer.betas`, `beta1`), as each file does over its base files, and a later "
    "base\n"
    "file over an earlier one; a key of which a line says that it has no effect goes "
    "over\n"
    "none. Lists are\n"
    "replaced, not joined. Other relative paths (`data_path`, `dataset_dir`,\n"
    "`tokenizer_file`, `init_from`, `output_dir`, ...) count from the folder that the\n"
    "command is started in; `model.file`, `context.machine` and the `.csv` of a\n"
    "schedule are looked for beside the file that names them first.\n\n"
    "The last column says what happens to a key: it *works*; it is *mapped* to another\n"
    "key; or it *always* has one value. Keys of MindFormers that change nothing here "
    "have\n"
    "a table of their own after the sections. Many keys act only together with others: "
    "a\n"
    "further table says when not, and so does a line of a run or a plan in which such a "
    "key\n"
    "is given.\n";

static const char elsewhere_head[] =
    "\n## Keys that change nothing here\n\n"
    "They are known, so that a configuration written for MindFormers is read. A key has "
    "*no\n"
    "effect* (one line says so); or *only* its default is accepted; or what it asks for "
    "is\n"
    "*not there yet*, so that only its default is accepted.\n";

static void write_columns(FILE *out) {
    fputs("\n| key | value | default | meaning | state |\n|---|---|---|---|---|\n", out);
}

static void write_row(FILE *out, Arena *a, const Key *key) {
    fprintf(out, "| `%s` |", key->path);
    write_cell(out, config_values_text(a, key));
    write_cell(out, key->def);
    write_cell(out, key->doc);
    write_cell(out, config_category_text(a, key));
    fputc('\n', out);
}

void page_of_keys(FILE *out) {
    char name[64], before[64] = "";
    Arena *a = arena_new();
    fputs(page_head, out);
    for (int k = 0; k < N_KEYS; k++) {
        if (!key_acts(&key_table[k])) continue;
        config_section_name(key_table[k].path, name);
        if (strcmp(name, before)) {
            fprintf(out, "\n## %s\n", name);
            write_columns(out);
        }
        strcpy(before, name);
        write_row(out, a, &key_table[k]);
    }
    fputs(elsewhere_head, out);
    write_columns(out);
    for (int k = 0; k < N_KEYS; k++)
        if (!key_acts(&key_table[k])) write_row(out, a, &key_table[k]);
    write_needs(out);
    write_other_names(out);
    write_model_defaults(out, a);
    arena_free(a);
}
