/* capture.c: streams that are captured. Work sent to such a stream becomes part of a graph and does not
 * run, so it is neither gated nor counted, and no event may be recorded there. The gate queries the
 * driver only about streams that a thread's lines do not know; so when a capture begins, all threads
 * forget their streams.
 *
 * A stream is captured from the begin of a capture, or from its wait for an event of a captured stream. */
#include "gate.h"
#include "query.h"
#include "real.h"
#include "stream.h"
#include "thread.h"
#include "wait.h"

#define GF_BEGIN(symbol, params, args) \
    CUresult symbol params \
    { \
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
        struct gf_waiting waiting = {0}; \
        if (gf_unlikely(gf_load(&gf_waits))) /* the event may be behind a wait, or another process's */ \
            waiting = gf_enter_wait(stream ? stream : zero, false); \
        CUresult result = gf_real.symbol(stream, event, flags); \
        gf_wait_end(waiting, result); \
        if (result == CUDA_SUCCESS && gf_capturing(stream ? stream : zero)) \
            gf_forget_all(); \
        return result; \
    }
GF_WAIT(cuStreamWaitEvent, CU_STREAM_LEGACY)
GF_WAIT(cuStreamWaitEvent_ptsz, CU_STREAM_PER_THREAD)
