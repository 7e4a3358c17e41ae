/* graph_stats.h: the kernels of a graph and their memory. */
#pragma once

#include "memory.h"

#pragma GCC visibility push(hidden)

/* The kernels of an instantiated graph, in the driver's order. The nodes of a child graph follow
 * the node that represents it. */
struct gf_graph_stats {
    struct gf_graph_stats_node {
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

/* Reads a graph into a zeroed structure. It calls the driver, as gf_graph_stats_update does. The caller
 * releases it with gf_graph_stats_free. */
void gf_graph_stats_read(struct gf_graph_stats *t, CUgraph graph);
void gf_graph_stats_free(struct gf_graph_stats *t);
/* Returns the number of enabled kernels and sets *blocks to the sum of their blocks. */
uint64_t gf_graph_stats_kernels(const struct gf_graph_stats *t, uint64_t *blocks);
/* Returns the entry of a node, or NULL. */
struct gf_graph_stats_node *gf_graph_stats_find(const struct gf_graph_stats *t, CUgraphNode node);
/* Reads the block counts again from another graph of the same shape: for the whole graph, or for
 * the child graph of a node. */
void gf_graph_stats_update(struct gf_graph_stats *t, CUgraph graph);
void gf_graph_stats_update_child(struct gf_graph_stats *t, CUgraphNode node, CUgraph graph);

/* Forgets the bodies of conditional nodes, in a forked child. */
void gf_bodies_fork_child(void);

#pragma GCC visibility pop
