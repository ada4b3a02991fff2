/* Tests of parallel_config.rank_order without ranks: numbers and coordinates, what a plan says of
 * hosts, what is refused. */
#include "../plans.h"
#include "frontend/config/machine_file.h"
#include "frontend/model/strategy.h"
#include "passes/cost/message.h"

#define MACHINE                                                                          \
    "name: t\nhost_ranks: 4\n"                                                           \
    "links:\n  host: {start_us: 1, gbytes: 10}\n  network: {start_us: 10, gbytes: 1}\n"  \
    "ranks:\n  - {f32_gflops: 100, bf16_gflops: 100}\n"

static Mesh mesh_in(int dp, int cp, int tp, int stages, const char *words) {
    static const char names[RANK_WORDS][3] = {"tp", "cp", "dp", "pp"};
    Mesh m = {.naxes = 3, .axis = {{"dp", dp}, {"cp", cp}, {"tp", tp}}};
    RankOrder order;
    for (int k = 0; k < RANK_WORDS; k++)
        for (int w = 0; w < RANK_WORDS; w++)
            if (!strncmp(words + 3 * k, names[w], 2)) order.word[k] = (uint8_t)w;
    mesh_set_order(&m, stages, &order);
    return m;
}

TEST(numbers_and_places) {
    static const char *const orders[] = {"tp-cp-dp-pp", "tp-cp-pp-dp", "pp-dp-cp-tp",
                                         "dp-tp-pp-cp", "cp-pp-tp-dp"};
    enum { STAGES = 2, ALL = 2 * 3 * 2 * 5 };
    for (int o = 0; o < ARRAY_LEN(orders); o++) {
        Mesh m = mesh_in(3, 2, 5, STAGES, orders[o]);
        bool seen[ALL] = {false};
        test_at("%s", orders[o]);
        EXPECT_INT(m.norder > 0, o > 0);
        for (int s = 0; s < STAGES; s++)
            for (int r = 0; r < mesh_ranks(&m); r++) {
                int rank = mesh_rank_at(&m, STAGES, s, r), stage, nth;
                EXPECT(rank >= 0 && rank < ALL && !seen[rank]);
                seen[rank] = true;
                mesh_place(&m, STAGES, rank, &stage, &nth);
                EXPECT(stage == s && nth == r);
                if (!o) EXPECT_INT(rank, s * mesh_ranks(&m) + r);
            }
    }
    Mesh m = mesh_in(3, 2, 5, STAGES, "tp-cp-pp-dp");
    EXPECT_INT(mesh_rank_at(&m, STAGES, 1, 0), 10);
    EXPECT_INT(mesh_rank_at(&m, STAGES, 0, 10), 20);
    EXPECT(!mesh_in(1, 1, 5, STAGES, "cp-tp-dp-pp")
                .norder); /* nothing is numbered otherwise */
    EXPECT(!mesh_in(3, 2, 5, 1, "tp-pp-cp-dp").norder);
}

/* Hosts of any size: as counting them says, whether they end with axes or not. */
TEST(groups_on_hosts_in_any_order) {
    static const char *const orders[] = {"tp-cp-dp-pp", "tp-cp-pp-dp", "pp-dp-cp-tp",
                                         "dp-tp-pp-cp"};
    Machine machine = machine_plain;
    enum { STAGES = 2 };
    for (int o = 0; o < ARRAY_LEN(orders); o++)
        for (machine.host_ranks = 1; machine.host_ranks < 24; machine.host_ranks++) {
            Mesh m = mesh_in(2, 2, 3, STAGES, orders[o]);
            for (int axes = 1; axes < 1 << m.naxes; axes++) {
                int n = mesh_group_size(&m, (Axes)axes), fewest = n;
                for (int s = 0; s < STAGES; s++)
                    for (int r = 0; r < mesh_ranks(&m); r++) {
                        int on[24] = {0}, most = 0;
                        for (int k = 0; k < n; k++) {
                            int nth = mesh_group_member(&m, r, (Axes)axes, k);
                            int here =
                                mesh_rank_at(&m, STAGES, s, nth) / machine.host_ranks;
                            on[here]++;
                            most = MAX(most, on[here]);
                        }
                        fewest = MIN(fewest, most);
                    }
                GroupShape g = group_shape(&machine, &m, (Axes)axes, STAGES);
                test_at("%s, hosts of %d, axes %d", orders[o], machine.host_ranks, axes);
                EXPECT_INT(g.on_host, fewest);
                EXPECT_INT(g.level == LINK_NETWORK, fewest < n);
            }
        }
}

static const char *plan_with(const char *keys) {
    Arena *mem = arena_new();
    char *path = path_join(mem, temp_dir(), "machine.yaml");
    EXPECT_INT(file_write_atomic(path, MACHINE, strlen(MACHINE)), 0);
    Config *cfg = plan_config(mem, plan_gpt2,
                              arena_printf(mem, "%s context.machine %s", keys, path));
    Plan p = plan_of_config(mem, cfg, 0);
    plan_set_machine(mem, &p, config_machine(cfg), 0);
    Text text = text_new(mem);
    plan_print(mem, &p, 0, &text);
    return text.s;
}

/* 8 ranks on hosts of 4. */
TEST(a_plan_says_what_goes_between_hosts) {
    const char *usual = plan_with("dp 2 tp 2 pp 2 micro 2");
    EXPECT_PART(usual, "2 of 4 ranks: tp, dp within a host; pp between hosts");
    EXPECT(!strstr(usual, "numbered"));
    const char *other =
        plan_with("dp 2 tp 2 pp 2 micro 2 parallel_config.rank_order tp-cp-pp-dp");
    EXPECT_PART(other, "2 of 4 ranks: pp, tp within a host; dp between hosts");
    EXPECT_PART(other, "numbered tp-cp-pp-dp");
}
