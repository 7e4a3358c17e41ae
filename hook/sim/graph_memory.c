/* graph_memory.c: memory that graphs allocate. A node's allocation has its addresses
 * from the beginning and memory behind them only while it is needed: from the launch
 * of its graph to the end of that, or, if the graph does not free it, until somebody
 * does. All graphs of a device share what was taken from it; it goes back only when
 * it is trimmed. */
#include "capture.h"
#include "pool.h"
#include "transfer.h"

#include <fcntl.h>
#include <stdlib.h>

/* One allocation node's memory. */
struct mem {
    unsigned refs;      /* of nodes, steps and, while it is live, the program */
    unsigned backing;   /* launches that are not over, and the program */
    bool live;          /* allocated by a launch, and not freed yet: as the calls say */
    bool freed_inside;  /* the graph has a node that frees it, */
    bool freed_outside; /* another one has */
    bool instantiated, instantiated_free;
    uint64_t graph;     /* whose it is */
    struct range *range;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUmemAccessDesc access[SIM_MAX_DEVICES];
};

static uint64_t pages(uint64_t bytes)
{
    return (bytes + POOL_PAGE - 1) & ~(uint64_t)(POOL_PAGE - 1);
}

/* Has the device keep at least that much for graphs. */
static CUresult reserve(struct device *d, uint64_t bytes)
{
    struct graph_memory *g = &d->graph_memory;
    uint64_t want = pages(bytes);
    if (want <= g->reserved)
        return CUDA_SUCCESS;
    CUresult r = memory_take(d, want - g->reserved);
    if (r != CUDA_SUCCESS)
        return r;
    g->reserved = want;
    if (want > g->reserved_high)
        g->reserved_high = want;
    return CUDA_SUCCESS;
}

/* Puts memory behind the addresses, once more if there is some already. */
static CUresult back(struct mem *m)
{
    struct range *r = m->range;
    struct graph_memory *g = &r->dev->graph_memory;
    if (!m->backing) {
        CUresult result = reserve(r->dev, g->used + r->span);
        if (result != CUDA_SUCCESS)
            return result;
        g->used += r->span;
        if (g->used > g->used_high)
            g->used_high = g->used;
        r->kind = R_GRAPH;
        r->size = m->params.bytesize;
        r->id = range_new_id();
    }
    m->backing++;
    return CUDA_SUCCESS;
}

/* Takes it away when nobody needs it any more. */
static void unback(struct mem *m)
{
    struct range *r = m->range;
    if (!m->backing || --m->backing) /* a context that is gone has taken all at once */
        return;
    r->dev->graph_memory.used -= r->span;
    r->kind = R_HIDDEN;
    r->size = 0;
    fallocate(r->dev->arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r->offset, (off_t)r->span);
}

void mem_ref(struct mem *m)
{
    m->refs++;
}

void mem_unref(struct mem *m)
{
    if (--m->refs)
        return;
    range_del(m->range);
    free(m);
}

/* Notes whether the program has the allocation, as its calls say. */
static void set_live(struct mem *m, bool live)
{
    if (m->live == live)
        return;
    m->live = live;
    if (live)
        m->refs++;
}

/* What the program had is behind it. */
static void let_go(struct mem *m)
{
    unback(m);
    mem_unref(m);
}

/* ---- freeing outside of graphs ---- */

bool mem_can_free(const struct range *r)
{
    return r->kind == R_GRAPH && r->mem->live;
}

/* What cuMemFree does with such memory. */
void mem_free_now(struct range *r)
{
    set_live(r->mem, false);
    let_go(r->mem);
}

static void free_task(const struct task *t)
{
    struct range *r = range_raw(t->p);
    if (r && r->mem)
        let_go(r->mem);
}

/* What cuMemFreeAsync does with it: behind the stream's work. */
CUresult mem_free(struct range *r, struct stream *s)
{
    struct task t = {.run = free_task, .p = r->base};
    if (!mem_can_free(r))
        return CUDA_ERROR_INVALID_VALUE;
    set_live(r->mem, false); /* before the lock may be let go */
    CUresult result = transfer_task(s, &t);
    if (result != CUDA_SUCCESS)
        r->mem->live = true;
    return result;
}

bool mem_at(CUdeviceptr p)
{
    const struct range *r = range_raw(p);
    return r && r->mem;
}

/* ---- the device's ---- */

/* Gives back what no allocation needs. */
static void trim(struct device *d)
{
    struct graph_memory *g = &d->graph_memory;
    uint64_t keep = pages(g->used);
    if (keep < g->reserved) {
        shared_mem_give(d, g->reserved - keep);
        g->reserved = keep;
    }
}

/* No context is left on the device, and nothing of what was allocated. */
void mem_reset(struct device *d)
{
    for (size_t i = range_count(); i-- > 0;) {
        struct mem *m = range_at(i)->dev == d ? range_at(i)->mem : NULL;
        if (!m || !m->backing)
            continue;
        m->backing = 1;
        unback(m);
        if (m->live) {
            m->live = false;
            mem_unref(m);
        }
    }
    trim(d);
}

/* A device whose memory for graphs is asked about, as it is now. */
static CUresult look_at(CUdevice dev, struct device **d)
{
    CUresult r = device_joined(dev, d);
    if (r == CUDA_SUCCESS)
        engine_advance(*d, now_ns());
    return r;
}

CUresult sim_cuDeviceGraphMemTrim(CUdevice device)
{
    struct device *d;
    CUresult r = look_at(device, &d);
    if (r != CUDA_SUCCESS)
        return r;
    trim(d);
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    struct device *d;
    CUresult r = look_at(device, &d);
    if (r != CUDA_SUCCESS)
        return r;
    const struct graph_memory *g = &d->graph_memory;
    const uint64_t numbers[] = {g->used, g->used_high, g->reserved, g->reserved_high};
    if (!value || (unsigned)attr > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    *(cuuint64_t *)value = numbers[attr];
    return CUDA_SUCCESS;
}

/* A high-water mark can only be set back. */
CUresult sim_cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    struct device *d;
    CUresult r = look_at(device, &d);
    if (r != CUDA_SUCCESS)
        return r;
    struct graph_memory *g = &d->graph_memory;
    if (!value || *(const cuuint64_t *)value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        g->used_high = g->used;
    else if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        g->reserved_high = g->reserved;
    else
        r = CUDA_ERROR_INVALID_VALUE;
    return r;
}

/* ---- nodes that allocate it and free it ---- */

static struct device *device_at(const CUmemLocation *l)
{
    return l->type == CU_MEM_LOCATION_TYPE_DEVICE ? device_of(l->id) : NULL;
}

/* Whether a node may allocate so. */
static CUresult check_params(const CUDA_MEM_ALLOC_NODE_PARAMS *p)
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

/* Allocates the addresses that the node will have at each launch. */
CUresult work_alloc(struct work *w, CUDA_MEM_ALLOC_NODE_PARAMS *p, const struct graph *g)
{
    struct range r = {.kind = R_HIDDEN};
    CUresult result = check_params(p);
    if (result == CUDA_SUCCESS && (!handle_is(g, H_GRAPH) || g->parent)) /* not into a child graph */
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
    result = memory_hole(d, page_up(p->bytesize), &r, &m->range);
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

/* Whether a node of the graph frees it already. */
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
    if (!handle_is(g, H_GRAPH) || g->parent || !m || r->base != p || frees(g, m))
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

/* ---- instances and launches ---- */

/* Which mark says that an instance has this node. */
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
            r = back(p->steps[i].work.u.mem);
    if (r != CUDA_SUCCESS) {
        for (size_t k = 0; k + 1 < i; k++)
            if (p->steps[k].work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
                unback(p->steps[k].work.u.mem);
        return r;
    }
    for (i = 0; i < p->n; i++) {
        const struct work *w = &p->steps[i].work;
        if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            set_live(w->u.mem, false);
        else if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !w->u.mem->freed_inside && !w->u.mem->live) {
            back(w->u.mem); /* the program's: it has memory by now */
            set_live(w->u.mem, true);
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
            unback(w->u.mem);
        else if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE && !w->u.mem->freed_inside)
            let_go(w->u.mem);
    }
}

/* Has the device keep the memory ready that a launch will need. */
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
    return d ? reserve(d, d->graph_memory.used + bytes) : CUDA_SUCCESS;
}
