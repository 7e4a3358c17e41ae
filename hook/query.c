/* query.c: queries to the driver about a stream. */
#include "query.h"

#include "real.h"

bool gf_captured;

bool gf_is_default_stream(CUstream stream)
{
    return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

CUcontext gf_context_of(CUstream stream)
{
    CUcontext context = NULL;
    if (gf_is_default_stream(stream) || gf_real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
        gf_real.cuCtxGetCurrent(&context);
    return context;
}

bool gf_capturing(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return gf_real.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool gf_recordable(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = gf_real.cuStreamIsCapturing(stream, &status);
    return result == CUDA_ERROR_NOT_SUPPORTED || (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Querying events while other threads capture requires the relaxed capture mode. It is set when a context
 * is current: the driver refuses it before its initialization, and its effect without a context is not
 * documented. */
void gf_relax_capture(void)
{
    static __thread bool relaxed GF_TLS;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!relaxed)
        relaxed = gf_real.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
}
