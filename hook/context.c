/* context.c: the start of GPU use; destruction of contexts and streams. */
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
    gf_gate_init();
    gf_visible_read();
    CUresult result = gf_visible_resolve(gf_real.cuInit(flags));
    /* A single device will be used, so its helper starts now and the daemon can answer meanwhile. Of
     * several devices, a process may use only some. */
    int count = 0;
    if (result == CUDA_SUCCESS && gf_real.cuDeviceGetCount(&count) == CUDA_SUCCESS && (count == 1 || gf_visible_hides(1)))
        gf_link_start(gf_devices);
    return result;
}

/* Ends the accounting of a context after the call that may have destroyed it (`gone`). */
static void end_leaving(struct gf_leaving *l, bool gone)
{
    if (gone && l->context)
        gf_mem_context_destroyed(l->context); /* while it is in `leaving`, so that no thread enters it for a block found there */
    gf_context_left(l, gone);
    gf_forget_thread(); /* another context may be current now */
}

#define GF_DESTROY(symbol) \
    CUresult symbol(CUcontext ctx) \
    { \
        struct gf_leaving l; \
        gf_context_leaving(&l, gf_device_of(ctx), ctx); \
        CUresult result = gf_real.symbol(ctx); \
        end_leaving(&l, result == CUDA_SUCCESS); \
        return result; \
    }
GF_DESTROY(cuCtxDestroy)
GF_DESTROY(cuCtxDestroy_v2)

/* Destroys a context once it was detached as often as it was attached. It was current, and stays
 * current while it exists. */
CUresult cuCtxDetach(CUcontext ctx)
{
    CUcontext now = NULL;
    struct gf_leaving l;
    gf_context_leaving(&l, gf_device_of(ctx), ctx);
    CUresult result = gf_real.cuCtxDetach(ctx);
    gf_real.cuCtxGetCurrent(&now);
    end_leaving(&l, result == CUDA_SUCCESS && now != ctx);
    return result;
}

/* Returns the device's primary context, or NULL if it is not active. */
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

/* Returns the driver's answer to a request for a context. If the MPS server has reached its own limit of
 * clients, it prints a message, since that is not the slice's limit. */
static CUresult created(CUdevice dev, CUresult result)
{
    if (result == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED || result == CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED)
        gf_say(GF_SAY_MPS, "the MPS server has as many clients as the driver allows (60 on a GPU, 48 before CUDA 13.1): "
                           "this process gets no context (error %d)", (int)result);
    return gf_mem_answer_on(dev, result);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    if (gf_visible_hides(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = created(dev, gf_real.cuDevicePrimaryCtxRetain(pctx, dev));
    if (result == CUDA_SUCCESS)
        gf_primary_held(gf_device_at(dev));
    return result;
}

#define GF_CREATE(symbol, params, args) \
    CUresult symbol params \
    { \
        if (gf_visible_hides(dev)) \
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

/* Other holders may keep the primary context when it is released, some of them through calls that this
 * library does not see. So it is destroyed when it is no longer active. */
#define GF_PRIMARY(symbol, gone) \
    CUresult symbol(CUdevice dev) \
    { \
        unsigned int flags = 0; \
        int active = 0; \
        struct gf_leaving l; \
        gf_primary_leaving(&l, gf_device_at(dev), primary_context(dev), gone); \
        CUresult result = gf_real.symbol(dev); \
        CUresult known = gf_real.cuDevicePrimaryCtxGetState(dev, &flags, &active); \
        end_leaving(&l, known == CUDA_SUCCESS && !active); \
        return result; \
    }
GF_PRIMARY(cuDevicePrimaryCtxRelease, 1)
GF_PRIMARY(cuDevicePrimaryCtxRelease_v2, 1)
GF_PRIMARY(cuDevicePrimaryCtxReset, UINT32_MAX)
GF_PRIMARY(cuDevicePrimaryCtxReset_v2, UINT32_MAX)

GF_BEFORE(cuStreamDestroy, (CUstream stream), (stream), gf_stream_gone(stream))
GF_BEFORE(cuStreamDestroy_v2, (CUstream stream), (stream), gf_stream_gone(stream))
GF_AFTER(cuStreamCreate, (CUstream *stream, unsigned int flags), (stream, flags), gf_stream_made(*stream))
GF_AFTER(cuStreamCreateWithPriority, (CUstream *stream, unsigned int flags, int priority), (stream, flags, priority),
         gf_stream_made(*stream))
/* A green context is a part of a primary context and holds it. */
GF_AFTER(cuGreenCtxStreamCreate, (CUstream *stream, CUgreenCtx green, unsigned int flags, int priority),
         (stream, green, flags, priority), gf_stream_made(*stream))

/* The primary context may be destroyed, too. Streams of the green context remain, but return errors:
 * no event can be recorded on them. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUcontext context = NULL, primary = NULL;
    struct gf_device *device = NULL;
    struct gf_leaving l;
    unsigned int flags = 0;
    int active = 1;
    if (gf_real.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS)
        device = gf_device_of(context);
    if (device) {
        gf_context_leaving(&l, device, context); /* some streams may be tracked under this context */
        gf_context_left(&l, true);
        primary = primary_context((CUdevice)gf_ordinal(device));
    }
    gf_primary_leaving(&l, device, primary, 0);
    CUresult result = gf_real.cuGreenCtxDestroy(green);
    if (device)
        gf_real.cuDevicePrimaryCtxGetState((CUdevice)gf_ordinal(device), &flags, &active);
    end_leaving(&l, !active);
    return result;
}
