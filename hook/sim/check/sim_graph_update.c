/* sim_graph_update.c: changes of graphs and of their instances, one node at a time and as a whole;
 * attributes; nodes of any kind through one call; user objects. */
#define _GNU_SOURCE
#include "kernels.h"
#include "nodes.h"
#include "objects.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

static CUcontext ctx;
static CUfunction vadd, saxpy, tick;
static CUstream stream;
static CUdeviceptr words;
static bool sim;

static CUDA_MEMCPY3D copy(CUdeviceptr from, CUdeviceptr to, size_t n)
{
    CUDA_MEMCPY3D p = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = from, .dstDevice = to};
    p.srcPitch = p.dstPitch = p.WidthInBytes = n;
    p.srcHeight = p.dstHeight = p.Height = p.Depth = 1;
    return p;
}

static int word(int i)
{
    int v = 0;
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    ASSERT_SUCCESS(cuMemcpyDtoH(&v, words + 4 * (unsigned)i, 4));
    return v;
}

static void zero(void)
{
    ASSERT_SUCCESS(cuMemsetD32(words, 0, 64));
    ASSERT_SUCCESS(cuCtxSynchronize());
}

static atomic_int called[4];

static void count(void *data)
{
    atomic_fetch_add((atomic_int *)data, 1);
}

/* An instance has its own values: a change of the graph does not affect it. */
static void set_params(void)
{
    CUgraphNode set, cpy, call;
    CUgraph g = new_graph();
    CUDA_MEMSET_NODE_PARAMS p = fill(words, 1, 1), q;
    CUDA_MEMCPY3D c = copy(words, words + 4, 4), d;
    CUDA_HOST_NODE_PARAMS h = {count, &called[0]}, i;
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&set, g, NULL, 0, &p, ctx));
    ASSERT_SUCCESS(cuGraphAddMemcpyNode(&cpy, g, &set, 1, &c, ctx));
    ASSERT_SUCCESS(cuGraphAddHostNode(&call, g, &cpy, 1, &h));
    CUgraphExec e = new_instance(g);
    p.value = 2;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphMemsetNodeSetParams(set, &p));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphMemsetNodeGetParams(set, &q));
    CHECK(q.value == 2 && q.dst == words && q.width == 1 && q.elementSize == 4);
    c.dstDevice = words + 8;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphMemcpyNodeSetParams(cpy, &c));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphMemcpyNodeGetParams(cpy, &d));
    CHECK(d.dstDevice == words + 8 && d.WidthInBytes == 4);
    h.userData = &called[1];
    CHECK_RESULT(CUDA_SUCCESS, cuGraphHostNodeSetParams(call, &h));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphHostNodeGetParams(call, &i));
    CHECK(i.fn == count && i.userData == &called[1]);
    zero();
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    CHECK(word(0) == 1 && word(1) == 1 && word(2) == 0 && called[0] == 1 && called[1] == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecMemsetNodeSetParams(e, set, &p, ctx));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecMemcpyNodeSetParams(e, cpy, &c, ctx));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecHostNodeSetParams(e, call, &h));
    zero();
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    CHECK(word(0) == 2 && word(1) == 0 && word(2) == 2 && called[0] == 1 && called[1] == 1);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(e, cpy, &p, ctx)); /* another kind */
    p.elementSize = 3;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(e, set, &p, ctx));
    c.srcMemoryType = CU_MEMORYTYPE_HOST;
    c.srcHost = &p;
    /* another type of source */
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemcpyNodeSetParams(e, cpy, &c, ctx));
    DESTROY(e, g);
}

/* A launch uses the values from the time of the launch, whatever changes afterwards. */
static void in_flight(void)
{
    CUgraphNode wait, set, up;
    float k = 1, got = 0;
    int n = 1;
    CUdeviceptr x = new_memory(8);
    ASSERT_SUCCESS(cuMemsetD32(x, 0x3f800000, 2)); /* 1.0f */
    CUgraph g = new_graph();
    CUdeviceptr y = x + 4;
    void *args[] = {&k, &x, &y, &n};
    CUDA_KERNEL_NODE_PARAMS t = kernel(tick, 1, 1, NULL), p = kernel(saxpy, 1, 1, args);
    ASSERT_SUCCESS(cuGraphAddKernelNode(&wait, g, NULL, 0, &t));
    ASSERT_SUCCESS(cuGraphAddKernelNode(&up, g, &wait, 1, &p)); /* y += k x */
    CUgraphExec e = new_instance(g);
    CUDA_MEMSET_NODE_PARAMS s = fill(words, 7, 1);
    for (int i = 0; i < 6; i++) {
        ASSERT_SUCCESS(cuGraphLaunch(e, stream));
        k += 1;
        ASSERT_SUCCESS(cuGraphExecKernelNodeSetParams(e, up, &p));
    }
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    ASSERT_SUCCESS(cuMemcpyDtoH(&got, y, 4));
    CHECK(got == 1 + 1 + 2 + 3 + 4 + 5 + 6);
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&set, g, &up, 1, &s, ctx)); /* in the graph, not in the instance */
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(e, set, &s, ctx));
    DESTROY(e, g, x);
}

static void kernels(void)
{
    CUgraphNode n, m;
    CUDA_KERNEL_NODE_PARAMS p, q;
    CUdeviceptr a = words;
    int len = 3;
    void *args[] = {&a, &a, &a, &len};
    unsigned char buf[28];
    size_t size = sizeof buf;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buf, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    CUkernelNodeAttrValue v, w;
    CUgraph g = new_graph();
    p = kernel(vadd, 2, 32, args);
    ASSERT_SUCCESS(cuGraphAddKernelNode(&n, g, NULL, 0, &p));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeGetParams(n, &q));
    CHECK(q.func == vadd && q.gridDimX == 2 && q.blockDimX == 32 && q.extra == NULL && q.kernelParams != NULL);
    CHECK(*(CUdeviceptr *)q.kernelParams[0] == words && *(int *)q.kernelParams[3] == 3);
    CHECK(q.kernelParams[0] != (void *)&a);
    for (int i = 0; i < 3; i++)
        memcpy(buf + 8 * i, &a, 8);
    memcpy(buf + 24, &len, 4);
    p.kernelParams = NULL;
    p.extra = extra;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeSetParams(n, &p));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeGetParams(n, &q));
    SIM_CHECK(q.kernelParams == NULL && q.extra != NULL);
    p.kernelParams = args;
    SIM_CHECK(cuGraphKernelNodeSetParams(n, &p) != CUDA_SUCCESS); /* parameters or extra, not both */
    p.extra = NULL;
    ASSERT_SUCCESS(cuGraphKernelNodeSetParams(n, &p));
    memset(&v, 0, sizeof v);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeGetAttribute(n, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v));
    SIM_CHECK(v.priority == 0);
    v.priority = -1;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeSetAttribute(n, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeGetAttribute(n, CU_LAUNCH_ATTRIBUTE_PRIORITY, &w));
    CHECK(w.priority == -1);
    ASSERT_SUCCESS(cuGraphAddKernelNode(&m, g, NULL, 0, &p));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeCopyAttributes(m, n));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeGetAttribute(m, CU_LAUNCH_ATTRIBUTE_PRIORITY, &w));
    CHECK(w.priority == -1);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeGetAttribute(m, (CUkernelNodeAttrID)900, &w));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeSetAttribute(m, CU_LAUNCH_ATTRIBUTE_PRIORITY, NULL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeCopyAttributes(m, NULL));
    ASSERT_SUCCESS(cuGraphDestroy(g));
}

static void enabling(void)
{
    CUgraphNode one, two, none;
    unsigned is = 7;
    CUgraph g = new_graph();
    CUDA_MEMSET_NODE_PARAMS p = fill(words, 1, 1), q = fill(words, 2, 1);
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&one, g, NULL, 0, &p, ctx));
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&two, g, &one, 1, &q, ctx));
    ASSERT_SUCCESS(cuGraphAddEmptyNode(&none, g, &two, 1));
    CUgraphExec e = new_instance(g);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetEnabled(e, two, &is));
    CHECK(is == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeSetEnabled(e, two, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetEnabled(e, two, &is));
    CHECK(is == 0);
    zero();
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    CHECK(word(0) == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeSetEnabled(e, two, 1));
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    CHECK(word(0) == 2);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetEnabled(e, NULL, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetEnabled(e, two, NULL));
    SIM_CHECK(cuGraphNodeSetEnabled(e, none, 0) != CUDA_SUCCESS); /* kernels, copies and sets only */
    DESTROY(e, g);
}

/* Makes a graph: a memset, then a kernel or another memset, then empty nodes up to `nodes`. */
static CUgraph shape(unsigned value, int second, int nodes)
{
    CUgraphNode n, last;
    CUgraph g = new_graph();
    CUDA_MEMSET_NODE_PARAMS p = fill(words, value, 1), q = fill(words + 4, value, 1);
    CUDA_KERNEL_NODE_PARAMS k = kernel(tick, 1, 1, NULL);
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&last, g, NULL, 0, &p, ctx));
    if (second == CU_GRAPH_NODE_TYPE_KERNEL)
        ASSERT_SUCCESS(cuGraphAddKernelNode(&n, g, &last, 1, &k));
    else
        ASSERT_SUCCESS(cuGraphAddMemsetNode(&n, g, &last, 1, &q, ctx));
    for (int i = 2; i < nodes; i++) {
        last = n;
        ASSERT_SUCCESS(cuGraphAddEmptyNode(&n, g, &last, 1));
    }
    return g;
}

static void update(void)
{
    CUgraph a = shape(1, CU_GRAPH_NODE_TYPE_KERNEL, 2), b = shape(5, CU_GRAPH_NODE_TYPE_KERNEL, 2);
    CUgraph longer = shape(1, CU_GRAPH_NODE_TYPE_KERNEL, 3), other = shape(1, CU_GRAPH_NODE_TYPE_MEMSET, 2);
    CUgraph loose = shape(1, CU_GRAPH_NODE_TYPE_KERNEL, 2);
    CUgraphNode from, to;
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    size_t n = 1;
    CUgraphExec e = new_instance(a);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecUpdate(e, b, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    zero();
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    CHECK(word(0) == 5);
    CHECK_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(e, longer, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && info.errorNode == NULL);
    CHECK_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(e, other, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED && info.errorNode != NULL);
    ASSERT_SUCCESS(cuGraphGetEdges(loose, &from, &to, &n));
    ASSERT_SUCCESS(cuGraphRemoveDependencies(loose, &from, &to, 1));
    CHECK_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(e, loose, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    zero();
    ASSERT_SUCCESS(cuGraphLaunch(e, stream)); /* with its old values */
    CHECK(word(0) == 5);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphExecUpdate(NULL, b, &info));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphExecUpdate(e, NULL, &info));
    DESTROY(e, a, b, longer, other, loose);
}

static void child(void)
{
    CUgraph g, a = shape(1, CU_GRAPH_NODE_TYPE_MEMSET, 2), b = shape(4, CU_GRAPH_NODE_TYPE_MEMSET, 2);
    CUgraph longer = shape(4, CU_GRAPH_NODE_TYPE_MEMSET, 3);
    CUgraphNode first, inner, last;
    ASSERT_SUCCESS(cuGraphCreate(&g, 0));
    ASSERT_SUCCESS(cuGraphAddEmptyNode(&first, g, NULL, 0));
    ASSERT_SUCCESS(cuGraphAddChildGraphNode(&inner, g, &first, 1, a));
    ASSERT_SUCCESS(cuGraphAddEmptyNode(&last, g, &inner, 1));
    CUgraphExec e = new_instance(g);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecChildGraphNodeSetParams(e, inner, b));
    zero();
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    CHECK(word(0) == 4 && word(1) == 4);
    SIM_CHECK(cuGraphExecChildGraphNodeSetParams(e, inner, longer) != CUDA_SUCCESS);
    SIM_CHECK(cuGraphExecChildGraphNodeSetParams(e, last, b) != CUDA_SUCCESS);
    DESTROY(e, g, a, b, longer);
}

/* Nodes of all kinds through the generic call. */
static void generic(void)
{
    CUgraphNode set, run, host, none;
    CUgraphNodeType type;
    CUgraphExec e;
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, .hUploadStream = stream};
    cuuint64_t flags = 9;
    CUgraph g = new_graph();
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset.dst = words,
                           .memset.value = 3, .memset.elementSize = 4};
    p.memset.width = p.memset.height = 1;
    p.memset.ctx = ctx;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddNode(&set, g, NULL, 0, &p));
    memset(&p, 0, sizeof p);
    p.type = CU_GRAPH_NODE_TYPE_KERNEL;
    p.kernel = kernel(tick, 1, 1, NULL);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddNode(&run, g, &set, 1, &p));
    memset(&p, 0, sizeof p);
    p.type = CU_GRAPH_NODE_TYPE_HOST;
    p.host.fn = count;
    p.host.userData = &called[2];
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddNode(&host, g, &run, 1, &p));
    p.host.userData = &called[3];
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeSetParams(host, &p));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetParams(run, &p));
    memset(&p, 0, sizeof p);
    p.type = CU_GRAPH_NODE_TYPE_EMPTY;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddNode(&none, g, &host, 1, &p));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeGetType(host, &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_HOST);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&none, g, NULL, 0, NULL));
    p.type = (CUgraphNodeType)200;
    SIM_CHECK(cuGraphAddNode(&none, g, NULL, 0, &p) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiateWithParams(&e, g, &how));
    CHECK(how.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS && how.hErrNode_out == NULL);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecGetFlags(e, &flags));
    CHECK(flags == 0);
    zero();
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    CHECK(word(0) == 3 && called[2] == 0 && called[3] == 1);
    memset(&p, 0, sizeof p);
    p.type = CU_GRAPH_NODE_TYPE_HOST;
    p.host.fn = count;
    p.host.userData = &called[2];
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecNodeSetParams(e, host, &p));
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    CHECK(called[2] == 1);
    ASSERT_SUCCESS(cuGraphExecDestroy(e));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&e, g, 1 << 20));
    ASSERT_SUCCESS(cuGraphDestroy(g));
}

/* The forms of CUDA 13.4, which older drivers lack: a kernel node names its function's context, or
 * no context. */
static void own_context(void)
{
    CUresult (*add)(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t, CUgraphNodeParams *);
    CUresult (*set)(CUgraphNode, CUgraphNodeParams *);
    CUgraphNode node;
    *(void **)&add = dlsym(RTLD_DEFAULT, "cuGraphAddNode_v3");
    *(void **)&set = dlsym(RTLD_DEFAULT, "cuGraphNodeSetParams_v2");
    CHECK(!sim || (add && set));
    if (!add || !set)
        return;
    CUcontext other = new_context(first_device());
    ASSERT_SUCCESS(cuCtxSetCurrent(ctx));
    CUgraph g = new_graph();
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    p.kernel = kernel(tick, 1, 1, NULL);
    CHECK_RESULT(CUDA_SUCCESS, add(&node, g, NULL, NULL, 0, &p));
    p.kernel.ctx = ctx;
    CHECK_RESULT(CUDA_SUCCESS, add(&node, g, NULL, NULL, 0, &p));
    CHECK_RESULT(CUDA_SUCCESS, set(node, &p));
    p.kernel.ctx = other;
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, add(&node, g, NULL, NULL, 0, &p));
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, set(node, &p));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, add(&node, g, NULL, NULL, 0, NULL));
    DESTROY(g, other);
}

static atomic_int ended;

static void end(void *data)
{
    atomic_fetch_add(&ended, *(int *)data);
}

static bool becomes(int want)
{
    for (double until = seconds() + 20; ended != want && seconds() < until;)
        usleep(1000);
    return ended == want;
}

static void objects(void)
{
    static int one = 1, ten = 10;
    CUgraph g, copy_of;
    CUuserObject o, p;
    CUgraphNode n;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&o, &one, end, 1, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                     cuUserObjectCreate(&o, &one, NULL, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&o, &one, end, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CHECK_RESULT(CUDA_SUCCESS, cuUserObjectCreate(&o, &one, end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CHECK_RESULT(CUDA_SUCCESS, cuUserObjectRetain(o, 2));
    CHECK_RESULT(CUDA_SUCCESS, cuUserObjectRelease(o, 2));
    CHECK(ended == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuUserObjectRelease(o, 1));
    CHECK(becomes(1));
    ASSERT_SUCCESS(cuUserObjectCreate(&p, &ten, end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    ASSERT_SUCCESS(cuGraphCreate(&g, 0));
    CUDA_KERNEL_NODE_PARAMS k = kernel(tick, 1, 1, NULL);
    ASSERT_SUCCESS(cuGraphAddKernelNode(&n, g, NULL, 0, &k));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphRetainUserObject(g, p, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphRetainUserObject(g, p, 2, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphReleaseUserObject(g, p, 1));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphRetainUserObject(g, p, 0, 0));
    ASSERT_SUCCESS(cuGraphClone(&copy_of, g));
    ASSERT_SUCCESS(cuGraphDestroy(g));
    CUgraphExec e = new_instance(copy_of);
    ASSERT_SUCCESS(cuGraphDestroy(copy_of));
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    CHECK(ended == 1);
    ASSERT_SUCCESS(cuGraphExecDestroy(e));
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    CHECK(becomes(11));
}

/* An update cannot move a node to another context. */
static void contexts(void)
{
    CUgraph a = shape(1, CU_GRAPH_NODE_TYPE_KERNEL, 2), b;
    CUgraphNode n, last;
    CUgraphExecUpdateResultInfo info;
    CUgraphExec e = new_instance(a);
    CUcontext other = new_context(0);
    CUmodule m = new_module(kernels_ptx);
    CUfunction there = function_of(m, "tick");
    CUdeviceptr far = new_memory(4);
    ASSERT_SUCCESS(cuGraphCreate(&b, 0));
    CUDA_MEMSET_NODE_PARAMS p = fill(words, 1, 1), q = fill(far, 1, 1);
    CUDA_KERNEL_NODE_PARAMS k = kernel(there, 1, 1, NULL);
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&last, b, NULL, 0, &p, ctx));
    ASSERT_SUCCESS(cuGraphAddKernelNode(&n, b, &last, 1, &k));
    CHECK_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(e, b, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE ||
          info.result == CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED);
    ASSERT_SUCCESS(cuGraphDestroy(b));
    ASSERT_SUCCESS(cuCtxSetCurrent(ctx));
    size_t count_of = 1;
    ASSERT_SUCCESS(cuGraphGetRootNodes(a, &n, &count_of));
    SIM_CHECK(cuGraphExecMemsetNodeSetParams(e, n, &q, other) != CUDA_SUCCESS);
    DESTROY(e, a, other);
}

/* Instances that need an unloaded module can no longer be launched. */
static void unloaded(void)
{
    CUgraphNode n;
    CUgraphExec e, late;
    CUgraphExecUpdateResultInfo info;
    CUmodule m = new_module(kernels_ptx);
    CUfunction f = function_of(m, "tick");
    CUgraph g = new_graph();
    CUDA_KERNEL_NODE_PARAMS k = kernel(f, 1, 1, NULL);
    ASSERT_SUCCESS(cuGraphAddKernelNode(&n, g, NULL, 0, &k));
    ASSERT_SUCCESS(cuGraphInstantiate(&e, g, 0));
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(m));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(e, stream));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphInstantiate(&late, g, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphNodeSetEnabled(e, n, 0)); /* allowed, but of no use */
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(e, stream));
    ASSERT_SUCCESS(cuModuleLoadData(&m, kernels_ptx));
    ASSERT_SUCCESS(cuModuleGetFunction(&f, m, "slow"));
    k.func = f;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphKernelNodeSetParams(n, &k));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphExecUpdate(e, g, &info)); /* the instance has all that it needs again */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(m));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(e, stream));
    DESTROY(e, g);
}

int main(void)
{
    CUdevice dev = first_device();
    sim = simulated(dev);
    ASSERT_SUCCESS(cuCtxCreate(&ctx, 0, dev));
    CUmodule m = new_module(kernels_ptx);
    ASSERT_SUCCESS(cuModuleGetFunction(&vadd, m, "vadd"));
    ASSERT_SUCCESS(cuModuleGetFunction(&saxpy, m, "saxpy"));
    ASSERT_SUCCESS(cuModuleGetFunction(&tick, m, "tick"));
    ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASSERT_SUCCESS(cuMemAlloc(&words, 256));
    PART(set_params());
    PART(in_flight());
    PART(kernels());
    PART(enabling());
    PART(update());
    PART(child());
    PART(generic());
    PART(own_context());
    PART(objects());
    PART(contexts());
    if (sim) /* on a real driver this is undefined */
        PART(unloaded());
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
