/* rank_run.c - see rank_run.h. */
#include "passes/estimate/rank_run.h"

static void set_factors(Arena *mem, RankRun *run) {
    const RankNoise *noise = run->noise;
    int stages = run->p->parts.stages, all = stages * run->ranks;
    double *factor = NEW_ARRAY(mem, double, (size_t)all);
    JitterKey key = {.seed = noise->seed, .purpose = PURPOSE_RANK << 24};
    for (int r = 0; r < all; r++) factor[r] = 1;
    if (noise->rank.row) jitter_draw(jitter_table(mem, noise->rank), &key, all, factor);
    for (int i = 0; i < noise->nslow; i++)
        for (int r = noise->slow[i].first; r <= noise->slow[i].last; r++)
            factor[r] *= noise->slow[i].factor;
    run->factor = NEW_ARRAY(mem, double *, (size_t)stages);
    for (int s = 0; s < stages; s++) {
        run->factor[s] = NEW_ARRAY(mem, double, (size_t)run->ranks);
        for (int r = 0; r < run->ranks; r++)
            run->factor[s][r] = factor[run->number[s][r]];
    }
}

/* One rank of each stage alone: stages are what is counted. */
static void number_ranks(Arena *mem, RankRun *run) {
    int stages = run->p->parts.stages;
    bool alone = run->ranks < run->p->ranks;
    run->number = NEW_ARRAY(mem, int *, (size_t)stages);
    for (int s = 0; s < stages; s++) {
        run->number[s] = NEW_ARRAY(mem, int, (size_t)run->ranks);
        for (int r = 0; r < run->ranks; r++)
            run->number[s][r] =
                alone ? s : mesh_rank_at(run->p->parts.mesh, stages, s, r);
    }
}

static void set_slow(Arena *mem, RankRun *run, int stage) {
    SlowOfStage *slow = &run->slow[stage];
    slow->rank = NEW_ARRAY(mem, int, (size_t)run->ranks);
    for (int r = 0; r < run->ranks; r++)
        if (run->factor[stage][r] != 1) slow->rank[slow->n++] = r;
    run->any_late |= slow->n || run->links.n;
}

static void set_groups(Arena *mem, RankRun *run, int stage) {
    const StageProgram *p = &run->p->stage[stage];
    RankGroups *groups = NEW_ARRAY(mem, RankGroups, (size_t)run->axes_sets);
    const RankGroups alone = {.n = 1, .of = NEW_ARRAY(mem, int, 1)};
    for (int f = 0; f < p->nfuncs; f++)
        for (int i = 0; i < p->func[f].n; i++) {
            const RankPiece *piece = &p->func[f].piece[i];
            if (piece->kind == RANK_COLLECTIVE && !groups[piece->axes].n)
                groups[piece->axes] =
                    run->ranks < run->p->ranks
                        ? alone
                        : rank_groups(mem, &run->links, piece->axes, stage);
        }
    run->groups[stage] = groups;
}

static void set_messages(Arena *mem, RankRun *run) {
    const StepParts *parts = &run->p->parts;
    size_t stages = (size_t)parts->stages;
    LinkDelay **between = NEW_ARRAY(mem, LinkDelay *, stages * stages);
    run->delay = NEW_ARRAY(mem, LinkDelay *, (size_t)parts->nmessages + 1);
    for (int i = 0; i < parts->nmessages; i++) {
        int from = parts->message[i].from, to = parts->message[i].to;
        LinkDelay **d = &between[from * parts->stages + to];
        if (!*d) {
            *d = NEW_ARRAY(mem, LinkDelay, (size_t)run->ranks);
            for (int r = 0; r < run->ranks; r++)
                (*d)[r] =
                    link_delay(&run->links, run->number[from][r], run->number[to][r]);
        }
        run->delay[i] = *d;
    }
}

static RankRun *run_new(Arena *mem, const RankProgram *p, const RankNoise *noise,
                        int ranks) {
    int stages = p->parts.stages;
    RankRun *run = NEW(mem, RankRun);
    *run =
        (RankRun){.p = p,
                  .noise = noise,
                  .ranks = ranks,
                  .compute = jitter_table(mem, noise->compute),
                  .message = jitter_table(mem, noise->message),
                  .axes_sets = 1 << p->parts.mesh->naxes,
                  .links = {p, noise->link, noise->nlinks, step_host_ranks(&p->parts)}};
    number_ranks(mem, run);
    set_factors(mem, run);
    run->groups = NEW_ARRAY(mem, RankGroups *, (size_t)stages);
    run->slow = NEW_ARRAY(mem, SlowOfStage, (size_t)stages);
    for (int s = 0; s < stages; s++) {
        set_slow(mem, run, s);
        set_groups(mem, run, s);
    }
    if (noise->nlinks) set_messages(mem, run);
    return run;
}

RankRun *rank_run_new(Arena *mem, const RankProgram *p, const RankNoise *noise) {
    return run_new(mem, p, noise, p->ranks);
}

RankRun *rank_run_alone(Arena *mem, const RankProgram *p) {
    static const RankNoise none = {0};
    return run_new(mem, p, &none, 1);
}
