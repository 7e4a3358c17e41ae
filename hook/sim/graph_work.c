/* graph_work.c: the work of graph nodes: checks, copies, comparisons, and queries of parameters. */
#include "func.h"
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

/* Returns the context that owns the memory at an address; a change of an executable graph must keep it. */
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
    enum mem_kind src, dst;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(c, H_CTX))
        return c ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .ctx = c};
    w->u.copy = *p;
    w->owner[0] = owner(address(p->srcMemoryType, p->srcHost, p->srcDevice));
    w->owner[1] = owner(address(p->dstMemoryType, p->dstHost, p->dstDevice));
    if (mem_at(p->srcDevice) || mem_at(p->dstDevice)) /* a node's memory, which may not be allocated yet */
        return CUDA_SUCCESS;
    CUresult r = copy3d_locate(p, &where, &src, &dst);
    return r == CUDA_SUCCESS && dst == MEM_READ_ONLY ? CUDA_ERROR_INVALID_VALUE : r;
}

CUresult work_memset(struct work *w, const CUDA_MEMSET_NODE_PARAMS *p, struct ctx *c)
{
    struct copy where;
    enum mem_kind dst;
    if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || !p->width || !p->height)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(c, H_CTX))
        return c ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_MEMSET, .ctx = c};
    w->u.set = *p;
    w->owner[1] = owner(p->dst);
    if (mem_at(p->dst))
        return CUDA_SUCCESS;
    CUresult r = set_locate(p, &where, &dst);
    return r == CUDA_SUCCESS && dst == MEM_READ_ONLY ? CUDA_ERROR_INVALID_VALUE : r;
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

/* A child graph is a copy of the argument. */
CUresult work_child(struct work *w, CUgraph child)
{
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_GRAPH};
    if (!handle_is(child, H_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    if (((const struct graph *)child)->mems)
        return CUDA_ERROR_NOT_SUPPORTED;
    w->u.child = graph_clone((const struct graph *)child);
    return w->u.child ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Returns the context of a generic node; NULL means the current one. */
static struct ctx *context(CUcontext c)
{
    return c ? (struct ctx *)c : ctx_current();
}

/* Sets the work of a generic node, except allocations. */
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
    enum mem_kind src, dst;
    CUresult r = w->type == CU_GRAPH_NODE_TYPE_MEMSET ? set_locate(&w->u.set, c, &dst)
                                                      : copy3d_locate(&w->u.copy, c, &src, &dst);
    c->fault = r == CUDA_SUCCESS && dst == MEM_READ_ONLY; /* became read-only after the node was added */
    return r;
}

/* A set of one row may change completely, one of several rows only its address and value. */
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

static bool work_cooperative(const struct work *w)
{
    return w->u.kernel.attrs && w->u.kernel.attrs->value[CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative;
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

/* ---- kernels: parameters and attributes ---- */

/* Copies all parameters, which the node returns to queries. */
static CUresult take_args(const struct launch *l, struct args **out)
{
    const struct func *f = l->f;
    struct args *a = calloc(1, sizeof *a + f->bytes + (f->nparams + 1) * sizeof(void *) + sizeof(void *));
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    a->refs = 1;
    a->size = f->bytes;
    CUresult r = launch_params(l, a->bytes, f->bytes);
    if (r != CUDA_SUCCESS) {
        free(a);
        return r;
    }
    if (l->extra) {
        void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, a->bytes, CU_LAUNCH_PARAM_BUFFER_SIZE, &a->size,
                         CU_LAUNCH_PARAM_END};
        memcpy(a->extra, extra, sizeof extra);
    } else if (f->nparams) {
        size_t at = (sizeof *a + f->bytes + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *);
        a->params = (void **)(void *)((char *)a + at);
        for (unsigned i = 0; i < f->nparams; i++)
            a->params[i] = a->bytes + f->offset[i];
    }
    *out = a;
    return CUDA_SUCCESS;
}

/* Returns the attributes of a kernel node for changes, copying shared ones. */
static struct attrs *own_attrs(struct work *w)
{
    struct attrs *a = w->u.kernel.attrs;
    if (a && a->refs == 1)
        return a;
    struct attrs *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return NULL;
    if (a) {
        *fresh = *a;
        a->refs--;
    }
    fresh->refs = 1;
    return w->u.kernel.attrs = fresh;
}

int work_priority(const struct work *w)
{
    if (w->type != CU_GRAPH_NODE_TYPE_KERNEL || !w->u.kernel.attrs)
        return 0;
    return w->u.kernel.attrs->value[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority;
}

/* Reports whether a kernel node can have the attribute. */
static bool known_attr(CUkernelNodeAttrID attr)
{
    switch ((int)attr) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return true;
    default:
        return false;
    }
}

static bool set_attr(struct work *w, CUkernelNodeAttrID id, const CUlaunchAttributeValue *v)
{
    struct attrs *a = own_attrs(w);
    if (a)
        a->value[id] = *v;
    return a != NULL;
}

/* Copies those attributes of a launch that a node can have. */
static bool take_attrs(struct work *w, const struct launch *l)
{
    CUlaunchAttributeValue v = {.cooperative = 1};
    bool ok = !l->cooperative || set_attr(w, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &v);
    for (unsigned i = 0; ok && i < l->nattrs; i++)
        if (known_attr(l->attrs[i].id))
            ok = set_attr(w, l->attrs[i].id, &l->attrs[i].value);
    return ok;
}

/* Sets the priority of a captured kernel to its stream's, unless it has its own. */
bool work_prioritise(struct work *w, int priority)
{
    CUlaunchAttributeValue v = {.priority = priority};
    return !priority || work_priority(w) || set_attr(w, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v);
}

/* Converts a launch to a kernel node's work; work_kernel does so with node parameters. */
CUresult work_launch(struct work *w, const struct launch *l)
{
    TRY(l->cooperative && l->extra ? CUDA_ERROR_INVALID_VALUE : launch_check(l));
    *w = (struct work){.type = CU_GRAPH_NODE_TYPE_KERNEL, .ctx = l->f->module->ctx};
    w->u.kernel.f = l->f;
    w->u.kernel.module = l->f->module;
    w->u.kernel.op = l->f->op;
    memcpy(w->u.kernel.grid, l->grid, sizeof l->grid);
    memcpy(w->u.kernel.block, l->block, sizeof l->block);
    w->u.kernel.shared = l->shared;
    w->u.kernel.ns = launch_ns(l);
    TRY(take_args(l, &w->u.kernel.args));
    if (take_attrs(w, l))
        return CUDA_SUCCESS;
    work_clear(w);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult work_kernel(struct work *w, const CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    if (!p || (!p->func && !p->kern))
        return CUDA_ERROR_INVALID_VALUE;
    struct launch l = {.shared = p->sharedMemBytes};
    struct ctx *c = p->ctx ? handle_of(p->ctx, H_CTX) : ctx_current();
    const void *handle = p->func ? (const void *)p->func : p->kern;
    CUresult r = CUDA_ERROR_INVALID_HANDLE;
    if ((p->ctx && !c) || (!handle_is(handle, H_FUNC) && (!c || c->destroyed)))
        return r;
    l.f = func_in(c, handle, &r); /* a kernel is resolved in that context */
    if (!l.f)
        return r;
    memcpy(l.grid, (unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ}, sizeof l.grid);
    memcpy(l.block, (unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, sizeof l.block);
    l.params = p->kernelParams;
    l.extra = p->extra;
    return work_launch(w, &l);
}

/* Sets *p to a kernel node's parameters as the program passed them. */
static void kernel_params(const struct work *w, CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    const unsigned *g = w->u.kernel.grid, *b = w->u.kernel.block;
    *p = (CUDA_KERNEL_NODE_PARAMS_v2){
        (CUfunction)w->u.kernel.f, g[0], g[1], g[2], b[0], b[1], b[2], w->u.kernel.shared, NULL, NULL, NULL, NULL};
    p->kernelParams = w->u.kernel.args->params;
    if (w->u.kernel.args->extra[0])
        p->extra = w->u.kernel.args->extra;
    p->ctx = (CUcontext)w->ctx;
}

/* Returns the work of a kernel node, or NULL if the handle is none. */
static struct work *kernel_of(CUgraphNode h)
{
    struct node *n = handle_of(h, H_NODE);
    return n && n->work.type == CU_GRAPH_NODE_TYPE_KERNEL ? &n->work : NULL;
}

const CUDA_KERNEL_NODE_PARAMS_v2 *work_widen(const CUDA_KERNEL_NODE_PARAMS_v1 *p, CUDA_KERNEL_NODE_PARAMS_v2 *wide)
{
    return p ? memcpy(wide, p, sizeof *p) : NULL;
}

GRAPH_ADD(KernelNode_v2, work_kernel(&w, nodeParams), const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)

CUresult sim_cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    struct work *w = kernel_of(hNode);
    if (!w || !nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    kernel_params(w, nodeParams);
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CUDA_KERNEL_NODE_PARAMS_v2 p;
    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(sim_cuGraphKernelNodeGetParams_v2(hNode, &p));
    memcpy(nodeParams, &p, sizeof *nodeParams);
    return CUDA_SUCCESS;
}

/* Changes the node's kernel and keeps its attributes. */
CUresult sim_cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    struct work fresh, *w = kernel_of(hNode);
    if (!w)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(work_kernel(&fresh, nodeParams));
    fresh.u.kernel.attrs = w->u.kernel.attrs;
    w->u.kernel.attrs = NULL;
    work_clear(w);
    *w = fresh;
    return CUDA_SUCCESS;
}

/* ---- attributes ---- */

CUresult sim_cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, CUkernelNodeAttrValue *value_out)
{
    struct work *w = kernel_of(hNode);
    if (!w || !value_out || !known_attr(attr))
        return CUDA_ERROR_INVALID_VALUE;
    memset(value_out, 0, sizeof *value_out);
    if (w->u.kernel.attrs)
        *value_out = w->u.kernel.attrs->value[attr];
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                           const CUkernelNodeAttrValue *value)
{
    struct work *w = kernel_of(hNode);
    if (!w || !value || !known_attr(attr))
        return CUDA_ERROR_INVALID_VALUE;
    return set_attr(w, attr, value) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src)
{
    struct work *from = kernel_of(src), *to = kernel_of(dst);
    if (!from || !to || to->ctx != from->ctx)
        return CUDA_ERROR_INVALID_VALUE;
    struct attrs *old = to->u.kernel.attrs;
    to->u.kernel.attrs = from->u.kernel.attrs;
    if (to->u.kernel.attrs)
        to->u.kernel.attrs->refs++;
    if (old && --old->refs == 0)
        free(old);
    return CUDA_SUCCESS;
}
