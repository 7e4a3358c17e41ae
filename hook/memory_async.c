/* memory_async.c: stream-ordered allocation (memory_pool.c counts it). */
#include "memory_private.h"

#include "query.h"

#include <stdlib.h>

/* An allocation that the program asks for, in its own words. */
struct request {
    CUresult (*call)(struct request *r);
    CUdeviceptr *to;
    size_t bytes;
    CUmemoryPool pool;
    CUstream stream, own; /* as given, and with the default streams told apart */
    CUcontext context;
    CUdevice device;
};

/* Finds the context and the device of the stream, which need not be current. */
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

/* The device whose default pool it is; a pool that was made is known already. */
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

/* The pool to count in. NULL: the driver will refuse, or it does not count, or
 * the stream is captured: then it becomes a node of a graph. */
static struct gf_pool *pool_for(struct request *r)
{
    CUmemoryPool pool = r->pool;
    if (!r->to || !r->bytes || !locate(r) || !gf_recordable(r->own))
        return NULL;
    if (!pool && gf_real.cuDeviceGetMemPool(&pool, r->device) != CUDA_SUCCESS)
        return NULL;
    struct gf_pool *p = gf_pool_find(pool);
    if (!p)
        p = gf_pool_make(&(struct gf_pool){.device = gf_mem_of(home(pool, r->device)), .handle = pool});
    return p && p->device ? p : NULL;
}

/* One try. False: there is not as much left. */
static bool attempt(struct gf_pool *p, struct request *r, CUresult *result)
{
    pthread_mutex_lock(&p->lock);
    bool fits = (!p->over || gf_pool_settle(p)) && gf_pool_cover(p, p->live + r->bytes);
    if (fits) {
        *result = gf_mem_answer(p->device, r->call(r));
        if (*result == CUDA_SUCCESS)
            p->live += r->bytes;
        fits = gf_pool_settle(p) || *result != CUDA_SUCCESS;
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
    r.to = &at; /* the program sees nothing of what is freed again */
    bool fits = attempt(p, &r, &result);
    if (!fits) {
        gf_pools_look(p->device, true);
        fits = attempt(p, &r, &result);
    }
    if (!fits)
        gf_pools_look(p->device, true); /* it may have grown once more */
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
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        CUstream own = stream ? stream : own_stream; \
        return allocate((struct request){.call = call_##symbol, .to = dptr, .bytes = bytes, .stream = stream, .own = own}); \
    }
GF_ALLOC_ASYNC(cuMemAllocAsync, CU_STREAM_LEGACY)
GF_ALLOC_ASYNC(cuMemAllocAsync_ptsz, CU_STREAM_PER_THREAD)

#define GF_ALLOC_FROM(symbol, own_stream) \
    static CUresult call_##symbol(struct request *r) { return gf_real.symbol(r->to, r->bytes, r->pool, r->stream); } \
    CUresult symbol(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        if (!pool) \
            return gf_real.symbol(dptr, bytes, pool, stream); \
        struct request r = {.call = call_##symbol, .to = dptr, .bytes = bytes, .pool = pool, .stream = stream}; \
        r.own = stream ? stream : own_stream; \
        return allocate(r); \
    }
GF_ALLOC_FROM(cuMemAllocFromPoolAsync, CU_STREAM_LEGACY)
GF_ALLOC_FROM(cuMemAllocFromPoolAsync_ptsz, CU_STREAM_PER_THREAD)

/* What cuMemAlloc gave may be freed so too. The pool keeps its size for now. */
#define GF_FREE_ASYNC(symbol) \
    CUresult symbol(CUdeviceptr dptr, CUstream stream) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        struct gf_block *b = gf_block_claim_address(dptr); \
        CUresult result = gf_real.symbol(dptr, stream); \
        gf_block_freed(b, result); \
        return result; \
    }
GF_FREE_ASYNC(cuMemFreeAsync)
GF_FREE_ASYNC(cuMemFreeAsync_ptsz)

/* Pools of host memory do not count. */
static struct gf_device *device_for(const CUmemLocation *where, CUmemAllocationType type)
{
    if (where->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return gf_mem_of(where->id);
    return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? gf_mem_here() : NULL;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuMemPoolCreate(pool, props);
    if (result == CUDA_SUCCESS)
        gf_pool_made(&(struct gf_pool){.device = device_for(&props->location, props->allocType), .handle = *pool});
    return result;
}

/* What another process exports counts there. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                                      unsigned long long flags)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
    if (result == CUDA_SUCCESS)
        gf_pool_made(&(struct gf_pool){.handle = *pool});
    return result;
}

/* Default pools exist for host memory too: these name them. */
#define GF_GET_POOL(symbol) \
    CUresult symbol(CUmemoryPool *pool, CUmemLocation *where, CUmemAllocationType type) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        CUresult result = gf_real.symbol(pool, where, type); \
        if (result == CUDA_SUCCESS && !gf_pool_find(*pool)) \
            gf_pool_make(&(struct gf_pool){.device = device_for(where, type), .handle = *pool}); \
        return result; \
    }
GF_GET_POOL(cuMemGetDefaultMemPool)
GF_GET_POOL(cuMemGetMemPool)

/* A pool that is destroyed lives on until its last block is freed. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    struct gf_pool *p = pool ? gf_pool_find(pool) : NULL;
    if (!p)
        return gf_real.cuMemPoolDestroy(pool);
    return gf_pool_destroy(p);
}

static CUresult settled(CUmemoryPool pool, CUresult result)
{
    struct gf_pool *p = pool && result == CUDA_SUCCESS ? gf_pool_find(pool) : NULL;
    if (p)
        gf_pool_settle_now(p);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    return settled(pool, gf_real.cuMemPoolTrimTo(pool, keep));
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    return settled(pool, gf_real.cuMemPoolSetAttribute(pool, attribute, value));
}
