/* sharing.c - see sharing.h. */
#include "passes/estimate/sharing.h"
#include <math.h>

/* Rates are those of ranks that have cores of their own. The ranks of one stage compute at
 * the same time, so where they share cores all of its compute is stretched; and stages that
 * share cores are slower while more of them compute than there are cores for. Measured
 * collectives have the sharing among their ranks in them. */
Sharing sharing_of(Arena *mem, const Machine *m, const Mesh *mesh, int stages,
                   int threads) {
    int all = mesh_ranks(mesh) * stages, host = machine_host_ranks(m, all);
    Sharing h = {.stages = stages};
    if (m->cores <= 0 || threads <= 0 || (int64_t)host * threads <= m->cores) return h;
    int hosts = (all + host - 1) / host, even = m->cores / threads;
    bool bound = m->cores % threads == 0 && host % even == 0;
    int on_host = bound ? even : 1;
    h.places = on_host * hosts;
    h.room = bound ? 1 : (double)m->cores / threads;
    h.load = NEW_ARRAY(mem, int, array_bytes((size_t)h.places, (size_t)stages));
    for (int g = 0; g < all; g++) {
        int stage, nth;
        mesh_place(mesh, stages, g, &stage, &nth);
        h.load[stage * h.places + g / host * on_host + g % host % on_host]++;
    }
    return h;
}

/* How many times as long so many ranks compute that are on one place. Where they do not come
 * out even, a core that has fewer is given another's rank only after a while, since ranks that
 * wait keep it busy: it counts as half of the time (3 ranks on 2 cores took 1.7 to 2.1 times
 * as long). */
static double stretch_of(const Sharing *h, int ranks) {
    double even = ranks / h->room;
    return even > 1 ? (even + ceil(even)) / 2 : 1;
}

double sharing_stage_stretch(const Sharing *h, int stage) {
    double most = 1;
    for (int p = 0; p < h->places; p++)
        most = fmax(most, stretch_of(h, h->load[stage * h->places + p]));
    return most;
}

/* Ranks on the place of all stages that compute. */
static int at_work_on(const Sharing *h, int place, const bool *works) {
    int ranks = 0;
    for (int s = 0; s < h->stages; s++)
        if (works[s]) ranks += h->load[s * h->places + place];
    return ranks;
}

double sharing_speed(const Sharing *h, int stage, const bool *works) {
    double most = 1;
    for (int p = 0; p < h->places; p++)
        if (h->load[stage * h->places + p])
            most = fmax(most, stretch_of(h, at_work_on(h, p, works)));
    return sharing_stage_stretch(h, stage) / most;
}

bool sharing_is_crowded(const Sharing *h, int stage, const bool *works) {
    for (int p = 0; p < h->places; p++) {
        int own = h->load[stage * h->places + p];
        int others = at_work_on(h, p, works) - (works[stage] ? own : 0);
        if (own && own + others > h->room) return true;
    }
    return false;
}
