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
        MUST(cuGraphAddKernelNode(&n, g, last ? &last : NULL, last != NULL, &p));
        last = n;
    }
    MUST(cuUserObjectCreate(&o, &ends, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    MUST(cuGraphRetainUserObject(g, o, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CUgraphExec e = new_instance(g);
    MUST(cuGraphDestroy(g));
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
    CUgraphExec e = new_instance(g);
    DESTROY(g, fork, join);
    return e;
}

static void *work(void *arg)
{
    (void)arg;
    float got[N];
    MUST(cuCtxSetCurrent(ctx));
    CUstream s = new_stream(), t = new_stream();
    CUdeviceptr x = new_memory(sizeof got), y = new_memory(sizeof got);
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
        MUST(cuGraphExecDestroy(a)); /* with all of the work in flight */
        MUST(cuGraphExecDestroy(b));
        MUST(cuMemcpyDtoHAsync(got, y, sizeof got, s));
        MUST(cuStreamSynchronize(s));
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
    MUST(cuCtxSetCurrent(ctx));
    CUstream s = new_stream();
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
    DESTROY(sh.graph, sh.x, sh.y);
}

int main(void)
{
    CUdevice dev = first_device();
    MUST(cuCtxCreate(&ctx, 0, dev));
    CUmodule m = new_module(kernels_ptx);
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
