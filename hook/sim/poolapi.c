/* poolapi.c: the calls on pools, and those that allocate and free in stream order. */
#include "capture.h"
#include "pool.h"
#include "transfer.h"

/* Opens a call on a pool: on success the lock is held. */
static CUresult begin(CUmemoryPool h, struct pool **p)
{
    CUresult r = sim_begin(NULL);
    *p = (struct pool *)h;
    if (r != CUDA_SUCCESS)
        return r;
    return handle_is(h, H_POOL) ? r : sim_end(CUDA_ERROR_INVALID_VALUE);
}

/* The same, of a call that a capture cannot see. */
static CUresult begin_unsafe(CUmemoryPool h, struct pool **p)
{
    CUresult r = begin(h, p);
    if (r == CUDA_SUCCESS && g_captures && (r = capture_unsafe()) != CUDA_SUCCESS)
        sim_end(r);
    return r;
}

/* Opens a call on a device: on success the lock is held and the device joined. */
static CUresult begin_device(CUdevice dev, struct device **d)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    if (dev < 0 || dev >= (int)g_config.visible)
        return sim_end(CUDA_ERROR_INVALID_DEVICE);
    *d = &g_device[g_config.visible_index[dev]];
    r = shared_join(*d);
    return r == CUDA_SUCCESS ? r : sim_end(r);
}

static struct pool *current(struct device *d)
{
    return d->current_pool ? d->current_pool : pool_default(d);
}

/* ---- allocating and freeing ---- */

static CUresult alloc(CUdeviceptr *dptr, size_t bytesize, bool from, CUmemoryPool pool, CUstream hStream)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    struct stream *s = stream_get(c, hStream, &r);
    if (!s)
        return sim_end(r);
    if (!dptr || (from && !handle_is(pool, H_POOL)))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    if (s->capture) /* the graph has its own */
        return sim_end(capture_alloc(s, bytesize, dptr));
    struct pool *p = from ? (struct pool *)pool : current(s->ctx->dev);
    if (!p)
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    return sim_end(p->imported ? CUDA_ERROR_INVALID_VALUE : pool_alloc(p, s, bytesize, dptr));
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    return alloc(dptr, bytesize, false, NULL, hStream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
    return alloc(dptr, bytesize, true, pool, hStream);
}

static void release(const struct task *t)
{
    struct range *g = range_find(t->p);
    if (g && g->kind == R_DEVICE)
        memory_release(g);
    else if (g && g->kind == R_IPC)
        ipc_release(g);
}

/* Memory of cuMemAlloc may be freed so too, and what was imported from a pool. */
CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    struct stream *s = stream_get(c, hStream, &r);
    if (!s)
        return sim_end(r);
    if (s->capture)
        return sim_end(capture_free(s, dptr));
    struct range *g = range_find(dptr);
    if (!g || g->base != dptr)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    if (g->kind == R_GRAPH)
        return sim_end(mem_free(g, s));
    if (g->kind == R_POOL)
        return sim_end(pool_free(g, s));
    if (g->kind != R_DEVICE && !(g->kind == R_IPC && g->flags))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    struct task t = {.run = release, .p = dptr};
    return sim_end(transfer_task(s, &t));
}

/* ---- pools ---- */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    struct device *d;
    if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return pool && poolProps && poolProps->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_ERROR_NOT_SUPPORTED
                                                                                        : CUDA_ERROR_INVALID_VALUE;
    if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return poolProps->location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE
                                                                        : CUDA_ERROR_NOT_SUPPORTED;
    if (poolProps->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult r = begin_device(poolProps->location.id, &d);
    if (r != CUDA_SUCCESS)
        return r;
    struct pool *p = pool_new(d);
    if (!p)
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    p->handle_types = poolProps->handleTypes;
    p->max = (poolProps->maxSize + POOL_PAGE - 1) & ~(uint64_t)(POOL_PAGE - 1);
    *pool = (CUmemoryPool)p;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct pool *p;
    CUresult r = begin(pool, &p);
    if (r != CUDA_SUCCESS)
        return r;
    if (p->fixed)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    pool_destroy(p);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    struct pool *p;
    CUresult r = begin(pool, &p);
    if (r != CUDA_SUCCESS)
        return r;
    engine_advance(p->dev, now_ns());
    pool_trim(p, minBytesToKeep);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct pool *p;
    CUresult r = begin_unsafe(pool, &p);
    if (r != CUDA_SUCCESS)
        return r;
    if (!value || p->imported)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    switch ((int)attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        p->reuse[attr] = *(const int *)value != 0;
        return sim_end(CUDA_SUCCESS);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        p->threshold = *(const cuuint64_t *)value;
        return sim_end(CUDA_SUCCESS);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const cuuint64_t *)value) /* a high-water mark can only be set back */
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
            p->used_high = p->used;
        else
            p->reserved_high = p->reserved;
        return sim_end(CUDA_SUCCESS);
    default:
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct pool *p;
    CUresult r = begin_unsafe(pool, &p);
    if (r != CUDA_SUCCESS)
        return r;
    if (!value)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    const uint64_t numbers[] = {p->threshold, p->reserved, p->reserved_high, p->used, p->used_high};
    if (attr >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
        attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        *(int *)value = p->reuse[attr];
    else if (attr >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && attr <= CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        *(cuuint64_t *)value = numbers[attr - CU_MEMPOOL_ATTR_RELEASE_THRESHOLD];
    else
        r = CUDA_ERROR_INVALID_VALUE;
    return sim_end(r);
}

/* Devices here are no peers: only a pool's own can have access, and cannot lose it. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    struct pool *p;
    CUresult r = begin(pool, &p);
    if (r != CUDA_SUCCESS)
        return r;
    if (!map && count)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        const CUmemLocation *l = &map[i].location;
        if (l->type != CU_MEM_LOCATION_TYPE_DEVICE)
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        if (l->id < 0 || l->id >= (int)g_config.visible || (l->id != p->dev->ordinal && map[i].flags))
            return sim_end(CUDA_ERROR_INVALID_DEVICE);
        if (l->id == p->dev->ordinal && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    struct pool *p;
    CUresult r = begin(memPool, &p);
    if (r != CUDA_SUCCESS)
        return r;
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0 ||
        location->id >= (int)g_config.visible)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    *flags = location->id == p->dev->ordinal ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return sim_end(CUDA_SUCCESS);
}

/* ---- the pools of a device ---- */

static CUresult get(CUmemoryPool *pool, CUdevice dev, struct pool *(*which)(struct device *))
{
    struct device *d;
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = begin_device(dev, &d);
    if (r != CUDA_SUCCESS)
        return r;
    struct pool *p = which(d);
    if (p)
        *pool = (CUmemoryPool)p;
    return sim_end(p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    return get(pool_out, dev, pool_default);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    return get(pool, dev, current);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    struct device *d;
    CUresult r = begin_device(dev, &d);
    if (r != CUDA_SUCCESS)
        return r;
    struct pool *p = (struct pool *)pool;
    if (!handle_is(p, H_POOL) || p->dev != d || p->imported)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    d->current_pool = p;
    return sim_end(CUDA_SUCCESS);
}

/* The same by place: only devices have pools here. */
static CUresult check_place(const CUmemLocation *l, CUmemAllocationType type)
{
    if (!l || l->type == CU_MEM_LOCATION_TYPE_INVALID || type == CU_MEM_ALLOCATION_TYPE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    return l->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED ? CUDA_SUCCESS
                                                                                          : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
    CUresult r = check_place(location, type);
    return r != CUDA_SUCCESS ? r : cuDeviceGetDefaultMemPool(pool_out, location->id);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    CUresult r = check_place(location, type);
    return r != CUDA_SUCCESS ? r : cuDeviceGetMemPool(pool, location->id);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    CUresult r = check_place(location, type);
    return r != CUDA_SUCCESS ? r : cuDeviceSetMemPool(location->id, pool);
}
