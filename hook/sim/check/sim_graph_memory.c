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
    MUST(cuDeviceGetGraphMemAttribute(dev, a, &v));
    return v;
}

static int word_at(CUdeviceptr p)
{
    int v = 0;
    MUST(cuMemcpyDtoH(&v, p, 4));
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
    MUST(cuMemAlloc(&out, 4));
    MUST(cuGraphCreate(&g, 0));
    GIVES(CUDA_SUCCESS, cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &p));
    CHECK(p.dptr != 0);
    GIVES(CUDA_SUCCESS, cuGraphMemAllocNodeGetParams(alloc, &q));
    CHECK(q.dptr == p.dptr && q.bytesize == SIZE);
    CUDA_MEMSET_NODE_PARAMS s = fill(p.dptr, 11, SIZE / 4);
    GIVES(CUDA_SUCCESS, cuGraphAddMemsetNode(&set, g, &alloc, 1, &s, ctx));
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = p.dptr + SIZE - 4, .dstDevice = out};
    c.srcPitch = c.dstPitch = c.WidthInBytes = 4;
    c.srcHeight = c.dstHeight = c.Height = c.Depth = 1;
    GIVES(CUDA_SUCCESS, cuGraphAddMemcpyNode(&copy, g, &set, 1, &c, ctx));
    GIVES(CUDA_SUCCESS, cuGraphAddMemFreeNode(&release, g, &copy, 1, p.dptr));
    GIVES(CUDA_SUCCESS, cuGraphMemFreeNodeGetParams(release, &back));
    CHECK(back == p.dptr);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&n, g, &copy, 1, p.dptr)); /* freed twice */
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&n, g, &copy, 1, out));    /* not memory of a graph */
    USUALLY(cuGraphClone(&other, g) != CUDA_SUCCESS);
    USUALLY(cuGraphDestroyNode(set) != CUDA_SUCCESS);
    USUALLY(cuGraphRemoveDependencies(g, &alloc, &set, 1) != CUDA_SUCCESS);
    MUST(cuGraphCreate(&other, 0));
    USUALLY(cuGraphAddMemFreeNode(&n, other, NULL, 0, p.dptr) != CUDA_SUCCESS);
    USUALLY(cuGraphAddChildGraphNode(&n, other, NULL, 0, g) != CUDA_SUCCESS);
    MUST(cuGraphDestroy(other));
    MUST(cuMemGetInfo(&before, &total));
    GIVES(CUDA_SUCCESS, cuGraphInstantiate(&e, g, 0));
    USUALLY(cuGraphInstantiate(&second, g, 0) != CUDA_SUCCESS); /* only one instance at a time */
    for (int i = 0; i < 3; i++) {
        s.value = 11 + (unsigned)i;
        MUST(cuGraphExecMemsetNodeSetParams(e, set, &s, ctx));
        GIVES(CUDA_SUCCESS, cuGraphLaunch(e, stream));
        MUST(cuStreamSynchronize(stream));
        CHECK(word_at(out) == 11 + i);
    }
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= SIZE);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) >= SIZE);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= SIZE);
    MUST(cuMemGetInfo(&during, &total));
    CHECK(during + SIZE <= before || !sim);
    DESTROY(e, g);
    GIVES(CUDA_SUCCESS, cuDeviceGraphMemTrim(dev));
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    cuuint64_t zero = 0, one = 1;
    GIVES(CUDA_SUCCESS, cuDeviceSetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == 0);
    USUALLY(cuDeviceSetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &one) != CUDA_SUCCESS);
    USUALLY_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGraphMemTrim(99));
    MUST(cuMemFree(out));
}

/* Memory that a graph allocates and does not free belongs to the program. */
static void left(void)
{
    CUgraphNode alloc, set, n;
    CUgraphExec e, f;
    CUDA_MEM_ALLOC_NODE_PARAMS p = want(SIZE);
    CUgraph g = new_graph();
    MUST(cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &p));
    CUDA_MEMSET_NODE_PARAMS s = fill(p.dptr, 21, SIZE / 4);
    MUST(cuGraphAddMemsetNode(&set, g, &alloc, 1, &s, ctx));
    MUST(cuGraphInstantiate(&e, g, 0));
    if (sim)
        USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p.dptr)); /* not allocated yet */
    GIVES(CUDA_SUCCESS, cuGraphLaunch(e, stream));
    MUST(cuStreamSynchronize(stream));
    CHECK(word_at(p.dptr) == 21);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= SIZE);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(e, stream)); /* the memory of the last launch is still allocated */
    GIVES(CUDA_SUCCESS, cuMemFreeAsync(p.dptr, stream));
    GIVES(CUDA_SUCCESS, cuGraphLaunch(e, stream));
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(stream));
    GIVES(CUDA_SUCCESS, cuMemFree(p.dptr));
    if (sim)
        USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p.dptr));
    CUgraph freeing = new_graph();
    GIVES(CUDA_SUCCESS, cuGraphAddMemFreeNode(&n, freeing, NULL, 0, p.dptr));
    USUALLY(cuGraphAddMemFreeNode(&n, g, &set, 1, p.dptr) != CUDA_SUCCESS); /* either the graph or another frees it */
    GIVES(CUDA_SUCCESS, cuGraphInstantiate(&f, freeing, 0));
    for (int i = 0; i < 3; i++) {
        GIVES(CUDA_SUCCESS, cuGraphLaunch(e, stream));
        GIVES(CUDA_SUCCESS, cuGraphLaunch(f, stream));
    }
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(stream));
    USUALLY(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0); /* also while the instances exist */
    MUST(cuGraphLaunch(e, stream));
    DESTROY(e, f, g, freeing);
    MUST(cuStreamSynchronize(stream));
    CHECK(word_at(p.dptr) == 21); /* the memory outlives all of them */
    GIVES(CUDA_SUCCESS, cuMemFree(p.dptr));
    MUST(cuDeviceGraphMemTrim(dev));
}

static void automatic(void)
{
    CUgraphNode alloc;
    CUgraphExec e;
    CUDA_MEM_ALLOC_NODE_PARAMS p = want(SIZE);
    CUgraph g = new_graph();
    MUST(cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &p));
    GIVES(CUDA_SUCCESS, cuGraphInstantiate(&e, g, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    for (int i = 0; i < 3; i++)
        GIVES(CUDA_SUCCESS, cuGraphLaunch(e, stream));
    MUST(cuStreamSynchronize(stream));
    GIVES(CUDA_SUCCESS, cuMemFree(p.dptr));
    DESTROY(e, g);
    MUST(cuDeviceGraphMemTrim(dev));
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
    MUST(cuMemAlloc(&out, 4));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    GIVES(CUDA_SUCCESS, cuMemAllocAsync(&x, SIZE, stream));
    CHECK(x != 0);
    GIVES(CUDA_SUCCESS, cuMemsetD32Async(x, 31, 1, stream));
    GIVES(CUDA_SUCCESS, cuMemcpyDtoDAsync(out, x, 4, stream));
    GIVES(CUDA_SUCCESS, cuMemFreeAsync(x, stream));
    GIVES(CUDA_SUCCESS, cuStreamEndCapture(stream, &g));
    GIVES(CUDA_SUCCESS, cuGraphGetNodes(g, NULL, &n));
    CHECK(n == 4);
    MUST(cuGraphGetNodes(g, nodes, &n));
    for (size_t i = 0; i < n; i++) {
        MUST(cuGraphNodeGetType(nodes[i], &t));
        allocs += t == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        frees += t == CU_GRAPH_NODE_TYPE_MEM_FREE;
    }
    CHECK(allocs == 1 && frees == 1);
    CUgraphExec e = new_instance(g);
    GIVES(CUDA_SUCCESS, cuGraphUpload(e, stream));
    GIVES(CUDA_SUCCESS, cuGraphLaunch(e, stream));
    MUST(cuStreamSynchronize(stream));
    CHECK(word_at(out) == 31);
    DESTROY(e, g, out);
    MUST(cuDeviceGraphMemTrim(dev));
}

/* More memory than is free: the launch fails, and no memory is lost. */
static void too_much(void)
{
    CUgraphNode alloc, last, release;
    CUgraphExec e = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS p = want(SIZE), big;
    size_t left_now, total, after;
    MUST(cuMemGetInfo(&left_now, &total));
    CUgraph g = new_graph();
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&alloc, g, NULL, 0, NULL));
    big = want(0);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &big));
    big = want(SIZE);
    big.poolProps.location.id = 99;
    USUALLY(cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &big) != CUDA_SUCCESS);
    MUST(cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &p));
    MUST(cuGraphAddMemFreeNode(&last, g, &alloc, 1, p.dptr));
    big = want(left_now);
    CUresult r = cuGraphAddMemAllocNode(&release, g, &alloc, 1, &big); /* too much in addition to the first allocation */
    if (r == CUDA_SUCCESS)
        r = cuGraphInstantiate(&e, g, 0);
    if (r == CUDA_SUCCESS)
        r = cuGraphLaunch(e, stream);
    CHECK(r == CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuStreamSynchronize(stream));
    if (e)
        MUST(cuGraphExecDestroy(e));
    MUST(cuGraphDestroy(g));
    MUST(cuDeviceGraphMemTrim(dev));
    MUST(cuMemGetInfo(&after, &total));
    CHECK(after == left_now || !sim);
}

int main(void)
{
    dev = first_device();
    sim = simulated(dev);
    MUST(cuCtxCreate(&ctx, 0, dev));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    PART(inside());
    PART(left());
    PART(automatic());
    PART(captured());
    if (sim)
        PART(too_much());
    GIVES(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
