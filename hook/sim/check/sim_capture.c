/* sim_capture.c: stream capture: which work becomes part of a graph, how streams join and leave,
 * and which calls are not allowed meanwhile. */
#include "kernels.h"
#include "objects.h"

#include <pthread.h>
#include <stdint.h>

#define N 256

static CUcontext ctx;
static CUfunction vadd, tick;
static bool sim;

static void run(CUstream s)
{
    ASSERT_SUCCESS(cuLaunchKernel(tick, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
}

static size_t nodes_of(CUgraph g)
{
    size_t n = 0;
    ASSERT_SUCCESS(cuGraphGetNodes(g, NULL, &n));
    return n;
}

static size_t edges_of(CUgraph g)
{
    size_t n = 0;
    ASSERT_SUCCESS(cuGraphGetEdges(g, NULL, NULL, &n));
    return n;
}

static CUstreamCaptureStatus status(CUstream s)
{
    CUstreamCaptureStatus is = 99;
    ASSERT_SUCCESS(cuStreamIsCapturing(s, &is));
    return is;
}

/* Checks that the capture was invalidated: there is no graph, and the stream is an ordinary one
 * again. */
static void spoilt(CUstream s)
{
    CUgraph g = (CUgraph)(uintptr_t)1;
    SIM_CHECK(status(s) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    if (!SIM_CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g)))
        return;
    CHECK(g == NULL);
    CHECK(status(s) == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
}

static int calls;

static void count(void *data)
{
    (void)data;
    calls++;
}

static void callback(CUstream s, CUresult r, void *data)
{
    (void)s, (void)r, (void)data;
}

/* Every kind of work in one stream. It has no effect before the launch. */
static void everything(void)
{
    float *in, *out;
    CUgraph g = NULL;
    CUgraphExec e;
    CUstream s = new_stream();
    int n = N;
    bool right = true;
    ASSERT_SUCCESS(cuMemHostAlloc((void **)&in, N * 4, 0));
    ASSERT_SUCCESS(cuMemHostAlloc((void **)&out, N * 4, 0));
    CUdeviceptr a = new_memory(N * 4), b = new_memory(N * 4), c = new_memory(N * 4);
    void *args[] = {&a, &b, &c, &n};
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = N,
                             .blockDimY = 1, .blockDimZ = 1, .hStream = s};
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(status(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoDAsync(a, in, N * 4, s));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD32Async(b, 0x3f800000, N, s));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(vadd, 1, 1, 1, N, 1, 1, 0, s, args, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoDAsync(b, c, N * 4, s));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernelEx(&config, vadd, args, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoHAsync(out, c, N * 4, s));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(s, count, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(s, &g));
    CHECK(g != NULL && calls == 0);
    CHECK(nodes_of(g) == 7);
    CHECK(edges_of(g) == 6);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
    for (int i = 0; i < N; i++)
        in[i] = (float)i;
    memset(out, 0, N * 4);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    for (int i = 0; i < N; i++)
        right &= out[i] == (float)(2 * i + 1);
    CHECK(right);
    CHECK(calls == 1);
    DESTROY(e, g, s, a, b, c);
    ASSERT_SUCCESS(cuMemFreeHost(in));
    ASSERT_SUCCESS(cuMemFreeHost(out));
}

/* The attributes of a captured kernel become attributes of its node. */
static void attributes(void)
{
    int least, greatest;
    CUgraph g;
    CUgraphNode n;
    CUstream s;
    size_t one = 1;
    CUkernelNodeAttrValue v;
    CUlaunchAttribute a = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY};
    ASSERT_SUCCESS(cuCtxGetStreamPriorityRange(&least, &greatest));
    ASSERT_SUCCESS(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, greatest));
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, s, &a, 0};
    for (unsigned with = 0; with < 2; with++) {
        config.numAttrs = with;
        a.value.priority = least - 1;
        ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        ASSERT_SUCCESS(cuLaunchKernelEx(&config, tick, NULL, NULL));
        ASSERT_SUCCESS(cuStreamEndCapture(s, &g));
        ASSERT_SUCCESS(cuGraphGetNodes(g, &n, &one));
        CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeGetAttribute(n, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v));
        SIM_CHECK(v.priority == (with ? least - 1 : greatest));
        ASSERT_SUCCESS(cuGraphDestroy(g));
    }
    ASSERT_SUCCESS(cuStreamDestroy(s));
}

static void beginnings(void)
{
    CUgraph g = NULL;
    CUstream s = new_stream(), other = new_stream();
    CUevent e = new_event(CU_EVENT_DISABLE_TIMING);
    CUresult r;
    SIM_CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SIM_CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                     cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamBeginCapture(s, (CUstreamCaptureMode)77));
    CHECK(status(s) == CU_STREAM_CAPTURE_STATUS_NONE);
    SIM_CHECK_RESULT(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(s, &g));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
    run(CU_STREAM_PER_THREAD);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(CU_STREAM_PER_THREAD, &g));
    CHECK(nodes_of(g) == 1);
    ASSERT_SUCCESS(cuGraphDestroy(g));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(s, &g)); /* an empty graph */
    CHECK(nodes_of(g) == 0);
    ASSERT_SUCCESS(cuGraphDestroy(g));
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    r = cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    SIM_CHECK(r == CUDA_ERROR_ILLEGAL_STATE);
    ASSERT_SUCCESS(cuEventRecord(e, s));
    ASSERT_SUCCESS(cuStreamWaitEvent(other, e, 0));
    CHECK(status(other) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &g));
    cuStreamEndCapture(s, &g);
    CHECK(status(s) == CU_STREAM_CAPTURE_STATUS_NONE && status(other) == CU_STREAM_CAPTURE_STATUS_NONE);
    if (g)
        ASSERT_SUCCESS(cuGraphDestroy(g));
    DESTROY(e, s, other);
}

/* A stream forks into another one and joins it again: a diamond. */
static void fork_and_join(void)
{
    CUgraph g = NULL;
    CUgraphNode roots[4];
    CUstream s = new_stream(), t = new_stream();
    CUevent fork = new_event(CU_EVENT_DISABLE_TIMING), join = new_event(CU_EVENT_DISABLE_TIMING);
    cuuint64_t id = 0, other_id = 1;
    CUstreamCaptureStatus is;
    const CUgraphNode *deps = NULL;
    size_t n = 0;
    CUgraph partial = NULL;
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    run(s);
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(fork, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(t, fork, 0));
    run(s);
    run(t);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetCaptureInfo(s, &is, &id, &partial, &deps, &n));
    CHECK(is == CU_STREAM_CAPTURE_STATUS_ACTIVE && n == 1 && nodes_of(partial) == 3);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetCaptureInfo(t, &is, &other_id, NULL, NULL, NULL));
    CHECK(id == other_id);
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(join, t));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(s, join, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetCaptureInfo(s, &is, &id, NULL, &deps, &n));
    CHECK(n == 2);
    run(s);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(s, &g));
    SIM_CHECK(g == partial);
    CHECK(nodes_of(g) == 4 && edges_of(g) == 4);
    n = 4;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetRootNodes(g, roots, &n));
    CHECK(n == 1);
    CHECK(status(t) == CU_STREAM_CAPTURE_STATUS_NONE);
    ASSERT_SUCCESS(cuGraphDestroy(g));
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ASSERT_SUCCESS(cuEventRecord(fork, s));
    ASSERT_SUCCESS(cuStreamWaitEvent(t, fork, 0));
    run(t);
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(s, &g));
    SIM_CHECK(g == NULL && status(t) == CU_STREAM_CAPTURE_STATUS_NONE);
    run(t);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(t));
    DESTROY(fork, join, s, t);
}

static void crossing(void)
{
    CUgraph g = NULL;
    CUstream s = new_stream(), t = new_stream();
    CUevent e = new_event(CU_EVENT_DISABLE_TIMING), f = new_event(CU_EVENT_DISABLE_TIMING);
    ASSERT_SUCCESS(cuEventRecord(e, t));
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    run(s);
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(s, e, 0));
    spoilt(s);
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_SUCCESS(cuStreamBeginCapture(t, CU_STREAM_CAPTURE_MODE_RELAXED));
    run(s);
    run(t);
    ASSERT_SUCCESS(cuEventRecord(e, s));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(t, e, 0));
    cuStreamEndCapture(s, &g);
    if (g)
        ASSERT_SUCCESS(cuGraphDestroy(g));
    g = NULL;
    cuStreamEndCapture(t, &g);
    if (g)
        ASSERT_SUCCESS(cuGraphDestroy(g));
    /* with the flag it is a node, in either direction */
    ASSERT_SUCCESS(cuEventRecord(f, t));
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(s, f, CU_EVENT_WAIT_EXTERNAL));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(s, &g));
    CHECK(nodes_of(g) == 2 && edges_of(g) == 1);
    ASSERT_SUCCESS(cuGraphDestroy(g));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL));
    DESTROY(e, f, s, t);
}

/* Waiting for captured work, which runs only later. */
static void waiting(void)
{
    CUstream s = new_stream();
    CUevent e = new_event(CU_EVENT_DISABLE_TIMING);
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(s));
    SIM_CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuLaunchHostFunc(s, count, NULL));
    spoilt(s);
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(s));
    spoilt(s);
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    SIM_CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
    spoilt(s);
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    SIM_CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamAddCallback(s, callback, NULL, 0));
    spoilt(s);
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_SUCCESS(cuEventRecord(e, s));
    CHECK_RESULT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(e));
    cuStreamEndCapture(s, &(CUgraph){NULL});
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_SUCCESS(cuEventRecord(e, s));
    CHECK_RESULT(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(e));
    cuStreamEndCapture(s, &(CUgraph){NULL});
    ASSERT_SUCCESS(cuEventRecord(e, s));
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(e)); /* recorded outside a capture, it is an ordinary event again */
    DESTROY(e, s);
}

/* The legacy stream depends on all blocking streams, including capturing ones. */
static void legacy(void)
{
    CUstream s;
    CUstreamCaptureStatus is;
    int v = 0;
    CUgraph g = NULL;
    CUdeviceptr p = new_memory(4);
    ASSERT_SUCCESS(cuStreamCreate(&s, CU_STREAM_DEFAULT));
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    run(s);
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &is));
    CHECK(status(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE); /* the query does not end the capture */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(s, &g));
    ASSERT_SUCCESS(cuGraphDestroy(g));
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuLaunchKernel(tick, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    spoilt(s);
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    SIM_CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemcpyDtoH(&v, p, 4));
    spoilt(s);
    ASSERT_SUCCESS(cuStreamDestroy(s));
    s = new_stream();
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamIsCapturing(NULL, &is));
    CHECK(is == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(tick, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(s, &g));
    DESTROY(g, s, p);
}

/* Calls that are unsafe during a capture, in each capture mode. */
static void unsafe(void)
{
    CUstream s = new_stream();
    CUdeviceptr p = 0;
    CUgraph g = NULL;
    CUmemoryPool pool;
    cuuint64_t bytes;
    CUstreamCaptureMode mode;
    for (int m = CU_STREAM_CAPTURE_MODE_GLOBAL; m <= CU_STREAM_CAPTURE_MODE_THREAD_LOCAL; m++) {
        ASSERT_SUCCESS(cuStreamBeginCapture(s, (CUstreamCaptureMode)m));
        CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&p, 4));
        spoilt(s);
    }
    ASSERT_SUCCESS(cuDeviceGetDefaultMemPool(&pool, 0));
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SIM_CHECK_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                     cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
    spoilt(s);
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&p, 4));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(s, &g));
    DESTROY(g, p);
    mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_RESULT(CUDA_SUCCESS, cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&p, 4));
    CHECK_RESULT(CUDA_SUCCESS, cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(s, &g));
    DESTROY(g, p);
    mode = (CUstreamCaptureMode)9;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuThreadExchangeStreamCaptureMode(&mode));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuThreadExchangeStreamCaptureMode(NULL));
    ASSERT_SUCCESS(cuStreamDestroy(s));
}

struct other {
    CUstream s;
    CUresult alloc, end;
    CUdeviceptr p;
    CUgraph g;
};

static void *from_another(void *arg)
{
    struct other *o = arg;
    ASSERT_SUCCESS(cuCtxSetCurrent(ctx));
    o->alloc = cuMemAlloc(&o->p, 4);
    o->end = cuStreamEndCapture(o->s, &o->g);
    return NULL;
}

/* Calls that another thread may make while this one captures. */
static void threads(void)
{
    static const struct {
        CUstreamCaptureMode mode;
        CUresult alloc, end;
    } want[] = {
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD},
        {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUDA_SUCCESS, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD},
        {CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_SUCCESS, CUDA_SUCCESS},
    };
    for (int i = 0; i < 3; i++) {
        struct other o = {.s = new_stream()};
        pthread_t t;
        CUgraph g = NULL;
        ASSERT_SUCCESS(cuStreamBeginCapture(o.s, want[i].mode));
        pthread_create(&t, NULL, from_another, &o);
        pthread_join(t, NULL);
        SIM_CHECK(o.alloc == want[i].alloc);
        SIM_CHECK(o.end == want[i].end);
        if (o.end != CUDA_SUCCESS)
            cuStreamEndCapture(o.s, &g);
        if (o.g || g)
            ASSERT_SUCCESS(cuGraphDestroy(o.g ? o.g : g));
        if (o.p)
            ASSERT_SUCCESS(cuMemFree(o.p));
        ASSERT_SUCCESS(cuStreamDestroy(o.s));
    }
}

/* Nodes that are added by hand during a capture, and a capture into an existing graph. */
static void by_hand(void)
{
    CUgraph g, got = NULL;
    CUgraphNode first, extra;
    CUstream s = new_stream();
    CUstreamCaptureStatus is;
    cuuint64_t id;
    const CUgraphNode *deps;
    size_t n = 0;
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    run(s);
    ASSERT_SUCCESS(cuStreamGetCaptureInfo(s, &is, &id, &g, &deps, &n));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddEmptyNode(&extra, g, deps, n));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamUpdateCaptureDependencies(s, &extra, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    run(s);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(s, &got));
    CHECK(got == g && nodes_of(g) == 3 && edges_of(g) == 2);
    n = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetDependentNodes(extra, NULL, &n));
    CHECK(n == 1);
    SIM_CHECK_RESULT(CUDA_ERROR_ILLEGAL_STATE,
                     cuStreamUpdateCaptureDependencies(s, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    ASSERT_SUCCESS(cuGraphDestroy(g));
    ASSERT_SUCCESS(cuGraphCreate(&g, 0));
    ASSERT_SUCCESS(cuGraphAddEmptyNode(&first, g, NULL, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBeginCaptureToGraph(s, g, &first, NULL, 1, CU_STREAM_CAPTURE_MODE_GLOBAL));
    run(s);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(s, &got));
    CHECK(got == g && nodes_of(g) == 2 && edges_of(g) == 1);
    DESTROY(g, s);
}

int main(void)
{
    CUdevice dev = first_device();
    sim = simulated(dev);
    ASSERT_SUCCESS(cuCtxCreate(&ctx, 0, dev));
    CUmodule m = new_module(kernels_ptx);
    ASSERT_SUCCESS(cuModuleGetFunction(&vadd, m, "vadd"));
    ASSERT_SUCCESS(cuModuleGetFunction(&tick, m, "tick"));
    PART(everything());
    PART(attributes());
    PART(beginnings());
    fork_and_join();
    PART(crossing());
    PART(waiting());
    PART(legacy());
    PART(unsafe());
    PART(threads());
    PART(by_hand());
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
