/* graph_memory.c: memory that graphs allocate. A node's allocation has its addresses
 * from the beginning and memory behind them only while it is needed: from the launch
 * of its graph to the end of that, or, if the graph does not free it, until somebody
 * does. All graphs of a device share what was taken from it; it goes back only when
 * it is trimmed. */
#include "graph_memory.h"
#include "pool.h"
#include "transfer.h"

#include <fcntl.h>
#include <stdlib.h>

static uint64_t pages(uint64_t bytes)
{
    return (bytes + POOL_PAGE - 1) & ~(uint64_t)(POOL_PAGE - 1);
}

/* Has the device keep at least that much for graphs. */
CUresult mem_reserve(struct device *d, uint64_t bytes)
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

CUresult mem_back(struct mem *m)
{
    struct range *r = m->range;
    struct graph_memory *g = &r->dev->graph_memory;
    if (!m->backing) {
        CUresult result = mem_reserve(r->dev, g->used + r->span);
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

void mem_unback(struct mem *m)
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

void mem_set_live(struct mem *m, bool live)
{
    if (m->live == live)
        return;
    m->live = live;
    if (live)
        m->refs++;
}

/* What the program had is behind it. */
void mem_let_go(struct mem *m)
{
    mem_unback(m);
    mem_unref(m);
}

/* ---- freeing outside of graphs ---- */

bool mem_can_free(const struct range *r)
{
    return r->kind == R_GRAPH && r->mem->live;
}

void mem_free_now(struct range *r)
{
    mem_set_live(r->mem, false);
    mem_let_go(r->mem);
}

static void free_task(const struct task *t)
{
    struct range *r = range_raw(t->p);
    if (r && r->mem)
        mem_let_go(r->mem);
}

CUresult mem_free(struct range *r, struct stream *s)
{
    struct task t = {.run = free_task, .p = r->base};
    if (!mem_can_free(r))
        return CUDA_ERROR_INVALID_VALUE;
    mem_set_live(r->mem, false); /* before the lock may be let go */
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
        mem_unback(m);
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
