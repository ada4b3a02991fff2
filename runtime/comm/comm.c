/* comm.c - the processes of a run, and the mesh over them. */
#include "runtime/comm/comm_link.h"

CommWorld comm_world = {
    .size = 1, .local_size = 1, .local_cores = 1, .host = "localhost"};

static struct {
    int naxes, ranks; /* of a stage; 0: no mesh yet */
    int size[COMM_MAX_AXES], stride[COMM_MAX_AXES], coord[COMM_MAX_AXES];
} mesh;

int comm_rank(void) {
    return comm_world.rank;
}

int comm_size(void) {
    return comm_world.size;
}

int comm_local_size(void) {
    return comm_world.local_size;
}

int comm_cores(void) {
    return comm_world.local_cores;
}

const char *comm_host(void) {
    return comm_world.host;
}

const char *comm_host_of(int rank) {
    check(rank >= 0 && rank < comm_world.size);
    return comm_world.hosts ? comm_world.hosts[rank] : comm_world.host;
}

int comm_stage_ranks(void) {
    return mesh.ranks ? mesh.ranks : comm_world.size;
}

int comm_stage(void) {
    return comm_world.rank / comm_stage_ranks();
}

int comm_rank_of_stage(int stage) {
    int ranks = comm_stage_ranks();
    check(stage >= 0 && stage < comm_world.size / ranks);
    return stage * ranks + comm_world.rank % ranks;
}

int comm_stage_first(void) {
    return comm_stage() * comm_stage_ranks();
}

void comm_mesh(int stages, int naxes, const int *size) {
    int64_t ranks = 1;
    check(naxes >= 0 && naxes <= COMM_MAX_AXES);
    for (int a = 0; a < naxes; a++) {
        check(size[a] > 0);
        ranks *= size[a];
        check(ranks <= comm_world.size);
    }
    check(stages > 0 && ranks * stages == comm_world.size);
    mesh.naxes = naxes;
    mesh.ranks = (int)ranks;
    for (int a = naxes - 1, stride = 1; a >= 0; a--) {
        mesh.size[a] = size[a];
        mesh.stride[a] = stride;
        mesh.coord[a] = comm_world.rank / stride % size[a];
        stride *= size[a];
    }
}

int comm_coord(int axis) {
    check(axis >= 0 && axis < mesh.naxes);
    return mesh.coord[axis];
}

Group comm_group(unsigned axes) {
    Group g = {.n = 1, .first = comm_world.rank};
    check(axes >> mesh.naxes == 0);
    for (int a = 0; a < mesh.naxes; a++) {
        if (!(axes >> a & 1) || mesh.size[a] == 1) continue;
        g.size[g.naxes] = mesh.size[a];
        g.stride[g.naxes++] = mesh.stride[a];
        g.me = g.me * mesh.size[a] + mesh.coord[a];
        g.n *= mesh.size[a];
        g.first -= mesh.coord[a] * mesh.stride[a];
    }
    return g;
}

int group_rank(const Group *g, int member) {
    int rank = g->first;
    for (int a = g->naxes - 1; a >= 0; a--) {
        rank += member % g->size[a] * g->stride[a];
        member /= g->size[a];
    }
    return rank;
}
