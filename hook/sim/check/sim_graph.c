/* sim_graph.c: graphs made by hand: their nodes and edges, the effects of a launch, and the order
 * of these. */
#include "kernels.h"
#include "nodes.h"
#include "objects.h"

#include <stdint.h>
#include <unistd.h>

#define N 256

static CUcontext ctx;
static CUmodule module;
static CUfunction vadd, saxpy, tick, slow;
static bool sim;
static int sms;

static CUDA_MEMCPY3D bytes(CUmemorytype from, const void *src, CUmemorytype to, const void *dst, size_t n)
{
    CUDA_MEMCPY3D p = {.srcMemoryType = from, .dstMemoryType = to, .WidthInBytes = n, .Height = 1, .Depth = 1};
    if (from == CU_MEMORYTYPE_HOST)
        p.srcHost = src;
    else
        p.srcDevice = *(const CUdeviceptr *)src;
    if (to == CU_MEMORYTYPE_HOST)
        p.dstHost = (void *)(uintptr_t)dst;
    else
        p.dstDevice = *(const CUdeviceptr *)dst;
    p.srcPitch = p.dstPitch = n;
    p.srcHeight = p.dstHeight = 1;
    return p;
}

static int calls[4];

static void count(void *data)
{
    ++*(int *)data;
}

static void launch_and_wait(CUgraphExec e, CUstream s)
{
    GIVES(CUDA_SUCCESS, cuGraphLaunch(e, s));
    MUST(cuStreamSynchronize(s));
}

/* a = host; b = 2; c = a + b; host2 = c; then a host function: in this order, several times. */
static void chain(void)
{
    float *in, *out;
    CUgraph g;
    CUgraphNode copy_in, set, add, copy_out, call, none;
    CUgraphExec e;
    int n = N;
    MUST(cuMemHostAlloc((void **)&in, N * 4, 0));
    MUST(cuMemHostAlloc((void **)&out, N * 4, 0));
    CUdeviceptr a = new_memory(N * 4), b = new_memory(N * 4), c = new_memory(N * 4);
    CUstream s = new_stream();
    void *args[] = {&a, &b, &c, &n};
    CUDA_KERNEL_NODE_PARAMS k = kernel(vadd, 1, N, args);
    CUDA_MEMCPY3D to = bytes(CU_MEMORYTYPE_HOST, in, CU_MEMORYTYPE_DEVICE, &a, N * 4);
    CUDA_MEMCPY3D from = bytes(CU_MEMORYTYPE_DEVICE, &c, CU_MEMORYTYPE_HOST, out, N * 4);
    CUDA_MEMSET_NODE_PARAMS two = fill(b, 0x40000000, N); /* 2.0f */
    CUDA_HOST_NODE_PARAMS h = {count, &calls[0]};
    GIVES(CUDA_SUCCESS, cuGraphCreate(&g, 0));
    GIVES(CUDA_SUCCESS, cuGraphAddMemcpyNode(&copy_in, g, NULL, 0, &to, ctx));
    GIVES(CUDA_SUCCESS, cuGraphAddMemsetNode(&set, g, NULL, 0, &two, ctx));
    CUgraphNode both[] = {copy_in, set};
    GIVES(CUDA_SUCCESS, cuGraphAddEmptyNode(&none, g, both, 2));
    GIVES(CUDA_SUCCESS, cuGraphAddKernelNode(&add, g, &none, 1, &k));
    GIVES(CUDA_SUCCESS, cuGraphAddMemcpyNode(&copy_out, g, &add, 1, &from, ctx));
    GIVES(CUDA_SUCCESS, cuGraphAddHostNode(&call, g, &copy_out, 1, &h));
    n = 0; /* the node has the values from the time of its creation */
    GIVES(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < N; i++)
            in[i] = (float)(i * round);
        launch_and_wait(e, s);
        bool right = true;
        for (int i = 0; i < N; i++)
            right &= out[i] == (float)(i * round + 2);
        CHECK(right);
        CHECK(calls[0] == round);
    }
    GIVES(CUDA_SUCCESS, cuGraphUpload(e, s));
    GIVES(CUDA_SUCCESS, cuGraphDestroy(g)); /* an instance outlives its graph */
    launch_and_wait(e, s);
    CHECK(calls[0] == 4);
    GIVES(CUDA_SUCCESS, cuGraphLaunch(e, CU_STREAM_PER_THREAD));
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(CU_STREAM_PER_THREAD));
    GIVES(CUDA_SUCCESS, cuGraphLaunch(e, NULL));
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(calls[0] == 6);
    for (int i = 0; i < 5; i++)
        MUST(cuGraphLaunch(e, s));
    GIVES(CUDA_SUCCESS, cuGraphExecDestroy(e)); /* while it is in flight */
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(calls[0] == 11);
    DESTROY(s, a, b, c);
    MUST(cuMemFreeHost(in));
    MUST(cuMemFreeHost(out));
}

static CUgraphNode empty_after(CUgraph g, const CUgraphNode *deps, size_t n)
{
    CUgraphNode node = NULL;
    MUST(cuGraphAddEmptyNode(&node, g, deps, n));
    return node;
}

static void structure(void)
{
    CUgraphNode a, b, c, d, list[8], from[8], to[8];
    CUgraphNodeType type;
    size_t n = 0;
    CUgraph g = new_graph();
    a = empty_after(g, NULL, 0);
    b = empty_after(g, &a, 1);
    c = empty_after(g, &a, 1);
    d = empty_after(g, (CUgraphNode[]){b, c}, 2);
    GIVES(CUDA_SUCCESS, cuGraphNodeGetType(a, &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_EMPTY);
    GIVES(CUDA_SUCCESS, cuGraphGetNodes(g, NULL, &n));
    CHECK(n == 4);
    n = 8;
    GIVES(CUDA_SUCCESS, cuGraphGetNodes(g, list, &n));
    CHECK(n == 4 && list[4] == NULL && list[7] == NULL);
    n = 0;
    GIVES(CUDA_SUCCESS, cuGraphGetRootNodes(g, NULL, &n));
    CHECK(n == 1);
    GIVES(CUDA_SUCCESS, cuGraphGetRootNodes(g, list, &n));
    CHECK(list[0] == a);
    GIVES(CUDA_SUCCESS, cuGraphGetEdges(g, NULL, NULL, &n));
    CHECK(n == 4);
    GIVES(CUDA_SUCCESS, cuGraphGetEdges(g, from, to, &n));
    n = 8;
    GIVES(CUDA_SUCCESS, cuGraphNodeGetDependencies(d, list, &n));
    CHECK(n == 2 && ((list[0] == b && list[1] == c) || (list[0] == c && list[1] == b)));
    n = 8;
    GIVES(CUDA_SUCCESS, cuGraphNodeGetDependentNodes(a, list, &n));
    CHECK(n == 2);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &a, &b, 1)); /* the edge exists already */
    GIVES(CUDA_SUCCESS, cuGraphAddDependencies(g, &a, &d, 1));
    GIVES(CUDA_SUCCESS, cuGraphRemoveDependencies(g, &a, &d, 1));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(g, &a, &d, 1));
    GIVES(CUDA_SUCCESS, cuGraphDestroyNode(c));
    n = 8;
    GIVES(CUDA_SUCCESS, cuGraphNodeGetDependencies(d, list, &n));
    CHECK(n == 1 && list[0] == b);
    GIVES(CUDA_SUCCESS, cuGraphGetEdges(g, NULL, NULL, &n));
    CHECK(n == 2);
    GIVES(CUDA_SUCCESS, cuGraphDestroy(g));
}

/* Finds the counterparts of nodes in a clone of their graph. */
static void clones(void)
{
    CUgraph g, copy, inner;
    CUgraphNode a, b, child, found, other;
    MUST(cuGraphCreate(&inner, 0));
    empty_after(inner, NULL, 0);
    MUST(cuGraphCreate(&g, 0));
    a = empty_after(g, NULL, 0);
    b = empty_after(g, &a, 1);
    GIVES(CUDA_SUCCESS, cuGraphAddChildGraphNode(&child, g, &b, 1, inner));
    GIVES(CUDA_SUCCESS, cuGraphDestroy(inner)); /* the node has a copy */
    GIVES(CUDA_SUCCESS, cuGraphChildGraphNodeGetGraph(child, &inner));
    size_t n = 0;
    GIVES(CUDA_SUCCESS, cuGraphGetNodes(inner, NULL, &n));
    CHECK(n == 1);
    GIVES(CUDA_SUCCESS, cuGraphClone(&copy, g));
    GIVES(CUDA_SUCCESS, cuGraphNodeFindInClone(&found, b, copy));
    CHECK(found != b);
    n = 1;
    GIVES(CUDA_SUCCESS, cuGraphNodeGetDependencies(found, &other, &n));
    GIVES(CUDA_SUCCESS, cuGraphNodeFindInClone(&found, a, copy));
    CHECK(n == 1 && other == found);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&found, other, copy));
    GIVES(CUDA_SUCCESS, cuGraphDestroy(g));
    GIVES(CUDA_SUCCESS, cuGraphGetNodes(copy, NULL, &n));
    CHECK(n == 3);
    GIVES(CUDA_SUCCESS, cuGraphDestroy(copy));
}

/* A child graph runs after the dependencies of its node and before the nodes that depend on it. */
static void children(void)
{
    CUgraphNode before, child, after, x, y;
    CUgraphExec e;
    int v[3] = {0};
    CUdeviceptr p = new_memory(sizeof v);
    CUstream s = new_stream();
    CUgraph g = new_graph(), inner = new_graph();
    CUDA_MEMSET_NODE_PARAMS one = fill(p, 1, 3), two = fill(p, 2, 2), three = fill(p, 3, 1);
    CUDA_HOST_NODE_PARAMS h = {count, &calls[1]};
    MUST(cuGraphAddMemsetNode(&x, inner, NULL, 0, &two, ctx));
    MUST(cuGraphAddHostNode(&y, inner, &x, 1, &h));
    MUST(cuGraphAddMemsetNode(&before, g, NULL, 0, &one, ctx));
    GIVES(CUDA_SUCCESS, cuGraphAddChildGraphNode(&child, g, &before, 1, inner));
    MUST(cuGraphAddMemsetNode(&after, g, &child, 1, &three, ctx));
    MUST(cuGraphDestroy(inner));
    GIVES(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
    launch_and_wait(e, s);
    MUST(cuMemcpyDtoH(v, p, sizeof v));
    CHECK(v[0] == 3 && v[1] == 2 && v[2] == 1);
    CHECK(calls[1] == 1);
    DESTROY(e, g);
    MUST(cuGraphCreate(&g, 0));
    MUST(cuGraphCreate(&inner, 0));
    MUST(cuGraphAddChildGraphNode(&child, g, NULL, 0, inner)); /* an empty child graph */
    GIVES(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
    launch_and_wait(e, s);
    DESTROY(e, g);
    GIVES(CUDA_SUCCESS, cuGraphInstantiate(&e, inner, 0));
    launch_and_wait(e, s);
    DESTROY(e, inner, s, p);
}

static void cycles(void)
{
    CUgraphNode a, b;
    CUgraphExec e = NULL;
    CUDA_GRAPH_INSTANTIATE_PARAMS p = {0};
    CUgraph g = new_graph();
    a = empty_after(g, NULL, 0);
    b = empty_after(g, &a, 1);
    CUresult r = cuGraphAddDependencies(g, &b, &a, 1);
    CHECK(r == CUDA_SUCCESS || r == CUDA_ERROR_INVALID_VALUE); /* a driver may refuse the edge at once */
    if (r == CUDA_SUCCESS) {
        CHECK(cuGraphInstantiate(&e, g, 0) == CUDA_ERROR_INVALID_VALUE);
        USUALLY(cuGraphInstantiateWithParams(&e, g, &p) != CUDA_SUCCESS);
        CHECK(p.result_out != CUDA_GRAPH_INSTANTIATE_SUCCESS);
        if (sim)
            CHECK(p.result_out == CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE && p.hErrNode_out != NULL);
    }
    MUST(cuGraphDestroy(g));
}

/* A graph that waits for an event, launches a kernel and records an event. */
static void events(void)
{
    CUgraphNode wait, work, record;
    CUgraphExec e;
    CUevent got = NULL;
    float ms = -1;
    CUevent gate = new_event(0), mark = new_event(0), start = new_event(0);
    CUstream s = new_stream(), t = new_stream();
    CUDA_KERNEL_NODE_PARAMS k = kernel(tick, 1, 1, NULL);
    CUgraph g = new_graph();
    GIVES(CUDA_SUCCESS, cuGraphAddEventWaitNode(&wait, g, NULL, 0, gate));
    MUST(cuGraphAddKernelNode(&work, g, &wait, 1, &k));
    GIVES(CUDA_SUCCESS, cuGraphAddEventRecordNode(&record, g, &work, 1, mark));
    GIVES(CUDA_SUCCESS, cuGraphEventRecordNodeGetEvent(record, &got));
    CHECK(got == mark);
    GIVES(CUDA_SUCCESS, cuGraphEventWaitNodeGetEvent(wait, &got));
    CHECK(got == gate);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphEventWaitNodeGetEvent(record, &got));
    GIVES(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
    launch_and_wait(e, s);
    GIVES(CUDA_SUCCESS, cuEventQuery(mark));
    MUST(cuLaunchKernel(slow, 10u * (unsigned)sms, 1, 1, 1, 1, 1, 0, t, NULL, NULL)); /* makes the following work queue up */
    MUST(cuEventRecord(start, t));
    MUST(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, t, NULL, NULL));
    MUST(cuEventRecord(gate, t));
    GIVES(CUDA_SUCCESS, cuGraphLaunch(e, s));
    GIVES(CUDA_SUCCESS, cuEventSynchronize(mark));
    GIVES(CUDA_SUCCESS, cuEventQuery(gate));
    GIVES(CUDA_SUCCESS, cuEventElapsedTime(&ms, start, mark));
    CHECK(ms >= 0);
    if (sim)
        CHECK(ms > 2.999 && ms < 3.5);
    MUST(cuStreamSynchronize(s));
    DESTROY(e, g, gate, mark, start, s);
    MUST(cuStreamDestroy(t));
}

/* Launches of one instance run one after the other, in whatever streams. */
static void one_at_a_time(void)
{
    CUgraphNode node, last = NULL;
    CUstream s[3];
    int n = N;
    float k = 1, *zeros, *got;
    bool right = true;
    CUdeviceptr x = new_memory(N * 4), y = new_memory(N * 4);
    MUST(cuMemHostAlloc((void **)&zeros, 2 * N * 4, 0));
    got = zeros + N;
    for (int i = 0; i < N; i++)
        zeros[i] = 1;
    MUST(cuMemcpyHtoD(x, zeros, N * 4));
    MUST(cuMemcpyHtoD(y, zeros, N * 4));
    void *args[] = {&k, &x, &y, &n};
    CUDA_KERNEL_NODE_PARAMS p = kernel(saxpy, 1, N, args);
    CUgraph g = new_graph();
    for (int i = 0; i < 4; i++) {
        MUST(cuGraphAddKernelNode(&node, g, last ? &last : NULL, last != NULL, &p));
        last = node;
    }
    CUgraphExec e = new_instance(g);
    for (int i = 0; i < 3; i++)
        MUST(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 30; i++)
        MUST(cuGraphLaunch(e, s[i % 3]));
    for (int i = 0; i < 3; i++)
        GIVES(CUDA_SUCCESS, cuStreamSynchronize(s[i]));
    MUST(cuMemcpyDtoH(got, y, N * 4));
    for (int i = 0; i < N; i++)
        right &= got[i] == 1 + 30 * 4;
    CHECK(right);
    for (int i = 0; i < 3; i++)
        MUST(cuStreamDestroy(s[i]));
    DESTROY(e, g, x, y);
    MUST(cuMemFreeHost(zeros));
}

static void wait_at_gate(void *open)
{
    while (!__atomic_load_n((int *)open, __ATOMIC_ACQUIRE))
        usleep(200);
}

/* On the simulated GPU, kernels in a graph take as long as outside it. */
static void cost(void)
{
    CUgraphNode a, b, c;
    float ms = 0;
    CUstream s = new_stream();
    CUevent from = new_event(0), to = new_event(0);
    CUDA_KERNEL_NODE_PARAMS k = kernel(tick, (unsigned)sms + 1, 1, NULL); /* 2 ms */
    CUgraph g = new_graph();
    MUST(cuGraphAddKernelNode(&a, g, NULL, 0, &k));
    MUST(cuGraphAddKernelNode(&b, g, &a, 1, &k));
    MUST(cuGraphAddKernelNode(&c, g, &a, 1, &k)); /* independent of b, but the SMs have room for only one kernel */
    CUgraphExec e = new_instance(g);
    /* All work is queued before the first graph begins, however busy the host is, so the graphs
     * follow the kernel without a gap. */
    int open = 0;
    MUST(cuLaunchHostFunc(s, wait_at_gate, &open));
    MUST(cuLaunchKernel(tick, (unsigned)sms, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
    MUST(cuEventRecord(from, s));
    for (int i = 0; i < 5; i++)
        MUST(cuGraphLaunch(e, s));
    MUST(cuEventRecord(to, s));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
    MUST(cuEventSynchronize(to));
    MUST(cuEventElapsedTime(&ms, from, to));
    CHECK(ms > 29.999 && ms < 30.001);
    DESTROY(e, g, from, to, s);
}

static void wrong(void)
{
    CUgraph g, h, none_made;
    CUgraphNode a, b, n;
    CUgraphExec e;
    CUDA_KERNEL_NODE_PARAMS k = kernel(tick, 1, 1, NULL);
    CUDA_HOST_NODE_PARAMS none = {NULL, NULL};
    size_t count_out;
    CUstream s = new_stream();
    MUST(cuGraphCreate(&g, 0));
    MUST(cuGraphCreate(&h, 0));
    a = empty_after(g, NULL, 0);
    b = empty_after(h, NULL, 0);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(NULL, 0));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(&none_made, 1));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(NULL));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode(NULL));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecDestroy(NULL));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(NULL, s));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphClone(NULL, g));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(NULL, g, 0));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&e, NULL, 0));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(g, NULL, NULL));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(NULL, NULL, &count_out));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(NULL, g, NULL, 0));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&n, g, NULL, 1));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&n, g, &b, 1)); /* a node of another graph */
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &a, &b, 1));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode(&n, g, NULL, 0, NULL));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddHostNode(&n, g, NULL, 0, &none));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeGetParams(a, &k)); /* not a kernel */
    k = kernel(tick, 0, 1, NULL);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode(&n, g, NULL, 0, &k));
    k = kernel(tick, 1, 4096, NULL);
    USUALLY(cuGraphAddKernelNode(&n, g, NULL, 0, &k) != CUDA_SUCCESS ||
          cuGraphInstantiate(&e, g, 0) != CUDA_SUCCESS);
    if (sim) { /* a real driver would crash on an invalid handle */
        CUgraph junk = (CUgraph)(uintptr_t)0x1234;
        USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(junk));
        USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&e, (CUgraph)(void *)s, 0));
        USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch((CUgraphExec)(void *)g, s));
        USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode((CUgraphNode)(void *)g));
        MUST(cuGraphDestroy(h));
        USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(h));
        USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode(b)); /* destroyed with its graph */
    } else {
        MUST(cuGraphDestroy(h));
    }
    DESTROY(g, s);
}

/* A failing kernel in a graph makes the context unusable, as it does outside a graph. */
static void faults(void)
{
    CUdeviceptr none = 0x10;
    CUgraphNode n, m;
    int len = N;
    void *args[] = {&none, &none, &none, &len};
    CUDA_KERNEL_NODE_PARAMS bad = kernel(vadd, 1, N, args), good = kernel(tick, 1, 1, NULL);
    CUDA_HOST_NODE_PARAMS h = {count, &calls[2]};
    CUstream s = new_stream();
    CUgraph g = new_graph();
    MUST(cuGraphAddKernelNode(&n, g, NULL, 0, &bad));
    MUST(cuGraphAddKernelNode(&m, g, &n, 1, &good));
    MUST(cuGraphAddHostNode(&n, g, &m, 1, &h));
    CUgraphExec e = new_instance(g);
    GIVES(CUDA_SUCCESS, cuGraphLaunch(e, s));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuGraphLaunch(e, s));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    if (sim)
        CHECK(calls[2] == 0);
}

int main(void)
{
    CUdevice dev = first_device();
    sim = simulated(dev);
    MUST(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev));
    MUST(cuCtxCreate(&ctx, 0, dev));
    MUST(cuModuleLoadData(&module, kernels_ptx));
    MUST(cuModuleGetFunction(&vadd, module, "vadd"));
    MUST(cuModuleGetFunction(&saxpy, module, "saxpy"));
    MUST(cuModuleGetFunction(&tick, module, "tick"));
    MUST(cuModuleGetFunction(&slow, module, "slow"));
    PART(chain());
    PART(structure());
    PART(clones());
    PART(children());
    PART(cycles());
    PART(events());
    PART(one_at_a_time());
    PART(wrong());
    if (sim)
        PART(cost());
    PART(faults()); /* last, because CUDA does not work afterwards */
    return tap_end();
}
