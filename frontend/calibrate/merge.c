/* merge.c - see merge.h. */
#include "frontend/calibrate/merge.h"
#include "codegen/codegen.h"

static bool has_section(const Machine *m, const MachineRank *r) {
    for (int i = 0; i < m->nranks; i++)
        if (m->rank[i].ranks == r->ranks && m->rank[i].threads == r->threads) return true;
    return false;
}

static bool has_curves(const Machine *m, int ranks) {
    for (int i = 0; i < m->ncollectives; i++)
        if (m->collective[i].ranks == ranks) return true;
    return false;
}

/* What one rank alone cannot measure stays as it was, and so does what only ranks that have
 * cores of their own can. */
static void keep_numbers(Machine *m, const Machine *old, bool alone, bool crowded) {
    if (alone) {
        memcpy(m->link, old->link, sizeof m->link);
        m->hidden = old->hidden;
    }
    if (alone || crowded) m->op_start_seconds = old->op_start_seconds;
    if (!crowded) return;
    memcpy(m->link, old->link, sizeof m->link);
    m->hidden = old->hidden;
}

Machine *machine_merge(Arena *mem, const Machine *old, const Machine *now) {
    Machine *m = NEW(mem, Machine);
    *m = *now;
    m->rank = NEW_ARRAY(mem, MachineRank, (size_t)(old->nranks + now->nranks) + 1);
    m->collective = NEW_ARRAY(mem, CollectiveCurve,
                              (size_t)(old->ncollectives + now->ncollectives) + 1);
    m->nranks = m->ncollectives = 0;
    for (int i = 0; i < old->nranks; i++)
        if (!has_section(now, &old->rank[i])) m->rank[m->nranks++] = old->rank[i];
    for (int i = 0; i < now->nranks; i++) m->rank[m->nranks++] = now->rank[i];
    for (int i = 0; i < old->ncollectives; i++)
        if (!has_curves(now, old->collective[i].ranks))
            m->collective[m->ncollectives++] = old->collective[i];
    for (int i = 0; i < now->ncollectives; i++)
        m->collective[m->ncollectives++] = now->collective[i];
    bool crowded = !now->nranks;
    keep_numbers(m, old, !now->ncollectives && old->ncollectives, crowded && old->nranks);
    return m;
}

/* "model name : AMD EPYC" */
static char *cpu_name(Arena *mem) {
    static const char key[] = "model name\t: ";
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    char *name = NULL;
    while (f && !name && fgets(line, sizeof line, f))
        if (!strncmp(line, key, sizeof key - 1))
            name = arena_strndup(mem, line + sizeof key - 1,
                                 strcspn(line + sizeof key - 1, "\n"));
    if (f) fclose(f);
    return name ? name : "a CPU";
}

void machine_describe_host(Arena *mem, Text *out) {
    text_add(out, "%s, %s", cpu_name(mem), program_libraries(mem));
}
