/* frame.c (test) - buffers in a frame: none over another one that is live, stacks of a loop over
 * each other only where running the loop shows that it reads what was there before. */
#include "passes/lower/frame.h"
#include "../test.h"
#include "base/rng.h"
#include "ir/ir.h"

enum { OPS = 24, BUFFERS = 40, ROUNDS = 300 };

typedef struct Draw {
    uint64_t seed, n;
} Draw;

static int64_t draw(Draw *d, int64_t below) {
    return (int64_t)(rng_uniform(17, d->seed, d->n++) * (double)below);
}

/* Loops are told apart by their op alone. */
static Op loop_ops[OPS];

static FrameBuffer *random_stack(Arena *mem, Draw *d, int loop, bool written) {
    FrameBuffer *b = NEW(mem, FrameBuffer);
    int64_t times = 2 + loop % 5, slice = 4 * (1 + draw(d, 200));
    b->stack = (Stack){&loop_ops[loop], written, slice, times, loop % 2};
    b->bytes = align_up(slice * times);
    b->first = written ? loop : (int)draw(d, loop);
    b->last = written ? loop + (int)draw(d, OPS - loop) : loop;
    return b;
}

static FrameBuffer *random_buffer(Arena *mem, Draw *d) {
    FrameBuffer *b = NEW(mem, FrameBuffer);
    b->bytes = 64 * (1 + draw(d, 60));
    b->first = (int)draw(d, OPS);
    b->last = b->first + (int)draw(d, OPS - b->first);
    return b;
}

static bool disjoint(const FrameBuffer *a, const FrameBuffer *b) {
    return a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
}

/* Runs the loop: what each run reads must be what was there before the first. */
static bool reads_what_was_there(const FrameBuffer *r, const FrameBuffer *w,
                                 int64_t bytes) {
    Arena *mem = arena_new();
    const Stack *s = &r->stack;
    char *written = arena_alloc(mem, (size_t)bytes);
    bool good = true;
    memset(written, 0, (size_t)bytes);
    for (int64_t run = 0; run < s->times && good; run++) {
        int64_t i = s->reverse ? s->times - 1 - run : run;
        memset(written + w->offset + i * w->stack.slice_bytes, 1,
               (size_t)w->stack.slice_bytes);
        for (int64_t k = 0; k < s->slice_bytes && good; k++)
            good = !written[r->offset + i * s->slice_bytes + k];
    }
    arena_free(mem);
    return good;
}

static bool is_pair(const FrameBuffer *r, const FrameBuffer *w) {
    return r->stack.loop && r->stack.loop == w->stack.loop && !r->stack.written &&
           w->stack.written;
}

static void expect_apart(const FrameBuffer *a, const FrameBuffer *b, int64_t bytes,
                         int *over) {
    bool together = a->first <= b->last && b->first <= a->last;
    if (!together || disjoint(a, b)) return;
    const FrameBuffer *r = is_pair(a, b) ? a : b, *w = r == a ? b : a;
    EXPECT(is_pair(r, w));
    EXPECT(reads_what_was_there(r, w, bytes));
    EXPECT(frame_slices_pass(&r->stack, r->offset, &w->stack, w->offset));
    ++*over;
}

static int64_t pack_without_stacks(Arena *mem, FrameBuffer **all, int n) {
    FrameBuffer **plain = NEW_ARRAY(mem, FrameBuffer *, (size_t)n);
    for (int i = 0; i < n; i++) {
        plain[i] = NEW(mem, FrameBuffer);
        *plain[i] = (FrameBuffer){.nth = all[i]->nth,
                                  .bytes = all[i]->bytes,
                                  .first = all[i]->first,
                                  .last = all[i]->last};
    }
    return frame_pack(mem, plain, n);
}

TEST(nothing_live_is_overwritten) {
    int over = 0, smaller = 0;
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        Arena *mem = arena_new();
        Draw d = {seed, 0};
        FrameBuffer *all[BUFFERS];
        int n = 2 + (int)draw(&d, BUFFERS - 2);
        for (int i = 0; i < n; i++) {
            bool stack = draw(&d, 3) > 0;
            int loop = 8 + (int)draw(&d, 3);
            all[i] =
                stack ? random_stack(mem, &d, loop, draw(&d, 2)) : random_buffer(mem, &d);
            all[i]->nth = i;
        }
        int64_t plain = pack_without_stacks(mem, all, n);
        int64_t bytes = frame_pack(mem, all, n);
        EXPECT(bytes <= plain);
        smaller += bytes < plain;
        for (int i = 0; i < n; i++) {
            EXPECT(all[i]->offset >= 0 && all[i]->offset % 64 == 0);
            EXPECT(all[i]->offset + all[i]->bytes <= bytes);
            for (int k = 0; k < i; k++) expect_apart(all[k], all[i], bytes, &over);
        }
        arena_free(mem);
    }
    printf("  %d stacks lie over others, %d of %d frames are smaller for it\n", over,
           smaller, ROUNDS);
    EXPECT(over > ROUNDS / 2 && smaller > ROUNDS / 3);
}

/* frame_slices_pass says exactly what running the loop shows. */
TEST(slices_pass_as_runs_show) {
    int yes = 0, no = 0;
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        Arena *mem = arena_new();
        Draw d = {seed, 0};
        int loop = 1 + (int)draw(&d, 9);
        FrameBuffer *r = random_stack(mem, &d, loop, false),
                    *w = random_stack(mem, &d, loop, true);
        r->stack.slice_bytes = 1 + draw(&d, 6);
        w->stack.slice_bytes = 1 + draw(&d, 6);
        r->offset = draw(&d, 40);
        w->offset = draw(&d, 40);
        bool passes = frame_slices_pass(&r->stack, r->offset, &w->stack, w->offset);
        EXPECT(passes == reads_what_was_there(r, w, 100));
        passes ? yes++ : no++;
        arena_free(mem);
    }
    EXPECT(yes > 1000 && no > 1000);
}
