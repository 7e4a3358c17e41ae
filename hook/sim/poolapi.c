/* poolapi.c: the driver's functions for memory pools, stream-ordered allocation, and sharing pools between processes.
 *
 * The owner of a pool is the process that created it. The handle that the owner exports is a descriptor of a file that
 * identifies the pool. An exported pointer contains the allocation's offset in the owner's memory file. The memory
 * counts as the owner's. After the owner has ended, new imports fail, but memory that was imported before stays
 * readable. */
#include "capture.h"
#include "pool.h"
#include "shared.h"
#include "transfer.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Returns the pool that cuMemAllocAsync uses, or NULL if there is no memory for it. */
static struct pool *pool_in_use(struct device *d)
{
    return d->current_pool ? d->current_pool : pool_default(d);
}

/* ---- allocation and free ---- */

/* Allocates from pool p, or from the device's current pool if p is NULL. */
static CUresult alloc(struct stream *s, CUdeviceptr *dptr, size_t bytesize, struct pool *p)
{
    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture) /* the memory will belong to the graph, not to a pool */
        return capture_alloc(s, bytesize, dptr);
    if (!p && !(p = pool_in_use(s->ctx->dev)))
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

/* Frees the memory of a cuMemFreeAsync call. The stream runs it when it reaches the call. */
static void free_task(const struct task *t)
{
    struct range *g = range_find(t->addr);
    if (g && g->kind == R_DEVICE)
        memory_release(g);
    else if (g && g->kind == R_IPC)
        ipc_release(g);
}

/* Frees memory from a pool, from a graph or from cuMemAlloc, or unmaps memory imported from another process's pool. */
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
    struct task t = {.run = free_task, .addr = dptr};
    return transfer_task(s, &t);
}

/* ---- pools ---- */

CUresult sim_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    struct device *d;
    if (!pool || !poolProps)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(memory_check(poolProps->allocType, &poolProps->location));
    if (poolProps->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    TRY(device_joined(poolProps->location.id, &d));
    struct pool *p = pool_new(d);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->handle_types = poolProps->handleTypes;
    p->max = (poolProps->maxSize + POOL_PAGE - 1) & ~(uint64_t)(POOL_PAGE - 1);
    *pool = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolDestroy(struct pool *p, CUmemoryPool pool)
{
    if (p->fixed)
        return CUDA_ERROR_INVALID_VALUE;
    pool_destroy(p);
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolTrimTo(struct pool *p, CUmemoryPool pool, size_t minBytesToKeep)
{
    engine_advance(p->dev, now_ns());
    pool_trim(p, minBytesToKeep);
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolSetAttribute(struct pool *p, CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    TRY(g_captures ? capture_on_unsafe_call() : CUDA_SUCCESS);
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
        if (*(const cuuint64_t *)value) /* a high-water mark can only be reset */
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

CUresult sim_cuMemPoolGetAttribute(struct pool *p, CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    TRY(g_captures ? capture_on_unsafe_call() : CUDA_SUCCESS);
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    const uint64_t numbers[] = {p->threshold, p->reserved, p->reserved_high, p->used, p->used_high};
    if (attr >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
        attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        *(int *)value = p->reuse[attr];
    else if (attr >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && attr <= CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        *(cuuint64_t *)value = numbers[attr - CU_MEMPOOL_ATTR_RELEASE_THRESHOLD];
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* The simulator has no peer access: only a pool's own device can access it, always for reading and writing. */
CUresult sim_cuMemPoolSetAccess(struct pool *p, CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    if (!map && count)
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

CUresult sim_cuMemPoolGetAccess(struct pool *p, CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_of(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = location->id == p->dev->ordinal ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

/* ---- the pools of a device ---- */

/* Sets *pool to the pool that `which` returns for a device: pool_default or pool_in_use. */
static CUresult device_pool(CUmemoryPool *pool, CUdevice dev, struct pool *(*which)(struct device *))
{
    struct device *d;
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(device_joined(dev, &d));
    struct pool *p = which(d);
    if (p)
        *pool = (CUmemoryPool)p;
    return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    return device_pool(pool_out, dev, pool_default);
}

CUresult sim_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    return device_pool(pool, dev, pool_in_use);
}

CUresult sim_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    struct device *d;
    TRY(device_joined(dev, &d));
    struct pool *p = handle_of(pool, H_POOL);
    if (!p || p->dev != d || p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    d->current_pool = p;
    return CUDA_SUCCESS;
}

/* Checks the location and the type of an allocation. The simulator supports only pinned memory on devices. */
static CUresult check_location(const CUmemLocation *l, CUmemAllocationType type)
{
    if (!l || l->type == CU_MEM_LOCATION_TYPE_INVALID || type == CU_MEM_ALLOCATION_TYPE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    return l->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED ? CUDA_SUCCESS
                                                                                          : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
    TRY(check_location(location, type));
    return sim_cuDeviceGetDefaultMemPool(pool_out, location->id);
}

CUresult sim_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    TRY(check_location(location, type));
    return sim_cuDeviceGetMemPool(pool, location->id);
}

CUresult sim_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    TRY(check_location(location, type));
    return sim_cuDeviceSetMemPool(location->id, pool);
}

/* ---- pools between processes ---- */

#define POOL_MAGIC 0x50534d47u
#define POINTER_MAGIC 0x52504d47u

/* The identity of a pool for other processes. device is the index on the host; slot and serial identify the owner's
 * memory file; id identifies the pool among the owner's. */
struct pool_ref {
    uint32_t magic;
    int32_t device;
    uint32_t slot, pad;
    uint64_t serial, id;
};

/* The content of CUmemPoolPtrExportData: an allocation, by its offset in the owner's memory file. */
struct pointer {
    struct pool_ref pool;
    uint64_t offset, size;
};
_Static_assert(sizeof(struct pointer) <= sizeof(CUmemPoolPtrExportData), "64 bytes");

/* Returns the identity of a pool, with the magic number of a handle or of a pointer. */
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
        pread(fd, &ref, sizeof ref, 0) != sizeof ref || ref.magic != POOL_MAGIC || !device_at(ref.device))
        return CUDA_ERROR_INVALID_VALUE;
    struct device *d = device_at(ref.device);
    TRY(shared_join(d));
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
    struct range g = {.size = in.size, .kind = R_IPC, .dev = p->dev, .ctx = c, .refs = 1, .flags = 1,
                      .serial = p->serial, .offset = in.offset, .span = in.size};
    return ipc_open(&g, p->slot, ptr_out);
}
