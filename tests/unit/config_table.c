/* config_table.c - the table of keys: every row can be set and read back, and the rows agree
 * with each other. */
#include "configs.h"
#include "frontend/config/config_state.h"

/* Values for keys whose other values would contradict the defaults around them. */
static const struct {
    const char *path, *value;
} special[] = {
    {"run_mode", "predict"},
    {"model.model_config.eos_token", "7"},
    {"model.model_config.model_type", "gpt2"},
    {"model.model_config.architectures", "[GPT2LMHeadModel]"},
    {"model.model_config.scaling_factor.factor", "1.5"},
    {"optimizer.betas", "[0.8, 0.9]"},
    {"model.model_config.max_position_embeddings", "4096"},
    {"model.model_config.add_qkv_bias", "True"}, /* False needs add_bias_linear False */
    {"model.model_config.out_proj_has_bias", "True"},
    {"train_dataset.data_loader.tokenizer_type", "ByteTokenizer"},
    {"lr_schedule.lr_end", "0.0001"},
    {"optimizer.start_weight_decay", "0.5"},
    {"optimizer.end_weight_decay", "0.5"},
    {"lr_schedule.warmup_lr_init", "0.0001"},
    {"seed", "9223372036854775807"},
};

/* Some value of a key that is not its default, as config_value spells it. */
static const char *other_value(Arena *a, const Config *defaults, const Key *key) {
    for (int i = 0; i < ARRAY_LEN(special); i++) {
        if (!strcmp(special[i].path, key->path)) return special[i].value;
    }
    const char *def = config_value(defaults, a, key->path);
    long long i = strtoll(key->def, NULL, 10);
    const char *bar = strchr(key->range, '|');
    switch (key->kind) {
    case KIND_Bool:
        return def[0] == 'T' ? "False" : "True";
    case KIND_Int:
        return arena_printf(a, "%lld", i > 0 ? i * 2 : 1);
    case KIND_Float:
        return arena_printf(a, "%g", strtod(key->def, NULL) / 2 + 1e-3);
    case KIND_Text:
        return "some \"text\": #\xc3\xa9\n'";
    case KIND_Memory:
        return "3GB";
    case KIND_IntList:
        return key->range[0] == '-' ? "[3, -4]" : "[3, 4]";
    case KIND_IntTable:
        return "[[3, 4], [5, 6]]";
    case KIND_TextList:
        return ends_with(key->path, ".split") ? "[4, 1]" : "[x, y]";
    case KIND_Enum:
        return arena_strndup(a, bar + 1, strcspn(bar + 1, " |"));
    case KIND_Tree:
        return key->cat == CAT_NOT_YET ? "yes" : "{}";
    }
    return NULL;
}

TEST(every_row_can_be_set_and_read_back) {
    Arena *a = arena_new();
    Config *defaults = parse("");
    int refused = 0, fixed = 0, kept = 0;
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        const char *value = other_value(a, defaults, key);
        char *flag = arena_printf(a, "--%s=%s", key->path, value);
        if (key->cat == CAT_REFUSED || key->cat == CAT_NOT_YET) {
            bool tree = key->kind == KIND_Tree;
            EXPECT_FAIL(FLAGS(flag), EXIT_CONFIG,
                        key->cat == CAT_REFUSED ? " is refused: "
                                                : " is not there yet: ");
            EXPECT_FAIL(FLAGS(flag), EXIT_CONFIG, key->path);
            refused++;
            if (tree) continue;
            char *neutral = arena_printf(a, "--%s=%s", key->path, key->def);
            EXPECT_INT(FLAGS(neutral)->n_notes, 0);
            continue;
        }
        bool ramp = strstr(key->path, "_weight_decay") || strstr(key->path, "decay_incr");
        char *beside = ends_with(key->path, "extend_method")
                           ? "--model.model_config.scaling_factor.factor=2"
                           : "--train_dataset.data_loader.type=GPTDataset";
        Config *cfg = ramp ? FLAGS("--optimizer.weight_decay_incr_style=cosine",
                                   "--optimizer.start_weight_decay=0",
                                   "--optimizer.end_weight_decay=0.2", flag)
                           : FLAGS(beside, flag);
        bool is_fixed = key->cat == CAT_FIXED;
        const char *want = is_fixed ? config_value(defaults, a, key->path) : value;
        if (strcmp(config_value(cfg, a, key->path), want))
            test_fail(__FILE__, __LINE__, "%s is %s", flag,
                      config_value(cfg, a, key->path));
        EXPECT(key->kind == KIND_Tree ||
               strcmp(value, config_value(defaults, a, key->path)) ||
               !strcmp(key->path, "model.model_config.add_qkv_bias") ||
               !strcmp(key->path, "model.model_config.out_proj_has_bias"));
        EXPECT(config_given(cfg, key->path));
        /* the strategy's lines say what does nothing beside the other keys */
        EXPECT(key->cat == CAT_WORKS || has_note(cfg, key->path) ||
               config_idle(cfg, key->path));
        expect_round_trip(cfg);
        *(is_fixed ? &fixed : &kept) += 1;
    }
    EXPECT(refused + fixed + kept == N_KEYS && refused > 10 && fixed > 5 && kept > 100);
}

TEST(table_is_sound) {
    Arena *a = arena_new();
    for (int i = 0; i < n_key_aliases; i++) {
        EXPECT(key_find(key_aliases[i].target) >= 0);
        for (int k = 0; k < N_KEYS; k++)
            EXPECT(strcmp(key_aliases[i].path, key_table[k].path));
        for (int j = 0; j < i; j++)
            EXPECT(strcmp(key_aliases[i].path, key_aliases[j].path));
    }
    for (int i = 0; i < n_key_defaults; i++) EXPECT(key_find(key_defaults[i].path) >= 0);
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        EXPECT_INT(key_find(key->path), k); /* each path once, hidden by no alias */
        EXPECT(key->doc[0] && (key->cat == CAT_WORKS) == !key->why[0]);
        EXPECT(key->kind == KIND_Tree || !key_is_section(key->path));
        const char *besides = key->kind == KIND_Enum ? NULL : strchr(key->range, ' ');
        const char *range = besides ? besides + 1 : key->range;
        const char *dots = strstr(range, "..");
        range += *range == '>';
        if (dots && dots != range && dots[2])
            EXPECT(strtod(range, NULL) < strtod(dots + 2, NULL));
        EXPECT(strlen(key_range_text(a, key)) < 90 || key->kind == KIND_Enum);
    }
}

/* keys_elsewhere.def has the rows that only say no, and no others. */
TEST(keys_that_say_no_stand_apart) {
    int acting = 0;
    while (acting < N_KEYS && key_acts(&key_table[acting])) acting++;
    EXPECT(acting > 100 && acting < N_KEYS);
    for (int k = acting; k < N_KEYS; k++)
        if (key_acts(&key_table[k]))
            test_fail(__FILE__, __LINE__, "%s stands in keys_elsewhere.def",
                      key_table[k].path);
}
