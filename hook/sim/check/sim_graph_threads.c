/* sim_graph_threads.c: many threads that make graphs by hand and by capture, change them, launch
 * them, and destroy them in flight. The sums must be right. */
#include "kernels.h"
#include "objects.h"

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

/* A graph made by hand: y += k x, three times in sequence. */
static CUgraphExec by_hand(float k, CUdeviceptr x, CUdeviceptr y)
{
    CUgraphNode n, last = NULL;
    CUuserObject o;
    int len = N;
    void *args[] = {&k, &x, &y, &len};
    CUDA_KERNEL_NODE_PARAMS p = {.func = saxpy, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1};
    p.blockDimX = N;
    p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = args;
    CUgraph g = new_graph();
    for (int i = 0; i < 3; i++) {
        ASSERT_SUCCESS(cuGraphAddKernelNode(&n, g, last ? &last : NULL, last != NULL, &p));
        last = n;
    }
    ASSERT_SUCCESS(cuUserObjectCreate(&o, &ends, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ASSERT_SUCCESS(cuGraphRetainUserObject(g, o, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CUgraphExec e = new_instance(g);
    ASSERT_SUCCESS(cuGraphDestroy(g));
    return e;
}

/* A captured graph in two streams: the same three kernels, and in parallel an empty kernel and a
 * host function. */
static CUgraphExec by_capture(float k, CUdeviceptr x, CUdeviceptr y, CUstream s, CUstream t)
{
    CUgraph g;
    int len = N;
    void *args[] = {&k, &x, &y, &len};
    CUevent fork = new_event(CU_EVENT_DISABLE_TIMING), join = new_event(CU_EVENT_DISABLE_TIMING);
    ASSERT_SUCCESS(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ASSERT_SUCCESS(cuLaunchKernel(saxpy, 1, 1, 1, N, 1, 1, 0, s, args, NULL));
    ASSERT_SUCCESS(cuEventRecord(fork, s));
    ASSERT_SUCCESS(cuStreamWaitEvent(t, fork, 0));
    ASSERT_SUCCESS(cuLaunchKernel(tick, 1, 1, 1, 1, 1, 1, 0, t, NULL, NULL));
    ASSERT_SUCCESS(cuLaunchHostFunc(t, count, &calls));
    ASSERT_SUCCESS(cuLaunchKernel(saxpy, 1, 1, 1, N, 1, 1, 0, s, args, NULL));
    ASSERT_SUCCESS(cuEventRecord(join, t));
    ASSERT_SUCCESS(cuStreamWaitEvent(s, join, 0));
    ASSERT_SUCCESS(cuLaunchKernel(saxpy, 1, 1, 1, N, 1, 1, 0, s, args, NULL));
    ASSERT_SUCCESS(cuStreamEndCapture(s, &g));
    CUgraphExec e = new_instance(g);
    DESTROY(g, fork, join);
    return e;
}

static void *work(void *arg)
{
    (void)arg;
    float got[N];
    ASSERT_SUCCESS(cuCtxSetCurrent(ctx));
    CUstream s = new_stream(), t = new_stream();
    CUdeviceptr x = new_memory(sizeof got), y = new_memory(sizeof got);
    for (int round = 1; round <= ROUNDS; round++) {
        float sum = 0;
        ASSERT_SUCCESS(cuMemsetD32Async(x, 0x3f800000, N, s)); /* 1.0f */
        ASSERT_SUCCESS(cuMemsetD32Async(y, 0, N, s));
        CUgraphExec a = by_hand((float)round, x, y), b = by_capture(1, x, y, s, t);
        for (int i = 0; i < 3; i++) {
            ASSERT_SUCCESS(cuGraphLaunch(a, s));
            ASSERT_SUCCESS(cuGraphLaunch(b, s));
            sum += 3.0f * (float)round + 3;
        }
        ASSERT_SUCCESS(cuGraphExecDestroy(a)); /* with all of the work in flight */
        ASSERT_SUCCESS(cuGraphExecDestroy(b));
        ASSERT_SUCCESS(cuMemcpyDtoHAsync(got, y, sizeof got, s));
        ASSERT_SUCCESS(cuStreamSynchronize(s));
        for (int i = 0; i < N; i++)
            if (got[i] != sum)
                atomic_fetch_add(&wrong, 1);
    }
    DESTROY(x, y, s, t);
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

/* All threads share one instance. No driver promises that this works; the simulator does, and each
 * launch has its effect. */
struct shared {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUdeviceptr x, y;
};

static void *abuse(void *arg)
{
    struct shared *sh = arg;
    CUgraphExec own;
    CUgraphExecUpdateResultInfo info;
    ASSERT_SUCCESS(cuCtxSetCurrent(ctx));
    CUstream s = new_stream();
    for (int i = 0; i < 40; i++) {
        ASSERT_SUCCESS(cuGraphLaunch(sh->exec, s));
        ASSERT_SUCCESS(cuGraphNodeSetEnabled(sh->exec, sh->node, 1));
        ASSERT_SUCCESS(cuGraphExecUpdate(sh->exec, sh->graph, &info));
        ASSERT_SUCCESS(cuGraphInstantiate(&own, sh->graph, 0));
        ASSERT_SUCCESS(cuGraphExecDestroy(own));
    }
    ASSERT_SUCCESS(cuStreamDestroy(s));
    return NULL;
}

static void sharing(void)
{
    struct shared sh;
    float k = 1, got[N];
    int len = N;
    bool right = true;
    ASSERT_SUCCESS(cuMemAlloc(&sh.x, sizeof got));
    ASSERT_SUCCESS(cuMemAlloc(&sh.y, sizeof got));
    ASSERT_SUCCESS(cuMemsetD32(sh.x, 0x3f800000, N));
    ASSERT_SUCCESS(cuMemsetD32(sh.y, 0, N));
    ASSERT_SUCCESS(cuCtxSynchronize());
    void *args[] = {&k, &sh.x, &sh.y, &len};
    CUDA_KERNEL_NODE_PARAMS p = {.func = saxpy, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1};
    p.blockDimX = N;
    p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = args;
    ASSERT_SUCCESS(cuGraphCreate(&sh.graph, 0));
    ASSERT_SUCCESS(cuGraphAddKernelNode(&sh.node, sh.graph, NULL, 0, &p));
    ASSERT_SUCCESS(cuGraphInstantiate(&sh.exec, sh.graph, 0));
    all(abuse, &sh);
    ASSERT_SUCCESS(cuGraphExecDestroy(sh.exec));
    ASSERT_SUCCESS(cuCtxSynchronize());
    ASSERT_SUCCESS(cuMemcpyDtoH(got, sh.y, sizeof got));
    for (int i = 0; i < N; i++)
        right &= got[i] == THREADS * 40;
    CHECK(right);
    DESTROY(sh.graph, sh.x, sh.y);
}

int main(void)
{
    CUdevice dev = first_device();
    ASSERT_SUCCESS(cuCtxCreate(&ctx, 0, dev));
    CUmodule m = new_module(kernels_ptx);
    ASSERT_SUCCESS(cuModuleGetFunction(&saxpy, m, "saxpy"));
    ASSERT_SUCCESS(cuModuleGetFunction(&tick, m, "tick"));
    all(work, NULL);
    CHECK(wrong == 0);
    CHECK(calls == THREADS * ROUNDS * 3);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    for (double until = seconds() + 20; ends != THREADS * ROUNDS && seconds() < until;)
        ASSERT_SUCCESS(cuCtxSynchronize());
    CHECK(ends == THREADS * ROUNDS);
    if (simulated(dev))
        PART(sharing());
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
