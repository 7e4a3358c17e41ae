/* tally.h: the kernels of a graph, and what they ask for. */
#ifndef GFAAS_TALLY_H
#define GFAAS_TALLY_H

#include "memory.h"

#pragma GCC visibility push(hidden)

/* The kernels of a graph that was instantiated, in the order the driver names
 * them, each child graph's after the node that stands for it. */
struct gf_tally {
    struct gf_tally_node {
        CUgraphNode node;
        uint64_t blocks;
        uint32_t within; /* of a node that stands for graphs: the number of following nodes that are theirs */
        bool kernel;
        bool off; /* switched off by cuGraphNodeSetEnabled */
    } *nodes;
    uint32_t count, room;
    struct gf_graph_memory memory;
    bool waits; /* it has a node that may wait for something outside the GPU */
};

/* Reads a graph into a zeroed tally. It calls the driver, as the updates do. gf_tally_free frees what it
 * allocates. */
void gf_tally_read(struct gf_tally *t, CUgraph graph);
void gf_tally_free(struct gf_tally *t);
/* Returns the number of kernels that are on, and sets the sum of their blocks. */
uint64_t gf_tally_kernels(const struct gf_tally *t, uint64_t *blocks);
/* Returns the node's place, or NULL. */
struct gf_tally_node *gf_tally_find(const struct gf_tally *t, CUgraphNode node);
/* Replaces the whole graph, or the one that a node stands for, by another one of the same shape. */
void gf_tally_update(struct gf_tally *t, CUgraph graph);
void gf_tally_update_child(struct gf_tally *t, CUgraphNode node, CUgraph graph);

/* Forgets the bodies of conditional nodes, in a forked child. */
void gf_bodies_fork_child(void);

#pragma GCC visibility pop
#endif
