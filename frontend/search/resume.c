/* resume.c - whose record a file is: all that a search reckons with, as text. */
#include "codegen/codegen.h"
#include "frontend/config/machine_file.h"
#include "frontend/model/model_keys.h"
#include "frontend/search/search_state.h"

/* How many are planned and shown is not in it: what is found out is the same. */
Record *search_record(Search *s) {
    if (!s->o.record) return NULL;
    Arena *own = arena_new();
    Text t = text_new(own);
    char hash[HASH_HEX_BYTES];
    Config cfg = *s->o.cfg;
    model_keys_fill(&cfg, &s->job.spec);
    text_add(&t, "%s\n%d ranks of %d threads, %lld sequences\n", program_build_id(),
             s->o.ranks, s->threads, (long long)s->o.sequences);
    for (int i = 0; i < s->o.nflags; i++) text_add(&t, "%s\n", s->o.flag[i]);
    config_print(&cfg, &t);
    machine_print(s->o.machine, "", &t);
    hash_hex(t.s, t.n, hash);
    Record *r = record_open(s->mem, s->o.record, hash);
    arena_free(own);
    return r;
}
