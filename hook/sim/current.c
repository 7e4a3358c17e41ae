/* current.c: which context a thread works in, and that context's settings. */
#include "capture.h"
#include "pool.h"

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    if (!handle_is(ctx, H_CTX))
        return sim_end(CUDA_ERROR_INVALID_CONTEXT);
    return sim_end(thread_push((struct ctx *)ctx) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
    return cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    struct ctx *c = thread_pop();
    if (c && pctx)
        *pctx = (CUcontext)c;
    return sim_end(c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    return cuCtxPopCurrent_v2(pctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    if (ctx && !handle_is(ctx, H_CTX))
        return sim_end(CUDA_ERROR_INVALID_CONTEXT);
    thread_pop();
    if (ctx && !thread_push((struct ctx *)ctx))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    return sim_end(r);
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    if (pctx)
        *pctx = (CUcontext)ctx_current();
    return sim_end(pctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* Opens a call on a context, the current one when NULL: on success the lock is held. */
static CUresult begin(CUcontext ctx, struct ctx **c)
{
    CUresult r = sim_begin(ctx ? NULL : c);
    if (r != CUDA_SUCCESS || !ctx)
        return r;
    *c = (struct ctx *)ctx;
    return handle_is(ctx, H_CTX) ? r : sim_end(CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    struct ctx *c;
    CUresult r = begin(ctx, &c);
    if (r != CUDA_SUCCESS)
        return r;
    if (device)
        *device = c->ordinal;
    return sim_end(device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    return cuCtxGetDevice_v2(device, NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    struct ctx *c;
    CUresult r = begin(ctx, &c);
    if (r != CUDA_SUCCESS)
        return r;
    if ((r = capture_sync(c)) != CUDA_SUCCESS)
        return sim_end(r);
    wait_context(c, false);
    pool_synced(c->dev);
    return sim_end(c->error);
}

CUresult cuCtxSynchronize(void)
{
    return cuCtxSynchronize_v2(NULL);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (flags)
        *flags = c->flags;
    return sim_end(flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    c->flags = flags;
    return sim_end(CUDA_SUCCESS);
}

/* The context an API names; NULL means the current one. */
static struct ctx *named(CUcontext ctx)
{
    struct ctx *c = ctx ? (struct ctx *)ctx : ctx_current();
    return handle_is(c, H_CTX) ? c : NULL;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    struct ctx *c = named(ctx);
    if (!c || !ctxId)
        return sim_end(c ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_CONTEXT_IS_DESTROYED);
    *ctxId = c->id;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    struct ctx *c = named(ctx);
    if (!c || !version)
        return sim_end(c ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT);
    *version = c->api_version;
    return sim_end(CUDA_SUCCESS);
}

static bool known_limit(CUlimit limit)
{
    return (int)limit >= 0 && limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!known_limit(limit))
        return sim_end(CUDA_ERROR_UNSUPPORTED_LIMIT);
    c->limit[limit] = value;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!pvalue)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    if (!known_limit(limit))
        return sim_end(CUDA_ERROR_UNSUPPORTED_LIMIT);
    *pvalue = c->limit[limit];
    return sim_end(CUDA_SUCCESS);
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (pconfig)
        *pconfig = c->cache;
    return sim_end(pconfig ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    c->cache = config;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (pConfig)
        *pConfig = c->banks;
    return sim_end(pConfig ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* Accepted and, as on every device since compute capability 5, of no effect. */
CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    return sim_end((unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                                              : CUDA_SUCCESS);
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (leastPriority)
        *leastPriority = 0;
    if (greatestPriority)
        *greatestPriority = -5;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    return r != CUDA_SUCCESS ? r : sim_end(CUDA_SUCCESS);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *pExecAffinity, CUexecAffinityType type)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!pExecAffinity || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    return sim_end(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!handle_is(peerContext, H_CTX) || (struct ctx *)peerContext == c)
        return sim_end(CUDA_ERROR_INVALID_CONTEXT);
    return sim_end(Flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    return sim_end(handle_is(peerContext, H_CTX) ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : CUDA_ERROR_INVALID_CONTEXT);
}
