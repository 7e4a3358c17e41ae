/* capture.c: streams that are captured. What is sent to them becomes a graph
 * and is no work yet: it passes ungated and uncounted, and no event may be
 * recorded there. The gate asks about a stream only when a thread does not know
 * it; so when a stream comes to be captured, all threads forget what they know.
 *
 * A stream is captured from the beginning of a capture on, or from when it
 * waits for an event that is part of one. */
#include "gate.h"
#include "query.h"
#include "real.h"
#include "stream.h"
#include "thread.h"
#include "wait.h"

#define GF_BEGIN(symbol, params, args) \
    CUresult symbol params \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        gf_capture_begins(); \
        CUresult result = gf_real.symbol args; \
        gf_capture_has_begun(); \
        if (result == CUDA_SUCCESS) \
            gf_forget_all(); \
        return result; \
    }
#define GF_BEGIN_TWINS(symbol, params, args) GF_BEGIN(symbol, params, args) GF_BEGIN(symbol##_ptsz, params, args)

GF_BEGIN_TWINS(cuStreamBeginCapture, (CUstream stream), (stream))
GF_BEGIN_TWINS(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
GF_BEGIN_TWINS(cuStreamBeginCaptureToGraph,
               (CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
                CUstreamCaptureMode mode),
               (stream, graph, after, edges, count, mode))
GF_BEGIN_TWINS(cuStreamBeginRecaptureToGraph,
               (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *data),
               (stream, mode, graph, callback, data))
GF_BEGIN_TWINS(cuStreamBeginCaptureToCig, (CUstream stream, CUstreamCigCaptureParams *params), (stream, params))

#define GF_WAIT(symbol, zero) \
    CUresult symbol(CUstream stream, CUevent event, unsigned int flags) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        struct gf_waiting waiting = {0}; \
        if (gf_unlikely(gf_load(&gf_waits))) /* it may be for work that waits, or for another process's */ \
            waiting = gf_enter_wait(stream ? stream : zero, false); \
        CUresult result = gf_real.symbol(stream, event, flags); \
        gf_wait_end(waiting, result); \
        if (result == CUDA_SUCCESS && gf_capturing(stream ? stream : zero)) \
            gf_forget_all(); \
        return result; \
    }
GF_WAIT(cuStreamWaitEvent, CU_STREAM_LEGACY)
GF_WAIT(cuStreamWaitEvent_ptsz, CU_STREAM_PER_THREAD)
