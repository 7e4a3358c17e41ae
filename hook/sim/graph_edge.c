/* graph_edge.c: what depends on what. */
#include "capture.h"

#include <stdlib.h>
#include <string.h>

static bool push(struct edges *l, struct node *n, const CUgraphEdgeData *data)
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

static struct edge *find(const struct edges *l, const struct node *n)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].node == n)
            return &l->v[i];
    return NULL;
}

static void drop(struct edges *l, const struct node *n)
{
    struct edge *e = find(l, n);
    if (!e)
        return;
    memmove(e, e + 1, (size_t)(l->v + l->n - (e + 1)) * sizeof *e);
    l->n--;
}

bool edge_find(const struct node *from, const struct node *to)
{
    return from->out.n < to->in.n ? find(&from->out, to) : find(&to->in, from);
}

bool edge_add(struct node *from, struct node *to, const CUgraphEdgeData *data)
{
    if (!push(&to->in, from, data))
        return false;
    if (push(&from->out, to, data))
        return true;
    to->in.n--;
    return false;
}

void edges_clear(struct node *n)
{
    for (size_t i = 0; i < n->in.n; i++)
        drop(&n->in.v[i].node->out, n);
    for (size_t i = 0; i < n->out.n; i++)
        drop(&n->out.v[i].node->in, n);
    free(n->in.v);
    free(n->out.v);
}

bool edges_valid(const struct graph *g, const CUgraphNode *deps, size_t n)
{
    if (n && !deps)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct node *d = (struct node *)deps[i];
        if (!node_is(d) || d->graph != g)
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

static void unlink_first(const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct node *a = (struct node *)from[i], *b = (struct node *)to[i];
        drop(&a->out, b);
        drop(&b->in, a);
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
        const struct edge *e = find(&((struct node *)to[i])->in, (const struct node *)from[i]);
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
    const struct graph *g = (const struct graph *)hGraph;
    size_t n = 0;
    if (!graph_is(g) || !numEdges || !from != !to || (edgeData && !from))
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
