/* options_print.c - see options_print.h. */
#include "frontend/config/options_print.h"
#include "frontend/config/config_state.h"

enum { LINE_CHARS = 88, NAME_CHARS = 24 };

/* ---- usage ---- */

/* The words of text[n] in lines, the first of which has begun at column `col`; those that
 * follow are indented. */
static void wrap(FILE *out, const char *text, size_t n, int indent, int col) {
    bool begins = true;
    for (size_t at = 0; at < n;) {
        size_t word = 0;
        while (at + word < n && text[at + word] != ' ') word++;
        if (!begins && col + 1 + (int)word > LINE_CHARS) {
            fprintf(out, "\n%*s", indent, "");
            col = indent;
            begins = true;
        }
        fprintf(out, "%s%.*s", begins ? "" : " ", (int)word, text + at);
        col += (int)word + !begins;
        begins = false;
        at += word + (at + word < n);
    }
    fputc('\n', out);
}

/* Paragraphs; one that begins with a blank is kept as it is. */
static void paragraphs(FILE *out, const char *text) {
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        if (*p == ' ')
            fprintf(out, "%.*s\n", (int)n, p);
        else
            wrap(out, p, n, 0, 0);
        p += n + (p[n] == '\n');
    }
}

/* "--name VALUE" by its first name. */
static char *option_line(Arena *mem, const OptionRow *row) {
    char name[64];
    const char *at = row->names;
    option_next_name(&at, name);
    return arena_printf(mem, "%s%s%s%s", name, row->value[0] ? " " : "", row->value,
                        row->kind == OPTION_LIST ? "..." : "");
}

/* Those without effect are known, and not recommended. */
static bool is_shown(const OptionRow *row, CommandId command) {
    return row->command == command && row->kind != OPTION_IDLE &&
           row->kind != OPTION_REFUSED;
}

static void option_usage(FILE *out, Arena *mem, const OptionRow *row) {
    const char *line = option_line(mem, row);
    int n = fprintf(out, "  %s", line), indent = NAME_CHARS + 3;
    if (n >= indent) n = 0, fputc('\n', out);
    fprintf(out, "%*s", indent - n, "");
    wrap(out, row->help, strlen(row->help), indent, indent);
}

void options_usage(FILE *out, CommandId command) {
    const CommandRow *c = &command_table[command];
    Arena *mem = arena_new();
    for (const char *p = c->usage; *p;) {
        size_t n = strcspn(p, "\n");
        fprintf(out, "stator %s %.*s\n", c->name, (int)n, p);
        p += n + (p[n] == '\n');
    }
    fputc('\n', out);
    paragraphs(out, c->text);
    bool any = false;
    for (int r = 0; r < n_options; r++) {
        if (!is_shown(&option_table[r], command)) continue;
        if (!any) fputc('\n', out);
        any = true;
        option_usage(out, mem, &option_table[r]);
    }
    if (c->end[0]) fputc('\n', out);
    paragraphs(out, c->end);
    arena_free(mem);
}

void options_list(FILE *out) {
    for (int c = 0; c < N_COMMANDS; c++) {
        const CommandRow *row = &command_table[c];
        int n = fprintf(out, "  stator %s %.*s", row->name,
                        (int)strcspn(row->usage, "\n"), row->usage);
        fprintf(out, "%*s%s\n", n < 56 ? 58 - n : 2, "", row->line);
    }
}

/* ---- completion ---- */

static void option_names(FILE *out, CommandId command) {
    char name[64];
    for (int r = 0; r < n_options; r++) {
        const char *at = option_table[r].names;
        if (!is_shown(&option_table[r], command)) continue;
        while (option_next_name(&at, name)) fprintf(out, " %s", name);
    }
    fprintf(out, " --help");
}

static void key_names(FILE *out) {
    for (int k = 0; k < N_KEYS; k++)
        if (key_acts(&key_table[k])) fprintf(out, " --%s", key_table[k].path);
}

/* "a|b c" as "a b": words of a choice, other spellings left out. */
static void choices(FILE *out, const char *values) {
    for (const char *p = values; *p;) {
        fprintf(out, " %.*s", (int)strcspn(p, " |"), p);
        p += strcspn(p, "|");
        p += *p == '|';
    }
}

static const char completion_head[] =
    "# stator's completion; source <(stator completion bash)\n"
    "_stator() {\n"
    "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
    "    local command=${COMP_WORDS[1]} words= keys= i\n";

/* After launch and its options comes a command with options of its own. */
static void completion_launched(FILE *out) {
    fputs("    [ \"$command\" = launch ] && for ((i = 2; i < COMP_CWORD; i++)); do\n"
          "        case ${COMP_WORDS[i]} in\n        ",
          out);
    const char *before = "";
    for (int c = 0; c < N_COMMANDS; c++) {
        if (!(command_table[c].flags & COMMAND_RANKS)) continue;
        fprintf(out, "%s%s", before, command_table[c].name);
        before = "|";
    }
    fputs(") command=${COMP_WORDS[i]}; break;;\n        esac\n    done\n", out);
}

static void completion_commands(FILE *out) {
    fputs("    case $command in\n", out);
    for (int c = 0; c < N_COMMANDS; c++) {
        fprintf(out, "    %s) words='", command_table[c].name);
        option_names(out, (CommandId)c);
        if (c == COMMAND_completion) fputs(" bash zsh", out);
        for (int other = 0; other < N_COMMANDS; other++)
            if (c == COMMAND_help ||
                (c == COMMAND_launch && command_table[other].flags & COMMAND_RANKS))
                fprintf(out, " %s", command_table[other].name);
        fputs("'", out);
        if (command_table[c].flags & COMMAND_KEYS) fputs(" keys=1", out);
        fputs(";;\n", out);
    }
    fputs("    *) words='--help --version", out);
    for (int c = 0; c < N_COMMANDS; c++) fprintf(out, " %s", command_table[c].name);
    fputs("';;\n    esac\n    if [ $COMP_CWORD = 1 ]; then words='--help --version", out);
    for (int c = 0; c < N_COMMANDS; c++) fprintf(out, " %s", command_table[c].name);
    fputs("' keys=; fi\n", out);
}

/* The values of an option, where they are known. */
static void completion_values(FILE *out) {
    char name[64];
    fputs("    case $before in\n", out);
    for (int r = 0; r < n_options; r++) {
        const char *at = option_table[r].names;
        if (option_table[r].kind != OPTION_CHOICE) continue;
        fprintf(out, "    %s) words='", option_next_name(&at, name));
        choices(out, option_table[r].value);
        fputs("' keys=;;\n", out);
    }
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        if (!key_acts(key) || (key->kind != KIND_Enum && key->kind != KIND_Bool))
            continue;
        fprintf(out, "    --%s) words='", key->path);
        choices(out, key->kind == KIND_Bool ? "True|False" : key->range);
        fputs("' keys=;;\n", out);
    }
    fputs("    esac\n", out);
}

void options_completion(FILE *out, bool zsh) {
    if (zsh) fputs("autoload -U +X bashcompinit && bashcompinit\n", out);
    fputs(completion_head, out);
    completion_launched(out);
    completion_commands(out);
    completion_values(out);
    fputs("    if [ -n \"$keys\" ]; then words=\"$words", out);
    key_names(out);
    fputs("\"; fi\n"
          "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
          "}\n"
          "complete -o default -F _stator stator\n",
          out);
}

/* ---- manual page ---- */

/* Text for roff: dashes as they are typed, no line that looks like a request. */
static void roff(FILE *out, const char *s, size_t n) {
    bool begins = true;
    for (size_t i = 0; i < n; i++) {
        if (begins && strchr(".'", s[i])) fputs("\\&", out);
        if (s[i] == '\\')
            fputs("\\e", out);
        else if (s[i] == '-')
            fputs("\\-", out);
        else
            fputc(s[i], out);
        begins = s[i] == '\n';
    }
}

static void roff_paragraphs(FILE *out, const char *text) {
    bool kept = false;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        if ((*p == ' ') != kept) fputs(kept ? ".fi\n" : ".nf\n", out);
        kept = *p == ' ';
        if (!kept) fputs(".PP\n", out);
        roff(out, p, n);
        fputc('\n', out);
        p += n + (p[n] == '\n');
    }
    if (kept) fputs(".fi\n", out);
}

static void roff_entry(FILE *out, const char *name, const char *help) {
    fputs(".TP\n.B ", out);
    roff(out, name, strlen(name));
    fputc('\n', out);
    roff(out, help, strlen(help));
    fputc('\n', out);
}

static void man_command(FILE *out, Arena *mem, CommandId command) {
    const CommandRow *c = &command_table[command];
    fprintf(out, ".SS %s\n", c->name);
    for (const char *p = c->usage; *p;) {
        size_t n = strcspn(p, "\n");
        fprintf(out, "%s.B stator %s ", p > c->usage ? ".br\n" : "", c->name);
        roff(out, p, n);
        fputc('\n', out);
        p += n + (p[n] == '\n');
    }
    roff_paragraphs(out, c->text);
    for (int r = 0; r < n_options; r++)
        if (is_shown(&option_table[r], command))
            roff_entry(out, option_line(mem, &option_table[r]), option_table[r].help);
    roff_paragraphs(out, c->end);
}

void options_man(FILE *out, const char *version) {
    Arena *mem = arena_new();
    fprintf(
        out,
        ".TH STATOR 1 \"\" \"stator %s\"\n.SH NAME\n"
        "stator \\- compile a GPT\\-style model into one native program and train it\n"
        ".SH SYNOPSIS\n.B stator\n.I COMMAND\n[options]\n.SH COMMANDS\n",
        version);
    for (int c = 0; c < N_COMMANDS; c++) man_command(out, mem, (CommandId)c);
    fputs(".SH CONFIGURATION KEYS\nEach is a key of a configuration file and a flag.\n",
          out);
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        if (!key_acts(key)) continue;
        roff_entry(out, arena_printf(mem, "--%s", key->path),
                   arena_printf(mem, "%s (%s%s%s)", key->doc,
                                config_values_text(mem, key),
                                key->def[0] ? "; default " : "", key->def));
    }
    arena_free(mem);
}
