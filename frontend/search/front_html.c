/* front_html.c - see report.h: the page. */
#include "frontend/search/report.h"
#include "runtime/run/svg.h"

static const char begin[] =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n"
    "<style>\n"
    "body{font:14px system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 "
    "1em}\n"
    "svg{max-width:100%;height:auto}\n"
    "input{font:inherit;width:24em;max-width:100%;margin:1em 0}\n"
    "table{border-collapse:collapse;width:100%}\n"
    "th,td{padding:2px 8px;text-align:left;white-space:nowrap}\n"
    "th{cursor:pointer;border-bottom:1px solid #888;user-select:none}\n"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\n"
    "tr.on{outline:2px solid #c2571a}\n"
    ".scroll{overflow-x:auto}\n"
    "h2{font-size:1.1em;margin-top:2em}\n"
    "circle.on{stroke:#c2571a;stroke-width:4;r:7}\n"
    "</style>\n<title>";

/* Sorts by the heading that is clicked, keeps rows with all words of the filter (those between
 * commas stay together), and ties points to rows. */
static const char script[] =
    "<script>\n"
    "const body = document.querySelector('#strategies tbody');\n"
    "const rows = [...body.rows];\n"
    "let by = 0, up = true;\n"
    "function value(row, k) {\n"
    "  const c = row.cells[k], v = c.dataset.v;\n"
    "  return v === undefined ? c.textContent : Number(v);\n"
    "}\n"
    "function sort(k) {\n"
    "  up = k === by ? !up : true;\n"
    "  by = k;\n"
    "  rows.sort((a, b) => {\n"
    "    const x = value(a, k), y = value(b, k);\n"
    "    return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);\n"
    "  });\n"
    "  body.append(...rows);\n"
    "}\n"
    "document.querySelectorAll('#strategies th').forEach((h, k) => h.onclick = () => "
    "sort(k));\n"
    "document.querySelector('input').oninput = e => {\n"
    "  const want = e.target.value.toLowerCase().split(',').map(w => w.trim());\n"
    "  for (const r of rows) {\n"
    "    const text = ' ' + r.textContent.toLowerCase() + ' ';\n"
    "    r.hidden = !want.every(w => text.includes(w));\n"
    "    document.getElementById('p' + r.dataset.p).style.opacity = r.hidden ? 0.1 : 1;\n"
    "  }\n"
    "};\n"
    "for (const r of rows) {\n"
    "  const p = document.getElementById('p' + r.dataset.p);\n"
    "  const mark = on => { p.classList.toggle('on', on); r.classList.toggle('on', on); "
    "};\n"
    "  r.onmouseenter = p.onmouseenter = () => mark(true);\n"
    "  r.onmouseleave = p.onmouseleave = () => mark(false);\n"
    "  p.onclick = () => r.scrollIntoView({block: 'center'});\n"
    "}\n"
    "</script>\n";

static void add_cell(Text *t, double value, const char *shown) {
    text_add(t, "<td class=\"n\" data-v=\"%.9g\">", value);
    svg_escape(t, shown);
    text_add(t, "</td>");
}

static void add_text(Text *t, const char *s) {
    text_add(t, "<td>");
    svg_escape(t, s);
    text_add(t, "</td>");
}

static void add_row(Text *t, const Report *r, const Point *p, int k) {
    static const char *const means[POINT_KINDS] = {"planned", "by pieces, on the front",
                                                   "by pieces, fastest of its split"};
    const Choice *c = p->c;
    const int count[] = {c->dp, c->tp, c->cp, c->pp, c->micro, c->batch, c->zero};
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%.4g", p->seconds);
    text_add(t, "<tr data-p=\"%d\">", k);
    add_cell(t, p->seconds, seconds);
    add_cell(t, p->bytes, human(p->bytes, "B").s);
    add_cell(t, (double)p->sent_bytes,
             p->sent_bytes < 0 ? "" : human((double)p->sent_bytes, "B").s);
    for (int i = 0; i < ARRAY_LEN(count); i++)
        text_add(t, "<td class=\"n\" data-v=\"%d\">%d</td>", count[i], count[i]);
    add_text(t, report_strategy(r->mem, c));
    add_text(t, means[p->kind]);
    text_add(t, "</tr>\n");
}

static void add_strategies(Text *t, const Report *r) {
    static const char *const head[] = {"seconds", "memory", "sent",  "dp",    "tp",
                                       "cp",      "pp",     "micro", "batch", "ZeRO"};
    int n;
    const Point *p = report_points(r, &n);
    text_add(t, "<input placeholder=\"filter: tp 4, zero-1\" aria-label=\"filter\">\n"
                "<div class=\"scroll\"><table id=\"strategies\"><thead><tr>");
    for (int i = 0; i < ARRAY_LEN(head); i++)
        text_add(t, "<th class=\"n\">%s</th>", head[i]);
    text_add(t, "<th>strategy</th><th>known from</th></tr></thead><tbody>\n");
    for (int i = 0; i < n; i++) add_row(t, r, &p[i], i);
    text_add(t, "</tbody></table></div>\n");
}

static const char *why_not(const Report *r, const Family *f) {
    if (f->refused) {
        size_t n = strcspn(f->refused, "\n");
        return arena_strndup(r->mem, f->refused, n);
    }
    if (!f->fit)
        return arena_printf(r->mem, "does not fit: %s at least, %s too many",
                            human(f->bytes, "B").s, human(report_excess(r->r, f), "B").s);
    const Choice *c = report_ahead(r->r, f);
    if (!c) return NULL;
    return arena_printf(r->mem, "%.4g s, %s: behind %.4g s, %s of %s", f->seconds,
                        human(f->bytes, "B").s, c->seconds, human(c->bytes, "B").s,
                        report_strategy(r->mem, c));
}

static void add_left_out(Text *t, const Report *r) {
    text_add(t, "<h2>Splits of the ranks that are left out, and why</h2>\n"
                "<div class=\"scroll\"><table><thead><tr><th>split</th><th>why</th></tr>"
                "</thead><tbody>\n");
    for (int i = 0; i < r->r->nfamilies; i++) {
        const Family *f = &r->r->family[i];
        const char *why = why_not(r, f);
        if (!why) continue;
        const char *stages = f->pp ? arena_printf(r->mem, "pp %d", f->pp) : "";
        const char *split =
            f->tp ? arena_printf(r->mem, "tp %d cp %d %s", f->tp, f->cp, stages) : stages;
        text_add(t, "<tr>");
        add_text(t, split);
        add_text(t, why);
        text_add(t, "</tr>\n");
    }
    text_add(t, "</tbody></table></div>\n");
}

static void add_flags(Text *t, const Report *r) {
    if (!r->r->ntop) return;
    text_add(t, "<h2>The fastest, as flags</h2>\n<pre>");
    for (int i = 0; i < r->r->top[0].nflags; i++) {
        svg_escape(t, r->r->top[0].flag[i]);
        text_add(t, "\n");
    }
    text_add(t, "</pre>\n");
}

Text report_html(const Report *r) {
    Text t = text_new(r->mem), svg = report_svg(r);
    text_add(&t, "%s", begin);
    svg_escape(&t, config_files_path(r->o->files));
    text_add(&t, " on %d ranks</title>\n</head>\n<body>\n", r->o->ranks);
    text_add_bytes(&t, svg.s, svg.n);
    add_strategies(&t, r);
    add_left_out(&t, r);
    add_flags(&t, r);
    text_add(&t, "%s</body>\n</html>\n", script);
    return t;
}
