/* Tests of RANK_TABLE.json: ranks and their servers, and every way to write it wrong. */
#include "frontend/launch/rank_table.h"
#include "../test.h"

static RankTable *table(const char *text) {
    return rank_table_parse(arena_new(), "ranks.json", text, strlen(text));
}

/* A table around the text of its servers. */
static const char *around(const char *count, const char *servers) {
    return arena_printf(arena_new(),
                        "{\"version\": \"1.0\", \"server_count\": %s,\n"
                        "\"server_list\": [%s],\n\"status\": \"completed\"}",
                        count, servers);
}

#define DEVICE(id, rank)                                                                 \
    "{\"device_id\": " id ", \"device_ip\": \"192.1.27.6\", \"rank_id\": " rank "}"
#define SERVER(name, devices)                                                            \
    "{\"server_id\": \"" name "\", \"host_nic_ip\": \"reserve\", \"device\": [" devices  \
    "]}"
#define REFUSED(count, servers, part)                                                    \
    EXPECT_FAIL(table(around(count, servers)), EXIT_CONFIG, part)

TEST(ranks_of_two_servers) {
    RankTable *t = table(around(
        "\"2\"", SERVER("10.155.111.140",
                        DEVICE("\"0\"", "\"0\"") "," DEVICE(
                            "\"1\"", "\"1\"")) "," SERVER("node-b.cluster",
                                                          DEVICE("\"4\"", "\"2\""))));
    EXPECT_INT(t->ranks, 3);
    EXPECT_STR(t->host[0], "10.155.111.140");
    EXPECT_STR(t->host[1], "10.155.111.140");
    EXPECT_STR(t->host[2], "node-b.cluster");
}

TEST(ranks_count_not_the_order_of_the_file) {
    RankTable *t =
        table(around("2", SERVER("b", DEVICE("0", "2") "," DEVICE("1", "0")) "," SERVER(
                              "a", DEVICE("0", "1"))));
    EXPECT_STR(t->host[0], "b");
    EXPECT_STR(t->host[1], "a");
    EXPECT_STR(t->host[2], "b");
}

TEST(ranks_that_do_not_count_up) {
    REFUSED("1", SERVER("a", DEVICE("0", "0") "," DEVICE("1", "2")),
            "no rank_id is 1 in a table of 2 devices");
    REFUSED("1", SERVER("a", DEVICE("0", "1")),
            "no rank_id is 0 in a table of 1 devices");
    REFUSED("2", SERVER("a", DEVICE("0", "0")) "," SERVER("b", DEVICE("0", "0")),
            "rank_id 0 is there twice (servers a and b)");
}

TEST(a_count_that_is_wrong) {
    REFUSED("\"3\"", SERVER("a", DEVICE("0", "0")),
            "server_count is 3, but server_list has 1 servers");
    REFUSED("0", "", "server_count");
    REFUSED("1", SERVER("a", ""), "server a has no device");
}

TEST(numbers_that_are_none) {
    REFUSED("\"one\"", SERVER("a", DEVICE("0", "0")), "server_count");
    REFUSED("1", SERVER("a", DEVICE("0", "\"-1\"")), "rank_id");
    REFUSED("1", SERVER("a", DEVICE("0", "\"\"")), "rank_id");
    REFUSED("1", SERVER("a", DEVICE("0", "99999999999999999999")), "rank_id");
    REFUSED("1", SERVER("a", DEVICE("0", "\"70000\"")), "rank_id");
}

TEST(host_names_that_would_be_options_or_words) {
    REFUSED("1", SERVER("-oProxyCommand=x", DEVICE("0", "0")), "name of a host");
    REFUSED("1", SERVER("a b", DEVICE("0", "0")), "name of a host");
    REFUSED("1", SERVER("a\\nrank 0=b", DEVICE("0", "0")), "name of a host");
    REFUSED("1", SERVER("", DEVICE("0", "0")), "name of a host");
}

TEST(a_table_that_is_not_finished) {
    EXPECT_FAIL(table("{\"version\": \"1.0\", \"server_count\": \"1\", \"server_list\": "
                      "[],\n \"status\": \"initializing\"}"),
                EXIT_CONFIG, "wanted 'completed'");
    EXPECT_FAIL(table("{\"version\": \"1.2\", \"status\": \"completed\"}"), EXIT_CONFIG,
                "wanted '1.0'");
    EXPECT_FAIL(table("[]"), EXIT_CONFIG, "ranks.json");
    EXPECT_FAIL(table("{\"version\": \"1.0\""), EXIT_CONFIG, "ranks.json:1");
}

TEST(more_ranks_than_any_run_has) {
    Text t = text_new(arena_new());
    for (int i = 0; i <= MAX_RANKS; i++)
        text_add(&t, "%s{\"device_id\": %d, \"rank_id\": %d}", i ? ", " : "", i, i);
    EXPECT_FAIL(table(around("1", arena_printf(t.mem, SERVER("a", "%s"), t.s))),
                EXIT_CONFIG, "between 0 and 65535");
}
