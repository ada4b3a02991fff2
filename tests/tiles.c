/* tiles.c - see tiles.h. What each instruction does, and how it is encoded: Intel 64 and IA-32
 * Architectures Software Developer's Manual, volume 2, "AMX" (LDTILECFG, TILELOADD, TDPBF16PS and
 * others): VEX.128, map 0F38, W0. */
#define _GNU_SOURCE /* names of registers */
#include "tiles.h"
#include "codegen/target.h"
#include "test.h"
#include <immintrin.h>
#include <signal.h>
#include <stdatomic.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

typedef struct TileState {
    bool configured;
    uint8_t rows[TILES];
    uint16_t row_bytes[TILES];
    _Alignas(ROW_BYTES) uint8_t data[TILES][ROWS][ROW_BYTES];
} TileState;

static _Thread_local TileState tiles;
static atomic_long dots;
static bool caught; /* are they, in this process? */

/* An instruction of 0F38 with VEX prefix, taken apart. */
typedef struct Decoded {
    uint8_t opcode, prefix; /* prefix: 0, 1 for 66, 2 for F3, 3 for F2 */
    int reg, rm, vvvv;
    bool memory;
    uint8_t *at;    /* with `memory` */
    int64_t stride; /* the index, scaled, of what goes over rows */
    int length;
} Decoded;

static const int registers[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};

static int64_t signed_bytes(const uint8_t *p, int n) {
    int32_t wide;
    if (n == 1) return (int8_t)*p;
    memcpy(&wide, p, 4);
    return wide;
}

/* The memory operand behind ModRM; x and b are the highest bits of its registers. */
static int decode_memory(Decoded *d, const uint8_t *modrm, int x, int b,
                         const greg_t *value) {
    int mod = *modrm >> 6, low = *modrm & 7, n = 1;
    int64_t base = 0;
    if (low == 4) {
        int sib = modrm[n++], index = (sib >> 3 & 7) + x;
        low = sib & 7;
        if (index != 4)
            d->stride = (int64_t)((uint64_t)value[registers[index]] << (sib >> 6));
    }
    if (mod == 0 && low == 5) return 0; /* no register: not what this code is made of */
    base = value[registers[low + b]];
    int bytes = mod == 0 ? 0 : mod == 1 ? 1 : 4;
    if (bytes) base += signed_bytes(modrm + n, bytes);
    d->at = (uint8_t *)base;
    d->memory = true;
    return n + bytes;
}

static bool decode(Decoded *d, const uint8_t *p, const greg_t *value) {
    if (p[0] != 0xc4 || (p[1] & 0x1f) != 2 || p[2] & 0x84) return false;
    int r = p[1] & 0x80 ? 0 : 8, x = p[1] & 0x40 ? 0 : 8, b = p[1] & 0x20 ? 0 : 8;
    const uint8_t *modrm = p + 4;
    *d = (Decoded){.opcode = p[3],
                   .prefix = p[2] & 3,
                   .vvvv = ~(p[2] >> 3) & 15,
                   .reg = (*modrm >> 3 & 7) + r,
                   .rm = (*modrm & 7) + b};
    int operand = *modrm >= 0xc0 ? 1 : decode_memory(d, modrm, x, b, value);
    d->length = 4 + operand;
    return operand > 0 && d->reg < TILES;
}

/* Palette 1, the only one: eight tiles of at most 16 rows of 64 bytes. */
static bool configure(const uint8_t *from) {
    if (from[0] != 1) return false;
    memset(&tiles, 0, sizeof tiles);
    for (int i = 0; i < TILES; i++) {
        memcpy(&tiles.row_bytes[i], from + 16 + 2 * i, 2);
        tiles.rows[i] = from[48 + i];
        if (tiles.rows[i] > ROWS || tiles.row_bytes[i] > ROW_BYTES) return false;
    }
    tiles.configured = true;
    return true;
}

static void load(const Decoded *d) {
    memset(tiles.data[d->reg], 0, sizeof tiles.data[0]);
    for (int r = 0; r < tiles.rows[d->reg]; r++)
        memcpy(tiles.data[d->reg][r], d->at + r * d->stride, tiles.row_bytes[d->reg]);
}

static void store(const Decoded *d) {
    for (int r = 0; r < tiles.rows[d->reg]; r++)
        memcpy(d->at + r * d->stride, tiles.data[d->reg][r], tiles.row_bytes[d->reg]);
}

static float half(uint32_t pair, bool second) {
    uint32_t bits = second ? pair & 0xffff0000 : pair << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* sum += a b: of each row the first numbers of the pairs are summed apart from the second
 * ones. Products of two bf16 are exact in f32. Numbers too small for f32's exponent are 0. */
static bool dot(int sum, int a, int b) {
    enum { FLUSH = 0x8040 };
    int columns = tiles.row_bytes[sum] / 4, turns = tiles.row_bytes[a] / 4;
    if (a >= TILES || b >= TILES || sum == a || sum == b || a == b) return false;
    if (tiles.rows[a] != tiles.rows[sum] || tiles.rows[b] != turns) return false;
    if (tiles.row_bytes[b] != tiles.row_bytes[sum]) return false;
    unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1f80 | FLUSH);
    for (int r = 0; r < tiles.rows[sum]; r++) {
        float apart[2][ROW_BYTES / 4] = {{0}}, *to = (float *)(void *)tiles.data[sum][r];
        for (int k = 0; k < turns; k++) {
            uint32_t x, y[ROW_BYTES / 4];
            memcpy(&x, tiles.data[a][r] + 4 * k, 4);
            memcpy(y, tiles.data[b][k], sizeof y);
            for (int h = 0; h < 2; h++)
                for (int n = 0; n < columns; n++)
                    apart[h][n] += half(x, h) * half(y[n], h);
        }
        for (int n = 0; n < columns; n++) to[n] += apart[0][n] + apart[1][n];
    }
    _mm_setcsr(mode);
    dots++;
    return true;
}

static bool run(const Decoded *d) {
    enum { NONE, P66, PF3, PF2 };
    if (d->opcode == 0x49 && d->prefix == NONE && d->memory) return configure(d->at);
    if (!tiles.configured) return false;
    switch (d->opcode << 4 | d->prefix << 1 | d->memory) {
    case 0x49 << 4 | NONE << 1:
        tiles.configured = false;
        return true; /* TILERELEASE */
    case 0x49 << 4 | PF2 << 1:
        memset(tiles.data[d->reg], 0, sizeof tiles.data[0]);
        return true;
    case 0x4b << 4 | PF2 << 1 | 1:
    case 0x4b << 4 | P66 << 1 | 1:
        load(d);
        return true;
    case 0x4b << 4 | PF3 << 1 | 1:
        store(d);
        return true;
    case 0x5c << 4 | PF3 << 1:
        return dot(d->reg, d->rm, d->vvvv);
    default:
        return false;
    }
}

static void illegal(int number, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    greg_t *value = u->uc_mcontext.gregs;
    Decoded d;
    (void)info;
    if (!decode(&d, (const uint8_t *)value[REG_RIP], value) || !run(&d)) {
        signal(number, SIG_DFL); /* it comes again, and ends the process */
        return;
    }
    value[REG_RIP] += d.length;
}

void tiles_need(void) {
    struct sigaction act = {.sa_sigaction = illegal, .sa_flags = SA_SIGINFO};
    Target *t = target_open(NULL);
    bool bf16 = strstr(t->features, "+avx512bf16");
    bool there = strstr(t->features, "+amx-bf16");
    target_close(t);
    if (!bf16) test_skip("the CPU has no AVX512-BF16");
    if (there || caught) return;
    sigemptyset(&act.sa_mask);
    sigaction(SIGILL, &act, NULL);
    target_assume("+amx-tile,+amx-bf16");
    caught = true;
}

void tiles_expect_dots(long least) {
    if (caught && dots < least)
        test_fail("tiles", 0, "%ld instructions multiplied tiles, not %ld", (long)dots,
                  least);
}
