/* graph_memory_run.c: what instances and launches of graphs do with their memory. */
#include "graph_memory.h"

static bool *claim(const struct work *w)
{
    return w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? &w->u.mem->instantiated : &w->u.mem->instantiated_free;
}

/* There is one instance at a time. */
CUresult mem_claim(const struct plan *p)
{
    for (size_t i = 0; p->memory && i < p->n; i++)
        if (work_is_mem(&p->steps[i].work) && *claim(&p->steps[i].work))
            return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; p->memory && i < p->n; i++)
        if (work_is_mem(&p->steps[i].work))
            *claim(&p->steps[i].work) = true;
    return CUDA_SUCCESS;
}

void mem_unclaim(const struct plan *p)
{
    for (size_t i = 0; p->memory && i < p->n; i++)
        if (work_is_mem(&p->steps[i].work))
            *claim(&p->steps[i].work) = false;
}

/* Whether the program may still have what a launch would allocate, or have freed
 * what it would free. */
static CUresult can_launch(const struct plan *p, bool auto_free)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct work *w = &p->steps[i].work;
        if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && w->u.mem->live && !auto_free)
            return CUDA_ERROR_INVALID_VALUE;
        if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE && !w->u.mem->freed_inside && !w->u.mem->live)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Before a launch: memory for what it allocates. */
CUresult mem_launch(const struct plan *p, bool auto_free)
{
    CUresult r = can_launch(p, auto_free);
    size_t i = 0;
    for (; r == CUDA_SUCCESS && i < p->n; i++)
        if (p->steps[i].work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            r = mem_back(p->steps[i].work.u.mem);
    if (r != CUDA_SUCCESS) {
        for (size_t k = 0; k + 1 < i; k++)
            if (p->steps[k].work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
                mem_unback(p->steps[k].work.u.mem);
        return r;
    }
    for (i = 0; i < p->n; i++) {
        const struct work *w = &p->steps[i].work;
        if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            mem_set_live(w->u.mem, false);
        else if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !w->u.mem->freed_inside && !w->u.mem->live) {
            mem_back(w->u.mem); /* the program's: it has memory by now */
            mem_set_live(w->u.mem, true);
        }
    }
    return CUDA_SUCCESS;
}

/* When it is over. */
void mem_over(const struct plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct work *w = &p->steps[i].work;
        if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            mem_unback(w->u.mem);
        else if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE && !w->u.mem->freed_inside)
            mem_let_go(w->u.mem);
    }
}

CUresult mem_upload(const struct plan *p)
{
    uint64_t bytes = 0;
    struct device *d = NULL;
    for (size_t i = 0; i < p->n; i++) {
        const struct work *w = &p->steps[i].work;
        if (w->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || w->u.mem->backing)
            continue;
        d = w->u.mem->range->dev;
        bytes += w->u.mem->range->span;
    }
    return d ? mem_reserve(d, d->graph_memory.used + bytes) : CUDA_SUCCESS;
}
