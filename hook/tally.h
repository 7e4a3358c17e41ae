/* tally.h: the kernels of a graph and their memory. */
#ifndef GFAAS_TALLY_H
#define GFAAS_TALLY_H

#include "memory.h"

#pragma GCC visibility push(hidden)

/* The kernels of an instantiated graph, in the driver's order. The nodes of a child graph follow
 * the node that represents it. */
struct gf_tally {
    struct gf_tally_node {
        CUgraphNode node;
        uint64_t blocks;
        uint32_t within; /* for a node that contains graphs: the number of following nodes in them */
        bool kernel;
        bool off; /* switched off by cuGraphNodeSetEnabled */
    } *nodes;
    uint32_t count, room;
    struct gf_graph_memory memory;
    bool waits; /* a node may wait for something outside the GPU */
};

/* Reads a graph into a zeroed tally. It calls the driver, as gf_tally_update does. The caller
 * releases the tally with gf_tally_free. */
void gf_tally_read(struct gf_tally *t, CUgraph graph);
void gf_tally_free(struct gf_tally *t);
/* Returns the number of enabled kernels and sets *blocks to the sum of their blocks. */
uint64_t gf_tally_kernels(const struct gf_tally *t, uint64_t *blocks);
/* Returns the entry of a node, or NULL. */
struct gf_tally_node *gf_tally_find(const struct gf_tally *t, CUgraphNode node);
/* Reads the block counts again from another graph of the same shape: for the whole tally, or for
 * the child graph of a node. */
void gf_tally_update(struct gf_tally *t, CUgraph graph);
void gf_tally_update_child(struct gf_tally *t, CUgraphNode node, CUgraph graph);

/* Forgets the bodies of conditional nodes, in a forked child. */
void gf_bodies_fork_child(void);

#pragma GCC visibility pop
#endif
