/* Machine files: read, refused, printed, merged; curves and tables between their points; where
 * groups of ranks are. */
#include "../mem.h"
#include "../test.h"
#include "frontend/calibrate/merge.h"
#include "frontend/config/machine_file.h"
#include "passes/cost/message.h"
#include "passes/passes.h"

static Machine *parse(const char *text) {
    return machine_parse(mem(), "m.yaml", text, strlen(text));
}

/* ---- files ---- */

static const char whole[] =
    "name: a cluster\nmade_on: 2026-01-02, some library\nhost: n1\ncores: 8\n"
    "host_ranks: 4\nmemory_gbytes: 40\nreached: 0.5\nhalf: 64\naligned: 8\nunaligned: "
    "0.3\n"
    "inner_reached: 0.25\n"
    "op_start_us: 2\nissue_us: 7\nnotice_us: 9\ninner_bytes: 15\nsum_bytes: "
    "2\nelement_billions: "
    "3\nhidden: 0.75\n"
    "links:\n"
    "  host: {start_us: 3, gbytes: 10}\n"
    "  network: {start_us: 30, gbytes: 5, rank_gbytes: 1.5}\n"
    "ranks:\n"
    "- ranks: 4\n  threads: 2\n  f32_gflops: 100\n  bf16_gflops: 200\n"
    "  residual_f32: -0.02\n  residual_bf16: 0.04\n"
    "  memory: {bytes: [1000, 100000], gbytes: [20, 5]}\n"
    "  in_place: {bytes: [2000], gbytes: [30]}\n"
    "  reads: {bytes: [3000], gbytes: [40]}\n"
    "  products:\n"
    "  - {type: bf16, form: tn, sizes: [16, 64], gflops: [1, 2, 3, 4, 5, 6, 7, 8]}\n"
    "  inner:\n"
    "  - {op: attention, type: f32, width: 64, intensity: [10, 100], gflops: [7, 9]}\n"
    "  element_billions: {exp: 1.5, tanh: 0.5}\n"
    "collectives:\n"
    "- {op: all_gather, group: 4, ranks: 4, level: network, bytes: [8, 800], us: [5, "
    "90]}\n";

static void expect_whole(const Machine *m) {
    EXPECT_STR(m->name, "a cluster");
    EXPECT_STR(m->made_on, "2026-01-02, some library");
    EXPECT_STR(m->host, "n1");
    EXPECT_INT(m->cores, 8);
    EXPECT_INT(m->host_ranks, 4);
    EXPECT_NEAR(m->memory_bytes / 40e9, 1, 1e-9);
    EXPECT(m->reached == 0.5 && m->half == 64 && m->inner_reached == 0.25);
    EXPECT(m->aligned == 8 && m->unaligned == 0.3);
    EXPECT_NEAR(m->op_start_seconds * 1e6, 2, 1e-9);
    EXPECT_NEAR(m->element_rate / 3e9, 1, 1e-9);
    EXPECT(m->hidden == 0.75);
    EXPECT_NEAR(m->notice_seconds * 1e6, 9, 1e-9);
    EXPECT_NEAR(m->link[LINK_HOST].start_seconds * 1e6, 3, 1e-9);
    EXPECT_NEAR(m->link[LINK_NETWORK].rank_bytes_per_second / 1.5e9, 1, 1e-9);
    EXPECT_INT(m->nranks, 1);
    const MachineRank *r = &m->rank[0];
    EXPECT_INT(r->ranks, 4);
    EXPECT_INT(r->threads, 2);
    EXPECT_NEAR(r->flops[1] / 200e9, 1, 1e-9);
    EXPECT(r->residual[0] == -0.02 && r->residual[1] == 0.04);
    EXPECT_INT(r->memory.n, 2);
    EXPECT_NEAR(r->memory.y[1] / 5e9, 1, 1e-9);
    EXPECT(!r->memory.grows);
    EXPECT_INT(r->in_place.n, 1);
    EXPECT(r->in_place.x[0] == 2000);
    EXPECT_NEAR(r->in_place.y[0] / 30e9, 1, 1e-9);
    EXPECT(r->reads.n == 1 && r->reads.x[0] == 3000 && r->reads.y[0] == 40e9);
    EXPECT_INT(r->nproducts, 1);
    EXPECT(r->product[0].type == DT_BF16 && r->product[0].form == FORM_TN);
    EXPECT_NEAR(r->product[0].rate[6] / 7e9, 1, 1e-9);
    EXPECT_INT(r->ninner, 1);
    EXPECT(r->inner[0].op == OP_attention && r->inner[0].width == 64);
    EXPECT_INT(r->nelements, 2);
    EXPECT(r->element[1].op == OP_tanh);
    EXPECT_INT(m->ncollectives, 1);
    const CollectiveCurve *c = &m->collective[0];
    EXPECT(c->op == OP_all_gather && c->level == LINK_NETWORK && c->seconds.grows);
    EXPECT_NEAR(c->seconds.y[1] * 1e6, 90, 1e-9);
}

TEST(a_file_is_read_and_printed_to_the_same) {
    const Machine *m = parse(whole);
    expect_whole(m);
    Text once = text_new(mem()), twice = text_new(mem());
    machine_print(m, "two lines\nof a head", &once);
    EXPECT_PART(once.s, "# two lines\n# of a head\n");
    const Machine *again = parse(once.s);
    expect_whole(again);
    machine_print(again, "two lines\nof a head", &twice);
    EXPECT_STR(twice.s, once.s);
}

/* `from` of the whole file replaced by `to` is refused at a line and column. */
static void refused(const char *from, const char *to, const char *part) {
    const char *at = strstr(whole, from);
    test_at("%s for %s", to, from);
    EXPECT(at);
    char *text =
        arena_printf(mem(), "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(from));
    EXPECT_FAIL(parse(text), EXIT_CONFIG, part);
}

TEST(hostile_files_are_refused_at_their_positions) {
    refused("cores: 8", "cores: 8.5", "m.yaml:4:8");
    refused("cores: 8", "cores: -1", "m.yaml:4:8");
    refused("cores: 8", "cores: 99999999999", "cores is a number from 0 to");
    refused("cores: 8", "cores: [8]", "cores is a value, not a list");
    refused("cores: 8", "cors: 8", "unknown key cors");
    refused("hidden: 0.75", "hidden: 1.5", "m.yaml:18:9");
    refused("aligned: 8", "aligned: 0.5", "m.yaml:9:10");
    refused("unaligned: 0.3", "unaligned: 0", "unaligned is a number from 0.001 to 1");
    refused("hidden: 0.75", "hidden: nan", "hidden is a number from 0 to 1");
    refused("name: a cluster\n", "", "name is missing");
    refused("start_us: 3, ", "", "start_us is missing");
    refused("gbytes: 10", "gbytes: 0", "m.yaml:20:");
    refused("gbytes: 10", "gbytes: inf", "gbytes is a number from");
    refused("f32_gflops: 100", "f32_gflops: x", "f32_gflops is a number");
    refused("  f32_gflops: 100\n", "", "f32_gflops is missing");
    refused("[1000, 100000]", "[100000, 1000]", "rise from one to the next");
    refused("[1000, 100000]", "[1000]", "gbytes has 2 numbers, not 1");
    refused("[1000, 100000]", "[0, 100000]", "bytes is a number from");
    refused("[20, 5]", "[20, -5]", "m.yaml:29:48");
    refused("gbytes: [30]", "gbytes: [30, 40]", "gbytes has 2 numbers, not 1");
    refused("[1, 2, 3, 4, 5, 6, 7, 8]", "[1, 2, 3, 4]", "gflops has 4 numbers, not 8");
    refused("[16, 64]", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
            "at most 16 sizes");
    refused("form: tn", "form: mn", "form is one of nn to tt");
    refused("type: bf16", "type: i32", "type is one of f32 to f16");
    refused("op: attention", "op: atention", "there is no op atention");
    refused("exp: 1.5", "expp: 1.5", "there is no op expp");
    refused("exp: 1.5", "exp: 0", "m.yaml:36:27");
    refused("level: network", "level: rack", "level is one of host to network");
    refused("gbytes: 10}", "gbytes: 10, rank_gbytes: 2}",
            "m.yaml:20:48: error: links.host has no rank_gbytes");
    refused("group: 4", "group: 1", "group is a number from 2");
    refused("us: [5, 90]", "us: [5]", "us has 1 numbers, not 2");
    EXPECT_FAIL(parse("[1, 2]"), EXIT_CONFIG,
                "a machine is a section of keys, not a list");
    refused("  host: {start_us: 3, gbytes: 10}\n", "", "m.yaml:20:3");
    refused("[1000, 100000]", "[]", "bytes has 0 numbers, not 1 to 4096");
    refused("[20, 5]", "[]", "gbytes has 0 numbers, not 2");
    EXPECT_FAIL(parse("name: x\nlinks: {}\nranks: []\n"), EXIT_CONFIG,
                "links.host is missing");
    EXPECT_FAIL(parse("name: x\nlinks: {host: {start_us: 1, gbytes: 1}}\nranks: []\n"),
                EXIT_CONFIG, "ranks has no entry");
    EXPECT_FAIL(parse("name: x\nranks: []\n"), EXIT_CONFIG, "links is missing");
    EXPECT_FAIL(machine_read(mem(), path_join(mem(), temp_dir(), "none.yaml")),
                EXIT_CONFIG, "none.yaml");
}

/* Of no host in particular, as "" is. */
TEST(a_text_may_be_null) {
    static const char *const none[] = {"host: null\n", "host: ~\n", "host:\n", ""};
    static const char rest[] = "name: x\nlinks: {host: {start_us: 1, gbytes: 1}}\n"
                               "ranks: [{f32_gflops: 1, bf16_gflops: 1}]\n";
    for (int i = 0; i < ARRAY_LEN(none); i++)
        EXPECT_STR(parse(arena_printf(mem(), "%s%s", none[i], rest))->host, "");
    EXPECT_STR(parse(arena_printf(mem(), "host: 'null'\n%s", rest))->host, "null");
}

/* What one rank gets is a key of the network alone; a file of calibrate has a 0 in both. */
TEST(a_network_is_like_the_host) {
    static const char *const links[] = {
        "host: {start_us: 1, gbytes: 4}",
        "host: {start_us: 1, gbytes: 4, rank_gbytes: 0}",
        "host: {start_us: 1, gbytes: 4}, network: {start_us: 1, gbytes: 4}",
        "network: {start_us: 1, gbytes: 4}, host: {start_us: 1, gbytes: 4}"};
    for (int i = 0; i < ARRAY_LEN(links); i++) {
        const Machine *m = parse(arena_printf(
            mem(), "name: x\nlinks: {%s}\nranks: [{f32_gflops: 1, bf16_gflops: 1}]\n",
            links[i]));
        const Link *net = &m->link[LINK_NETWORK];
        EXPECT(net->bytes_per_second == 4e9 && !net->rank_bytes_per_second);
    }
}

TEST(machines_that_come_with_the_program_are_read) {
    Machine *m =
        machine_read(mem(), path_join(mem(), tests_dir(), "../machines/a100.yaml"));
    EXPECT(m->host_ranks == 8 && m->nranks == 1 && !m->host[0]);
}

/* ---- curves and tables ---- */

TEST(curves_go_through_logarithms) {
    double x[] = {1, 100, 10000}, y[] = {2, 200, 200};
    Curve c = {3, x, y, false};
    EXPECT_NEAR(curve_at(&c, 10), 20, 1e-12);
    EXPECT_NEAR(curve_at(&c, 100), 200, 1e-12);
    EXPECT_NEAR(curve_at(&c, 3000), 200, 1e-12);
    EXPECT_NEAR(curve_at(&c, 0.1), 2, 1e-12);
    EXPECT_NEAR(curve_at(&c, 1e6), 200, 1e-12);
    c.grows = true;
    EXPECT_NEAR(curve_at(&c, 1e6), 20000, 1e-12);
    EXPECT_NEAR(curve_at(&c, 0.1), 2, 1e-12); /* a start, whatever is sent */
    c.n = 1;
    EXPECT_NEAR(curve_at(&c, 5), 10, 1e-12);
    c.n = 0;
    EXPECT(curve_at(&c, 5) == 0);
}

/* On a line: of 10 rows 10 parts, of 1000 rows 250, of 100 rows 10 + 90 * 240 / 990. */
TEST(products_lie_between_the_points_of_their_table) {
    double size[] = {10, 1000}, rate[8] = {1e9, 1e9, 1e9, 1e9, 4e9, 4e9, 4e9, 4e9};
    ProductTable t = {DT_F32, FORM_NN, 2, size, rate};
    MachineRank r = {.ranks = 1, .flops = {8e9, 9e9}, .product = &t, .nproducts = 1};
    Machine m = machine_plain;
    double at =
        machine_product_seconds(&m, &r, DT_F32, FORM_NN, &(ProductSize){1, 100, 20, 30});
    EXPECT_NEAR(1e9 * at / (2 * 20 * 30), 10 + 90 * 240 / 990.0, 1e-9);
    at =
        machine_product_seconds(&m, &r, DT_F32, FORM_NN, &(ProductSize){3, 1000, 20, 30});
    EXPECT_NEAR(1e9 * at / (3 * 2 * 1000 * 20 * 30), 0.25, 1e-9);
    at = machine_product_seconds(&m, &r, DT_F32, FORM_TN, &(ProductSize){1, 1, 20, 30});
    EXPECT_NEAR(1e9 * at / (2 * 20 * 30), 1, 1e-9); /* the table of another form */
    m.reached = 0.5;
    m.half = 30;
    at = machine_product_seconds(&m, &r, DT_BF16, FORM_NN,
                                 &(ProductSize){1, 30, 90, 1e12});
    EXPECT_NEAR(9e9 * at / (2.0 * 30 * 90 * 1e12), 1 / (0.5 * 0.5 * 0.75), 1e-6);
}

TEST(ranks_are_those_that_are_closest) {
    MachineRank rank[] = {{.ranks = 1, .threads = 8},
                          {.ranks = 4, .threads = 2},
                          {.ranks = 8, .threads = 1}};
    Machine m = {.rank = rank, .nranks = 3, .cores = 8};
    EXPECT(machine_rank(&m, 4, 2) == &rank[1]);
    EXPECT(machine_rank(&m, 1, 1) == &rank[2]);
    EXPECT(machine_rank(&m, 2, 8) == &rank[0]);
    EXPECT_INT(machine_ranks_with_cores(&m, 3), 2);
    EXPECT_INT(machine_ranks_with_cores(&m, 16), 1);
}

/* ---- where groups are ---- */

static Mesh mesh_of(int dp, int tp) {
    Mesh m = {.naxes = 2};
    m.axis[0].name = "dp", m.axis[0].size = dp;
    m.axis[1].name = "tp", m.axis[1].size = tp;
    return m;
}

/* Every group of every stage, rank by rank: does one leave its host? */
static bool leaves_a_host(const Mesh *mesh, Axes axes, int stages, int host) {
    int ranks = mesh_ranks(mesh), n = mesh_group_size(mesh, axes);
    for (int s = 0; s < stages; s++)
        for (int r = 0; r < ranks; r++)
            for (int k = 0; k < n; k++)
                if ((s * ranks + mesh_group_member(mesh, r, axes, k)) / host !=
                    (s * ranks + r) / host)
                    return true;
    return false;
}

TEST(groups_are_as_far_apart_as_the_farthest) {
    Machine m = machine_plain;
    int far = 0, near = 0;
    for (int dp = 1; dp <= 4; dp++)
        for (int tp = 1; tp <= 4; tp++)
            for (int stages = 1; stages <= 3; stages++)
                for (m.host_ranks = 1; m.host_ranks <= 9; m.host_ranks++) {
                    Mesh mesh = mesh_of(dp, tp);
                    int ranks = dp * tp, host = MIN(m.host_ranks, ranks * stages);
                    for (Axes axes = 1; axes <= 3; axes++) {
                        GroupShape g = group_shape(&m, &mesh, axes, stages);
                        bool leaves = leaves_a_host(&mesh, axes, stages, host);
                        test_at("dp %d tp %d, %d stages, %d ranks a host, axes %d", dp,
                                tp, stages, m.host_ranks, axes);
                        EXPECT_INT(g.level, leaves ? LINK_NETWORK : LINK_HOST);
                        EXPECT(g.on_host >= 1 && g.on_host <= g.members);
                        far += leaves, near += !leaves;
                    }
                    for (int s = 0; s + 1 < stages; s++) {
                        GroupShape g = stages_shape(&m, &mesh, stages, s, s + 1);
                        bool one = s * ranks / host == ((s + 2) * ranks - 1) / host;
                        EXPECT_INT(g.level, one ? LINK_HOST : LINK_NETWORK);
                    }
                }
    EXPECT(far > 100 && near > 100);
}

/* A host's network is shared by the ranks that send to the other stage, be they few. */
TEST(stages_share_a_network_as_far_as_they_use_it) {
    static const struct {
        int dp, tp, stages, host, from, to, share; /* 0: within hosts */
    } of[] = {
        {1, 1, 4, 2, 1, 2, 1}, {1, 1, 4, 2, 0, 1, 0}, {1, 1, 4, 2, 3, 0, 1},
        {2, 1, 2, 2, 0, 1, 2}, {1, 8, 4, 8, 0, 1, 8}, {2, 2, 4, 8, 1, 2, 4},
        {1, 3, 2, 4, 0, 1, 2}, {1, 1, 8, 4, 3, 4, 1},
    };
    Machine m = machine_plain;
    m.link[LINK_NETWORK] = (Link){.start_seconds = 1e-3, .bytes_per_second = 1e6};
    m.link[LINK_HOST] = (Link){.start_seconds = 1e-6, .bytes_per_second = 1e9};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        test_at("row %d", i);
        Mesh mesh = mesh_of(of[i].dp, of[i].tp);
        m.host_ranks = of[i].host;
        GroupShape g = stages_shape(&m, &mesh, of[i].stages, of[i].from, of[i].to);
        EXPECT_INT(g.level, of[i].share ? LINK_NETWORK : LINK_HOST);
        double want = of[i].share ? 1e-3 + 2e6 / (1e6 / of[i].share) : 1e-6 + 2e6 / 1e9;
        EXPECT_NEAR(message_seconds(&m, &g, 2e6), want, 1e-12);
    }
}

/* Of n members of which k are on a host, a host of k ranks sends k (n - k) parts of what one has. */
TEST(exchanges_share_the_network_of_a_host) {
    Machine m = machine_plain;
    m.link[LINK_NETWORK] = (Link){.bytes_per_second = 1e6};
    m.link[LINK_HOST] = (Link){.bytes_per_second = 1e9};
    for (int n = 2; n <= 16; n *= 2)
        for (m.host_ranks = 1; m.host_ranks <= n; m.host_ranks *= 2) {
            Mesh mesh = mesh_of(1, n);
            GroupShape g = group_shape(&m, &mesh, 2, 1);
            int k = m.host_ranks;
            double sent = message_sent(OP_all_to_all, 1e6, n), part = sent / (n - 1);
            double want = k == n ? sent / 1e9 : part * k * (n - k) / 1e6;
            test_at("%d members, %d on a host", n, k);
            EXPECT_NEAR(collective_seconds(&m, &g, OP_all_to_all, sent), want, 1e-9);
            double ring = collective_seconds(&m, &g, OP_all_gather, sent);
            EXPECT(want >= ring * (1 - 1e-12));
        }
    m.host_ranks = 4;
    Mesh mesh = mesh_of(1, 8);
    GroupShape g = group_shape(&m, &mesh, 2, 1);
    m.link[LINK_NETWORK].rank_bytes_per_second = 1e5; /* less than a fourth */
    EXPECT_NEAR(collective_seconds(&m, &g, OP_all_to_all, 7e5), 4.0, 1e-9);
}

/* ---- calibrations one after the other ---- */

TEST(a_calibration_replaces_what_it_measured_alone) {
    const Machine *old = parse(whole);
    Machine now = machine_plain;
    MachineRank rank = {.ranks = 2, .threads = 1, .flops = {1e9, 1e9}};
    memset(now.link, 0, sizeof now.link);
    now.rank = &rank;
    now.nranks = 1;
    now.name = now.host = "n2";
    now.made_on = "today";
    now.cores = 16;
    const Machine *m = machine_merge(mem(), old, &now);
    EXPECT_INT(m->host_ranks, old->host_ranks);
    EXPECT(m->memory_bytes == old->memory_bytes && m->half == old->half);
    EXPECT(m->hidden == old->hidden && m->reached == old->reached);
    EXPECT(!memcmp(m->link, old->link, sizeof m->link));
    EXPECT(m->notice_seconds == old->notice_seconds && m->notice_seconds > 0);
    EXPECT_INT(m->nranks, old->nranks + 1);
    EXPECT_STR(m->host, "n2");
    EXPECT_STR(m->name, "a cluster");
    Machine of_host = *old;
    of_host.name = of_host.host;
    EXPECT_STR(machine_merge(mem(), &of_host, &now)->name, "n2");
    EXPECT_STR(machine_merge(mem(), NULL, &now)->name, "n2");
    now.notice_seconds = 2e-3;
    EXPECT(machine_merge(mem(), m, &now)->notice_seconds == 2e-3);
    now.link[LINK_HOST] = (Link){1e-6, 7e9, 0};
    m = machine_merge(mem(), m, &now);
    EXPECT_INT(m->nranks, old->nranks + 1);
    EXPECT(m->link[LINK_HOST].bytes_per_second == 7e9);
    EXPECT(!memcmp(&m->link[LINK_NETWORK], &old->link[LINK_NETWORK], sizeof(Link)));
    m = machine_merge(mem(), NULL,
                      &now); /* a network that nobody measured is like the host */
    EXPECT_INT(m->nranks, 1);
    EXPECT(m->link[LINK_NETWORK].bytes_per_second == 7e9);
    now.nranks = 0; /* ranks without cores of their own see a host slower than it is */
    now.link[LINK_NETWORK] = (Link){5e-6, 3e9, 0};
    m = machine_merge(mem(), old, &now);
    EXPECT(!memcmp(&m->link[LINK_HOST], &old->link[LINK_HOST], sizeof(Link)));
    EXPECT(m->link[LINK_NETWORK].start_seconds == 5e-6);
    EXPECT(m->link[LINK_NETWORK].bytes_per_second == 3e9);
}

TEST(f16_has_a_peak_of_its_own) {
    MachineRank r = {.flops = {1e9, 4e9, 0}};
    EXPECT(machine_peak(&r, DT_F32) == 1e9 && machine_peak(&r, DT_BF16) == 4e9);
    EXPECT(machine_peak(&r, DT_F16) == 1e9);
    r.flops[2] = 2e9;
    EXPECT(machine_peak(&r, DT_F16) == 2e9);
}

/* Is a small gradient exchanged in each layer where a message takes so long to start? */
static bool sinks(double start_seconds) {
    static const char text[] =
        "module @t mesh(dp=2) level(local)\n"
        "func @layer(%dy: f32[4], %x: f32[4]) -> (f32[4], f32[4]) {\n"
        "  %dx = scale %dy {by=2} : f32[4]\n"
        "  %dw = mul %dy, %x : f32[4]\n"
        "  return %dx, %dw\n"
        "}\n"
        "func @step:step(%dy: f32[4], %x: f32[3,4]) -> (f32[4], f32[3,2]) {\n"
        "  %dx, %dw = call %dy, %x {fn=@layer; times=3; carry=1; each=1; reverse=1} : "
        "f32[4], "
        "f32[3,4]\n"
        "  %r = reduce_scatter %dw {axis=\"dp\"; dim=1} : f32[3,2]\n"
        "  return %dx, %r\n"
        "}\n";
    Arena *own = arena_new();
    Module *m = module_parse(own, "text", text, strlen(text));
    Machine machine = machine_plain;
    PassOptions o = pass_options_default();
    machine.link[LINK_HOST].start_seconds = start_seconds;
    o.machine = &machine;
    o.overlap = 1;
    passes_run(m, "sink", &o);
    bool in_layer = false;
    for (const Func *f = m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next)
            in_layer |= op_has(op, F_COMM) && !func_is_entry(f);
    arena_free(own);
    return in_layer;
}

TEST(passes_weigh_messages_by_the_machine) {
    EXPECT(!sinks(1e-3));
    EXPECT(sinks(1e-12));
}
