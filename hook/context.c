/* context.c: the beginning of GPU use, and contexts and streams that go away. */
#include "device.h"
#include "gate.h"
#include "link.h"
#include "memory.h"
#include "real.h"
#include "say.h"
#include "stream.h"
#include "visible.h"

CUresult cuInit(unsigned int flags)
{
    if (!gf_boot())
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    gf_gate_init();
    gf_visible_read();
    CUresult result = gf_visible_settle(gf_real.cuInit(flags));
    /* One device: it will be used, and the daemon can answer meanwhile. Of
     * several a process may use only some. */
    int count = 0;
    if (result == CUDA_SUCCESS && gf_real.cuDeviceGetCount(&count) == CUDA_SUCCESS && (count == 1 || gf_visible_outside(1)))
        gf_link_start(gf_devices);
    return result;
}

/* Settles the accounts of a context before it is destroyed: its streams' time
 * counts, its memory comes back when it is gone. */
static void leaves(struct gf_leaving *l, bool gone)
{
    if (gone && l->context)
        gf_mem_context_gone(l->context); /* while it is leaving: nobody touches it for a block that he finds there */
    gf_context_left(l, gone);
    gf_forget_thread(); /* another context may be current now */
}

#define GF_DESTROY(symbol) \
    CUresult symbol(CUcontext ctx) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        struct gf_leaving l; \
        gf_context_leaving(&l, gf_device_of(ctx), ctx); \
        CUresult result = gf_real.symbol(ctx); \
        leaves(&l, result == CUDA_SUCCESS); \
        return result; \
    }
GF_DESTROY(cuCtxDestroy)
GF_DESTROY(cuCtxDestroy_v2)

/* Destroys a context that was attached as often as it is detached; it was
 * current, and stays so while it lives. */
CUresult cuCtxDetach(CUcontext ctx)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUcontext now = NULL;
    struct gf_leaving l;
    gf_context_leaving(&l, gf_device_of(ctx), ctx);
    CUresult result = gf_real.cuCtxDetach(ctx);
    gf_real.cuCtxGetCurrent(&now);
    leaves(&l, result == CUDA_SUCCESS && now != ctx);
    return result;
}

/* The device's primary context, or NULL when nobody holds it. */
static CUcontext primary_context(CUdevice dev)
{
    unsigned int flags = 0;
    int active = 0;
    CUcontext context = NULL;
    if (gf_real.cuDevicePrimaryCtxGetState(dev, &flags, &active) != CUDA_SUCCESS || !active)
        return NULL;
    if (gf_real.cuDevicePrimaryCtxRetain(&context, dev) != CUDA_SUCCESS)
        return NULL;
    gf_real.cuDevicePrimaryCtxRelease_v2(dev);
    return context;
}

/* Returns the driver's answer to a request for a context. An MPS server has a limit of
 * its own, which is not the slice's: the message names it. */
static CUresult created(CUdevice dev, CUresult result)
{
    if (result == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED || result == CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED)
        gf_say(GF_SAY_MPS, "the MPS server has as many clients as the driver allows (60 on a GPU, 48 before CUDA 13.1): "
                           "this process gets no context (error %d)", (int)result);
    return gf_mem_answer_on(dev, result);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (gf_visible_outside(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = created(dev, gf_real.cuDevicePrimaryCtxRetain(pctx, dev));
    if (result == CUDA_SUCCESS)
        gf_primary_held(gf_device_at(dev));
    return result;
}

#define GF_CREATE(symbol, params, args) \
    CUresult symbol params \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        if (gf_visible_outside(dev)) \
            return CUDA_ERROR_INVALID_DEVICE; \
        CUresult result = gf_real.symbol args; \
        gf_forget_thread(); /* another context is current now */ \
        return created(dev, result); \
    }
GF_CREATE(cuCtxCreate, (CUcontext *pctx, unsigned int flags, CUdevice dev), (pctx, flags, dev))
GF_CREATE(cuCtxCreate_v2, (CUcontext *pctx, unsigned int flags, CUdevice dev), (pctx, flags, dev))
GF_CREATE(cuCtxCreate_v3, (CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags, CUdevice dev),
          (pctx, paramsArray, numParams, flags, dev))
GF_CREATE(cuCtxCreate_v4, (CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev),
          (pctx, ctxCreateParams, flags, dev))

/* Others may still hold the primary context when it is released, some of them by
 * calls that this library does not see: it is gone when it is no longer active. */
#define GF_PRIMARY(symbol, gone) \
    CUresult symbol(CUdevice dev) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        unsigned int flags = 0; \
        int active = 0; \
        struct gf_leaving l; \
        gf_primary_leaving(&l, gf_device_at(dev), primary_context(dev), gone); \
        CUresult result = gf_real.symbol(dev); \
        CUresult known = gf_real.cuDevicePrimaryCtxGetState(dev, &flags, &active); \
        leaves(&l, known == CUDA_SUCCESS && !active); \
        return result; \
    }
GF_PRIMARY(cuDevicePrimaryCtxRelease, 1)
GF_PRIMARY(cuDevicePrimaryCtxRelease_v2, 1)
GF_PRIMARY(cuDevicePrimaryCtxReset, UINT32_MAX)
GF_PRIMARY(cuDevicePrimaryCtxReset_v2, UINT32_MAX)

#define GF_STREAM_DESTROY(symbol) \
    CUresult symbol(CUstream stream) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        gf_stream_gone(stream); \
        return gf_real.symbol(stream); \
    }
GF_STREAM_DESTROY(cuStreamDestroy)
GF_STREAM_DESTROY(cuStreamDestroy_v2)

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuStreamCreate(stream, flags);
    if (result == CUDA_SUCCESS)
        gf_stream_made(*stream);
    return result;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuStreamCreateWithPriority(stream, flags, priority);
    if (result == CUDA_SUCCESS)
        gf_stream_made(*stream);
    return result;
}

/* Green contexts are parts of a primary one, and hold it. */
CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuGreenCtxStreamCreate(stream, green, flags, priority);
    if (result == CUDA_SUCCESS)
        gf_stream_made(*stream);
    return result;
}

/* The primary context may go with it. Streams of the green context stay, but
 * answer with an error: nothing more can be recorded there. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUcontext context = NULL, primary = NULL;
    struct gf_device *device = NULL;
    struct gf_leaving l;
    unsigned int flags = 0;
    int active = 1;
    if (gf_real.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS)
        device = gf_device_of(context);
    if (device) {
        gf_context_leaving(&l, device, context); /* some streams may be known as this one's */
        gf_context_left(&l, true);
        primary = primary_context((CUdevice)gf_ordinal(device));
    }
    gf_primary_leaving(&l, device, primary, 0);
    CUresult result = gf_real.cuGreenCtxDestroy(green);
    if (device)
        gf_real.cuDevicePrimaryCtxGetState((CUdevice)gf_ordinal(device), &flags, &active);
    leaves(&l, !active);
    return result;
}
