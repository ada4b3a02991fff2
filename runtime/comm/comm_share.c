/* comm_share.c - what one rank has, bytes of any number or a text, is given to all ranks or to
 * those of its stage: broadcasts of the size and then of the bytes. */
#include "runtime/comm/comm_link.h"

char *comm_broadcast_text(Arena *mem, const char *text) {
    uint64_t n = comm_world.rank == 0 ? strlen(text) : 0;
    comm_broadcast(&n, sizeof n, 0);
    char *copy = arena_alloc(mem, n + 1);
    if (comm_world.rank == 0) memcpy(copy, text, n);
    comm_broadcast(copy, n, 0);
    return copy;
}

void *comm_stage_bytes(Arena *mem, const void *data, size_t *bytes) {
    int stages = comm_world.size / comm_stage_ranks(), first = comm_stage_first();
    void *mine = NULL;
    for (int k = 0; k < stages; k++) {
        int root = comm_first_of_stage(k);
        uint64_t n = *bytes;
        comm_broadcast(&n, sizeof n, root);
        void *all =
            root == comm_world.rank ? (void *)(uintptr_t)data : arena_alloc(mem, n + 1);
        comm_broadcast(all, n, root);
        if (root != first) continue;
        mine = all;
        *bytes = n;
    }
    return mine;
}

char *comm_stage_text(Arena *mem, const char *text) {
    size_t n = strlen(text) + 1;
    return comm_stage_bytes(mem, text, &n);
}
