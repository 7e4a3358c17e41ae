/* graph.c: graphs as a whole. */
#include "capture.h"

#include <stdlib.h>

static uint64_t last_id;

bool graph_is(const void *g)
{
    return handle_is(g, H_GRAPH);
}

struct graph *graph_new(void)
{
    struct graph *g = calloc(1, sizeof *g);
    if (!g || !handle_add(g, H_GRAPH)) {
        free(g);
        return NULL;
    }
    g->id = ++last_id;
    return g;
}

void graph_free(struct graph *g)
{
    while (g->n)
        node_free(g->nodes[g->n - 1]);
    held_clear(&g->objects);
    handle_del(g);
    free(g->nodes);
    free(g);
}

static bool copy_edges(const struct graph *from, struct graph *to)
{
    for (size_t i = 0; i < from->n; i++)
        for (size_t k = 0; k < from->nodes[i]->in.n; k++) {
            const struct edge *e = &from->nodes[i]->in.v[k];
            if (!edge_add(to->nodes[e->node->at], to->nodes[i], &e->data))
                return false;
        }
    return true;
}

static struct node *copy_node(struct graph *to, const struct node *from)
{
    struct work w;
    work_copy(&w, &from->work);
    if (w.type == CU_GRAPH_NODE_TYPE_GRAPH && !(w.u.child = graph_clone(from->work.u.child)))
        return NULL;
    struct node *n = node_new(to, &w);
    if (n)
        n->origin = from->id;
    return n;
}

struct graph *graph_clone(const struct graph *from)
{
    struct graph *g = graph_new();
    if (!g)
        return NULL;
    g->origin = from->id;
    bool ok = held_copy(&g->objects, from->objects);
    for (size_t i = 0; ok && i < from->n; i++)
        ok = copy_node(g, from->nodes[i]) != NULL;
    if (ok && copy_edges(from, g))
        return g;
    graph_free(g);
    return NULL;
}

struct frame {
    struct node *node;
    size_t next;
};

/* Appends what a node depends on, and then the node. */
static bool append(struct node *sink, struct frame *stack, struct node **out, size_t *count, struct node **bad)
{
    enum { UNSEEN = -1, OPEN = -2 };
    size_t depth = 0;
    stack[depth++] = (struct frame){sink, 0};
    sink->mark = (size_t)OPEN;
    while (depth) {
        struct frame *f = &stack[depth - 1];
        if (f->next == f->node->in.n) {
            f->node->mark = *count;
            out[(*count)++] = f->node;
            depth--;
            continue;
        }
        struct node *d = f->node->in.v[f->next++].node;
        if (d->mark == (size_t)OPEN) {
            *bad = d;
            return false;
        }
        if (d->mark == (size_t)UNSEEN) {
            d->mark = (size_t)OPEN;
            stack[depth++] = (struct frame){d, 0};
        }
    }
    return true;
}

CUresult graph_order(struct graph *g, struct node **out, struct node **bad)
{
    size_t count = 0;
    bool ok = true;
    struct frame *stack = malloc((g->n + 1) * sizeof *stack);
    if (!stack)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < g->n; i++)
        g->nodes[i]->mark = (size_t)-1;
    for (size_t i = 0; ok && i < g->n; i++)
        if (!g->nodes[i]->out.n)
            ok = append(g->nodes[i], stack, out, &count, bad);
    free(stack);
    for (size_t i = 0; ok && i < g->n; i++)
        if (g->nodes[i]->mark == (size_t)-1) { /* leads to no sink: it is on a cycle or before one */
            *bad = g->nodes[i];
            ok = false;
        }
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    if (!phGraph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = (CUgraph)graph_new();
    return *phGraph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The graph of a child node goes with its node, that of a capture with the capture. */
CUresult sim_cuGraphDestroy(CUgraph hGraph)
{
    struct graph *g = handle_of(hGraph, H_GRAPH);
    if (!g || g->parent || g->capture)
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(g);
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    struct graph *g = handle_of(originalGraph, H_GRAPH);
    if (!g || !phGraphClone)
        return CUDA_ERROR_INVALID_VALUE;
    if (g->mems)
        return CUDA_ERROR_NOT_SUPPORTED;
    *phGraphClone = (CUgraph)graph_clone(g);
    return *phGraphClone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph)
{
    struct graph *g = handle_of(hClonedGraph, H_GRAPH);
    if (!g)
        return CUDA_ERROR_INVALID_VALUE;
    const struct node *n = (const struct node *)hOriginalNode;
    if (!phNode || !node_is(n) || n->graph->id != g->origin)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < g->n; i++)
        if (g->nodes[i]->origin == n->id) {
            *phNode = (CUgraphNode)g->nodes[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Fills a list of the program's, which may be NULL to ask for its length. What is
 * left over of a longer one is set to NULL. */
static CUresult list(CUgraph h, bool roots, CUgraphNode *out, size_t *count)
{
    const struct graph *g = handle_of(h, H_GRAPH);
    size_t n = 0;
    if (!g || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < g->n; i++) {
        if (roots && g->nodes[i]->in.n)
            continue;
        if (out && n < *count)
            out[n] = (CUgraphNode)g->nodes[i];
        n++;
    }
    for (size_t i = n; out && i < *count; i++)
        out[i] = NULL;
    if (!out || n < *count)
        *count = n;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    return list(hGraph, false, nodes, numNodes);
}

CUresult sim_cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    return list(hGraph, true, rootNodes, numRootNodes);
}
