/* tokenizer.c - text to ids: GPT-2's BPE against known results, against a plain
 * reference, and back to the text. */
#include "tokenizer.h"
#include "base/utf8.h"
#include <pthread.h>

/* ---- GPT-2's own ---- */

static void check_line(const Tokenizer *t, const char *line, size_t n) {
    Arena *mem = arena_new();
    const Json *v = json_parse(mem, "line", line, n, 1 << 20, EXIT_DATA);
    const Json *text = json_need(v, "text"), *ids = json_need(v, "ids");
    Ids got = encode(mem, t, text->s, text->length, false);
    bool same = got.n == (size_t)ids->n && got.bad == 0;
    size_t i = 0;
    for (const Json *e = ids->first; same && e; e = e->next) same = got.id[i++] == e->i;
    if (!same) test_fail(__FILE__, __LINE__, "other ids for %.*s", (int)n, line);
    size_t back;
    char *s = decode(mem, t, got, &back);
    EXPECT(back == text->length && !memcmp(s, text->s, back));
    arena_free(mem);
}

TEST(golden_ids) {
    Arena *mem = arena_new();
    size_t n;
    char *all = file_read(mem, shared_file(mem, "golden/gpt2_bpe.jsonl"), 16 << 20, &n,
                          EXIT_DATA);
    Tokenizer *t = open_gpt2(mem);
    int lines = 0;
    for (char *p = all, *end; p < all + n; p = end + 1, lines++) {
        end = memchr(p, '\n', (size_t)(all + n - p));
        EXPECT(end);
        check_line(t, p, (size_t)(end - p));
    }
    EXPECT_INT(lines, 600);
    arena_free(mem);
}

TEST(golden_count) {
    Arena *mem = arena_new();
    size_t n, back;
    char *text = file_read(mem, shared_file(mem, "data/tinyshakespeare.txt"), 4 << 20, &n,
                           EXIT_DATA);
    Tokenizer *t = open_gpt2(mem);
    EXPECT(tokenizer_vocab(t) == 50257 && tokenizer_eod(t) == 50256);
    EXPECT_STR(tokenizer_describe(t),
               "byte-level BPE, 50257 ids, 50000 merges, 1 special, <|endoftext|>");
    Ids ids = encode(mem, t, text, n, false);
    EXPECT_INT(ids.n, 338025);
    char *s = decode(mem, t, ids, &back);
    EXPECT(back == n && !memcmp(s, text, n));
    arena_free(mem);
}

/* ---- pre-tokens and characters ---- */

/* The words of a text, with '|' between. */
static char *split(Arena *mem, const char *s) {
    uint8_t *bmp = NEW_ARRAY(mem, uint8_t, BMP_SIZE);
    bpe_fill_classes(bmp);
    Text t = text_new(mem);
    for (const char *end = s + strlen(s), *next; s < end; s = next) {
        next = bpe_word_end(bmp, s, end);
        text_add(&t, "%s%.*s", t.n ? "|" : "", (int)(next - s), s);
    }
    return t.s;
}

TEST(words) {
    static const char *const cases[][2] = {
        {"Hello world", "Hello| world"},
        {"don't we've I'LL they'd", "don|'t| we|'ve| I|'|LL| they|'d"},
        {"'s't're've'm'll'd'x'", "'s|'t|'re|'ve|'m|'ll|'d|'|x|'"},
        {" 's ' 'll 'l", " '|s| '| '|ll| '|l"},
        {"a  b   c", "a| | b|  | c"},
        {"a  ", "a|  "},
        {" ", " "},
        {"\n\n x", "\n\n| x"},
        {"a\n\nb", "a|\n|\n|b"},
        {"a\t b\t\tc", "a|\t| b|\t|\t|c"},
        {"x1 22y", "x|1| 22|y"},
        {"a_b == c;//", "a|_|b| ==| c|;//"},
        {"!'s", "!'|s"},
        {"\xC2\xA0x\xC2\xA0\xC2\xA0x", "\xC2\xA0|x|\xC2\xA0|\xC2\xA0|x"},
        {"\xC2\x85\xC2\x85", "\xC2\x85\xC2\x85"},
        {"\xE1\xA0\x8E x", "\xE1\xA0\x8E| x"}, /* U+180E is no space */
        {"x\xC2\xB2 \xC2\xBD", "x|\xC2\xB2| \xC2\xBD"},
        {"e\xCC\x81t", "e|\xCC\x81|t"}, /* a combining accent is no letter */
        {" \xF0\x9D\x94\x84q \xF0\x9F\x98\x80!", " \xF0\x9D\x94\x84q| \xF0\x9F\x98\x80!"},
        {" \xE3\x80\x80x", " |\xE3\x80\x80|x"},
    };
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(cases); i++)
        EXPECT_STR(split(mem, cases[i][0]), cases[i][1]);
    arena_free(mem);
}

/* Totals of Unicode 15.0's DerivedGeneralCategory.txt: Lu Ll Lt Lm Lo, Nd Nl No. */
TEST(character_classes) {
    Arena *mem = arena_new();
    int count[4] = {0};
    uint8_t *bmp = NEW_ARRAY(mem, uint8_t, BMP_SIZE);
    bpe_fill_classes(bmp);
    for (uint32_t c = 0; c < 0x110000; c++) {
        count[bpe_class(c)]++;
        if (c < BMP_SIZE) EXPECT_INT(bmp[c], bpe_class(c));
    }
    EXPECT_INT(count[CHAR_LETTER], 1831 + 2233 + 31 + 397 + 131612);
    EXPECT_INT(count[CHAR_NUMBER], 680 + 236 + 915);
    EXPECT_INT(count[CHAR_SPACE], 25);
    EXPECT(bpe_class(0x1E030) == CHAR_LETTER && bpe_class(0x11F50) == CHAR_NUMBER);
    arena_free(mem);
}

/* ---- invalid UTF-8 ---- */

TEST(invalid_utf8) {
    static const struct {
        const char *in, *out;
        uint64_t bad;
    } cases[] = {
        /* `out` as Python's bytes.decode("utf-8", "replace") gives it */
        {"a\x80"
         "b",
         "a\uFFFD"
         "b",
         1},
        {"\xC3", "\uFFFD", 1},
        {"\xC0\xAF", "\uFFFD\uFFFD", 2},
        {"\xE2\x82", "\uFFFD", 1},
        {"\xE2\x82x", "\uFFFDx", 1},
        {"\xE2\x82\xE2\x82\xAC", "\uFFFD\u20AC", 1},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD", 3},
        {"\xF0\x9F\x98", "\uFFFD", 1},
        {"\xF0\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD", 4},
        {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD", 4},
        {"\xF1\x80\x41\xF1\x80\x80\x41",
         "\uFFFD"
         "A\uFFFD"
         "A",
         2},
        {"\xFF\xFE", "\uFFFD\uFFFD", 2},
        {"\u20AC\U0001F600", "\u20AC\U0001F600", 0},
    };
    Arena *mem = arena_new();
    Tokenizer *t = small_tokenizer(mem);
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        size_t n;
        Ids ids = encode(mem, t, cases[i].in, strlen(cases[i].in), false);
        EXPECT_STR(decode(mem, t, ids, &n), cases[i].out);
        EXPECT_INT(ids.bad, cases[i].bad);
    }
    arena_free(mem);
}

/* A second decoder of UTF-8, by table 3-7 of the standard: length of the valid character
 * at s, or minus that of its maximal invalid part. */
static int sequence(const unsigned char *s, size_t n) {
    int size = s[0] < 0x80   ? 1
               : s[0] < 0xC2 ? 0
               : s[0] < 0xE0 ? 2
               : s[0] < 0xF0 ? 3
               : s[0] < 0xF5 ? 4
                             : 0;
    if (!size) return -1;
    for (int i = 1; i < size; i++) {
        unsigned char low = 0x80, high = 0xBF;
        if (i == 1 && s[0] == 0xE0) low = 0xA0;
        if (i == 1 && s[0] == 0xED) high = 0x9F;
        if (i == 1 && s[0] == 0xF0) low = 0x90;
        if (i == 1 && s[0] == 0xF4) high = 0x8F;
        if ((size_t)i >= n || s[i] < low || s[i] > high) return -i;
    }
    return size;
}

/* s[n] as encode sees it. */
static Text repaired(Arena *mem, const char *s, size_t n, uint64_t *bad) {
    Text t = text_new(mem);
    *bad = 0;
    for (size_t i = 0; i < n;) {
        int size = sequence((const unsigned char *)s + i, n - i);
        if (size > 0)
            text_add_bytes(&t, s + i, (size_t)size);
        else
            text_add(&t, "\uFFFD"), ++*bad;
        i += (size_t)abs(size);
    }
    return t;
}

/* Up to 31 bytes: any, or from a few that make words, contractions and broken UTF-8. */
static size_t random_string(uint64_t *state, char *s) {
    static const char few[] =
        "  \n'stmdrevl aeth09,;=\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
    uint64_t r = next_random(state);
    size_t n = r % 32;
    for (size_t i = 0; i < n; i++) {
        uint64_t x = next_random(state);
        s[i] = r >> 8 & 3 ? few[x % (sizeof few - 1)] : (char)x;
    }
    return n;
}

TEST_LABEL_OF(random_round_trip, SLOW);
TEST_LIMIT(random_round_trip, 300) {
    Arena *keep = arena_new();
    Tokenizer *t = small_tokenizer(keep);
    uint64_t state = 1, total_bad = 0;
    for (int batch = 0; batch < 1000; batch++) {
        Arena *mem = arena_new();
        for (int i = 0; i < 1000; i++) {
            char s[32];
            size_t n = random_string(&state, s), back;
            uint64_t bad;
            Text want = repaired(mem, s, n, &bad);
            Ids ids = encode(mem, t, s, n, i & 1);
            char *got = decode(mem, t, ids, &back);
            if (back != want.n || memcmp(got, want.s, back) || ids.bad != bad)
                test_fail(__FILE__, __LINE__, "batch %d, string %d", batch, i);
            total_bad += bad;
        }
        arena_free(mem);
    }
    EXPECT(total_bad > 1000000);
    arena_free(keep);
}

TEST_LABEL_OF(every_code_point, RELEASED);
TEST(every_code_point) {
    Arena *mem = arena_new();
    Tokenizer *t = small_tokenizer(mem);
    Text all = text_new(mem);
    for (uint32_t c = 0; c < 0x110000; c++) {
        char s[4];
        if (c >= 0xD800 && c < 0xE000) continue;
        text_add_bytes(&all, s, (size_t)utf8_put(c, s));
    }
    size_t n;
    Ids ids = encode(mem, t, all.s, all.n, false);
    char *back = decode(mem, t, ids, &n);
    EXPECT(ids.bad == 0 && n == all.n && !memcmp(back, all.s, n));
    arena_free(mem);
}

/* ---- merges, against a plain reference ---- */

/* Word by word: merge the leftmost pair of lowest rank, looked for in all the rules. */
static Ids plain_encode(Arena *mem, const Tokenizer *t, const char *s, size_t n) {
    Ids out = {NEW_ARRAY(mem, int32_t, n + 1), 0, 0};
    for (const char *end = s + n, *next; s < end; s = next) {
        next = bpe_word_end(t->char_class, s, end);
        int32_t *id = out.id + out.n;
        int left = (int)(next - s);
        for (int i = 0; i < left; i++) id[i] = t->byte_id[(unsigned char)s[i]];
        for (int at = 0; left > 1; left--) {
            uint32_t best = UINT32_MAX;
            for (int i = 0; i + 1 < left; i++)
                for (int32_t r = 0; r < t->merges && (uint32_t)r < best; r++)
                    if (t->merge[r].left == id[i] && t->merge[r].right == id[i + 1])
                        best = (uint32_t)r, at = i;
            if (best == UINT32_MAX) break;
            id[at] = t->merge[best].result;
            memmove(id + at + 1, id + at + 2, (size_t)(left - at - 2) * sizeof *id);
        }
        out.n += (size_t)left;
    }
    return out;
}

static void same_as_plain(const Tokenizer *t, const char *s, size_t n) {
    Arena *mem = arena_new();
    Ids got = encode(mem, t, s, n, false), want = plain_encode(mem, t, s, n);
    if (got.n != want.n || memcmp(got.id, want.id, got.n * sizeof *got.id))
        test_fail(__FILE__, __LINE__, "other ids than the reference: %.*s", (int)n, s);
    arena_free(mem);
}

TEST(reference_merges) {
    Arena *mem = arena_new();
    Tokenizer *t = small_tokenizer(mem);
    uint64_t state = 7;
    same_as_plain(t, story, strlen(story));
    for (int i = 0; i < 5000; i++) {
        char s[32];
        size_t n = random_string(&state, s);
        uint64_t bad;
        Text valid = repaired(mem, s, n, &bad);
        same_as_plain(t, valid.s, valid.n);
    }
    arena_free(mem);
}

/* Words of each length around the limits of the cache, the plain scan and the heap. */
TEST(long_words) {
    Arena *mem = arena_new();
    Tokenizer *t =
        train_on(mem, "aaaaaaaa aaa ab abab ababab bab abab baab aaaa aabaab aab", 272);
    uint64_t state = 3;
    char s[700];
    for (size_t n = 1; n <= 120; n++)
        for (int trial = 0; trial < 8; trial++) {
            for (size_t i = 0; i < n; i++)
                s[i] = trial ? "ab"[next_random(&state) >> 8 & (trial > 1)] : 'b';
            same_as_plain(t, s, n);
        }
    for (size_t i = 0; i < sizeof s; i++) s[i] = "ab"[next_random(&state) >> 8 & 1];
    same_as_plain(t, s, sizeof s);
    arena_free(mem);
}

/* Words of one length that differ in one byte, with other text behind them: what is
 * remembered of one must not be taken for the other. */
TEST(words_alike) {
    Arena *mem = arena_new();
    Tokenizer *t = train_on(mem, "aaaaaaaa aaaaaaaa aaaa aaaa aa aa", 262);
    Text all = text_new(mem);
    char word[60];
    for (int n = 1; n <= 50; n++)
        for (int at = 0; at < n; at++) {
            memset(word, 'a', (size_t)n);
            word[at] = 'b';
            text_add(&all, "%.*s ", n, word);
        }
    same_as_plain(t, all.s, all.n);
    same_as_plain(t, all.s, all.n);
    arena_free(mem);
}

TEST(a_megabyte_word) {
    Arena *mem = arena_new();
    Tokenizer *t = train_on(mem, "aaaa aaaa aaaaaaaa", 260);
    size_t n = 1 << 20;
    char *s = memset(arena_alloc(mem, n), 'a', n);
    Ids ids = encode(mem, t, s, n, false);
    size_t most;
    tokenizer_piece(t, ids.id[0], false, &most);
    EXPECT(most >= 4 && ids.n == n / most);
    arena_free(mem);
}

TEST(room_for_ids) {
    Arena *mem = arena_new();
    Tokenizer *t = small_tokenizer(mem);
    Ids all = encode(mem, t, story, strlen(story), false);
    for (size_t cap = 0; cap <= all.n + 1; cap++) {
        int32_t *id = malloc((cap + 1) * sizeof *id);
        EXPECT(id);
        id[cap] = -7;
        size_t n = tokenizer_encode(t, shared_cache(), story, strlen(story), false, id,
                                    cap, NULL);
        EXPECT(n == all.n && id[cap] == -7);
        EXPECT(!memcmp(id, all.id, MIN(cap, n) * sizeof *id));
        free(id);
    }
    char text[8] = "unused!";
    EXPECT_INT(tokenizer_decode(t, all.id, all.n, text, 3), strlen(story));
    EXPECT(!memcmp(text, "Theses" + 0, 3) && text[3] == 's');
    EXPECT_INT(tokenizer_encode(t, shared_cache(), NULL, 0, true, NULL, 0, NULL), 0);
    arena_free(mem);
}

TEST(ids_out_of_the_vocabulary) {
    Arena *mem = arena_new();
    Tokenizer *t = small_tokenizer(mem);
    int32_t ids[] = {1, 280}, negative = -1;
    EXPECT_INT(tokenizer_vocab(t), 280);
    EXPECT_FAIL(tokenizer_decode(t, ids, 2, NULL, 0), EXIT_DATA,
                "id 280 at position 1 is outside of the vocabulary, 0..279");
    EXPECT_FAIL(tokenizer_decode(t, &negative, 1, NULL, 0), EXIT_DATA,
                "id -1 at position 0");
    arena_free(mem);
}

/* A cache that has served one tokenizer must not answer for another. */
TEST(one_cache_two_tokenizers) {
    Arena *mem = arena_new();
    Tokenizer *a = small_tokenizer(mem), *b = train_on(mem, "the the the cat", 259);
    for (int i = 0; i < 3; i++) {
        same_as_plain(a, story, strlen(story));
        same_as_plain(b, story, strlen(story));
    }
    arena_free(mem);
}

typedef struct Job {
    const Tokenizer *t;
    bool same;
} Job;

static void *encode_often(void *p) {
    Job *job = p;
    Arena *mem = arena_new();
    TokenizerCache *cache = tokenizer_cache_new();
    Ids want = plain_encode(mem, job->t, story, strlen(story));
    int32_t *id = NEW_ARRAY(mem, int32_t, strlen(story));
    job->same = true;
    for (int i = 0; i < 200; i++) {
        size_t n = tokenizer_encode(job->t, cache, story, strlen(story), false, id,
                                    strlen(story), NULL);
        job->same &= n == want.n && !memcmp(id, want.id, n * sizeof *id);
    }
    tokenizer_cache_free(cache);
    arena_free(mem);
    return NULL;
}

TEST(threads) {
    Arena *mem = arena_new();
    pthread_t thread[4];
    Job job[4];
    Tokenizer *t = small_tokenizer(mem);
    for (int i = 0; i < 4; i++) {
        job[i] = (Job){.t = t};
        EXPECT(pthread_create(&thread[i], NULL, encode_often, &job[i]) == 0);
    }
    for (int i = 0; i < 4; i++) EXPECT(pthread_join(thread[i], NULL) == 0 && job[i].same);
    arena_free(mem);
}

/* ---- special tokens and bytes ---- */

TEST(special_tokens) {
    static const char text[] = "cat<|endoftext|>cat<|endoftext|<|endoftext|>";
    Arena *mem = arena_new();
    Tokenizer *t = small_tokenizer(mem);
    int32_t eod = (int32_t)tokenizer_eod(t);
    EXPECT_INT(eod, 279);
    Ids as_text = encode(mem, t, text, strlen(text), false);
    Ids allowed = encode(mem, t, text, strlen(text), true);
    int in_text = 0, found = 0;
    for (size_t i = 0; i < as_text.n; i++) in_text += as_text.id[i] == eod;
    for (size_t i = 0; i < allowed.n; i++) found += allowed.id[i] == eod;
    EXPECT(in_text == 0 && found == 2 && allowed.id[allowed.n - 1] == eod);
    size_t n;
    EXPECT_STR(decode(mem, t, as_text, &n), text);
    EXPECT_STR(decode(mem, t, allowed, &n), text);
    Ids alone = encode(mem, t, "cat", 3, false);
    EXPECT(!memcmp(allowed.id, alone.id, alone.n * sizeof *alone.id));
    EXPECT_INT(allowed.id[alone.n], eod);
    arena_free(mem);
}

TEST(bytes) {
    Arena *mem = arena_new();
    Tokenizer *t = tokenizer_open(mem, &(TokenizerSpec){.type = "ByteTokenizer"});
    Ids ids = encode(mem, t, "a\xFF<|endoftext|>", 15, true);
    EXPECT(tokenizer_vocab(t) == 256 && tokenizer_eod(t) == -1);
    EXPECT(ids.n == 15 && ids.bad == 0 && ids.id[0] == 'a' && ids.id[1] == 0xFF);
    size_t n;
    EXPECT(!memcmp(decode(mem, t, ids, &n), "a\xFF<|endoftext|>", 15) && n == 15);
    arena_free(mem);
}
