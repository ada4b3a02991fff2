/* stator calibrate in its small form: the file is whole, keeps sections of other numbers of
 * ranks, and plans take it. */
#include "../test.h"
#include "driven.h"
#include "frontend/plan/machine_file.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

static void expect_section(const Machine *m, int i, int ranks) {
    const MachineRank *r = &m->rank[i];
    EXPECT_INT(r->ranks, ranks);
    EXPECT(r->threads >= 1 && r->flops[0] > 0 && r->flops[1] > 0);
    EXPECT(r->memory.n && r->ninner && r->nelements);
    EXPECT_INT(r->nproducts, 6);
    for (int k = 0; k < r->nproducts; k++) EXPECT(r->product[k].rate[0] > 0);
    EXPECT(r->residual[0] != 0 && r->residual[1] != 0);
}

static const Machine *calibrated(const char *words) {
    const char *path = in_temp("machine.yaml");
    RUN_EXPECT(0, arena_printf(mem(), "calibrate --quick --output %s%s", path, words));
    return machine_read(mem(), path);
}

TEST_LIMIT(sections_of_other_numbers_of_ranks_stay, 120) {
    const Machine *m = calibrated("");
    EXPECT_INT(m->nranks, 1);
    expect_section(m, 0, 1);
    EXPECT(m->cores >= 1 && m->op_start_seconds > 0 && !m->ncollectives);
    EXPECT(m->name[0] && m->host[0]);
    EXPECT_PART(m->made_on, "oneDNN");
    bool crowded = m->cores < 2;
    m = calibrated(" -n 2");
    EXPECT_INT(m->nranks, 2 - crowded);
    expect_section(m, 0, 1);
    if (!crowded) expect_section(m, 1, 2);
    EXPECT_INT(m->ncollectives, 5);
    for (int i = 0; i < m->ncollectives; i++) {
        const CollectiveCurve *c = &m->collective[i];
        EXPECT(c->group == 2 && c->ranks == 2 && c->level == LINK_HOST &&
               c->seconds.n > 1);
        for (int k = 0; k < c->seconds.n; k++) EXPECT(c->seconds.y[k] > 0);
    }
    EXPECT(m->link[LINK_HOST].start_seconds !=
           machine_plain.link[LINK_HOST].start_seconds);
    write_text(
        in_temp("small.yaml"),
        "model:\n  model_config: {type: GPT2Config, vocab_size: 256, seq_length: 32,\n"
        "    num_layers: 1, hidden_size: 32, num_heads: 2, eos_token: -1}\n");
    RUN_EXPECT(0, arena_printf(mem(), "plan %s -n 2 --machine %s", in_temp("small.yaml"),
                               in_temp("machine.yaml")));
    SAID_EXPECT("s a step on ");
    EXPECT(!strstr(said(), "note: the rates are those of host"));
    Machine other = *m;
    other.host = "elsewhere";
    Text text = text_new(mem());
    machine_print(&other, NULL, &text);
    write_text(in_temp("machine.yaml"), text.s);
    RUN_EXPECT(0, arena_printf(mem(), "plan %s -n 2 --machine %s", in_temp("small.yaml"),
                               in_temp("machine.yaml")));
    SAID_EXPECT("note: the rates are those of host elsewhere");
    RUN_EXPECT(0, arena_printf(mem(), "plan %s --json --machine %s",
                               in_temp("small.yaml"), in_temp("machine.yaml")));
    SAID_EXPECT("\"of_other_host\": true");
}

TEST(counts_that_are_none_are_refused) {
    RUN_EXPECT(2, "calibrate -n 0");
    SAID_EXPECT("write counts of ranks such as 1,2,4");
    RUN_EXPECT(2, "calibrate -n 2,x");
    RUN_EXPECT(2, "calibrate --machine a");
    RUN_EXPECT(3, arena_printf(mem(), "calibrate --quick --output %s",
                               in_temp("none/machine.yaml")));
}
