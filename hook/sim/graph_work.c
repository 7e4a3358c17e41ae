/* graph_work.c: what nodes do, kernels excepted: checked, copied, compared. */
#include "graph.h"
#include "transfer.h"

#include <stdlib.h>
#include <string.h>

void work_copy(struct work *to, const struct work *from)
{
    *to = *from;
    if (from->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        to->u.kernel.args->refs++;
        if (to->u.kernel.attrs)
            to->u.kernel.attrs->refs++;
    }
    if (from->type == CU_GRAPH_NODE_TYPE_GRAPH)
        to->u.child = NULL;
    if (work_is_mem(from))
        mem_ref(from->u.mem);
}

void work_clear(struct work *w)
{
    if (w->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        if (--w->u.kernel.args->refs == 0)
            free(w->u.kernel.args);
        if (w->u.kernel.attrs && --w->u.kernel.attrs->refs == 0)
            free(w->u.kernel.attrs);
    }
    if (w->type == CU_GRAPH_NODE_TYPE_GRAPH && w->u.child)
        graph_free(w->u.child);
    if (work_is_mem(w))
        mem_unref(w->u.mem);
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_EMPTY};
}

static const struct ctx *owner(CUdeviceptr p)
{
    const struct range *g = range_find(p);
    return g ? g->ctx : NULL;
}

static CUdeviceptr address(CUmemorytype type, const void *host, CUdeviceptr device)
{
    return type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)host : device;
}

CUresult work_memcpy(struct work *w, const CUDA_MEMCPY3D *p, struct ctx *c)
{
    struct copy where;
    enum place src, dst;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(c, H_CTX))
        return c ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .ctx = c};
    w->u.copy = *p;
    w->owner[0] = owner(address(p->srcMemoryType, p->srcHost, p->srcDevice));
    w->owner[1] = owner(address(p->dstMemoryType, p->dstHost, p->dstDevice));
    if (mem_at(p->srcDevice) || mem_at(p->dstDevice)) /* which may have no memory yet */
        return CUDA_SUCCESS;
    return copy3d_locate(p, &where, &src, &dst);
}

CUresult work_memset(struct work *w, const CUDA_MEMSET_NODE_PARAMS *p, struct ctx *c)
{
    struct copy where;
    enum place dst;
    if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || !p->width || !p->height)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(c, H_CTX))
        return c ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_MEMSET, .ctx = c};
    w->u.set = *p;
    w->owner[1] = owner(p->dst);
    return mem_at(p->dst) ? CUDA_SUCCESS : set_locate(p, &where, &dst);
}

CUresult work_host(struct work *w, const CUDA_HOST_NODE_PARAMS *p)
{
    if (!p || !p->fn)
        return CUDA_ERROR_INVALID_VALUE;
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_HOST};
    w->u.host = *p;
    return CUDA_SUCCESS;
}

CUresult work_event(struct work *w, CUgraphNodeType type, CUevent e)
{
    if (!handle_is(e, H_EVENT))
        return e ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *w = (struct work){.type = type};
    w->u.event = (struct event *)e;
    if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
        w->ctx = w->u.event->ctx;
    return CUDA_SUCCESS;
}

CUresult work_child(struct work *w, CUgraph child)
{
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_GRAPH};
    if (!graph_is(child))
        return CUDA_ERROR_INVALID_VALUE;
    if (((const struct graph *)child)->mems)
        return CUDA_ERROR_NOT_SUPPORTED;
    w->u.child = graph_clone((const struct graph *)child);
    return w->u.child ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The context a generic node names; none is the current one. */
static struct ctx *context(CUcontext c)
{
    return c ? (struct ctx *)c : ctx_current();
}

CUresult work_params(struct work *w, const CUgraphNodeParams *p)
{
    CUDA_MEMSET_NODE_PARAMS set = {p->memset.dst,         p->memset.pitch, p->memset.value,
                                   p->memset.elementSize, p->memset.width, p->memset.height};
    for (int i = 0; i < 3; i++)
        if (p->reserved0[i])
            return CUDA_ERROR_INVALID_VALUE;
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return work_kernel(w, &p->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return p->memcpy.flags ? CUDA_ERROR_INVALID_VALUE
                               : work_memcpy(w, &p->memcpy.copyParams, context(p->memcpy.copyCtx));
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return work_memset(w, &set, context(p->memset.ctx));
    case CU_GRAPH_NODE_TYPE_HOST:
        return work_host(w, &p->host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return p->graph.ownership ? CUDA_ERROR_NOT_SUPPORTED : work_child(w, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        *w = (struct work){.type = CU_GRAPH_NODE_TYPE_EMPTY};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return work_event(w, p->type, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: /* these cannot be changed; see cuGraphAddNode */
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult work_locate(const struct work *w, struct copy *c)
{
    enum place src, dst;
    return w->type == CU_GRAPH_NODE_TYPE_MEMSET ? set_locate(&w->u.set, c, &dst)
                                                : copy3d_locate(&w->u.copy, c, &src, &dst);
}

/* Sets of one row may change in everything, those of several only in where and what. */
static bool set_fits(const CUDA_MEMSET_NODE_PARAMS *a, const CUDA_MEMSET_NODE_PARAMS *b)
{
    if (a->height == 1)
        return b->height == 1;
    return a->height == b->height && a->width == b->width && a->pitch == b->pitch &&
           a->elementSize == b->elementSize;
}

bool work_flat(const struct work *w)
{
    return w->type != CU_GRAPH_NODE_TYPE_MEMCPY || (w->u.copy.Height == 1 && w->u.copy.Depth == 1);
}

CUresult work_fits(const struct work *old, const struct work *new)
{
    if (old->type != new->type)
        return CUDA_ERROR_INVALID_VALUE;
    bool fits = true;
    for (int i = 0; i < 2; i++)
        fits &= old->owner[i] == new->owner[i];
    switch ((int)old->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        fits &= old->ctx == new->ctx && work_cooperative(old) == work_cooperative(new);
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        fits &= old->ctx == new->ctx && old->u.copy.srcMemoryType == new->u.copy.srcMemoryType &&
               old->u.copy.dstMemoryType == new->u.copy.dstMemoryType;
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        fits &= old->ctx == new->ctx && set_fits(&old->u.set, &new->u.set);
        break;
    }
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
