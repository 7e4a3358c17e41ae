/* current.c: which context a thread works in, and that context's settings. */
#include "capture.h"
#include "pool.h"

CUresult sim_cuCtxPushCurrent_v2(CUcontext ctx)
{
    if (!handle_is(ctx, H_CTX))
        return CUDA_ERROR_INVALID_CONTEXT;
    return thread_push((struct ctx *)ctx) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuCtxPushCurrent(CUcontext ctx)
{
    return sim_cuCtxPushCurrent_v2(ctx);
}

CUresult sim_cuCtxPopCurrent_v2(CUcontext *pctx)
{
    struct ctx *c = thread_pop();
    if (c && pctx)
        *pctx = (CUcontext)c;
    return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuCtxPopCurrent(CUcontext *pctx)
{
    return sim_cuCtxPopCurrent_v2(pctx);
}

CUresult sim_cuCtxSetCurrent(CUcontext ctx)
{
    if (ctx && !handle_is(ctx, H_CTX))
        return CUDA_ERROR_INVALID_CONTEXT;
    thread_pop();
    return ctx && !thread_push((struct ctx *)ctx) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult sim_cuCtxGetCurrent(CUcontext *pctx)
{
    if (pctx)
        *pctx = (CUcontext)ctx_current();
    return pctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The context that a call names; NULL means the current one. */
static CUresult find(CUcontext ctx, struct ctx **c)
{
    if (!ctx)
        return ctx_usable(c);
    *c = handle_of(ctx, H_CTX);
    return *c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    struct ctx *c;
    CUresult r = find(ctx, &c);
    if (r != CUDA_SUCCESS)
        return r;
    if (device)
        *device = c->ordinal;
    return device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuCtxGetDevice(CUdevice *device)
{
    return sim_cuCtxGetDevice_v2(device, NULL);
}

CUresult sim_cuCtxSynchronize_v2(CUcontext ctx)
{
    struct ctx *c;
    CUresult r = find(ctx, &c);
    if (r != CUDA_SUCCESS)
        return r;
    if ((r = capture_sync(c)) != CUDA_SUCCESS)
        return r;
    wait_context(c, false);
    pool_synced(c->dev);
    return c->error;
}

CUresult sim_cuCtxSynchronize(void)
{
    return sim_cuCtxSynchronize_v2(NULL);
}

CUresult sim_cuCtxGetFlags(struct ctx *c, unsigned int *flags)
{
    if (flags)
        *flags = c->flags;
    return flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuCtxSetFlags(struct ctx *c, unsigned int flags)
{
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    c->flags = flags;
    return CUDA_SUCCESS;
}

/* The context an API names; NULL means the current one. */
static struct ctx *named(CUcontext ctx)
{
    struct ctx *c = ctx ? (struct ctx *)ctx : ctx_current();
    return handle_is(c, H_CTX) ? c : NULL;
}

CUresult sim_cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    struct ctx *c = named(ctx);
    if (!c || !ctxId)
        return c ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *ctxId = c->id;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    struct ctx *c = named(ctx);
    if (!c || !version)
        return c ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    *version = c->api_version;
    return CUDA_SUCCESS;
}

static bool known_limit(CUlimit limit)
{
    return (int)limit >= 0 && limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
}

CUresult sim_cuCtxSetLimit(struct ctx *c, CUlimit limit, size_t value)
{
    if (!known_limit(limit))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    c->limit[limit] = value;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetLimit(struct ctx *c, size_t *pvalue, CUlimit limit)
{
    if (!pvalue)
        return CUDA_ERROR_INVALID_VALUE;
    if (!known_limit(limit))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *pvalue = c->limit[limit];
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetCacheConfig(struct ctx *c, CUfunc_cache *pconfig)
{
    if (pconfig)
        *pconfig = c->cache;
    return pconfig ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuCtxSetCacheConfig(struct ctx *c, CUfunc_cache config)
{
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    c->cache = config;
    return CUDA_SUCCESS;
}

/* Accepted and, as on every device since compute capability 5, of no effect. */
CUresult sim_cuCtxSetSharedMemConfig(struct ctx *c, CUsharedconfig config)
{
    return (unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult sim_cuCtxGetStreamPriorityRange(struct ctx *c, int *leastPriority, int *greatestPriority)
{
    if (leastPriority)
        *leastPriority = 0;
    if (greatestPriority)
        *greatestPriority = -5;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxResetPersistingL2Cache(void)
{
    struct ctx *c;
    return ctx_usable(&c);
}

CUresult sim_cuCtxEnablePeerAccess(struct ctx *c, CUcontext peerContext, unsigned int Flags)
{
    if (!handle_is(peerContext, H_CTX) || (struct ctx *)peerContext == c)
        return CUDA_ERROR_INVALID_CONTEXT;
    return Flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

CUresult sim_cuCtxDisablePeerAccess(struct ctx *c, CUcontext peerContext)
{
    return handle_is(peerContext, H_CTX) ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : CUDA_ERROR_INVALID_CONTEXT;
}
