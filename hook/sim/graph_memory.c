/* graph_memory.c: memory that graphs allocate. A node's allocation has its addresses from the beginning, and
 * memory only while it is needed: from the launch of its graph to the launch's end, or, if the graph does not
 * free it, until it is freed elsewhere. All graphs of a device share the reserved memory, which is returned only
 * by a trim. */
#include "capture.h"
#include "pool.h"
#include "transfer.h"

#include <fcntl.h>
#include <stdlib.h>

/* The memory of an allocation node. */
struct mem {
    unsigned refs;      /* of nodes, steps and, while it is live, the program */
    unsigned backing;   /* launches in progress, and the program */
    bool live;          /* allocated by a launch and not freed yet, in the order of the calls */
    bool freed_inside;  /* the graph has a node that frees it */
    bool freed_outside; /* another graph has one */
    bool instantiated, instantiated_free;
    uint64_t graph;     /* the id of its graph */
    struct range *range;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUmemAccessDesc access[SIM_MAX_DEVICES];
};

static uint64_t pages(uint64_t bytes)
{
    return (bytes + POOL_PAGE - 1) & ~(uint64_t)(POOL_PAGE - 1);
}

/* Makes the device reserve at least that much for graphs. */
static CUresult reserve(struct device *d, uint64_t bytes)
{
    struct graph_memory *g = &d->graph_memory;
    uint64_t want = pages(bytes);
    if (want <= g->reserved)
        return CUDA_SUCCESS;
    TRY(memory_reserve(d, want - g->reserved));
    g->reserved = want;
    if (want > g->reserved_high)
        g->reserved_high = want;
    return CUDA_SUCCESS;
}

/* Backs the addresses with memory; counts the users if they are backed already. */
static CUresult add_backing(struct mem *m)
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

/* Removes the memory after its last user. */
static void drop_backing(struct mem *m)
{
    struct range *r = m->range;
    if (!m->backing || --m->backing) /* 0: the end of the last context has removed it */
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

/* Notes whether the program has the allocation, in the order of the calls. */
static void set_live(struct mem *m, bool live)
{
    if (m->live == live)
        return;
    m->live = live;
    if (live)
        m->refs++;
}

/* Drops the program's use of the memory. */
static void drop_use(struct mem *m)
{
    drop_backing(m);
    mem_unref(m);
}

/* ---- freeing outside of graphs ---- */

bool mem_can_free(const struct range *r)
{
    return r->kind == R_GRAPH && r->mem->live;
}

/* cuMemFree of such memory. */
void mem_free_now(struct range *r)
{
    set_live(r->mem, false);
    drop_use(r->mem);
}

static void free_task(const struct task *t)
{
    struct range *r = range_raw(t->addr);
    if (r && r->mem)
        drop_use(r->mem);
}

/* cuMemFreeAsync of such memory, after the stream's work. */
CUresult mem_free(struct range *r, struct stream *s)
{
    struct task t = {.run = free_task, .addr = r->base};
    if (!mem_can_free(r))
        return CUDA_ERROR_INVALID_VALUE;
    set_live(r->mem, false); /* before the lock may be released */
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

/* ---- the device's reserved memory ---- */

/* Returns the memory that no allocation needs. */
static void trim(struct device *d)
{
    struct graph_memory *g = &d->graph_memory;
    uint64_t keep = pages(g->used);
    if (keep < g->reserved) {
        shared_mem_release(d, g->reserved - keep);
        g->reserved = keep;
    }
}

/* Returns all memory, after the last context on the device. */
void mem_reset(struct device *d)
{
    for (size_t i = range_count(); i-- > 0;) {
        struct mem *m = range_at(i)->dev == d ? range_at(i)->mem : NULL;
        if (!m || !m->backing)
            continue;
        m->backing = 1;
        drop_backing(m);
        if (m->live) {
            m->live = false;
            mem_unref(m);
        }
    }
    trim(d);
}

/* Finds a device and brings it up to date, for a query of its memory for graphs. */
static CUresult update_device(CUdevice dev, struct device **d)
{
    TRY(device_joined(dev, d));
    engine_advance(*d, now_ns());
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGraphMemTrim(CUdevice device)
{
    struct device *d;
    TRY(update_device(device, &d));
    trim(d);
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    struct device *d;
    TRY(update_device(device, &d));
    const struct graph_memory *g = &d->graph_memory;
    const uint64_t numbers[] = {g->used, g->used_high, g->reserved, g->reserved_high};
    if (!value || (unsigned)attr > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    *(cuuint64_t *)value = numbers[attr];
    return CUDA_SUCCESS;
}

/* A high-water mark can only be reset. */
CUresult sim_cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    struct device *d;
    TRY(update_device(device, &d));
    struct graph_memory *g = &d->graph_memory;
    if (!value || *(const cuuint64_t *)value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        g->used_high = g->used;
    else if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        g->reserved_high = g->reserved;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* ---- nodes that allocate and free ---- */

static struct device *located_at(const CUmemLocation *l)
{
    return l->type == CU_MEM_LOCATION_TYPE_DEVICE ? device_of(l->id) : NULL;
}

/* Checks the parameters of an allocation node. */
static CUresult check_params(const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    if (!p || !p->bytesize || !located_at(&p->poolProps.location))
        return CUDA_ERROR_INVALID_VALUE;
    if (p->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || p->poolProps.handleTypes)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->accessDescCount > SIM_MAX_DEVICES || (p->accessDescCount && !p->accessDescs))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < p->accessDescCount; i++)
        if (!located_at(&p->accessDescs[i].location))
            return CUDA_ERROR_INVALID_VALUE;
    return p->bytesize > g_config.mem ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Allocates the addresses that the node has at each launch. */
CUresult work_alloc(struct work *w, CUDA_MEM_ALLOC_NODE_PARAMS *p, const struct graph *g)
{
    struct range r = {.kind = R_HIDDEN};
    CUresult result = check_params(p);
    if (result == CUDA_SUCCESS && (!handle_is(g, H_GRAPH) || g->parent)) /* child graphs cannot allocate */
        result = CUDA_ERROR_INVALID_VALUE;
    struct device *d = result == CUDA_SUCCESS ? located_at(&p->poolProps.location) : NULL;
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

/* Reports whether the graph already has a node that frees it. */
static bool has_free_node(const struct graph *g, const struct mem *m)
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
    if (!handle_is(g, H_GRAPH) || g->parent || !m || r->base != p || has_free_node(g, m))
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

/* Notes that a node of the graph frees it. */
void mem_freed_by(struct mem *m, const struct graph *g)
{
    if (m->graph == g->id)
        m->freed_inside = true;
    else
        m->freed_outside = true;
}

GRAPH_ADD(MemAllocNode, work_alloc(&w, params, (const struct graph *)hGraph), CUDA_MEM_ALLOC_NODE_PARAMS *params)
GRAPH_ADD(MemFreeNode, work_free(&w, dptr, (const struct graph *)hGraph), CUdeviceptr dptr)

/* Returns the memory of a node of that type, or NULL if the handle is none. */
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

/* ---- executable graphs and launches ---- */

/* Returns the mark of an executable graph that has this node. */
static bool *claim_mark(const struct work *w)
{
    return w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? &w->u.mem->instantiated : &w->u.mem->instantiated_free;
}

/* Marks the nodes; only one executable graph may have them at a time. */
CUresult mem_claim(const struct plan *p)
{
    for (size_t i = 0; p->memory && i < p->n; i++)
        if (work_is_mem(&p->steps[i].work) && *claim_mark(&p->steps[i].work))
            return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; p->memory && i < p->n; i++)
        if (work_is_mem(&p->steps[i].work))
            *claim_mark(&p->steps[i].work) = true;
    return CUDA_SUCCESS;
}

void mem_unclaim(const struct plan *p)
{
    for (size_t i = 0; p->memory && i < p->n; i++)
        if (work_is_mem(&p->steps[i].work))
            *claim_mark(&p->steps[i].work) = false;
}

/* Returns an error if the program may still have an allocation that a launch would make, or may have freed one
 * that it would free. */
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

/* Called before a launch: provides memory for its allocations. */
CUresult mem_launch(const struct plan *p, bool auto_free)
{
    CUresult r = can_launch(p, auto_free);
    size_t i = 0;
    for (; r == CUDA_SUCCESS && i < p->n; i++)
        if (p->steps[i].work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            r = add_backing(p->steps[i].work.u.mem);
    if (r != CUDA_SUCCESS) {
        for (size_t k = 0; k + 1 < i; k++)
            if (p->steps[k].work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
                drop_backing(p->steps[k].work.u.mem);
        return r;
    }
    for (i = 0; i < p->n; i++) {
        const struct work *w = &p->steps[i].work;
        if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            set_live(w->u.mem, false);
        else if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !w->u.mem->freed_inside && !w->u.mem->live) {
            add_backing(w->u.mem); /* for the program; the launch has backed it already */
            set_live(w->u.mem, true);
        }
    }
    return CUDA_SUCCESS;
}

/* Called after a launch. */
void mem_finished(const struct plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct work *w = &p->steps[i].work;
        if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            drop_backing(w->u.mem);
        else if (w->type == CU_GRAPH_NODE_TYPE_MEM_FREE && !w->u.mem->freed_inside)
            drop_use(w->u.mem);
    }
}

/* Makes the device reserve the memory that a launch will need. */
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
