/* report_json.c - see report.h: for programs. */
#include "base/json.h"
#include "frontend/search/report.h"

static void add_flags(const Verified *v, Text *out) {
    text_add(out, "[");
    for (int i = 0; i < v->nflags; i++) {
        text_add(out, i ? ", " : "");
        json_write_string(out, v->flag[i]);
    }
    text_add(out, "]");
}

static void add_verified(const Report *r, const Verified *v, Text *out) {
    json_add_text(out, "{", "strategy", report_strategy(r->mem, &v->c));
    text_add(out, ", \"flags\": ");
    add_flags(v, out);
    text_add(out,
             ", \"step_seconds\": %.6g, \"memory_bytes\": %lld, \"sent_bytes\": %lld}",
             v->seconds, (long long)v->bytes, (long long)v->sent_bytes);
}

static void add_choice(const Report *r, const Choice *c, Text *out) {
    json_add_text(out, "{", "strategy", report_strategy(r->mem, c));
    text_add(out, ", \"step_seconds\": %.6g, \"memory_bytes\": %.0f}", c->seconds,
             c->bytes);
}

static void add_family(const Report *r, const Family *f, Text *out) {
    text_add(out, "{");
    if (f->tp)
        text_add(out, "\"model_parallel\": %d, \"context_parallel\": %d", f->tp, f->cp);
    if (f->pp) text_add(out, "%s\"pipeline_stage\": %d", f->tp ? ", " : "", f->pp);
    if (f->refused) {
        json_add_text(out, ", ", "refused", f->refused);
    } else {
        const Choice *ahead = f->fit ? report_ahead(r->r, f) : NULL;
        text_add(out, ", \"choices\": %lld, \"fit\": %lld, \"memory_bytes\": %.0f",
                 (long long)f->choices, (long long)f->fit, f->bytes);
        if (f->fit)
            text_add(out, ", \"step_seconds\": %.6g", f->seconds);
        else
            text_add(out, ", \"bytes_too_many\": %.0f", report_excess(r->r, f));
        json_add_text(out, ", ", "strategy", report_strategy(r->mem, &f->best));
        if (ahead) {
            text_add(out, ", \"behind\": ");
            add_choice(r, ahead, out);
        }
    }
    text_add(out, "}");
}

void report_json(const Report *r, Text *out) {
    text_add(out, "{\n  \"ranks\": %d", r->o->ranks);
    json_add_text(out, ",\n  ", "machine", r->o->machine->name);
    json_add_bool(out, ",\n  ", "stopped", r->r->stopped);
    text_add(out, ",\n  \"best\": ");
    if (r->r->ntop)
        add_verified(r, &r->r->top[0], out);
    else
        text_add(out, "null");
    text_add(out, ",\n  \"top\": [");
    for (int i = 0; i < r->r->ntop; i++) {
        text_add(out, "%s\n    ", i ? "," : "");
        add_verified(r, &r->r->top[i], out);
    }
    text_add(out, "],\n  \"front\": [");
    for (int i = 0; i < r->r->nfront; i++) {
        text_add(out, "%s\n    ", i ? "," : "");
        add_choice(r, &r->r->front[i], out);
    }
    text_add(out, "],\n  \"families\": [");
    for (int i = 0; i < r->r->nfamilies; i++) {
        text_add(out, "%s\n    ", i ? "," : "");
        add_family(r, &r->r->family[i], out);
    }
    text_add(out,
             "],\n  \"choices\": %lld, \"probes\": %d, \"simulated\": %lld, "
             "\"planned\": %d, \"gave_up\": %s,\n  \"seconds\": %.4g\n}\n",
             (long long)r->r->choices, r->r->probes, (long long)r->r->simulated,
             r->r->planned, r->r->gave_up ? "true" : "false", r->seconds);
}
