/* graph.c: building graphs: whole graphs, edges, and nodes with their parameters. graph_work.c has the work of
 * nodes, graph_memory.c the nodes that allocate memory. */
#include "capture.h"

#include <stdlib.h>
#include <string.h>

static uint64_t last_id; /* of graphs and of nodes */

/* ---- edges ---- */

static bool push_edge(struct edges *l, struct node *n, const CUgraphEdgeData *data)
{
    if (!enlarge(&l->v, &l->cap, l->n + 1, sizeof *l->v))
        return false;
    l->v[l->n] = (struct edge){.node = n};
    if (data)
        l->v[l->n].data = *data;
    l->n++;
    return true;
}

static struct edge *find_edge(const struct edges *l, const struct node *n)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].node == n)
            return &l->v[i];
    return NULL;
}

static void drop_edge(struct edges *l, const struct node *n)
{
    struct edge *e = find_edge(l, n);
    if (!e)
        return;
    memmove(e, e + 1, (size_t)(l->v + l->n - (e + 1)) * sizeof *e);
    l->n--;
}

/* Reports whether there is an edge. Searches the shorter of the two lists. */
static bool edge_find(const struct node *from, const struct node *to)
{
    return from->out.n < to->in.n ? find_edge(&from->out, to) : find_edge(&to->in, from);
}

bool edge_add(struct node *from, struct node *to, const CUgraphEdgeData *data)
{
    if (!push_edge(&to->in, from, data))
        return false;
    if (push_edge(&from->out, to, data))
        return true;
    to->in.n--;
    return false;
}

/* Removes a node from its neighbours' lists. */
static void edges_clear(struct node *n)
{
    for (size_t i = 0; i < n->in.n; i++)
        drop_edge(&n->in.v[i].node->out, n);
    for (size_t i = 0; i < n->out.n; i++)
        drop_edge(&n->out.v[i].node->in, n);
    free(n->in.v);
    free(n->out.v);
}

bool edges_valid(const struct graph *g, const CUgraphNode *deps, size_t n)
{
    if (n && !deps)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct node *d = (struct node *)deps[i];
        if (!handle_is(d, H_NODE) || d->graph != g)
            return false;
        d->mark = i;
    }
    for (size_t i = 0; i < n; i++) /* no duplicates */
        if (((struct node *)deps[i])->mark != i)
            return false;
    return true;
}

/* Reports whether there could be edges between these nodes: all are the graph's, and no edge leads from a node
 * to itself. */
static bool edges_possible(const struct graph *g, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
    if (n && (!from || !to))
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct node *a = handle_of(from[i], H_NODE), *b = handle_of(to[i], H_NODE);
        if (!a || !b || a->graph != g || b->graph != g || a == b)
            return false;
    }
    return true;
}

/* Removes the first n of these edges. */
static void unlink_first(const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct node *a = (struct node *)from[i], *b = (struct node *)to[i];
        drop_edge(&a->out, b);
        drop_edge(&b->in, a);
    }
}

/* Adds all edges or none. An existing edge is an error; a cycle is detected at the instantiation. */
CUresult sim_cuGraphAddDependencies_v2(struct graph *g, CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                       const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    if (!edges_possible(g, from, to, numDependencies))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < numDependencies; i++) {
        struct node *a = (struct node *)from[i], *b = (struct node *)to[i];
        r = edge_find(a, b)                                  ? CUDA_ERROR_INVALID_VALUE
            : edge_add(a, b, edgeData ? &edgeData[i] : NULL) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_OUT_OF_MEMORY;
        if (r != CUDA_SUCCESS) {
            unlink_first(from, to, i);
            break;
        }
    }
    return r;
}

CUresult sim_cuGraphRemoveDependencies_v2(struct graph *g, CUgraph hGraph, const CUgraphNode *from,
                                          const CUgraphNode *to, const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    if (!edges_possible(g, from, to, numDependencies))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numDependencies; i++) {
        static const CUgraphEdgeData plain;
        const struct edge *e = find_edge(&((struct node *)to[i])->in, (const struct node *)from[i]);
        if (!e || memcmp(&e->data, edgeData ? &edgeData[i] : &plain, sizeof plain))
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (numDependencies && g->mems)
        return CUDA_ERROR_NOT_SUPPORTED;
    unlink_first(from, to, numDependencies);
    return CUDA_SUCCESS;
}

static bool is_plain(const CUgraphEdgeData *d)
{
    return !d->from_port && !d->to_port && !d->type;
}

CUresult sim_cuGraphGetEdges_v2(struct graph *g, CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                CUgraphEdgeData *edgeData, size_t *numEdges)
{
    size_t n = 0;
    if (!numEdges || !from != !to || (edgeData && !from))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < g->n; i++)
        for (size_t k = 0; k < g->nodes[i]->in.n; k++, n++) {
            const struct edge *e = &g->nodes[i]->in.v[k];
            if (!from || n >= *numEdges)
                continue;
            if (!edgeData && !is_plain(&e->data))
                return CUDA_ERROR_LOSSY_QUERY;
            from[n] = (CUgraphNode)e->node;
            to[n] = (CUgraphNode)g->nodes[i];
            if (edgeData)
                edgeData[n] = e->data;
        }
    for (size_t i = n; from && i < *numEdges; i++)
        from[i] = to[i] = NULL;
    if (!from || n < *numEdges)
        *numEdges = n;
    return CUDA_SUCCESS;
}

/* Returns one of a node's two lists of edges: the neighbours and the data of these edges. */
static CUresult list_edges(const struct edges *l, CUgraphNode *out, CUgraphEdgeData *data, size_t *count)
{
    if (!count || (data && !out))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; out && i < *count; i++) {
        if (i < l->n && !data && !is_plain(&l->v[i].data))
            return CUDA_ERROR_LOSSY_QUERY;
        out[i] = i < l->n ? (CUgraphNode)l->v[i].node : NULL;
        if (data && i < l->n)
            data[i] = l->v[i].data;
    }
    if (!out || l->n < *count)
        *count = l->n;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphNodeGetDependencies_v2(struct node *n, CUgraphNode hNode, CUgraphNode *dependencies,
                                           CUgraphEdgeData *edgeData, size_t *numDependencies)
{
    return list_edges(&n->in, dependencies, edgeData, numDependencies);
}

CUresult sim_cuGraphNodeGetDependentNodes_v2(struct node *n, CUgraphNode hNode, CUgraphNode *dependentNodes,
                                             CUgraphEdgeData *edgeData, size_t *numDependentNodes)
{
    return list_edges(&n->out, dependentNodes, edgeData, numDependentNodes);
}

/* ---- nodes ---- */

struct node *node_new(struct graph *g, struct work *w)
{
    bool room = enlarge(&g->nodes, &g->cap, g->n + 1, sizeof *g->nodes);
    struct node *n = room ? handle_new(sizeof *n, H_NODE) : NULL;
    if (!n) {
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

/* Removes a node from its graph and frees it. */
static void node_free(struct node *n)
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

/* Adds a node with the dependencies of a call's arguments. */
CUresult node_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *data, size_t n,
                  struct work *w)
{
    struct graph *g = (struct graph *)graph;
    if (!out || !handle_is(g, H_GRAPH) || !edges_valid(g, deps, n)) {
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

/* ---- graphs ---- */

struct graph *graph_new(void)
{
    struct graph *g = handle_new(sizeof *g, H_GRAPH);
    if (g)
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

/* Copies the edges of a graph to its copy, whose nodes have the same indexes. */
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

/* Adds a copy of a node, with a copy of its child graph. */
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

/* Appends a node's dependencies, and then the node. */
static bool append_with_ancestors(struct node *sink, struct frame *stack, struct node **out, size_t *count,
                                  struct node **bad)
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
            ok = append_with_ancestors(g->nodes[i], stack, out, &count, bad);
    free(stack);
    for (size_t i = 0; ok && i < g->n; i++)
        if (g->nodes[i]->mark == (size_t)-1) { /* leads to no sink: it is on a cycle, or before one */
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

/* The graph of a child node is destroyed with its node, that of a capture with the capture. */
CUresult sim_cuGraphDestroy(struct graph *g, CUgraph hGraph)
{
    if (g->parent || g->capture)
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(g);
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphClone(struct graph *g, CUgraph *phGraphClone, CUgraph originalGraph)
{
    if (!phGraphClone)
        return CUDA_ERROR_INVALID_VALUE;
    if (g->mems)
        return CUDA_ERROR_NOT_SUPPORTED;
    *phGraphClone = (CUgraph)graph_clone(g);
    return *phGraphClone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuGraphNodeFindInClone(struct graph *g, CUgraphNode *phNode, CUgraphNode hOriginalNode,
                                    CUgraph hClonedGraph)
{
    const struct node *n = (const struct node *)hOriginalNode;
    if (!phNode || !handle_is(n, H_NODE) || n->graph->id != g->origin)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < g->n; i++)
        if (g->nodes[i]->origin == n->id) {
            *phNode = (CUgraphNode)g->nodes[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Fills the program's list, which may be NULL to query its length. Unused entries are set to NULL. */
static CUresult list_nodes(const struct graph *g, bool roots, CUgraphNode *out, size_t *count)
{
    size_t n = 0;
    if (!count)
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

CUresult sim_cuGraphGetNodes(struct graph *g, CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    return list_nodes(g, false, nodes, numNodes);
}

CUresult sim_cuGraphGetRootNodes(struct graph *g, CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    return list_nodes(g, true, rootNodes, numRootNodes);
}

/* ---- calls on nodes ---- */

/* Returns the node of a handle if it has that type, else NULL. */
static struct node *node_of(CUgraphNode h, CUgraphNodeType type)
{
    struct node *n = handle_of(h, H_NODE);
    return n && n->work.type == type ? n : NULL;
}

/* Replaces a node's work by other work of its kind. It owns w if r is success. */
static CUresult replace_work(struct node *n, struct work *w, CUresult r)
{
    TRY(r);
    work_clear(&n->work);
    n->work = *w;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphDestroyNode(struct node *n, CUgraphNode hNode)
{
    if (n->graph->capture)
        return CUDA_ERROR_INVALID_VALUE;
    if (n->graph->mems)
        return CUDA_ERROR_NOT_SUPPORTED;
    node_free(n);
    return CUDA_SUCCESS;
}

/* ---- adding nodes ---- */

GRAPH_ADD(MemcpyNode, work_memcpy(&w, p, (struct ctx *)ctx), const CUDA_MEMCPY3D *p, CUcontext ctx)
GRAPH_ADD(MemsetNode, work_memset(&w, p, (struct ctx *)ctx), const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx)
GRAPH_ADD(HostNode, work_host(&w, p), const CUDA_HOST_NODE_PARAMS *p)
GRAPH_ADD(ChildGraphNode, work_child(&w, childGraph), CUgraph childGraph)
GRAPH_ADD(EmptyNode, (w = (struct work){.type = CU_GRAPH_NODE_TYPE_EMPTY}, CUDA_SUCCESS))
GRAPH_ADD(EventRecordNode, work_event(&w, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event), CUevent event)
GRAPH_ADD(EventWaitNode, work_event(&w, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event), CUevent event)

/* Sets the work of a generic node of any type. */
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
    TRY(nodeParams ? work_any(&w, nodeParams, (const struct graph *)hGraph) : CUDA_ERROR_INVALID_VALUE);
    return node_add(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, &w);
}

/* From CUDA 13.4 on, a kernel node's context must be its function's. */
static CUresult context_fits(const CUgraphNodeParams *p)
{
    if (!p || p->type != CU_GRAPH_NODE_TYPE_KERNEL || !p->kernel.ctx)
        return CUDA_SUCCESS;
    const struct func *f = handle_of(p->kernel.func, H_FUNC);
    return f && (CUcontext)f->module->ctx != p->kernel.ctx ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult sim_cuGraphAddNode_v3(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                               const CUgraphEdgeData *dependencyData, size_t numDependencies,
                               CUgraphNodeParams *nodeParams)
{
    TRY(context_fits(nodeParams));
    return sim_cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams);
}

/* ---- parameters ---- */

/* Defines a call that returns a parameter of a node of that type. */
#define GET(name, type, kind, value)                                      \
    CUresult sim_cuGraph##name(CUgraphNode hNode, kind *out)              \
    {                                                                     \
        const struct node *n = node_of(hNode, CU_GRAPH_NODE_TYPE_##type); \
        if (!n || !out)                                                   \
            return CUDA_ERROR_INVALID_VALUE;                              \
        *out = value;                                                     \
        return CUDA_SUCCESS;                                              \
    }

/* Defines a call that gives a node of that type other work, which `make` puts into w. */
#define SET(name, type, make, given)                                     \
    CUresult sim_cuGraph##name(CUgraphNode hNode, given)                 \
    {                                                                    \
        struct node *n = node_of(hNode, CU_GRAPH_NODE_TYPE_##type);      \
        struct work w;                                                   \
        return n ? replace_work(n, &w, make) : CUDA_ERROR_INVALID_VALUE; \
    }

GET(MemcpyNodeGetParams, MEMCPY, CUDA_MEMCPY3D, n->work.u.copy)
SET(MemcpyNodeSetParams, MEMCPY, work_memcpy(&w, p, n->work.ctx), const CUDA_MEMCPY3D *p)
GET(MemsetNodeGetParams, MEMSET, CUDA_MEMSET_NODE_PARAMS, n->work.u.set)
SET(MemsetNodeSetParams, MEMSET, work_memset(&w, p, n->work.ctx), const CUDA_MEMSET_NODE_PARAMS *p)
GET(HostNodeGetParams, HOST, CUDA_HOST_NODE_PARAMS, n->work.u.host)
SET(HostNodeSetParams, HOST, work_host(&w, p), const CUDA_HOST_NODE_PARAMS *p)
GET(ChildGraphNodeGetGraph, GRAPH, CUgraph, (CUgraph)n->work.u.child)
GET(EventRecordNodeGetEvent, EVENT_RECORD, CUevent, (CUevent)n->work.u.event)
SET(EventRecordNodeSetEvent, EVENT_RECORD, work_event(&w, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event), CUevent event)
GET(EventWaitNodeGetEvent, WAIT_EVENT, CUevent, (CUevent)n->work.u.event)
SET(EventWaitNodeSetEvent, WAIT_EVENT, work_event(&w, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event), CUevent event)

/* The type cannot change, and a child graph cannot change at all. */
CUresult sim_cuGraphNodeSetParams(struct node *n, CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    struct work w;
    if (!nodeParams || nodeParams->type != n->work.type || n->work.type == CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = work_params(&w, nodeParams);
    if (r == CUDA_SUCCESS && n->work.type == CU_GRAPH_NODE_TYPE_KERNEL) {
        w.u.kernel.attrs = n->work.u.kernel.attrs;
        n->work.u.kernel.attrs = NULL;
    }
    return replace_work(n, &w, r);
}

CUresult sim_cuGraphNodeSetParams_v2(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    struct node *n = handle_of(hNode, H_NODE);
    TRY(context_fits(nodeParams));
    return n ? sim_cuGraphNodeSetParams(n, hNode, nodeParams) : CUDA_ERROR_INVALID_VALUE;
}
