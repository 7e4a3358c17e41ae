/* graph_memory_node.c: nodes that allocate memory and free it. */
#include "graph_memory.h"

#include <stdlib.h>

static struct device *device_at(const CUmemLocation *l)
{
    return l->type == CU_MEM_LOCATION_TYPE_DEVICE ? device_of(l->id) : NULL;
}

static CUresult check(const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    if (!p || !p->bytesize || !device_at(&p->poolProps.location))
        return CUDA_ERROR_INVALID_VALUE;
    if (p->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || p->poolProps.handleTypes)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->accessDescCount > SIM_MAX_DEVICES || (p->accessDescCount && !p->accessDescs))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < p->accessDescCount; i++)
        if (!device_at(&p->accessDescs[i].location))
            return CUDA_ERROR_INVALID_VALUE;
    return p->bytesize > g_config.mem ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult work_alloc(struct work *w, CUDA_MEM_ALLOC_NODE_PARAMS *p, const struct graph *g)
{
    struct range r = {.kind = R_HIDDEN};
    CUresult result = check(p);
    if (result == CUDA_SUCCESS && (!graph_is(g) || g->parent)) /* not into a child graph */
        result = CUDA_ERROR_INVALID_VALUE;
    struct device *d = result == CUDA_SUCCESS ? device_at(&p->poolProps.location) : NULL;
    if (d)
        result = shared_join(d);
    if (result != CUDA_SUCCESS)
        return result;
    struct mem *m = calloc(1, sizeof *m);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    r.mem = m;
    result = memory_hole(d, (p->bytesize + SIM_PAGE - 1) & ~(size_t)(SIM_PAGE - 1), &r, &m->range);
    if (result != CUDA_SUCCESS) {
        free(m);
        return result;
    }
    m->refs = 1;
    m->graph = g->id;
    p->dptr = m->range->base;
    m->params = *p;
    for (size_t i = 0; i < p->accessDescCount; i++)
        m->access[i] = p->accessDescs[i];
    m->params.accessDescs = p->accessDescCount ? m->access : NULL;
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    w->u.mem = m;
    return CUDA_SUCCESS;
}

static bool frees(const struct graph *g, const struct mem *m)
{
    for (size_t i = 0; i < g->n; i++)
        if (g->nodes[i]->work.type == CU_GRAPH_NODE_TYPE_MEM_FREE && g->nodes[i]->work.u.mem == m)
            return true;
    return false;
}

CUresult work_free(struct work *w, CUdeviceptr p, const struct graph *g)
{
    const struct range *r = range_raw(p);
    struct mem *m = r ? r->mem : NULL;
    if (!graph_is(g) || g->parent || !m || r->base != p || frees(g, m))
        return CUDA_ERROR_INVALID_VALUE;
    bool inside = m->graph == g->id;
    if (inside ? m->freed_outside : m->freed_inside)
        return CUDA_ERROR_INVALID_VALUE;
    m->refs++;
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_MEM_FREE};
    w->u.mem = m;
    return CUDA_SUCCESS;
}

bool work_is_mem(const struct work *w)
{
    return w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || w->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
}

/* A node of the graph frees it. */
void mem_freed_by(struct mem *m, const struct graph *g)
{
    if (m->graph == g->id)
        m->freed_inside = true;
    else
        m->freed_outside = true;
}

CUresult sim_cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                    size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    struct work w;
    CUresult r = work_alloc(&w, nodeParams, (const struct graph *)hGraph);
    if (r == CUDA_SUCCESS)
        r = node_add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &w);
    return r;
}

CUresult sim_cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, CUdeviceptr dptr)
{
    struct work w;
    CUresult r = work_free(&w, dptr, (const struct graph *)hGraph);
    if (r == CUDA_SUCCESS)
        r = node_add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &w);
    return r;
}

/* The memory of a node of that type; NULL when the handle means none. */
static struct mem *mem_of(CUgraphNode h, CUgraphNodeType type)
{
    const struct node *n = handle_of(h, H_NODE);
    return n && n->work.type == type ? n->work.u.mem : NULL;
}

CUresult sim_cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    const struct mem *m = mem_of(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (!m || !params_out)
        return CUDA_ERROR_INVALID_VALUE;
    *params_out = m->params;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
    const struct mem *m = mem_of(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE);
    if (!m || !dptr_out)
        return CUDA_ERROR_INVALID_VALUE;
    *dptr_out = m->range->base;
    return CUDA_SUCCESS;
}
