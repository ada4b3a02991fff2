/* recompute.c - see recompute.h. */
#include "frontend/model/recompute.h"
#include "frontend/config/config_state.h"

#define RC "recompute_config."

/* 1: the one word True; 0: False; -1: something else. */
static int as_switch(const TextList *l) {
    static const char *const no[] = {"False", "false", "FALSE", "no", "off"};
    static const char *const yes[] = {"True", "true", "TRUE", "yes", "on"};
    if (!l->n) return 0;
    if (l->n > 1) return -1;
    for (int i = 0; i < ARRAY_LEN(no); i++) {
        if (!strcmp(l->items[0], no[i])) return 0;
        if (!strcmp(l->items[0], yes[i])) return 1;
    }
    return -1;
}

static bool is_number(const char *s) {
    size_t n = strspn(s, "0123456789");
    return n && n < 10 && !s[n];
}

static const char *joined(Arena *mem, const TextList *l) {
    Text t = text_new(mem);
    for (int i = 0; i < l->n; i++) text_add(&t, "%s%s", i ? "," : "", l->items[i]);
    return t.s;
}

static const char *counts(Config *cfg, Arena *mem, const TextList *l) {
    for (int i = 0; i < l->n; i++) {
        if (!strcmp(l->items[i], "auto"))
            config_refuse(cfg, RC "recompute", NULL,
                          "True, a number of layers, or "
                          "select_recompute with names of values",
                          "recompute auto is not there yet");
        if (!is_number(l->items[i]))
            config_refuse(cfg, RC "recompute", NULL,
                          "a number of first layers, or a list of one for each chunk in "
                          "the order of the model",
                          "recompute must be True, False or numbers of layers, not "
                          "\"%.100s\"",
                          l->items[i]);
    }
    return joined(mem, l);
}

static const char *names(Config *cfg, Arena *mem, const TextList *l) {
    for (int i = 0; i < l->n; i++)
        if (is_number(l->items[i]) || as_switch(&(TextList){&l->items[i], 1}) >= 0)
            config_refuse(cfg, RC "select_recompute", NULL,
                          "True, or names of values such as [norm, act]",
                          "select_recompute by a number of layers (\"%s\") is not there "
                          "yet",
                          l->items[i]);
    return joined(mem, l);
}

static void refuse_later(Config *cfg) {
    if (!cfg->recompute_config_mp_comm_recompute)
        config_refuse(cfg, RC "mp_comm_recompute", NULL, "True",
                      "mp_comm_recompute False is not there yet: the communication of "
                      "what is computed again is repeated");
}

Recompute recompute_of_config(Config *cfg) {
    Arena *mem = cfg->state->mem;
    Recompute r = {0};
    const TextList *all = &cfg->recompute_config_recompute;
    const TextList *some = &cfg->recompute_config_select_recompute;
    int on = as_switch(all), selected = as_switch(some);
    if (selected) r.remake = selected > 0 ? "selective" : names(cfg, mem, some);
    if (on < 0) r.full = counts(cfg, mem, all);
    if (on > 0 && r.remake)
        config_note(
            cfg, RC "select_recompute",
            "select_recompute has no effect: recompute True computes all of every "
            "layer again");
    if (on > 0) r.remake = "full";
    if (r.remake || r.full) refuse_later(cfg);
    return r;
}
