/* graph_node.c: nodes of every kind, kernels excepted: adding them, and their
 * parameters. */
#include "capture.h"

#include <stdlib.h>

static uint64_t last_id;

bool node_is(const void *n)
{
    return handle_is(n, H_NODE);
}

struct node *node_new(struct graph *g, struct work *w)
{
    struct node *n = calloc(1, sizeof *n);
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 8;
        struct node **v = realloc(g->nodes, cap * sizeof *v);
        if (v) {
            g->nodes = v;
            g->cap = cap;
        }
    }
    if (!n || g->n == g->cap || !handle_add(n, H_NODE)) {
        free(n);
        work_clear(w);
        return NULL;
    }
    n->graph = g;
    n->id = ++last_id;
    n->at = g->n;
    n->work = *w;
    if (w->type == CU_GRAPH_NODE_TYPE_GRAPH)
        w->u.child->parent = n;
    g->mems += work_is_mem(w);
    if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        mem_freed_by(w->u.mem, g);
    g->nodes[g->n++] = n;
    return n;
}

void node_free(struct node *n)
{
    struct graph *g = n->graph;
    edges_clear(n);
    work_clear(&n->work);
    for (size_t i = n->at + 1; i < g->n; i++) {
        g->nodes[i - 1] = g->nodes[i];
        g->nodes[i - 1]->at = i - 1;
    }
    g->n--;
    handle_del(n);
    free(n);
}

CUresult node_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *data, size_t n,
                  struct work *w)
{
    struct graph *g = (struct graph *)graph;
    if (!out || !graph_is(g) || !edges_valid(g, deps, n)) {
        work_clear(w);
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct node *node = node_new(g, w);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < n; i++)
        if (!edge_add((struct node *)deps[i], node, data ? &data[i] : NULL)) {
            node_free(node);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    *out = (CUgraphNode)node;
    return CUDA_SUCCESS;
}

/* The node of that type a handle means; NULL when it means none. */
static struct node *node_of(CUgraphNode h, CUgraphNodeType type)
{
    struct node *n = handle_of(h, H_NODE);
    return n && n->work.type == type ? n : NULL;
}

/* Gives a node other work of its kind. Takes w over if r is success. */
static CUresult replace(struct node *n, struct work *w, CUresult r)
{
    if (r != CUDA_SUCCESS)
        return r;
    work_clear(&n->work);
    n->work = *w;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    struct node *n = handle_of(hNode, H_NODE);
    if (!n)
        return CUDA_ERROR_INVALID_VALUE;
    if (type)
        *type = n->work.type;
    return type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphDestroyNode(CUgraphNode hNode)
{
    struct node *n = handle_of(hNode, H_NODE);
    if (!n || n->graph->capture)
        return CUDA_ERROR_INVALID_VALUE;
    if (n->graph->mems)
        return CUDA_ERROR_NOT_SUPPORTED;
    node_free(n);
    return CUDA_SUCCESS;
}

/* ---- adding ---- */

/* Adds the node of a graph whose work `make` puts into w. */
#define ADD(make)                                                                        \
    do {                                                                                 \
        struct work w;                                                                   \
        CUresult r = make;                                                               \
        if (r == CUDA_SUCCESS)                                                           \
            r = node_add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &w);  \
        return r;                                                                        \
    } while (0)

CUresult sim_cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  size_t numDependencies, const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    ADD(work_memcpy(&w, copyParams, (struct ctx *)ctx));
}

CUresult sim_cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    ADD(work_memset(&w, memsetParams, (struct ctx *)ctx));
}

CUresult sim_cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                size_t numDependencies, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    ADD(work_host(&w, nodeParams));
}

CUresult sim_cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                      size_t numDependencies, CUgraph childGraph)
{
    ADD(work_child(&w, childGraph));
}

CUresult sim_cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies)
{
    ADD((w = (struct work){.type = CU_GRAPH_NODE_TYPE_EMPTY}, CUDA_SUCCESS));
}

CUresult sim_cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                       size_t numDependencies, CUevent event)
{
    ADD(work_event(&w, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
}

CUresult sim_cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                     size_t numDependencies, CUevent event)
{
    ADD(work_event(&w, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
}

static CUresult work_any(struct work *w, CUgraphNodeParams *p, const struct graph *g)
{
    if (p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return work_alloc(w, &p->alloc, g);
    if (p->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return work_free(w, p->free.dptr, g);
    return work_params(w, p);
}

CUresult sim_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                               const CUgraphEdgeData *dependencyData, size_t numDependencies,
                               CUgraphNodeParams *nodeParams)
{
    struct work w;
    CUresult r = nodeParams ? work_any(&w, nodeParams, (const struct graph *)hGraph) : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        r = node_add(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, &w);
    return r;
}

CUresult sim_cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                            size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    return sim_cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies, nodeParams);
}

/* ---- parameters ---- */

/* Tells what a node of that type has; gives it other work, which `make` puts into w. */
#define GET(type, out, value)                                         \
    do {                                                              \
        const struct node *n = node_of(hNode, CU_GRAPH_NODE_TYPE_##type); \
        if (!n || !(out))                                             \
            return CUDA_ERROR_INVALID_VALUE;                          \
        *(out) = value;                                               \
        return CUDA_SUCCESS;                                          \
    } while (0)

#define SET(type, make)                                               \
    do {                                                              \
        struct node *n = node_of(hNode, CU_GRAPH_NODE_TYPE_##type);   \
        struct work w;                                                \
        return n ? replace(n, &w, make) : CUDA_ERROR_INVALID_VALUE;   \
    } while (0)

CUresult sim_cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
    GET(MEMCPY, nodeParams, n->work.u.copy);
}

CUresult sim_cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    SET(MEMCPY, work_memcpy(&w, nodeParams, n->work.ctx));
}

CUresult sim_cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    GET(MEMSET, nodeParams, n->work.u.set);
}

CUresult sim_cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    SET(MEMSET, work_memset(&w, nodeParams, n->work.ctx));
}

CUresult sim_cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
    GET(HOST, nodeParams, n->work.u.host);
}

CUresult sim_cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SET(HOST, work_host(&w, nodeParams));
}

CUresult sim_cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    GET(GRAPH, phGraph, (CUgraph)n->work.u.child);
}

CUresult sim_cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    GET(EVENT_RECORD, event_out, (CUevent)n->work.u.event);
}

CUresult sim_cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event)
{
    SET(EVENT_RECORD, work_event(&w, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
}

CUresult sim_cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    GET(WAIT_EVENT, event_out, (CUevent)n->work.u.event);
}

CUresult sim_cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event)
{
    SET(WAIT_EVENT, work_event(&w, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
}

/* The type cannot change, and a child graph not at all. */
CUresult sim_cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    struct work w;
    struct node *n = handle_of(hNode, H_NODE);
    if (!n || !nodeParams || nodeParams->type != n->work.type || n->work.type == CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = work_params(&w, nodeParams);
    if (r == CUDA_SUCCESS && n->work.type == CU_GRAPH_NODE_TYPE_KERNEL) {
        w.u.kernel.attrs = n->work.u.kernel.attrs;
        n->work.u.kernel.attrs = NULL;
    }
    return replace(n, &w, r);
}
