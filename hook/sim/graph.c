/* graph.c: building graphs: graphs as a whole, the edges between their nodes, and
 * the nodes themselves with their parameters. What a node does is in graph_work.c;
 * nodes that allocate memory are in graph_memory.c. */
#include "capture.h"

#include <stdlib.h>
#include <string.h>

static uint64_t last_id; /* of graphs and of nodes */

/* ---- edges: what depends on what ---- */

static bool push_edge(struct edges *l, struct node *n, const CUgraphEdgeData *data)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 2;
        struct edge *v = realloc(l->v, cap * sizeof *v);
        if (!v)
            return false;
        l->v = v;
        l->cap = cap;
    }
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

/* Whether there is an edge; looks in the shorter of the two lists. */
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

/* Takes a node out of its neighbours' lists. */
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
    for (size_t i = 0; i < n; i++) /* none of them twice */
        if (((struct node *)deps[i])->mark != i)
            return false;
    return true;
}

/* Whether edges could be between these nodes: all of them the graph's, and no edge
 * from a node to itself. */
static bool possible(const struct graph *g, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
    if (!g || (n && (!from || !to)))
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct node *a = handle_of(from[i], H_NODE), *b = handle_of(to[i], H_NODE);
        if (!a || !b || a->graph != g || b->graph != g || a == b)
            return false;
    }
    return true;
}

/* Takes away the first n of these edges. */
static void unlink_first(const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct node *a = (struct node *)from[i], *b = (struct node *)to[i];
        drop_edge(&a->out, b);
        drop_edge(&b->in, a);
    }
}

/* All or nothing. An edge that is there already is an error, a cycle is found when
 * the graph is instantiated. */
CUresult sim_cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                       const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    const struct graph *g = handle_of(hGraph, H_GRAPH);
    if (!possible(g, from, to, numDependencies))
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

CUresult sim_cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                    size_t numDependencies)
{
    return sim_cuGraphAddDependencies_v2(hGraph, from, to, NULL, numDependencies);
}

CUresult sim_cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                          const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    const struct graph *g = handle_of(hGraph, H_GRAPH);
    if (!possible(g, from, to, numDependencies))
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

CUresult sim_cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                       size_t numDependencies)
{
    return sim_cuGraphRemoveDependencies_v2(hGraph, from, to, NULL, numDependencies);
}

static bool is_plain(const CUgraphEdgeData *d)
{
    return !d->from_port && !d->to_port && !d->type;
}

CUresult sim_cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edgeData,
                                size_t *numEdges)
{
    const struct graph *g = handle_of(hGraph, H_GRAPH);
    size_t n = 0;
    if (!g || !numEdges || !from != !to || (edgeData && !from))
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

CUresult sim_cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    return sim_cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

/* Tells a node's dependencies or dependents, and the data of those edges. */
static CUresult neighbours(CUgraphNode h, bool before, CUgraphNode *out, CUgraphEdgeData *data, size_t *count)
{
    const struct node *n = handle_of(h, H_NODE);
    if (!n || !count || (data && !out))
        return CUDA_ERROR_INVALID_VALUE;
    const struct edges *l = before ? &n->in : &n->out;
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

CUresult sim_cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies, CUgraphEdgeData *edgeData,
                                           size_t *numDependencies)
{
    return neighbours(hNode, true, dependencies, edgeData, numDependencies);
}

CUresult sim_cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies)
{
    return neighbours(hNode, true, dependencies, NULL, numDependencies);
}

CUresult sim_cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes, CUgraphEdgeData *edgeData,
                                             size_t *numDependentNodes)
{
    return neighbours(hNode, false, dependentNodes, edgeData, numDependentNodes);
}

CUresult sim_cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes, size_t *numDependentNodes)
{
    return neighbours(hNode, false, dependentNodes, NULL, numDependentNodes);
}

/* ---- nodes ---- */

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

/* Takes a node out of its graph and frees it. */
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

/* Adds a node with the dependencies that a call names. */
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

/* Puts the edges of one graph between the nodes of its copy, which have the same
 * places. */
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
    if (!phNode || !handle_is(n, H_NODE) || n->graph->id != g->origin)
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

/* ---- calls on nodes ---- */

/* The node of that type a handle means; NULL when it means none. */
static struct node *node_of(CUgraphNode h, CUgraphNodeType type)
{
    struct node *n = handle_of(h, H_NODE);
    return n && n->work.type == type ? n : NULL;
}

/* Gives a node other work of its kind. Takes w over if r is success. */
static CUresult replace_work(struct node *n, struct work *w, CUresult r)
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

/* The work of a generic node, of any type. */
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

/* From CUDA 13.4 on the context that a kernel node names must be its function's. */
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
    CUresult r = context_fits(nodeParams);
    return r == CUDA_SUCCESS
               ? sim_cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams)
               : r;
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
        return n ? replace_work(n, &w, make) : CUDA_ERROR_INVALID_VALUE;   \
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
    return replace_work(n, &w, r);
}

CUresult sim_cuGraphNodeSetParams_v2(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    CUresult r = context_fits(nodeParams);
    return r == CUDA_SUCCESS ? sim_cuGraphNodeSetParams(hNode, nodeParams) : r;
}
