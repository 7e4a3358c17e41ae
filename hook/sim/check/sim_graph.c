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
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, s));
    ASSERT_SUCCESS(cuStreamSynchronize(s));
}

/* a = host; b = 2; c = a + b; host2 = c; then a host function: in this order, several times. */
static void chain(void)
{
    float *in, *out;
    CUgraph g;
    CUgraphNode copy_in, set, add, copy_out, call, none;
    CUgraphExec e;
    int n = N;
    ASSERT_SUCCESS(cuMemHostAlloc((void **)&in, N * 4, 0));
    ASSERT_SUCCESS(cuMemHostAlloc((void **)&out, N * 4, 0));
    CUdeviceptr a = new_memory(N * 4), b = new_memory(N * 4), c = new_memory(N * 4);
    CUstream s = new_stream();
    void *args[] = {&a, &b, &c, &n};
    CUDA_KERNEL_NODE_PARAMS k = kernel(vadd, 1, N, args);
    CUDA_MEMCPY3D to = bytes(CU_MEMORYTYPE_HOST, in, CU_MEMORYTYPE_DEVICE, &a, N * 4);
    CUDA_MEMCPY3D from = bytes(CU_MEMORYTYPE_DEVICE, &c, CU_MEMORYTYPE_HOST, out, N * 4);
    CUDA_MEMSET_NODE_PARAMS two = fill(b, 0x40000000, N); /* 2.0f */
    CUDA_HOST_NODE_PARAMS h = {count, &calls[0]};
    CHECK_RESULT(CUDA_SUCCESS, cuGraphCreate(&g, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemcpyNode(&copy_in, g, NULL, 0, &to, ctx));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemsetNode(&set, g, NULL, 0, &two, ctx));
    CUgraphNode both[] = {copy_in, set};
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddEmptyNode(&none, g, both, 2));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddKernelNode(&add, g, &none, 1, &k));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemcpyNode(&copy_out, g, &add, 1, &from, ctx));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddHostNode(&call, g, &copy_out, 1, &h));
    n = 0; /* the node has the values from the time of its creation */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
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
    CHECK_RESULT(CUDA_SUCCESS, cuGraphUpload(e, s));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(g)); /* an instance outlives its graph */
    launch_and_wait(e, s);
    CHECK(calls[0] == 4);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, CU_STREAM_PER_THREAD));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(CU_STREAM_PER_THREAD));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(calls[0] == 6);
    for (int i = 0; i < 5; i++)
        ASSERT_SUCCESS(cuGraphLaunch(e, s));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecDestroy(e)); /* while it is in flight */
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(calls[0] == 11);
    DESTROY(s, a, b, c);
    ASSERT_SUCCESS(cuMemFreeHost(in));
    ASSERT_SUCCESS(cuMemFreeHost(out));
}

static CUgraphNode empty_after(CUgraph g, const CUgraphNode *deps, size_t n)
{
    CUgraphNode node = NULL;
    ASSERT_SUCCESS(cuGraphAddEmptyNode(&node, g, deps, n));
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
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetType(a, &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_EMPTY);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetNodes(g, NULL, &n));
    CHECK(n == 4);
    n = 8;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetNodes(g, list, &n));
    CHECK(n == 4 && list[4] == NULL && list[7] == NULL);
    n = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetRootNodes(g, NULL, &n));
    CHECK(n == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetRootNodes(g, list, &n));
    CHECK(list[0] == a);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetEdges(g, NULL, NULL, &n));
    CHECK(n == 4);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetEdges(g, from, to, &n));
    n = 8;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetDependencies(d, list, &n));
    CHECK(n == 2 && ((list[0] == b && list[1] == c) || (list[0] == c && list[1] == b)));
    n = 8;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetDependentNodes(a, list, &n));
    CHECK(n == 2);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &a, &b, 1)); /* the edge exists already */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddDependencies(g, &a, &d, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphRemoveDependencies(g, &a, &d, 1));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(g, &a, &d, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroyNode(c));
    n = 8;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetDependencies(d, list, &n));
    CHECK(n == 1 && list[0] == b);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetEdges(g, NULL, NULL, &n));
    CHECK(n == 2);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(g));
}

/* Finds the counterparts of nodes in a clone of their graph. */
static void clones(void)
{
    CUgraph g, copy, inner;
    CUgraphNode a, b, child, found, other;
    ASSERT_SUCCESS(cuGraphCreate(&inner, 0));
    empty_after(inner, NULL, 0);
    ASSERT_SUCCESS(cuGraphCreate(&g, 0));
    a = empty_after(g, NULL, 0);
    b = empty_after(g, &a, 1);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddChildGraphNode(&child, g, &b, 1, inner));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(inner)); /* the node has a copy */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphChildGraphNodeGetGraph(child, &inner));
    size_t n = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetNodes(inner, NULL, &n));
    CHECK(n == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphClone(&copy, g));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeFindInClone(&found, b, copy));
    CHECK(found != b);
    n = 1;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetDependencies(found, &other, &n));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeFindInClone(&found, a, copy));
    CHECK(n == 1 && other == found);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&found, other, copy));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(g));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetNodes(copy, NULL, &n));
    CHECK(n == 3);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphDestroy(copy));
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
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&x, inner, NULL, 0, &two, ctx));
    ASSERT_SUCCESS(cuGraphAddHostNode(&y, inner, &x, 1, &h));
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&before, g, NULL, 0, &one, ctx));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddChildGraphNode(&child, g, &before, 1, inner));
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&after, g, &child, 1, &three, ctx));
    ASSERT_SUCCESS(cuGraphDestroy(inner));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
    launch_and_wait(e, s);
    ASSERT_SUCCESS(cuMemcpyDtoH(v, p, sizeof v));
    CHECK(v[0] == 3 && v[1] == 2 && v[2] == 1);
    CHECK(calls[1] == 1);
    DESTROY(e, g);
    ASSERT_SUCCESS(cuGraphCreate(&g, 0));
    ASSERT_SUCCESS(cuGraphCreate(&inner, 0));
    ASSERT_SUCCESS(cuGraphAddChildGraphNode(&child, g, NULL, 0, inner)); /* an empty child graph */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
    launch_and_wait(e, s);
    DESTROY(e, g);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&e, inner, 0));
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
        SIM_CHECK(cuGraphInstantiateWithParams(&e, g, &p) != CUDA_SUCCESS);
        CHECK(p.result_out != CUDA_GRAPH_INSTANTIATE_SUCCESS);
        if (sim)
            CHECK(p.result_out == CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE && p.hErrNode_out != NULL);
    }
    ASSERT_SUCCESS(cuGraphDestroy(g));
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
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddEventWaitNode(&wait, g, NULL, 0, gate));
    ASSERT_SUCCESS(cuGraphAddKernelNode(&work, g, &wait, 1, &k));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddEventRecordNode(&record, g, &work, 1, mark));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphEventRecordNodeGetEvent(record, &got));
    CHECK(got == mark);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphEventWaitNodeGetEvent(wait, &got));
    CHECK(got == gate);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphEventWaitNodeGetEvent(record, &got));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
    launch_and_wait(e, s);
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(mark));
    /* makes the following work queue up */
    ASSERT_SUCCESS(cuLaunchKernel(slow, 10u * (unsigned)sms, 1, 1, 1, 1, 1, 0, t, NULL, NULL));
    ASSERT_SUCCESS(cuEventRecord(start, t));
    ASSERT_SUCCESS(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, t, NULL, NULL));
    ASSERT_SUCCESS(cuEventRecord(gate, t));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, s));
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(mark));
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(gate));
    CHECK_RESULT(CUDA_SUCCESS, cuEventElapsedTime(&ms, start, mark));
    CHECK(ms >= 0);
    if (sim)
        CHECK(ms > 2.999 && ms < 3.5);
    ASSERT_SUCCESS(cuStreamSynchronize(s));
    DESTROY(e, g, gate, mark, start, s);
    ASSERT_SUCCESS(cuStreamDestroy(t));
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
    ASSERT_SUCCESS(cuMemHostAlloc((void **)&zeros, 2 * N * 4, 0));
    got = zeros + N;
    for (int i = 0; i < N; i++)
        zeros[i] = 1;
    ASSERT_SUCCESS(cuMemcpyHtoD(x, zeros, N * 4));
    ASSERT_SUCCESS(cuMemcpyHtoD(y, zeros, N * 4));
    void *args[] = {&k, &x, &y, &n};
    CUDA_KERNEL_NODE_PARAMS p = kernel(saxpy, 1, N, args);
    CUgraph g = new_graph();
    for (int i = 0; i < 4; i++) {
        ASSERT_SUCCESS(cuGraphAddKernelNode(&node, g, last ? &last : NULL, last != NULL, &p));
        last = node;
    }
    CUgraphExec e = new_instance(g);
    for (int i = 0; i < 3; i++)
        ASSERT_SUCCESS(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 30; i++)
        ASSERT_SUCCESS(cuGraphLaunch(e, s[i % 3]));
    for (int i = 0; i < 3; i++)
        CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s[i]));
    ASSERT_SUCCESS(cuMemcpyDtoH(got, y, N * 4));
    for (int i = 0; i < N; i++)
        right &= got[i] == 1 + 30 * 4;
    CHECK(right);
    for (int i = 0; i < 3; i++)
        ASSERT_SUCCESS(cuStreamDestroy(s[i]));
    DESTROY(e, g, x, y);
    ASSERT_SUCCESS(cuMemFreeHost(zeros));
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
    ASSERT_SUCCESS(cuGraphAddKernelNode(&a, g, NULL, 0, &k));
    ASSERT_SUCCESS(cuGraphAddKernelNode(&b, g, &a, 1, &k));
    /* independent of b, but the SMs have room for only one kernel */
    ASSERT_SUCCESS(cuGraphAddKernelNode(&c, g, &a, 1, &k));
    CUgraphExec e = new_instance(g);
    /* All work is queued before the first graph begins, however busy the host is, so the graphs
     * follow the kernel without a gap. */
    int open = 0;
    ASSERT_SUCCESS(cuLaunchHostFunc(s, wait_at_gate, &open));
    ASSERT_SUCCESS(cuLaunchKernel(tick, (unsigned)sms, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
    ASSERT_SUCCESS(cuEventRecord(from, s));
    for (int i = 0; i < 5; i++)
        ASSERT_SUCCESS(cuGraphLaunch(e, s));
    ASSERT_SUCCESS(cuEventRecord(to, s));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
    ASSERT_SUCCESS(cuEventSynchronize(to));
    ASSERT_SUCCESS(cuEventElapsedTime(&ms, from, to));
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
    ASSERT_SUCCESS(cuGraphCreate(&g, 0));
    ASSERT_SUCCESS(cuGraphCreate(&h, 0));
    a = empty_after(g, NULL, 0);
    b = empty_after(h, NULL, 0);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(NULL, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(&none_made, 1));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(NULL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode(NULL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphExecDestroy(NULL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(NULL, s));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphClone(NULL, g));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(NULL, g, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&e, NULL, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(g, NULL, NULL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(NULL, NULL, &count_out));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(NULL, g, NULL, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&n, g, NULL, 1));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&n, g, &b, 1)); /* a node of another graph */
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &a, &b, 1));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode(&n, g, NULL, 0, NULL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddHostNode(&n, g, NULL, 0, &none));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeGetParams(a, &k)); /* not a kernel */
    k = kernel(tick, 0, 1, NULL);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode(&n, g, NULL, 0, &k));
    k = kernel(tick, 1, 4096, NULL);
    SIM_CHECK(cuGraphAddKernelNode(&n, g, NULL, 0, &k) != CUDA_SUCCESS ||
          cuGraphInstantiate(&e, g, 0) != CUDA_SUCCESS);
    if (sim) { /* a real driver would crash on an invalid handle */
        CUgraph junk = (CUgraph)(uintptr_t)0x1234;
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(junk));
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&e, (CUgraph)(void *)s, 0));
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch((CUgraphExec)(void *)g, s));
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode((CUgraphNode)(void *)g));
        ASSERT_SUCCESS(cuGraphDestroy(h));
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(h));
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode(b)); /* destroyed with its graph */
    } else {
        ASSERT_SUCCESS(cuGraphDestroy(h));
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
    ASSERT_SUCCESS(cuGraphAddKernelNode(&n, g, NULL, 0, &bad));
    ASSERT_SUCCESS(cuGraphAddKernelNode(&m, g, &n, 1, &good));
    ASSERT_SUCCESS(cuGraphAddHostNode(&n, g, &m, 1, &h));
    CUgraphExec e = new_instance(g);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, s));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuGraphLaunch(e, s));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    if (sim)
        CHECK(calls[2] == 0);
}

int main(void)
{
    CUdevice dev = first_device();
    sim = simulated(dev);
    sms = attribute_of(dev, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    ASSERT_SUCCESS(cuCtxCreate(&ctx, 0, dev));
    ASSERT_SUCCESS(cuModuleLoadData(&module, kernels_ptx));
    ASSERT_SUCCESS(cuModuleGetFunction(&vadd, module, "vadd"));
    ASSERT_SUCCESS(cuModuleGetFunction(&saxpy, module, "saxpy"));
    ASSERT_SUCCESS(cuModuleGetFunction(&tick, module, "tick"));
    ASSERT_SUCCESS(cuModuleGetFunction(&slow, module, "slow"));
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
