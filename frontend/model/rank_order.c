/* rank_order.c - how ranks are numbered: the key parallel_config.rank_order, and the mesh that
 * has it. See strategy.h. */
#include "frontend/config/config_state.h"
#include "frontend/model/strategy.h"
#include "runtime/comm/comm.h"

static const char *const rank_word_name[RANK_WORDS] = {
    [RANK_TP] = "tp", [RANK_CP] = "cp", [RANK_DP] = "dp", [RANK_PP] = "pp"};

const char *rank_order_text(Arena *mem, const RankOrder *order) {
    Text t = text_new(mem);
    for (int k = 0; k < RANK_WORDS; k++)
        text_add(&t, "%s%s", k ? "-" : "", rank_word_name[order->word[k]]);
    return t.s;
}

static RankWord rank_word(const char *text, size_t n) {
    RankWord w = 0;
    while (w < RANK_WORDS &&
           (strlen(rank_word_name[w]) != n || strncmp(rank_word_name[w], text, n)))
        w++;
    return w;
}

RankOrder rank_order_of_config(const Config *cfg) {
    const char *text = cfg->parallel_config_rank_order, *p = text;
    unsigned seen = 0;
    RankOrder order;
    for (int k = 0; k < RANK_WORDS; k++) {
        size_t n = strcspn(p, "-");
        RankWord w = rank_word(p, n);
        bool last = k == RANK_WORDS - 1;
        if (w == RANK_WORDS || seen >> w & 1 || p[n] != (last ? '\0' : '-'))
            config_refuse(
                cfg, "parallel_config.rank_order", NULL,
                "tp, cp, dp and pp, each once, that of neighbouring ranks first: "
                "tp-cp-dp-pp, or tp-cp-pp-dp",
                "rank_order '%.100s'", text);
        seen |= 1u << w;
        order.word[k] = (uint8_t)w;
        p += n + !last;
    }
    return order;
}

static int axis_named(const Mesh *m, const char *name) {
    int a = 0;
    while (a < m->naxes && strcmp(m->axis[a].name, name)) a++;
    return a;
}

void mesh_set_order(Mesh *m, int64_t stages, const RankOrder *order) {
    uint8_t all[MAX_AXES + 2], many[MAX_AXES + 2];
    static const RankOrder usual = {{0}};
    int n = 0, nmany = 0, last = m->naxes;
    bool same = true;
    m->norder = 0;
    if (!memcmp(order, &usual, sizeof usual)) return;
    for (int k = 0; k < RANK_WORDS; k++) {
        RankWord word = order->word[k];
        int a = axis_named(m, rank_word_name[word]);
        int inner = word == RANK_CP ? axis_named(m, "up") : m->naxes;
        int outer = word == RANK_DP ? axis_named(m, "rp") : m->naxes;
        if (inner < m->naxes) all[n++] = (uint8_t)inner;
        if (a < m->naxes || word == RANK_PP) all[n++] = (uint8_t)a;
        if (outer < m->naxes) all[n++] = (uint8_t)outer;
    }
    check(n == m->naxes + 1);
    for (int k = 0; k < n; k++)
        if ((all[k] == m->naxes ? stages : m->axis[all[k]].size) > 1)
            many[nmany++] = all[k];
    for (int k = 0; k < nmany; k++) { /* falls, the stage last */
        bool stage = many[k] == m->naxes;
        same &= stage ? k == nmany - 1 : many[k] < last;
        last = many[k];
    }
    m->norder = same ? 0 : n;
    if (!same) memcpy(m->order, all, (size_t)n);
}

void strategy_lay_mesh(const Mesh *m, int64_t stages) {
    int size[MAX_AXES], stride[MAX_AXES], all = (int)MAX(stages, 1);
    if (comm_size() == 1 || (!m->naxes && all == 1)) return;
    for (int a = 0; a < m->naxes; a++) {
        size[a] = m->axis[a].size;
        stride[a] = mesh_stride(m, all, a);
    }
    comm_mesh_ordered(all, mesh_stride(m, all, m->naxes), m->naxes, size, stride);
}
