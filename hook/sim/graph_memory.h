/* graph_memory.h: what the files of memory that graphs allocate share. */
#ifndef GFAAS_SIM_GRAPH_MEMORY_H
#define GFAAS_SIM_GRAPH_MEMORY_H

#include "capture.h"

/* One allocation node's memory. */
struct mem {
    unsigned refs;      /* of nodes, steps and, while it is live, the program */
    unsigned backing;   /* launches that are not over, and the program */
    bool live;          /* allocated by a launch, and not freed yet: as the calls say */
    bool freed_inside;  /* the graph has a node that frees it, */
    bool freed_outside; /* another one has */
    bool instantiated, instantiated_free;
    uint64_t graph;     /* whose it is */
    struct range *range;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUmemAccessDesc access[SIM_MAX_DEVICES];
};

CUresult mem_reserve(struct device *d, uint64_t bytes);
CUresult mem_back(struct mem *m);
void mem_unback(struct mem *m);
void mem_set_live(struct mem *m, bool live);
void mem_let_go(struct mem *m);

#endif
