/* context.c: contexts (created and primary), the current context of a thread, and settings. Programs store
 * pointers to struct ctx in many places, so a destroyed context is emptied and marked, but never freed. */
#include "capture.h"
#include "pool.h"

#include <stdlib.h>

struct ctx *g_contexts;
static uint64_t last_id;
static CUresult fault; /* the error that ended this process's use of its devices */

/* Sets a new context's settings, as on an NVIDIA GPU. */
static void set_defaults(struct ctx *c)
{
    c->limit[CU_LIMIT_STACK_SIZE] = 1024;
    c->limit[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    c->limit[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    c->limit[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    c->limit[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    c->limit[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    c->cache = CU_FUNC_CACHE_PREFER_NONE;
    c->banks = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
}

/* Counts a context of the process on the device. The first one uses memory there that no allocation shows,
 * as real contexts do. */
static bool add_context(struct device *d)
{
    if (!d->contexts && g_config.context && !shared_mem_reserve(d, g_config.context))
        return false;
    d->contexts++;
    return true;
}

/* The last context frees that memory, and all memory that was cached on the device. */
static void remove_context(struct device *d)
{
    if (--d->contexts)
        return;
    mem_reset(d);
    pool_reset(d);
    shared_mem_release(d, g_config.context);
}

/* Prepares a new context, or the primary one when it is retained again. */
static CUresult set_up(struct ctx *c)
{
    TRY(fault ? fault : shared_join(c->dev));
    if (!add_context(c->dev))
        return CUDA_ERROR_OUT_OF_MEMORY;
    set_defaults(c);
    c->error = CUDA_SUCCESS;
    c->legacy = stream_new(c, S_LEGACY, 0, 0);
    if (!c->legacy || !handle_add(c, H_CTX)) {
        remove_context(c->dev);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->id = ++last_id;
    c->created = true;
    c->destroyed = false;
    return CUDA_SUCCESS;
}

/* Sets a device error that ends the process's use of CUDA: all its contexts, including later ones, return
 * it until the process ends. */
void ctx_fault(CUresult why)
{
    if (!fault)
        fault = why;
    for (struct ctx *c = g_contexts; c; c = c->next)
        if (c->created && !c->error)
            c->error = fault;
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        threads_kick(&g_device[i]);
}

/* Creates a context that is not set up yet. */
static struct ctx *ctx_new(int ordinal, unsigned flags)
{
    struct ctx *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->dev = device_of(ordinal);
    c->ordinal = ordinal;
    c->flags = flags;
    c->api_version = 3020;
    c->attach = 1;
    c->next = g_contexts;
    g_contexts = c;
    return c;
}

/* Waits for the context's work and frees its objects. */
static void tear_down(struct ctx *c)
{
    if (!c->created)
        return;
    handle_del(c);
    c->created = false;
    c->destroyed = true;
    wait_context(c, false);
    for (struct module *m = c->modules; m; m = m->next)
        exec_forget(m);
    exec_drain();
    while (c->modules)
        module_free(c->modules);
    while (c->events)
        event_free(c->events);
    memory_free_ctx(c);
    for (struct stream *s = c->streams, *next; s; s = next) {
        next = s->next;
        capture_on_stream_destroy(s);
        s->dying = true;
        handle_del(s);
        if (!s->waiters) /* otherwise the last waiting thread frees it */
            stream_drop(s);
    }
    c->legacy = NULL;
    remove_context(c->dev);
}

/* Reports whether there are unknown flags, or more than one scheduling flag. */
static bool bad_flags(unsigned flags)
{
    unsigned sched = flags & CU_CTX_SCHED_MASK;
    return (flags & ~(unsigned)CU_CTX_FLAGS_MASK) || (sched & (sched - 1));
}

CUresult sim_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                            CUdevice dev)
{
    if (numParams < 0 || (numParams > 0) != (paramsArray != NULL))
        return CUDA_ERROR_INVALID_VALUE;
    if (numParams)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (!pctx || bad_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    struct ctx *c = ctx_new(dev, flags);
    CUresult r = c ? set_up(c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && !thread_push(c))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        *pctx = (CUcontext)c;
    else if (c)
        tear_down(c);
    return r;
}

CUresult sim_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *p, unsigned int flags, CUdevice dev)
{
    if (p && p->cigParams)
        return CUDA_ERROR_NOT_SUPPORTED;
    return sim_cuCtxCreate_v3(pctx, p ? p->execAffinityParams : NULL, p ? p->numExecAffinityParams : 0, flags, dev);
}

CUresult sim_cuCtxDestroy_v2(CUcontext ctx)
{
    struct ctx *c = handle_of(ctx, H_CTX);
    if (!c || c->primary)
        return c || !ctx ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    if (ctx_current() == c)
        thread_pop();
    tear_down(c);
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxAttach(struct ctx *c, CUcontext *pctx, unsigned int flags)
{
    if (!pctx || flags)
        return CUDA_ERROR_INVALID_VALUE;
    c->attach++;
    *pctx = (CUcontext)c;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxDetach(struct ctx *c, CUcontext ctx)
{
    if ((struct ctx *)ctx != c || c->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--c->attach == 0) {
        thread_pop();
        tear_down(c);
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxRetain(struct device *d, CUcontext *pctx, CUdevice dev)
{
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    if (!d->primary) {
        d->primary = ctx_new(dev, d->primary_flags);
        if (!d->primary)
            return CUDA_ERROR_OUT_OF_MEMORY;
        d->primary->primary = true;
    }
    if (!d->primary->created) {
        d->primary->flags = d->primary_flags;
        r = set_up(d->primary);
    }
    if (r == CUDA_SUCCESS) {
        d->primary_refs++;
        *pctx = (CUcontext)d->primary;
    }
    return r;
}

CUresult sim_cuDevicePrimaryCtxRelease_v2(struct device *d, CUdevice dev)
{
    if (!d->primary_refs)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--d->primary_refs == 0)
        wait_context(d->primary, false); /* another thread may retain it meanwhile */
    if (d->primary_refs == 0)
        tear_down(d->primary);
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxReset_v2(struct device *d, CUdevice dev)
{
    if (d->primary)
        tear_down(d->primary);
    d->primary_refs = 0;
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxSetFlags_v2(struct device *d, CUdevice dev, unsigned int flags)
{
    if (bad_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    d->primary_flags = flags;
    if (d->primary)
        d->primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxSetFlags(struct device *d, CUdevice dev, unsigned int flags)
{
    if (d->primary && d->primary->created)
        return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
    return sim_cuDevicePrimaryCtxSetFlags_v2(d, dev, flags);
}

CUresult sim_cuDevicePrimaryCtxGetState(struct device *d, CUdevice dev, unsigned int *flags, int *active)
{
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = d->primary_flags;
    *active = d->primary && d->primary->created;
    return CUDA_SUCCESS;
}

/* ---- the current context of a thread, and its settings ---- */

CUresult sim_cuCtxPushCurrent_v2(CUcontext ctx)
{
    if (!handle_is(ctx, H_CTX))
        return CUDA_ERROR_INVALID_CONTEXT;
    return thread_push((struct ctx *)ctx) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuCtxPopCurrent_v2(CUcontext *pctx)
{
    struct ctx *c = thread_pop();
    if (c && pctx)
        *pctx = (CUcontext)c;
    return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuCtxSetCurrent(CUcontext ctx)
{
    if (ctx && !handle_is(ctx, H_CTX))
        return CUDA_ERROR_INVALID_CONTEXT;
    thread_pop();
    return ctx && !thread_push((struct ctx *)ctx) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Sets *c to the context of a call's argument; NULL means the current one. */
static CUresult find_context(CUcontext ctx, struct ctx **c)
{
    if (!ctx)
        return ctx_usable(c);
    *c = handle_of(ctx, H_CTX);
    return *c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    struct ctx *c;
    TRY(find_context(ctx, &c));
    return STORE(device, c->ordinal);
}

CUresult sim_cuCtxSynchronize_v2(CUcontext ctx)
{
    struct ctx *c;
    TRY(find_context(ctx, &c));
    TRY(capture_on_ctx_sync(c));
    wait_context(c, false);
    pool_synced(c->dev);
    return c->error;
}

CUresult sim_cuCtxSetFlags(struct ctx *c, unsigned int flags)
{
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    c->flags = flags;
    return CUDA_SUCCESS;
}

/* Returns the context of a call's argument, or NULL if it is invalid; NULL means the current one. */
static struct ctx *context_or_current(CUcontext ctx)
{
    struct ctx *c = ctx ? (struct ctx *)ctx : ctx_current();
    return handle_is(c, H_CTX) ? c : NULL;
}

CUresult sim_cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    struct ctx *c = context_or_current(ctx);
    if (!c || !ctxId)
        return c ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *ctxId = c->id;
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    struct ctx *c = context_or_current(ctx);
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

CUresult sim_cuCtxSetCacheConfig(struct ctx *c, CUfunc_cache config)
{
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    c->cache = config;
    return CUDA_SUCCESS;
}

/* Has no effect, as on every device since compute capability 5. */
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
