/* tally.h: what is known of a graph: its kernels, and what they ask for. */
#ifndef GFAAS_TALLY_H
#define GFAAS_TALLY_H

#include "hook.h"

/* The kernels of a graph that was instantiated, in the order the driver names
 * them, each child graph's after the node that stands for it. */
struct gf_tally {
    struct gf_tally_node {
        CUgraphNode node;
        uint64_t blocks;
        uint32_t within; /* of a node that stands for graphs: how many of the following are theirs */
        bool kernel;
        bool off; /* switched off by cuGraphNodeSetEnabled */
    } *nodes;
    uint32_t count, room;
    struct gf_graph_memory memory;
    bool waits; /* it has a node that may wait for what is not on the GPU */
};

/* Reads a graph. */
void gf_tally_read(struct gf_tally *t, CUgraph graph);
void gf_tally_free(struct gf_tally *t);
/* The kernels that are on, and their blocks. */
uint64_t gf_tally_kernels(const struct gf_tally *t, uint64_t *blocks);
/* The node's place, or NULL. */
struct gf_tally_node *gf_tally_find(const struct gf_tally *t, CUgraphNode node);
/* The whole graph, or the one that a node stands for, now is as another one of
 * the same shape. */
void gf_tally_update(struct gf_tally *t, CUgraph graph);
void gf_tally_update_child(struct gf_tally *t, CUgraphNode node, CUgraph graph);

void gf_bodies_fork_child(void);

#endif
