/* sim_graph_threads.c: many threads at once that make graphs by hand and by capture,
 * change them, launch them and destroy them in flight; the sums have to come out. */
#include "kernels.h"
#include "tap.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 6
#define ROUNDS 25
#define N 256

static CUcontext ctx;
static CUfunction saxpy, tick;
static atomic_int calls, ends, wrong;

static void count(void *data)
{
    atomic_fetch_add((atomic_int *)data, 1);
}

/* y += k x, three times in a row by hand. */
static CUgraphExec by_hand(float k, CUdeviceptr x, CUdeviceptr y)
{
    CUgraph g;
    CUgraphNode n, last = NULL;
    CUgraphExec e;
    CUuserObject o;
    int len = N;
    void *args[] = {&k, &x, &y, &len};
    CUDA_KERNEL_NODE_PARAMS p = {.func = saxpy, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1};
    p.blockDimX = N;
    p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = args;
    MUST(cuGraphCreate(&g, 0));
    for (int i = 0; i < 3; i++) {
        MUST(cuGraphAddKernelNode(&n, g, last ? &last : NULL, last != NULL, &p));
        last = n;
    }
    MUST(cuUserObjectCreate(&o, &ends, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    MUST(cuGraphRetainUserObject(g, o, 1, CU_GRAPH_USER_OBJECT_MOVE));
    MUST(cuGraphInstantiate(&e, g, 0));
    MUST(cuGraphDestroy(g));
    return e;
}

/* The same by capture, in two streams: three kernels, two empty ones beside them, and
 * a call. */
static CUgraphExec by_capture(float k, CUdeviceptr x, CUdeviceptr y, CUstream s, CUstream t)
{
    CUevent fork, join;
    CUgraph g;
    CUgraphExec e;
    int len = N;
    void *args[] = {&k, &x, &y, &len};
    MUST(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    MUST(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST(cuLaunchKernel(saxpy, 1, 1, 1, N, 1, 1, 0, s, args, NULL));
    MUST(cuEventRecord(fork, s));
    MUST(cuStreamWaitEvent(t, fork, 0));
    MUST(cuLaunchKernel(tick, 1, 1, 1, 1, 1, 1, 0, t, NULL, NULL));
    MUST(cuLaunchHostFunc(t, count, &calls));
    MUST(cuLaunchKernel(saxpy, 1, 1, 1, N, 1, 1, 0, s, args, NULL));
    MUST(cuEventRecord(join, t));
    MUST(cuStreamWaitEvent(s, join, 0));
    MUST(cuLaunchKernel(saxpy, 1, 1, 1, N, 1, 1, 0, s, args, NULL));
    MUST(cuStreamEndCapture(s, &g));
    MUST(cuGraphInstantiate(&e, g, 0));
    MUST(cuGraphDestroy(g));
    MUST(cuEventDestroy(fork));
    MUST(cuEventDestroy(join));
    return e;
}

static void *work(void *arg)
{
    (void)arg;
    CUstream s, t;
    CUdeviceptr x, y;
    float got[N];
    MUST(cuCtxSetCurrent(ctx));
    MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&x, sizeof got));
    MUST(cuMemAlloc(&y, sizeof got));
    for (int round = 1; round <= ROUNDS; round++) {
        float sum = 0;
        MUST(cuMemsetD32Async(x, 0x3f800000, N, s)); /* 1.0f */
        MUST(cuMemsetD32Async(y, 0, N, s));
        CUgraphExec a = by_hand((float)round, x, y), b = by_capture(1, x, y, s, t);
        for (int i = 0; i < 3; i++) {
            MUST(cuGraphLaunch(a, s));
            MUST(cuGraphLaunch(b, s));
            sum += 3.0f * (float)round + 3;
        }
        MUST(cuGraphExecDestroy(a)); /* all of it in flight */
        MUST(cuGraphExecDestroy(b));
        MUST(cuMemcpyDtoHAsync(got, y, sizeof got, s));
        MUST(cuStreamSynchronize(s));
        for (int i = 0; i < N; i++)
            if (got[i] != sum)
                atomic_fetch_add(&wrong, 1);
    }
    MUST(cuMemFree(x));
    MUST(cuMemFree(y));
    MUST(cuStreamDestroy(s));
    MUST(cuStreamDestroy(t));
    return NULL;
}

static void all(void *(*fn)(void *), void *arg)
{
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, fn, arg);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
}

/* One instance in the hands of all, which no driver promises to stand: here it does,
 * and each launch adds what it should. */
struct shared {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUdeviceptr x, y;
};

static void *abuse(void *arg)
{
    struct shared *sh = arg;
    CUstream s;
    CUgraphExec own;
    CUgraphExecUpdateResultInfo info;
    MUST(cuCtxSetCurrent(ctx));
    MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 40; i++) {
        MUST(cuGraphLaunch(sh->exec, s));
        MUST(cuGraphNodeSetEnabled(sh->exec, sh->node, 1));
        MUST(cuGraphExecUpdate(sh->exec, sh->graph, &info));
        MUST(cuGraphInstantiate(&own, sh->graph, 0));
        MUST(cuGraphExecDestroy(own));
    }
    MUST(cuStreamDestroy(s));
    return NULL;
}

static void sharing(void)
{
    struct shared sh;
    float k = 1, got[N];
    int len = N;
    bool right = true;
    MUST(cuMemAlloc(&sh.x, sizeof got));
    MUST(cuMemAlloc(&sh.y, sizeof got));
    MUST(cuMemsetD32(sh.x, 0x3f800000, N));
    MUST(cuMemsetD32(sh.y, 0, N));
    MUST(cuCtxSynchronize());
    void *args[] = {&k, &sh.x, &sh.y, &len};
    CUDA_KERNEL_NODE_PARAMS p = {.func = saxpy, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1};
    p.blockDimX = N;
    p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = args;
    MUST(cuGraphCreate(&sh.graph, 0));
    MUST(cuGraphAddKernelNode(&sh.node, sh.graph, NULL, 0, &p));
    MUST(cuGraphInstantiate(&sh.exec, sh.graph, 0));
    all(abuse, &sh);
    MUST(cuGraphExecDestroy(sh.exec));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(got, sh.y, sizeof got));
    for (int i = 0; i < N; i++)
        right &= got[i] == THREADS * 40;
    CHECK(right);
    MUST(cuGraphDestroy(sh.graph));
    MUST(cuMemFree(sh.x));
    MUST(cuMemFree(sh.y));
}

int main(void)
{
    CUmodule m;
    CUdevice dev = first_device();
    MUST(cuCtxCreate(&ctx, 0, dev));
    MUST(cuModuleLoadData(&m, kernels_ptx));
    MUST(cuModuleGetFunction(&saxpy, m, "saxpy"));
    MUST(cuModuleGetFunction(&tick, m, "tick"));
    all(work, NULL);
    CHECK(wrong == 0);
    CHECK(calls == THREADS * ROUNDS * 3);
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
    for (double until = seconds() + 20; ends != THREADS * ROUNDS && seconds() < until;)
        MUST(cuCtxSynchronize());
    CHECK(ends == THREADS * ROUNDS);
    if (simulated(dev))
        PART(sharing());
    GIVES(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
