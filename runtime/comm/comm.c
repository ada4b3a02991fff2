/* comm.c - the processes of a run, and the mesh over them. */
#include "runtime/comm/comm_link.h"

CommWorld comm_world = {
    .size = 1, .local_size = 1, .local_cores = 1, .host = "localhost"};

static struct {
    int naxes, ranks; /* of a stage; 0: no mesh yet */
    int size[COMM_MAX_AXES], stride[COMM_MAX_AXES], coord[COMM_MAX_AXES];
    int stages, stage_stride;
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

static int stages(void) {
    return mesh.ranks ? mesh.stages : 1;
}

int comm_stage(void) {
    return mesh.ranks ? comm_world.rank / mesh.stage_stride % mesh.stages : 0;
}

int comm_rank_of_stage(int stage) {
    check(stage >= 0 && stage < stages());
    return comm_world.rank + (stage - comm_stage()) * mesh.stage_stride;
}

int comm_first_of_stage(int stage) {
    check(stage >= 0 && stage < stages());
    return stage * mesh.stage_stride;
}

int comm_stage_first(void) {
    return comm_first_of_stage(comm_stage());
}

int comm_place(void) {
    int place = comm_stage();
    if (!mesh.ranks) return comm_world.rank;
    for (int a = 0; a < mesh.naxes; a++) place = place * mesh.size[a] + mesh.coord[a];
    return place;
}

int comm_rank_at(int place) {
    int rank = 0;
    check(place >= 0 && place < comm_world.size);
    if (!mesh.ranks) return place;
    for (int a = mesh.naxes - 1; a >= 0; a--) {
        rank += place % mesh.size[a] * mesh.stride[a];
        place /= mesh.size[a];
    }
    return rank + place * mesh.stage_stride;
}

void comm_mesh(int stages, int naxes, const int *size) {
    int stride[COMM_MAX_AXES], of_all = 1;
    check(naxes >= 0 && naxes <= COMM_MAX_AXES);
    for (int a = naxes - 1; a >= 0; a--) {
        check(size[a] > 0 && of_all <= comm_world.size);
        stride[a] = of_all;
        of_all *= size[a];
    }
    comm_mesh_ordered(stages, of_all, naxes, size, stride);
}

void comm_mesh_ordered(int stages, int stage_stride, int naxes, const int *size,
                       const int *stride) {
    int64_t ranks = 1;
    check(naxes >= 0 && naxes <= COMM_MAX_AXES);
    for (int a = 0; a < naxes; a++) {
        check(size[a] > 0);
        ranks *= size[a];
        check(ranks <= comm_world.size);
    }
    check(stages > 0 && ranks * stages == comm_world.size && stage_stride > 0);
    mesh.naxes = naxes;
    mesh.ranks = (int)ranks;
    mesh.stages = stages;
    mesh.stage_stride = stage_stride;
    for (int a = 0; a < naxes; a++) {
        check(stride[a] > 0);
        mesh.size[a] = size[a];
        mesh.stride[a] = stride[a];
        mesh.coord[a] = comm_world.rank / stride[a] % size[a];
    }
}

int comm_coord(int axis) {
    check(axis >= 0 && axis < mesh.naxes);
    return mesh.coord[axis];
}

CommGroup comm_group(unsigned axes) {
    CommGroup g = {.n = 1, .first = comm_world.rank};
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

int comm_group_rank(const CommGroup *g, int member) {
    int rank = g->first;
    for (int a = g->naxes - 1; a >= 0; a--) {
        rank += member % g->size[a] * g->stride[a];
        member /= g->size[a];
    }
    return rank;
}
