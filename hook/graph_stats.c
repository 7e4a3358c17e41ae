/* graph_stats.c: counts the kernels of a graph.
 *
 * The bodies of a conditional node are learned when the program adds the node. The bodies of its
 * copy in a clone or in a child graph are unknown, and their kernels are not counted. */
#include "graph_stats.h"

#include "real.h"

#include <stdlib.h>
#include <string.h>

/* ---- nodes with bodies ---- */

struct bodies {
    CUgraph graph;
    CUgraphNode node;
    struct bodies *next;
    unsigned count;
    CUgraph body[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bodies *all;

static void add_bodies(CUgraph graph, CUgraphNode node, const CUgraph *bodies, unsigned count)
{
    struct bodies *b = malloc(sizeof *b + count * sizeof *bodies);
    if (!b)
        return; /* its kernels are not counted */
    *b = (struct bodies){.graph = graph, .node = node, .count = count};
    memcpy(b->body, bodies, count * sizeof *bodies);
    pthread_mutex_lock(&lock);
    b->next = all;
    all = b;
    pthread_mutex_unlock(&lock);
}

/* Frees the entries of a graph and, recursively, of the bodies in it. The caller holds `lock`. */
static void forget(CUgraph graph)
{
    struct bodies *gone = NULL;
    for (struct bodies **at = &all; *at;) {
        struct bodies *b = *at;
        if (b->graph != graph) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        b->next = gone;
        gone = b;
    }
    while (gone) {
        struct bodies *b = gone;
        gone = b->next;
        for (unsigned i = 0; i < b->count; i++)
            forget(b->body[i]);
        free(b);
    }
}

static void added(CUgraphNode node, CUgraph graph, const CUgraphNodeParams *p)
{
    if (p->type == CU_GRAPH_NODE_TYPE_CONDITIONAL && p->conditional.phGraph_out)
        add_bodies(graph, node, p->conditional.phGraph_out, p->conditional.size);
}

GF_AFTER(cuGraphAddNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *p),
         (node, graph, after, count, p), added(*node, graph, p))
GF_AFTER(cuGraphAddNode_v2,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
          CUgraphNodeParams *p),
         (node, graph, after, edges, count, p), added(*node, graph, p))
GF_AFTER(cuGraphAddNode_v3,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
          CUgraphNodeParams *p),
         (node, graph, after, edges, count, p), added(*node, graph, p))

static void removed(CUgraph graph)
{
    pthread_mutex_lock(&lock);
    forget(graph);
    pthread_mutex_unlock(&lock);
}

GF_BEFORE(cuGraphDestroy, (CUgraph graph), (graph), removed(graph))

/* Returns body number `index` of a node, or NULL. */
static CUgraph body_of(CUgraphNode node, unsigned index)
{
    CUgraph body = NULL;
    pthread_mutex_lock(&lock);
    for (struct bodies *b = all; b; b = b->next)
        if (b->node == node) {
            body = index < b->count ? b->body[index] : NULL;
            break;
        }
    pthread_mutex_unlock(&lock);
    return body;
}

void gf_bodies_fork_child(void)
{
    pthread_mutex_init(&lock, NULL);
    all = NULL; /* these belong to the parent */
}

/* ---- the counts ---- */

static struct gf_graph_stats_node *add(struct gf_graph_stats *t, CUgraphNode node)
{
    if (t->count == t->room) {
        uint32_t room = t->room ? 2 * t->room : 16;
        struct gf_graph_stats_node *nodes = realloc(t->nodes, room * sizeof *nodes);
        if (!nodes)
            return NULL; /* out of memory: the kernel is not counted */
        t->nodes = nodes;
        t->room = room;
    }
    struct gf_graph_stats_node *n = &t->nodes[t->count++];
    *n = (struct gf_graph_stats_node){.node = node};
    return n;
}

static uint64_t blocks_of(CUgraphNode node)
{
    CUDA_KERNEL_NODE_PARAMS_v2 p = {0};
    if (gf_real.cuGraphKernelNodeGetParams_v2(node, &p) != CUDA_SUCCESS)
        gf_real.cuGraphKernelNodeGetParams(node, (CUDA_KERNEL_NODE_PARAMS_v1 *)&p); /* a prefix of the v2 struct */
    return (uint64_t)p.gridDimX * p.gridDimY * p.gridDimZ;
}

static void read_graph(struct gf_graph_stats *t, CUgraph graph);

/* Reads a node that contains a child graph or the bodies of a conditional. */
static void read_inner(struct gf_graph_stats *t, CUgraphNode node, CUgraphNodeType type)
{
    CUgraph inner;
    uint32_t at = t->count;
    if (!add(t, node))
        return;
    if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
        for (unsigned i = 0; (inner = body_of(node, i)); i++)
            read_graph(t, inner);
    } else if (gf_real.cuGraphChildGraphNodeGetGraph(node, &inner) == CUDA_SUCCESS) {
        read_graph(t, inner);
    }
    t->nodes[at].within = t->count - at - 1;
}

static void read_node(struct gf_graph_stats *t, CUgraphNode node)
{
    CUgraphNodeType type;
    if (gf_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
        read_inner(t, node, type);
    } else if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
        struct gf_graph_stats_node *n = add(t, node);
        if (n) {
            n->kernel = true;
            n->blocks = blocks_of(node);
        }
    } else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        gf_graph_memory_add(&t->memory, node);
    }
    t->waits |= type == CU_GRAPH_NODE_TYPE_HOST || type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT ||
                type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
}

static void read_graph(struct gf_graph_stats *t, CUgraph graph)
{
    size_t count = 0;
    if (gf_real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return;
    CUgraphNode *nodes = malloc(count * sizeof *nodes);
    if (nodes && gf_real.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            read_node(t, nodes[i]);
    free(nodes);
}

void gf_graph_stats_read(struct gf_graph_stats *t, CUgraph graph)
{
    *t = (struct gf_graph_stats){0};
    read_graph(t, graph);
}

void gf_graph_stats_free(struct gf_graph_stats *t) { free(t->nodes); }

uint64_t gf_graph_stats_kernels(const struct gf_graph_stats *t, uint64_t *blocks)
{
    uint64_t kernels = 0;
    *blocks = 0;
    for (uint32_t i = 0; i < t->count; i++)
        if (t->nodes[i].kernel && !t->nodes[i].off) {
            kernels++;
            *blocks += t->nodes[i].blocks;
        }
    return kernels;
}

struct gf_graph_stats_node *gf_graph_stats_find(const struct gf_graph_stats *t, CUgraphNode node)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (t->nodes[i].node == node)
            return &t->nodes[i];
    return NULL;
}

/* Copies the block counts of a graph to `count` nodes. Nodes keep the handles from the
 * instantiation; the nodes of an update have the same order. */
static void update_blocks(struct gf_graph_stats *t, uint32_t from, uint32_t count, CUgraph graph)
{
    struct gf_graph_stats now;
    gf_graph_stats_read(&now, graph);
    for (uint32_t i = 0; i < count && i < now.count; i++)
        t->nodes[from + i].blocks = now.nodes[i].blocks;
    gf_graph_stats_free(&now);
}

void gf_graph_stats_update(struct gf_graph_stats *t, CUgraph graph) { update_blocks(t, 0, t->count, graph); }

void gf_graph_stats_update_child(struct gf_graph_stats *t, CUgraphNode node, CUgraph graph)
{
    struct gf_graph_stats_node *child = gf_graph_stats_find(t, node);
    if (child)
        update_blocks(t, (uint32_t)(child - t->nodes) + 1, child->within, graph);
}
