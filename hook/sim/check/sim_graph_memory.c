/* sim_graph_memory.c: memory that graphs allocate and free. */
#include "nodes.h"
#include "objects.h"

#define SIZE (4u << 20)

static CUcontext ctx;
static CUdevice dev;
static CUstream stream;
static bool sim;

static CUDA_MEM_ALLOC_NODE_PARAMS want(size_t n)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p = {.bytesize = n};
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.poolProps.location.id = dev;
    return p;
}

static cuuint64_t attribute(CUgraphMem_attribute a)
{
    cuuint64_t v = 99;
    ASSERT_SUCCESS(cuDeviceGetGraphMemAttribute(dev, a, &v));
    return v;
}

static int word_at(CUdeviceptr p)
{
    int v = 0;
    ASSERT_SUCCESS(cuMemcpyDtoH(&v, p, 4));
    return v;
}

/* A graph that allocates, writes, reads and frees memory. */
static void inside(void)
{
    CUgraph g, other;
    CUgraphNode alloc, set, copy, release, n;
    CUgraphExec e, second;
    CUdeviceptr out, back;
    CUDA_MEM_ALLOC_NODE_PARAMS p = want(SIZE), q;
    size_t before, during, total;
    ASSERT_SUCCESS(cuMemAlloc(&out, 4));
    ASSERT_SUCCESS(cuGraphCreate(&g, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &p));
    CHECK(p.dptr != 0);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphMemAllocNodeGetParams(alloc, &q));
    CHECK(q.dptr == p.dptr && q.bytesize == SIZE);
    CUDA_MEMSET_NODE_PARAMS s = fill(p.dptr, 11, SIZE / 4);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemsetNode(&set, g, &alloc, 1, &s, ctx));
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = p.dptr + SIZE - 4, .dstDevice = out};
    c.srcPitch = c.dstPitch = c.WidthInBytes = 4;
    c.srcHeight = c.dstHeight = c.Height = c.Depth = 1;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemcpyNode(&copy, g, &set, 1, &c, ctx));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemFreeNode(&release, g, &copy, 1, p.dptr));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphMemFreeNodeGetParams(release, &back));
    CHECK(back == p.dptr);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&n, g, &copy, 1, p.dptr)); /* freed twice */
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                     cuGraphAddMemFreeNode(&n, g, &copy, 1, out)); /* not memory of a graph */
    SIM_CHECK(cuGraphClone(&other, g) != CUDA_SUCCESS);
    SIM_CHECK(cuGraphDestroyNode(set) != CUDA_SUCCESS);
    SIM_CHECK(cuGraphRemoveDependencies(g, &alloc, &set, 1) != CUDA_SUCCESS);
    ASSERT_SUCCESS(cuGraphCreate(&other, 0));
    SIM_CHECK(cuGraphAddMemFreeNode(&n, other, NULL, 0, p.dptr) != CUDA_SUCCESS);
    SIM_CHECK(cuGraphAddChildGraphNode(&n, other, NULL, 0, g) != CUDA_SUCCESS);
    ASSERT_SUCCESS(cuGraphDestroy(other));
    ASSERT_SUCCESS(cuMemGetInfo(&before, &total));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
    SIM_CHECK(cuGraphInstantiate(&second, g, 0) != CUDA_SUCCESS); /* only one instance at a time */
    for (int i = 0; i < 3; i++) {
        s.value = 11 + (unsigned)i;
        ASSERT_SUCCESS(cuGraphExecMemsetNodeSetParams(e, set, &s, ctx));
        CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, stream));
        ASSERT_SUCCESS(cuStreamSynchronize(stream));
        CHECK(word_at(out) == 11 + i);
    }
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= SIZE);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) >= SIZE);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= SIZE);
    ASSERT_SUCCESS(cuMemGetInfo(&during, &total));
    CHECK(during + SIZE <= before || !sim);
    DESTROY(e, g);
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGraphMemTrim(dev));
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    cuuint64_t zero = 0, one = 1;
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceSetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == 0);
    SIM_CHECK(cuDeviceSetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &one) != CUDA_SUCCESS);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGraphMemTrim(99));
    ASSERT_SUCCESS(cuMemFree(out));
}

/* Memory that a graph allocates and does not free belongs to the program. */
static void left(void)
{
    CUgraphNode alloc, set, n;
    CUgraphExec e, f;
    CUDA_MEM_ALLOC_NODE_PARAMS p = want(SIZE);
    CUgraph g = new_graph();
    ASSERT_SUCCESS(cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &p));
    CUDA_MEMSET_NODE_PARAMS s = fill(p.dptr, 21, SIZE / 4);
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&set, g, &alloc, 1, &s, ctx));
    ASSERT_SUCCESS(cuGraphInstantiate(&e, g, 0));
    if (sim)
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFree(p.dptr)); /* not allocated yet */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, stream));
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    CHECK(word_at(p.dptr) == 21);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= SIZE);
    /* the memory of the last launch is still allocated */
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(e, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(p.dptr, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(p.dptr));
    if (sim)
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFree(p.dptr));
    CUgraph freeing = new_graph();
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddMemFreeNode(&n, freeing, NULL, 0, p.dptr));
    SIM_CHECK(cuGraphAddMemFreeNode(&n, g, &set, 1, p.dptr) != CUDA_SUCCESS); /* either the graph or another frees it */
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&f, freeing, 0));
    for (int i = 0; i < 3; i++) {
        CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, stream));
        CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(f, stream));
    }
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(stream));
    SIM_CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0); /* also while the instances exist */
    ASSERT_SUCCESS(cuGraphLaunch(e, stream));
    DESTROY(e, f, g, freeing);
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    CHECK(word_at(p.dptr) == 21); /* the memory outlives all of them */
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(p.dptr));
    ASSERT_SUCCESS(cuDeviceGraphMemTrim(dev));
}

static void automatic(void)
{
    CUgraphNode alloc;
    CUgraphExec e;
    CUDA_MEM_ALLOC_NODE_PARAMS p = want(SIZE);
    CUgraph g = new_graph();
    ASSERT_SUCCESS(cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &p));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphInstantiate(&e, g, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    for (int i = 0; i < 3; i++)
        CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, stream));
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(p.dptr));
    DESTROY(e, g);
    ASSERT_SUCCESS(cuDeviceGraphMemTrim(dev));
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
}

/* Captured stream-ordered allocations and frees become such nodes. */
static void captured(void)
{
    CUgraph g;
    CUdeviceptr x = 0, out;
    size_t n = 0;
    CUgraphNode nodes[8];
    CUgraphNodeType t;
    int allocs = 0, frees = 0;
    ASSERT_SUCCESS(cuMemAlloc(&out, 4));
    ASSERT_SUCCESS(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocAsync(&x, SIZE, stream));
    CHECK(x != 0);
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD32Async(x, 31, 1, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoDAsync(out, x, 4, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(x, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamEndCapture(stream, &g));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphGetNodes(g, NULL, &n));
    CHECK(n == 4);
    ASSERT_SUCCESS(cuGraphGetNodes(g, nodes, &n));
    for (size_t i = 0; i < n; i++) {
        ASSERT_SUCCESS(cuGraphNodeGetType(nodes[i], &t));
        allocs += t == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        frees += t == CU_GRAPH_NODE_TYPE_MEM_FREE;
    }
    CHECK(allocs == 1 && frees == 1);
    CUgraphExec e = new_instance(g);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphUpload(e, stream));
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, stream));
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    CHECK(word_at(out) == 31);
    DESTROY(e, g, out);
    ASSERT_SUCCESS(cuDeviceGraphMemTrim(dev));
}

/* More memory than is free: the launch fails, and no memory is lost. */
static void too_much(void)
{
    CUgraphNode alloc, last, release;
    CUgraphExec e = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS p = want(SIZE), big;
    size_t left_now, total, after;
    ASSERT_SUCCESS(cuMemGetInfo(&left_now, &total));
    CUgraph g = new_graph();
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&alloc, g, NULL, 0, NULL));
    big = want(0);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &big));
    big = want(SIZE);
    big.poolProps.location.id = 99;
    SIM_CHECK(cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &big) != CUDA_SUCCESS);
    ASSERT_SUCCESS(cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &p));
    ASSERT_SUCCESS(cuGraphAddMemFreeNode(&last, g, &alloc, 1, p.dptr));
    big = want(left_now);
    CUresult r = cuGraphAddMemAllocNode(&release, g, &alloc, 1, &big); /* too much in addition to the first allocation */
    if (r == CUDA_SUCCESS)
        r = cuGraphInstantiate(&e, g, 0);
    if (r == CUDA_SUCCESS)
        r = cuGraphLaunch(e, stream);
    CHECK(r == CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    if (e)
        ASSERT_SUCCESS(cuGraphExecDestroy(e));
    ASSERT_SUCCESS(cuGraphDestroy(g));
    ASSERT_SUCCESS(cuDeviceGraphMemTrim(dev));
    ASSERT_SUCCESS(cuMemGetInfo(&after, &total));
    CHECK(after == left_now || !sim);
}

int main(void)
{
    dev = first_device();
    sim = simulated(dev);
    ASSERT_SUCCESS(cuCtxCreate(&ctx, 0, dev));
    ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    PART(inside());
    PART(left());
    PART(automatic());
    PART(captured());
    if (sim)
        PART(too_much());
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
