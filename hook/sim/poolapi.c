/* poolapi.c: the calls on pools, those that allocate and free in stream order, and
 * pools between processes.
 *
 * A pool's handle is a descriptor of a file that says whose pool it is; a pointer
 * says where in that process's memory file the allocation is. The memory counts as
 * its owner's, and is gone for new importers when the owner is; what is imported
 * then stays readable. */
#include "capture.h"
#include "pool.h"
#include "shared.h"
#include "transfer.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* The pool of a call that a capture cannot see. */
static CUresult find_unsafe(CUmemoryPool h, struct pool **p)
{
    *p = handle_of(h, H_POOL);
    if (!*p)
        return CUDA_ERROR_INVALID_VALUE;
    return g_captures ? capture_unsafe() : CUDA_SUCCESS;
}

static struct pool *current(struct device *d)
{
    return d->current_pool ? d->current_pool : pool_default(d);
}

/* ---- allocating and freeing ---- */

/* From the pool, or from the device's current one if that is NULL. */
static CUresult alloc(struct stream *s, CUdeviceptr *dptr, size_t bytesize, struct pool *p)
{
    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture) /* the graph has its own */
        return capture_alloc(s, bytesize, dptr);
    if (!p && !(p = current(s->ctx->dev)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return p->imported ? CUDA_ERROR_INVALID_VALUE : pool_alloc(p, s, bytesize, dptr);
}

CUresult sim_cuMemAllocAsync(struct stream *s, CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    return alloc(s, dptr, bytesize, NULL);
}

CUresult sim_cuMemAllocFromPoolAsync(struct stream *s, CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                     CUstream hStream)
{
    struct pool *p = handle_of(pool, H_POOL);
    return p ? alloc(s, dptr, bytesize, p) : CUDA_ERROR_INVALID_VALUE;
}

/* The freeing, when its turn in the stream has come. */
static void release(const struct task *t)
{
    struct range *g = range_find(t->p);
    if (g && g->kind == R_DEVICE)
        memory_release(g);
    else if (g && g->kind == R_IPC)
        ipc_release(g);
}

/* Memory of cuMemAlloc may be freed so too, and what was imported from a pool. */
CUresult sim_cuMemFreeAsync(struct stream *s, CUdeviceptr dptr, CUstream hStream)
{
    if (s->capture)
        return capture_free(s, dptr);
    struct range *g = range_find(dptr);
    if (!g || g->base != dptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (g->kind == R_GRAPH)
        return mem_free(g, s);
    if (g->kind == R_POOL)
        return pool_free(g, s);
    if (g->kind != R_DEVICE && !(g->kind == R_IPC && g->flags))
        return CUDA_ERROR_INVALID_VALUE;
    struct task t = {.run = release, .p = dptr};
    return transfer_task(s, &t);
}

/* ---- pools ---- */

CUresult sim_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
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
    CUresult r = device_joined(poolProps->location.id, &d);
    if (r != CUDA_SUCCESS)
        return r;
    struct pool *p = pool_new(d);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->handle_types = poolProps->handleTypes;
    p->max = (poolProps->maxSize + POOL_PAGE - 1) & ~(uint64_t)(POOL_PAGE - 1);
    *pool = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolDestroy(CUmemoryPool pool)
{
    struct pool *p = handle_of(pool, H_POOL);
    if (!p || p->fixed)
        return CUDA_ERROR_INVALID_VALUE;
    pool_destroy(p);
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    struct pool *p = handle_of(pool, H_POOL);
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    engine_advance(p->dev, now_ns());
    pool_trim(p, minBytesToKeep);
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct pool *p;
    CUresult r = find_unsafe(pool, &p);
    if (r != CUDA_SUCCESS)
        return r;
    if (!value || p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        p->reuse[attr] = *(const int *)value != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        p->threshold = *(const cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const cuuint64_t *)value) /* a high-water mark can only be set back */
            return CUDA_ERROR_INVALID_VALUE;
        if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
            p->used_high = p->used;
        else
            p->reserved_high = p->reserved;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct pool *p;
    CUresult r = find_unsafe(pool, &p);
    if (r != CUDA_SUCCESS)
        return r;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    const uint64_t numbers[] = {p->threshold, p->reserved, p->reserved_high, p->used, p->used_high};
    if (attr >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
        attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        *(int *)value = p->reuse[attr];
    else if (attr >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && attr <= CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        *(cuuint64_t *)value = numbers[attr - CU_MEMPOOL_ATTR_RELEASE_THRESHOLD];
    else
        r = CUDA_ERROR_INVALID_VALUE;
    return r;
}

/* Devices here are no peers: only a pool's own can have access, and cannot lose it. */
CUresult sim_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    struct pool *p = handle_of(pool, H_POOL);
    if (!p || (!map && count))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const CUmemLocation *l = &map[i].location;
        if (l->type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        if (!device_of(l->id) || (l->id != p->dev->ordinal && map[i].flags))
            return CUDA_ERROR_INVALID_DEVICE;
        if (l->id == p->dev->ordinal && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    struct pool *p = handle_of(memPool, H_POOL);
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_of(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = location->id == p->dev->ordinal ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

/* ---- the pools of a device ---- */

/* Tells a device's default or current pool. */
static CUresult get(CUmemoryPool *pool, CUdevice dev, struct pool *(*which)(struct device *))
{
    struct device *d;
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = device_joined(dev, &d);
    if (r != CUDA_SUCCESS)
        return r;
    struct pool *p = which(d);
    if (p)
        *pool = (CUmemoryPool)p;
    return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    return get(pool_out, dev, pool_default);
}

CUresult sim_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    return get(pool, dev, current);
}

CUresult sim_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    struct device *d;
    CUresult r = device_joined(dev, &d);
    if (r != CUDA_SUCCESS)
        return r;
    struct pool *p = handle_of(pool, H_POOL);
    if (!p || p->dev != d || p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    d->current_pool = p;
    return CUDA_SUCCESS;
}

/* The same by place: only devices have pools here. */
static CUresult check_place(const CUmemLocation *l, CUmemAllocationType type)
{
    if (!l || l->type == CU_MEM_LOCATION_TYPE_INVALID || type == CU_MEM_ALLOCATION_TYPE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    return l->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED ? CUDA_SUCCESS
                                                                                          : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
    CUresult r = check_place(location, type);
    return r != CUDA_SUCCESS ? r : sim_cuDeviceGetDefaultMemPool(pool_out, location->id);
}

CUresult sim_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    CUresult r = check_place(location, type);
    return r != CUDA_SUCCESS ? r : sim_cuDeviceGetMemPool(pool, location->id);
}

CUresult sim_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    CUresult r = check_place(location, type);
    return r != CUDA_SUCCESS ? r : sim_cuDeviceSetMemPool(location->id, pool);
}

/* ---- pools between processes ---- */

#define POOL_MAGIC 0x50534d47u
#define POINTER_MAGIC 0x52504d47u

struct pool_ref {
    uint32_t magic;
    int32_t device;
    uint32_t slot, pad;
    uint64_t serial, id;
};

struct pointer {
    struct pool_ref pool;
    uint64_t offset, size;
};
_Static_assert(sizeof(struct pointer) <= sizeof(CUmemPoolPtrExportData), "64 bytes");

/* What says to other processes which pool it is. */
static struct pool_ref ref_of(const struct pool *p, uint32_t magic)
{
    return (struct pool_ref){magic, p->dev->index, (uint32_t)p->dev->slot, 0, p->dev->arena_serial, p->id};
}

CUresult sim_cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType,
                                              unsigned long long flags)
{
    struct pool *p = (struct pool *)pool;
    if (!handle_out || !handle_is(pool, H_POOL) || flags || p->imported ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(p->handle_types & handleType))
        return CUDA_ERROR_INVALID_VALUE;
    struct pool_ref ref = ref_of(p, POOL_MAGIC);
    int high = shared_new_file(), fd = -1;
    if (high >= 0 && shared_name_memory(p->dev) && write(high, &ref, sizeof ref) == sizeof ref)
        fd = fcntl(high, F_DUPFD_CLOEXEC, 0);
    if (high >= 0)
        close(high);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (!p->exported)
        shared_fixed(p->dev, 1);
    p->exported = true;
    *(int *)handle_out = fd;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                                CUmemAllocationHandleType handleType, unsigned long long flags)
{
    struct pool_ref ref;
    int fd = (int)(intptr_t)handle;
    if (!pool_out || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fd < 0 ||
        pread(fd, &ref, sizeof ref, 0) != sizeof ref || ref.magic != POOL_MAGIC || ref.device < 0 ||
        ref.device >= SIM_MAX_DEVICES || g_device[ref.device].ordinal < 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *d = &g_device[ref.device];
    CUresult r = shared_join(d);
    if (r != CUDA_SUCCESS)
        return r;
    struct pool *p = pool_new(d);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->imported = true;
    p->slot = ref.slot;
    p->serial = ref.serial;
    p->id = ref.id;
    *pool_out = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)
{
    struct range *g = range_find(ptr);
    if (!shareData_out || !g || g->kind != R_POOL || !g->chunk->pool->handle_types)
        return CUDA_ERROR_INVALID_VALUE;
    struct pointer out = {ref_of(g->chunk->pool, POINTER_MAGIC), g->offset, g->size};
    memset(shareData_out, 0, sizeof *shareData_out);
    memcpy(shareData_out, &out, sizeof out);
    return CUDA_SUCCESS;
}

/* Pages are what can be mapped; allocations are smaller. */
static CUresult map_pointer(struct ctx *c, struct pool *p, const struct pointer *in, CUdeviceptr *out)
{
    size_t skip = in->offset % SIM_PAGE;
    struct range g = {.kind = R_IPC, .dev = p->dev, .ctx = c, .refs = 1, .flags = 1, .serial = in->pool.serial};
    g.offset = in->offset - skip;
    g.span = page_up(skip + in->size);
    CUresult r = ipc_map(&g, p->dev->index, in->pool.slot);
    if (r != CUDA_SUCCESS)
        return r;
    g.base += skip;
    g.view += skip;
    g.size = g.span = in->size;
    if (!range_add(&g)) {
        ipc_unmap(&g);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = g.base;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolImportPointer(struct ctx *c, CUdeviceptr *ptr_out, CUmemoryPool pool,
                                    CUmemPoolPtrExportData *shareData)
{
    struct pointer in;
    struct pool *p = (struct pool *)pool;
    if (!ptr_out || !shareData || !handle_is(pool, H_POOL) || !p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&in, shareData, sizeof in);
    if (in.pool.magic != POINTER_MAGIC || in.pool.device != p->dev->index || in.pool.serial != p->serial ||
        in.pool.slot != p->slot || in.pool.id != p->id || !in.size || in.size > g_config.mem)
        return CUDA_ERROR_INVALID_VALUE;
    return map_pointer(c, p, &in, ptr_out);
}
