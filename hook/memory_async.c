/* memory_async.c: stream-ordered allocation. memory_pool.c counts the pools. */
#include "memory_private.h"

#include "query.h"

#include <stdlib.h>

/* The arguments of an allocation. */
struct request {
    CUresult (*call)(struct request *r);
    CUdeviceptr *to;
    size_t bytes;
    CUmemoryPool pool;
    CUstream stream, own; /* as the program passed it; with the default stream replaced by its handle */
    CUcontext context;
    CUdevice device;
};

/* Finds the stream's context, which need not be current, and its device. Returns false if it cannot. */
static bool locate(struct request *r)
{
    if (gf_is_default_stream(r->own))
        gf_real.cuCtxGetCurrent(&r->context);
    else if (gf_real.cuStreamGetCtx(r->own, &r->context) != CUDA_SUCCESS)
        return false;
    struct gf_device *d = gf_device_of(r->context);
    r->device = d ? (CUdevice)gf_ordinal(d) : -1;
    return d;
}

/* Returns the device whose default pool this is, or `otherwise`. Pools that the program created are
 * known already. */
static CUdevice home(CUmemoryPool pool, CUdevice otherwise)
{
    int count = 0;
    CUmemoryPool own;
    gf_real.cuDeviceGetCount(&count);
    for (CUdevice d = 0; d < count; d++)
        if (gf_real.cuDeviceGetDefaultMemPool(&own, d) == CUDA_SUCCESS && own == pool)
            return d;
    return otherwise;
}

/* Returns the pool that counts the allocation. NULL: the driver will refuse it, the pool is not counted,
 * or the stream is captured, so that the allocation becomes a node of a graph. */
static struct gf_pool *pool_for(struct request *r)
{
    CUmemoryPool pool = r->pool;
    if (!r->to || !r->bytes || !locate(r) || !gf_recordable(r->own))
        return NULL;
    if (!pool && gf_real.cuDeviceGetMemPool(&pool, r->device) != CUDA_SUCCESS)
        return NULL;
    struct gf_pool *p = gf_pool_find(pool);
    if (!p)
        p = gf_pool_make(&(struct gf_pool){.device = gf_mem_device(home(pool, r->device)), .handle = pool});
    return p && p->device ? p : NULL;
}

/* Tries the allocation once. Returns false if it exceeds the limit. */
static bool attempt(struct gf_pool *p, struct request *r, CUresult *result)
{
    pthread_mutex_lock(&p->lock);
    bool fits = (!p->over_limit || gf_pool_recount(p)) && gf_pool_cover(p, p->live + r->bytes);
    if (fits) {
        *result = gf_mem_answer(p->device, r->call(r));
        if (*result == CUDA_SUCCESS)
            p->live += r->bytes;
        fits = gf_pool_recount(p) || *result != CUDA_SUCCESS;
        if (!fits) {
            gf_real.cuMemFreeAsync(*r->to, r->own);
            p->live -= r->bytes;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return fits;
}

static CUresult allocate(struct request r)
{
    struct gf_pool *p = pool_for(&r);
    if (!p)
        return r.call(&r);
    struct gf_block *b = gf_block_new(GF_POOLED, r.bytes);
    if (!b)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUdeviceptr at = 0, *dptr = r.to;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    r.to = &at; /* the program does not see memory that is freed again */
    bool fits = attempt(p, &r, &result);
    if (!fits) {
        gf_pools_recount(p->device, true);
        fits = attempt(p, &r, &result);
    }
    if (!fits)
        gf_pools_recount(p->device, true); /* the second try may have made the pool grow */
    if (!fits || result != CUDA_SUCCESS) {
        free(b);
        return fits ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    b->pool = p;
    b->context = r.context;
    gf_block_put(b, at);
    *dptr = at;
    return CUDA_SUCCESS;
}

#define GF_ALLOC_ASYNC(symbol, own_stream) \
    static CUresult call_##symbol(struct request *r) { return gf_real.symbol(r->to, r->bytes, r->stream); } \
    CUresult symbol(CUdeviceptr *dptr, size_t bytes, CUstream stream) \
    { \
        CUstream own = stream ? stream : own_stream; \
        return allocate((struct request){.call = call_##symbol, .to = dptr, .bytes = bytes, .stream = stream, .own = own}); \
    }
GF_ALLOC_ASYNC(cuMemAllocAsync, CU_STREAM_LEGACY)
GF_ALLOC_ASYNC(cuMemAllocAsync_ptsz, CU_STREAM_PER_THREAD)

#define GF_ALLOC_FROM(symbol, own_stream) \
    static CUresult call_##symbol(struct request *r) { return gf_real.symbol(r->to, r->bytes, r->pool, r->stream); } \
    CUresult symbol(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream) \
    { \
        if (!pool) \
            return gf_real.symbol(dptr, bytes, pool, stream); \
        struct request r = {.call = call_##symbol, .to = dptr, .bytes = bytes, .pool = pool, .stream = stream}; \
        r.own = stream ? stream : own_stream; \
        return allocate(r); \
    }
GF_ALLOC_FROM(cuMemAllocFromPoolAsync, CU_STREAM_LEGACY)
GF_ALLOC_FROM(cuMemAllocFromPoolAsync_ptsz, CU_STREAM_PER_THREAD)

/* Memory of cuMemAlloc can be freed by these, too. The pool's reserved size stays the same for now. */
GF_FREE(cuMemFreeAsync, (CUdeviceptr dptr, CUstream stream), (dptr, stream), gf_block_claim_address(dptr))
GF_FREE(cuMemFreeAsync_ptsz, (CUdeviceptr dptr, CUstream stream), (dptr, stream), gf_block_claim_address(dptr))

/* Returns the device whose account counts a pool, or NULL: pools of host memory are not counted. */
static struct gf_device *device_for(const CUmemLocation *where, CUmemAllocationType type)
{
    if (where->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return gf_mem_device(where->id);
    return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? gf_mem_current_device() : NULL;
}

GF_AFTER(cuMemPoolCreate, (CUmemoryPool *pool, const CUmemPoolProps *props), (pool, props),
         gf_pool_made(&(struct gf_pool){.device = device_for(&props->location, props->allocType), .handle = *pool}))
/* The exporting process counts the pool. */
GF_AFTER(cuMemPoolImportFromShareableHandle,
         (CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type, unsigned long long flags),
         (pool, handle, type, flags), gf_pool_made(&(struct gf_pool){.handle = *pool}))

/* These also return the default pools of host memory. */
static void got_pool(CUmemoryPool pool, const CUmemLocation *where, CUmemAllocationType type)
{
    if (!gf_pool_find(pool))
        gf_pool_make(&(struct gf_pool){.device = device_for(where, type), .handle = pool});
}

GF_AFTER(cuMemGetDefaultMemPool, (CUmemoryPool *pool, CUmemLocation *where, CUmemAllocationType type), (pool, where, type),
         got_pool(*pool, where, type))
GF_AFTER(cuMemGetMemPool, (CUmemoryPool *pool, CUmemLocation *where, CUmemAllocationType type), (pool, where, type),
         got_pool(*pool, where, type))

/* A destroyed pool exists until its last block is freed. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct gf_pool *p = pool ? gf_pool_find(pool) : NULL;
    if (!p)
        return gf_real.cuMemPoolDestroy(pool);
    return gf_pool_destroy(p);
}

static void recount_pool(CUmemoryPool pool)
{
    struct gf_pool *p = pool ? gf_pool_find(pool) : NULL;
    if (p)
        gf_pool_lock_and_recount(p);
}

GF_AFTER(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep), recount_pool(pool))
GF_AFTER(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value),
         recount_pool(pool))
