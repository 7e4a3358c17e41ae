/* context.c: contexts, created and primary. Programs hold pointers to struct ctx
 * in many places, so a destroyed one is emptied, marked and kept. */
#include "capture.h"
#include "pool.h"

#include <stdlib.h>

struct ctx *g_contexts;
static uint64_t last_id;

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

/* The first context of a process on a device takes memory there that no
 * allocation shows, as contexts do. */
static bool settle_in(struct device *d)
{
    if (!d->contexts && g_config.context && !shared_mem_take(d, g_config.context))
        return false;
    d->contexts++;
    return true;
}

static void move_out(struct device *d)
{
    if (--d->contexts)
        return;
    mem_reset(d);
    pool_reset(d);
    shared_mem_give(d, g_config.context);
}

/* Gives a context, new or the primary one coming back, what it needs to work. */
static CUresult fill(struct ctx *c)
{
    CUresult r = shared_join(c->dev);
    if (r != CUDA_SUCCESS)
        return r;
    if (!settle_in(c->dev))
        return CUDA_ERROR_OUT_OF_MEMORY;
    set_defaults(c);
    c->error = CUDA_SUCCESS;
    c->legacy = stream_new(c, S_LEGACY, 0, 0);
    if (!c->legacy || !handle_add(c, H_CTX)) {
        move_out(c->dev);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->id = ++last_id;
    c->created = true;
    c->destroyed = false;
    return CUDA_SUCCESS;
}

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

/* Waits for the context's work and takes away all that belongs to it. */
static void empty(struct ctx *c)
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
        capture_leave(s);
        s->dying = true;
        handle_del(s);
        if (!s->waiters) /* else the last who waits for it drops it */
            stream_drop(s);
    }
    c->legacy = NULL;
    move_out(c->dev);
}

static bool bad_flags(unsigned flags)
{
    unsigned sched = flags & CU_CTX_SCHED_MASK;
    return (flags & ~(unsigned)CU_CTX_FLAGS_MASK) || (sched & (sched - 1));
}

static CUresult create(CUcontext *pctx, unsigned flags, CUdevice dev)
{
    if (!pctx || bad_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    struct ctx *c = ctx_new(dev, flags);
    CUresult r = c ? fill(c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && !thread_push(c))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        *pctx = (CUcontext)c;
    else if (c)
        empty(c);
    return r;
}

CUresult sim_cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return create(pctx, flags, dev);
}

CUresult sim_cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return create(pctx, flags, dev);
}

CUresult sim_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                            CUdevice dev)
{
    if (numParams < 0 || (numParams > 0) != (paramsArray != NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return numParams ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(pctx, flags, dev);
}

CUresult sim_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *p, unsigned int flags, CUdevice dev)
{
    if (p && p->cigParams)
        return CUDA_ERROR_NOT_SUPPORTED;
    return sim_cuCtxCreate_v3(pctx, p ? p->execAffinityParams : NULL, p ? p->numExecAffinityParams : 0, flags, dev);
}

CUresult sim_cuCtxDestroy_v2(CUcontext ctx)
{
    struct ctx *c = (struct ctx *)ctx;
    if (!handle_is(c, H_CTX) || c->primary)
        return !c || handle_is(c, H_CTX) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    if (ctx_current() == c)
        thread_pop();
    empty(c);
    return CUDA_SUCCESS;
}

CUresult sim_cuCtxDestroy(CUcontext ctx)
{
    return sim_cuCtxDestroy_v2(ctx);
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
        empty(c);
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    struct device *d = device_of(dev);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
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
        r = fill(d->primary);
    }
    if (r == CUDA_SUCCESS) {
        d->primary_refs++;
        *pctx = (CUcontext)d->primary;
    }
    return r;
}

CUresult sim_cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    struct device *d = device_of(dev);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!d->primary_refs)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--d->primary_refs == 0)
        wait_context(d->primary, false); /* meanwhile another may retain it, and goes on with it */
    if (d->primary_refs == 0)
        empty(d->primary);
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return sim_cuDevicePrimaryCtxRelease_v2(dev);
}

CUresult sim_cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    struct device *d = device_of(dev);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    if (d->primary)
        empty(d->primary);
    d->primary_refs = 0;
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxReset(CUdevice dev)
{
    return sim_cuDevicePrimaryCtxReset_v2(dev);
}

CUresult sim_cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    struct device *d = device_of(dev);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    if (bad_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    d->primary_flags = flags;
    if (d->primary)
        d->primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    struct device *d = device_of(dev);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    if (d->primary && d->primary->created)
        return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
    return sim_cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult sim_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    struct device *d = device_of(dev);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = d->primary_flags;
    *active = d->primary && d->primary->created;
    return CUDA_SUCCESS;
}
