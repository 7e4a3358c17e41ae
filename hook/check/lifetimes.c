/* lifetimes: memory whose lifetime does not simply begin with a get and end with a put: how long it
 * counts.
 *
 *   lifetimes [CASE | devices | import FD | sibling FD]
 *
 * It prints a line for each case that passes in this driver. */
#define _GNU_SOURCE
#include "kinds.h"

#include <unistd.h>

static char self[4096];

/* Physical memory counts until it is both released and unmapped, at all addresses and for all
 * handles that were retained. */
static void mapped_twice(void)
{
    struct held h = {.bytes = the_chunk};
    CUdeviceptr other;
    CUmemGenericAllocationHandle again;
    ASSERT_SUCCESS(get_vmm(&h));
    ASSERT_SUCCESS(DRIVER(cuMemAddressReserve)(&other, h.bytes, 0, 0, 0));
    ASSERT_SUCCESS(DRIVER(cuMemMap)(other, h.bytes, 0, h.handle, 0));
    ASSERT_SUCCESS(DRIVER(cuMemRelease)(h.handle));
    ASSERT_SUCCESS(DRIVER(cuMemUnmap)(h.at, h.bytes));
    ASSERT_FREE(the_limit - the_chunk);
    ASSERT_SUCCESS(DRIVER(cuMemRetainAllocationHandle)(&again, (void *)(uintptr_t)(other + 4096)));
    ASSERT_SUCCESS(DRIVER(cuMemUnmap)(other, h.bytes));
    ASSERT_FREE(the_limit - the_chunk);
    DRIVER(cuMemUnmap)(other, h.bytes); /* not mapped any more; drivers may accept or refuse this */
    ASSERT_FREE(the_limit - the_chunk);
    ASSERT_SUCCESS(DRIVER(cuMemRelease)(again));
    ASSERT_FREE(the_limit);
    ASSERT_SUCCESS(DRIVER(cuMemAddressFree)(h.at, h.bytes));
    ASSERT_SUCCESS(DRIVER(cuMemAddressFree)(other, h.bytes));
}

/* A part of a mapping cannot be unmapped, because it could not be counted. Some drivers would allow
 * it. */
static void mapped_in_part(void)
{
    struct held h = {.bytes = the_chunk};
    ASSERT_SUCCESS(get_vmm(&h));
    ASSERT_SUCCESS(DRIVER(cuMemRelease)(h.handle));
    ASSERT(DRIVER(cuMemUnmap)(h.at, h.bytes / 2) == CUDA_ERROR_INVALID_VALUE);
    ASSERT(DRIVER(cuMemUnmap)(h.at + h.bytes / 2, h.bytes / 2) == CUDA_ERROR_INVALID_VALUE);
    ASSERT_FREE(the_limit - the_chunk);
    ASSERT_SUCCESS(DRIVER(cuMemUnmap)(h.at, h.bytes));
    ASSERT_FREE(the_limit);
    ASSERT_SUCCESS(DRIVER(cuMemAddressFree)(h.at, h.bytes));
}

/* One call may unmap several adjacent mappings. */
static void mapped_in_a_row(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, the_device}};
    CUmemGenericAllocationHandle handle[3];
    CUdeviceptr at;
    ASSERT_SUCCESS(DRIVER(cuMemAddressReserve)(&at, 3 * the_chunk, 0, 0, 0));
    for (int i = 0; i < 3; i++) {
        ASSERT_SUCCESS(DRIVER(cuMemCreate)(&handle[i], the_chunk, &prop, 0));
        ASSERT_SUCCESS(DRIVER(cuMemMap)(at + (CUdeviceptr)i * the_chunk, the_chunk, 0, handle[i], 0));
        ASSERT_SUCCESS(DRIVER(cuMemRelease)(handle[i]));
    }
    ASSERT_FREE(the_limit - 3 * the_chunk);
    if (DRIVER(cuMemUnmap)(at, 3 * the_chunk) != CUDA_SUCCESS) { /* if the driver refuses that */
        ASSERT_FREE(the_limit - 3 * the_chunk);
        for (CUdeviceptr i = 0; i < 3; i++)
            ASSERT_SUCCESS(DRIVER(cuMemUnmap)(at + i * the_chunk, the_chunk));
    }
    ASSERT_FREE(the_limit);
    ASSERT_SUCCESS(DRIVER(cuMemAddressFree)(at, 3 * the_chunk));
}

/* One call may also unmap a range with holes, if the driver accepts it. The manual forbids holes. */
static void mapped_with_holes(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, the_device}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    ASSERT_SUCCESS(DRIVER(cuMemAddressReserve)(&at, 6 * the_chunk, 0, 0, 0));
    for (CUdeviceptr i = 1; i < 6; i += 2) {
        ASSERT_SUCCESS(DRIVER(cuMemCreate)(&handle, the_chunk, &prop, 0));
        ASSERT_SUCCESS(DRIVER(cuMemMap)(at + i * the_chunk, the_chunk, 0, handle, 0));
        ASSERT_SUCCESS(DRIVER(cuMemRelease)(handle));
    }
    ASSERT(DRIVER(cuMemUnmap)(at, 5 * the_chunk + the_chunk / 2) == CUDA_ERROR_INVALID_VALUE);
    ASSERT(DRIVER(cuMemUnmap)(at + the_chunk + the_chunk / 2, 3 * the_chunk) == CUDA_ERROR_INVALID_VALUE);
    ASSERT_FREE(the_limit - 3 * the_chunk);
    if (DRIVER(cuMemUnmap)(at, 4 * the_chunk) == CUDA_SUCCESS) {
        ASSERT_FREE(the_limit - the_chunk);
    } else {
        ASSERT_FREE(the_limit - 3 * the_chunk);
        for (CUdeviceptr i = 1; i < 4; i += 2)
            ASSERT_SUCCESS(DRIVER(cuMemUnmap)(at + i * the_chunk, the_chunk));
    }
    ASSERT_SUCCESS(DRIVER(cuMemUnmap)(at + 5 * the_chunk, the_chunk));
    ASSERT_FREE(the_limit);
    ASSERT_SUCCESS(DRIVER(cuMemAddressFree)(at, 6 * the_chunk));
}

/* A mipmapped array has at least one level, and at most as many as its size allows, whatever number
 * is requested. */
static void levels(void)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = ROW, .Height = the_chunk / ROW / 4, .Format = FLOAT, .NumChannels = 1};
    CUmipmappedArray mipmap[2];
    ASSERT_SUCCESS(DRIVER(cuMipmappedArrayCreate)(&mipmap[0], &d, 0));
    size_t one = the_limit - free_bytes();
    /* the driver may allocate a little more than it needs */
    ASSERT(one >= the_chunk && one < the_chunk + the_chunk / 8);
    ASSERT_SUCCESS(DRIVER(cuMipmappedArrayCreate)(&mipmap[1], &d, UINT32_MAX));
    size_t all = the_limit - free_bytes() - one;
    ASSERT(all > the_chunk && all < 2 * the_chunk);
    for (int i = 0; i < 2; i++)
        ASSERT_SUCCESS(DRIVER(cuMipmappedArrayDestroy)(mipmap[i]));
}

/* The size of an element in formats other than plain numbers. */
static void formats(void)
{
    static const struct { unsigned format, channels, bytes; } all[] = {
        {0x50, 4, 4}, {0x9f, 3, 3}, {0xa2, 3, 2}, {0xa5, 3, 2}, {0xa6, 3, 4}, {0xa8, 4, 4}, {0xb1, 4, 8}, {0xb2, 3, 3}, {0xb5, 3, 6},
    };
    enum { WIDE = 32768 };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        struct held h = {0};
        CUDA_ARRAY_DESCRIPTOR d = {.Width = WIDE, .Height = the_limit / WIDE / all[i].bytes, .Format = all[i].format,
                                   .NumChannels = all[i].channels};
        CUresult result = DRIVER(cuArrayCreate_v2)(&h.array, &d);
        ASSERT(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED);
        if (result == CUDA_SUCCESS)
            put_array(&h);
        d.Height++;
        ASSERT(DRIVER(cuArrayCreate_v2)(&h.array, &d) == CUDA_ERROR_OUT_OF_MEMORY);
    }
}

/* Starts this program again, as another process of the instance. */
static pid_t start(const char *part, int fd)
{
    char text[16];
    snprintf(text, sizeof text, "%d", fd);
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, part, text, (char *)NULL);
        _exit(127);
    }
    return child;
}

/* Memory that another process imports counts once. */
static void imported(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, the_device},
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    CUmemGenericAllocationHandle handle;
    int fd;
    ASSERT_SUCCESS(DRIVER(cuMemCreate)(&handle, the_chunk, &prop, 0));
    ASSERT_SUCCESS(DRIVER(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    int inherited = dup(fd); /* stays open in the child */
    ends_well(start("import", inherited));
    ASSERT_FREE(the_limit - the_chunk);
    ASSERT_SUCCESS(DRIVER(cuMemRelease)(handle));
    ASSERT_FREE(the_limit);
    close(fd);
    close(inherited);
}

static int import(int fd)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    use_device();
    ASSERT_FREE(the_limit - the_chunk);
    ASSERT_SUCCESS(DRIVER(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
                                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    ASSERT_SUCCESS(DRIVER(cuMemAddressReserve)(&at, the_chunk, 0, 0, 0));
    ASSERT_SUCCESS(DRIVER(cuMemMap)(at, the_chunk, 0, handle, 0));
    ASSERT_FREE(the_limit - the_chunk);
    ASSERT_SUCCESS(DRIVER(cuMemUnmap)(at, the_chunk));
    ASSERT_SUCCESS(DRIVER(cuMemRelease)(handle));
    ASSERT_FREE(the_limit - the_chunk);
    return 0;
}

static CUmemoryPool default_pool(uint64_t threshold)
{
    CUmemoryPool pool;
    ASSERT_SUCCESS(DRIVER(cuDeviceGetDefaultMemPool)(&pool, the_device));
    ASSERT_SUCCESS(DRIVER(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    return pool;
}

/* Memory that a pool keeps counts until the pool is trimmed or another allocation needs it. */
static void kept(void)
{
    struct held all = {.bytes = the_limit}, rest = {.bytes = the_limit};
    CUmemoryPool pool = default_pool(UINT64_MAX);
    ASSERT_SUCCESS(get_async(&all));
    put_async(&all);
    ASSERT_FREE(0);
    ASSERT_SUCCESS(DRIVER(cuMemPoolTrimTo)(pool, 0));
    ASSERT_FREE(the_limit);
    ASSERT_SUCCESS(get_async(&all));
    put_async(&all);
    ASSERT_SUCCESS(get_plain(&rest));
    ASSERT_FREE(0);
    put_plain(&rest);
    ASSERT_SUCCESS(get_async(&all));
    put_async(&all);
    ASSERT_SUCCESS(get_pool(&rest));
    put_pool(&rest);
    default_pool(0);
    ASSERT_SUCCESS(DRIVER(cuMemPoolTrimTo)(pool, 0));
    ASSERT_FREE(the_limit);
}

static uint64_t reserved(CUmemoryPool pool)
{
    cuuint64_t bytes;
    ASSERT_SUCCESS(DRIVER(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
    return bytes;
}

static void nothing_is_reserved(CUmemoryPool pool)
{
    const double patience = 30;
    for (double end = now_s() + patience; reserved(pool); usleep(5000))
        ASSERT(now_s() < end);
}

/* Memory that a pool reserved for a refused allocation counts. It is released as soon as the stream
 * allows, without another request. */
static void lets_go(void)
{
    CUmemoryPool pool = default_pool(UINT64_MAX);
    CUfunction work = timed_kernel(200000);
    struct held most = {.bytes = the_limit - (6 << 20)}, little = {.bytes = 4 << 20}, rest = {.bytes = 6 << 20};
    ASSERT_SUCCESS(get_plain(&most));
    bool grows = get_async(&little) == CUDA_ERROR_OUT_OF_MEMORY; /* the pool grows by more than the free memory */
    if (grows) {
        nothing_is_reserved(pool);
        ASSERT_FREE(rest.bytes);
        launch_block(work, NULL);
        ASSERT(get_async(&little) == CUDA_ERROR_OUT_OF_MEMORY);
        if (get_plain(&rest) == CUDA_SUCCESS) {
            ASSERT(cuStreamQuery(NULL) == CUDA_SUCCESS); /* the kernel has already ended */
            put_plain(&rest);
        }
        nothing_is_reserved(pool);
        ASSERT_SUCCESS(get_plain(&rest));
        put_plain(&rest);
    } else {
        put_async(&little);
    }
    put_plain(&most);
    default_pool(0);
    ASSERT_SUCCESS(DRIVER(cuMemPoolTrimTo)(pool, 0));
}

/* If a pool would have to grow by more than the free memory, its new memory cannot be used. */
static void grows_too_much(void)
{
    struct held most = {.bytes = the_limit - (1 << 20)}, little = {.bytes = 4096};
    ASSERT_SUCCESS(get_plain(&most));
    CUresult result = get_async(&little);
    ASSERT(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY); /* depends on the driver's page size */
    if (result == CUDA_SUCCESS)
        put_async(&little);
    put_plain(&most);
    ASSERT_SUCCESS(cuStreamSynchronize(NULL));
    ASSERT_SUCCESS(get_async(&little));
    put_async(&little);
    ASSERT_FREE(the_limit);
}

/* A destroyed pool lives until its allocations are freed. */
static void destroyed(void)
{
    struct held h = {.bytes = the_chunk};
    ASSERT_SUCCESS(get_pool(&h));
    ASSERT_SUCCESS(DRIVER(cuMemPoolDestroy)(h.pool));
    ASSERT_FREE(the_limit - the_chunk);
    put_async(&h);
    ASSERT_FREE(the_limit);
}

/* Memory allocated in a stream whose context is not current counts for the stream's device. */
static void elsewhere(void)
{
    struct held h = {.bytes = the_chunk};
    CUcontext other, popped;
    ASSERT_SUCCESS(cuCtxCreate(&other, 0, the_device));
    CUstream stream = new_stream();
    ASSERT_SUCCESS(cuCtxPopCurrent(&popped));
    ASSERT_SUCCESS(DRIVER(cuMemAllocAsync)(&h.at, h.bytes, stream));
    ASSERT_FREE(the_limit - the_chunk);
    ASSERT_SUCCESS(DRIVER(cuMemFreeAsync)(h.at, stream));
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    ASSERT_FREE(the_limit);
    ASSERT_SUCCESS(cuCtxDestroy(other));
}

/* A captured allocation allocates nothing. Its launch is refused if the memory does not fit. */
static void captured(void)
{
    struct held all = {.bytes = the_limit};
    CUdeviceptr at;
    CUgraph graph;
    CUgraphExec exec;
    ASSERT_SUCCESS(get_plain(&all));
    CUstream stream = new_stream();
    ASSERT_SUCCESS(DRIVER(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_SUCCESS(DRIVER(cuMemAllocAsync)(&at, the_chunk, stream));
    ASSERT_SUCCESS(DRIVER(cuMemFreeAsync)(at, stream));
    ASSERT_SUCCESS(DRIVER(cuStreamEndCapture)(stream, &graph));
    ASSERT_SUCCESS(DRIVER(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    ASSERT(DRIVER(cuGraphLaunch)(exec, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    put_plain(&all);
    ASSERT_FREE(the_limit);
    for (int i = 0; i < 3; i++)
        ASSERT_SUCCESS(DRIVER(cuGraphLaunch)(exec, stream));
    ASSERT_FREE(the_limit - the_chunk); /* the driver keeps the memory for the next launch */
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    ASSERT_SUCCESS(get_plain(&all)); /* unless another allocation needs it */
    put_plain(&all);
    ASSERT_SUCCESS(DRIVER(cuGraphExecDestroy)(exec));
    ASSERT_SUCCESS(DRIVER(cuGraphDestroy)(graph));
    ASSERT_SUCCESS(cuStreamDestroy(stream));
}

/* An allocation in another stream does not invalidate a capture, unless the driver itself refuses
 * the allocation. */
static void beside_a_capture(void)
{
    CUdeviceptr at;
    CUgraph graph = NULL;
    CUstream captured = new_stream(), stream = new_stream();
    ASSERT_SUCCESS(DRIVER(cuStreamBeginCapture_v2)(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUresult result = DRIVER(cuMemAllocAsync)(&at, the_chunk, stream);
    if (result == CUDA_SUCCESS)
        ASSERT_SUCCESS(DRIVER(cuMemFreeAsync)(at, stream));
    CUresult ended = DRIVER(cuStreamEndCapture)(captured, &graph);
    ASSERT(result == CUDA_SUCCESS ? ended == CUDA_SUCCESS : result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (graph)
        ASSERT_SUCCESS(DRIVER(cuGraphDestroy)(graph));
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    ASSERT_SUCCESS(cuStreamDestroy(stream));
    ASSERT_SUCCESS(cuStreamDestroy(captured));
}

/* Makes a graph that allocates, works for a while, and frees. */
static CUgraphExec lender(size_t bytes)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node[3];
    CUDA_KERNEL_NODE_PARAMS_v2 work = kernel_node(timed_kernel(5000));
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, the_device}},
        .bytesize = bytes,
    };
    ASSERT_SUCCESS(DRIVER(cuGraphCreate)(&graph, 0));
    ASSERT_SUCCESS(DRIVER(cuGraphAddMemAllocNode)(&node[0], graph, NULL, 0, &params));
    ASSERT_SUCCESS(cuGraphAddKernelNode(&node[1], graph, node, 1, &work));
    ASSERT_SUCCESS(DRIVER(cuGraphAddMemFreeNode)(&node[2], graph, node + 1, 1, params.dptr));
    ASSERT_SUCCESS(DRIVER(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    ASSERT_SUCCESS(DRIVER(cuGraphDestroy)(graph));
    return exec;
}

/* Graphs whose memory does not fit at the same time run one after the other. So does a graph that
 * is launched again while it still runs. */
static void graphs_in_turn(void)
{
    CUgraphExec exec[2] = {lender(5 * the_chunk), lender(6 * the_chunk)};
    for (int i = 0; i < 6; i++) {
        ASSERT_SUCCESS(DRIVER(cuGraphLaunch)(exec[i % 2], CU_STREAM_PER_THREAD));
        ASSERT_SUCCESS(DRIVER(cuGraphLaunch)(exec[i % 2], CU_STREAM_PER_THREAD));
        ASSERT_SUCCESS(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        ASSERT(free_bytes() >= 2 * the_chunk && free_bytes() <= 3 * the_chunk);
    }
    for (int i = 0; i < 2; i++)
        ASSERT_SUCCESS(DRIVER(cuGraphExecDestroy)(exec[i]));
    ASSERT_SUCCESS(DRIVER(cuDeviceGraphMemTrim)(the_device));
}

/* Memory that a graph allocated outlives the graph, and the memory of a running graph outlives its
 * instance: the memory of the next graph counts in addition. */
static void graphs_destroyed(void)
{
    struct held first = {.bytes = 5 * the_chunk}, next = {.bytes = 4 * the_chunk}, rest = {.bytes = 3 * the_chunk};
    ASSERT_SUCCESS(get_graph(&first));
    ASSERT_SUCCESS(DRIVER(cuGraphExecDestroy)(first.exec));
    ASSERT_SUCCESS(DRIVER(cuGraphDestroy)(first.graph));
    ASSERT_FREE(3 * the_chunk);
    ASSERT(get_graph(&next) == CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_SUCCESS(get_graph(&rest));
    ASSERT_FREE(0);
    put_graph(&rest);
    ASSERT_FREE(3 * the_chunk);
    ASSERT_SUCCESS(DRIVER(cuMemFreeAsync)(first.at, CU_STREAM_PER_THREAD));
    ASSERT_SUCCESS(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    ASSERT_SUCCESS(get_graph(&next));
    ASSERT_FREE(4 * the_chunk);
    put_graph(&next);
    CUgraphExec runs = lender(5 * the_chunk);
    ASSERT_SUCCESS(DRIVER(cuGraphLaunch)(runs, CU_STREAM_PER_THREAD));
    ASSERT_SUCCESS(DRIVER(cuGraphExecDestroy)(runs));
    CUgraphExec waits = lender(4 * the_chunk);
    CUstream other = new_stream();
    CUresult result = DRIVER(cuGraphLaunch)(waits, other);
    ASSERT(result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_SUCCESS); /* if the first graph has already ended */
    ASSERT_FREE((result == CUDA_SUCCESS ? 4 : 3) * the_chunk);
    ASSERT_SUCCESS(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    ASSERT_SUCCESS(DRIVER(cuGraphLaunch)(waits, other));
    ASSERT_SUCCESS(cuStreamSynchronize(other));
    ASSERT_SUCCESS(DRIVER(cuGraphExecDestroy)(waits));
    ASSERT_SUCCESS(cuStreamDestroy(other));
    ASSERT_SUCCESS(DRIVER(cuDeviceGraphMemTrim)(the_device));
}

/* A pool of this process shrinks while the process sleeps, and its sibling can use the memory. */
static void siblings(void)
{
    struct held h = {.bytes = the_limit};
    int ends[2];
    char c;
    ASSERT(pipe(ends) == 0);
    ASSERT_SUCCESS(get_async(&h));
    pid_t child = start("sibling", ends[1]);
    close(ends[1]);
    ASSERT(read(ends[0], &c, 1) == 1);
    close(ends[0]);
    put_async(&h);
    ends_well(child);
}

static int sibling(int fd)
{
    const double patience = 30;
    CUdeviceptr at;
    use_device();
    ASSERT(free_bytes() == 0 && cuMemAlloc(&at, the_limit) == CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT(write(fd, "", 1) == 1);
    for (double end = now_s() + patience; cuMemAlloc(&at, the_limit) == CUDA_ERROR_OUT_OF_MEMORY; usleep(5000))
        ASSERT(now_s() < end);
    ASSERT_SUCCESS(cuMemFree(at));
    return 0;
}

/* Each of two devices has its own limit. */
static int devices(void)
{
    enum { PAGE = 2 << 20 };
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemGenericAllocationHandle handle, more;
    CUcontext other, popped;
    size_t limit, unused, total;
    use_device();
    struct held all = {.bytes = the_limit}, extra = {.bytes = 1};
    ASSERT_SUCCESS(get_plain(&all));
    ASSERT_SUCCESS(cuDeviceTotalMem(&limit, 1));
    ASSERT(limit != the_limit);
    ASSERT_SUCCESS(DRIVER(cuMemCreate)(&handle, limit - PAGE, &prop, 0)); /* on a device that is not current */
    ASSERT(DRIVER(cuMemCreate)(&more, 2 * PAGE, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&other, 1));
    ASSERT_SUCCESS(cuCtxPushCurrent(other));
    ASSERT_SUCCESS(cuMemGetInfo(&unused, &total));
    ASSERT(unused == PAGE && total == limit);
    ASSERT_SUCCESS(get_plain(&extra));
    ASSERT_SUCCESS(cuDevicePrimaryCtxRelease(1));
    ASSERT_SUCCESS(cuCtxPopCurrent(&popped));
    ASSERT_FREE(0);
    put_plain(&all);
    ASSERT_FREE(the_limit);
    /* the memory that ended with the context is available again */
    ASSERT_SUCCESS(DRIVER(cuMemCreate)(&more, PAGE, &prop, 0));
    ASSERT_SUCCESS(DRIVER(cuMemRelease)(handle));
    prop.location.id = 7;
    ASSERT(DRIVER(cuMemCreate)(&handle, PAGE, &prop, 0) != CUDA_SUCCESS);
    printf("devices: right\n");
    return 0;
}

static const struct {
    const char *name;
    void (*test)(void);
    const char *needs;
} cases[] = {
    {"mapped-twice", mapped_twice, "cuMemCreate"},
    {"mapped-in-part", mapped_in_part, "cuMemCreate"},
    {"mapped-in-a-row", mapped_in_a_row, "cuMemCreate"},
    {"mapped-with-holes", mapped_with_holes, "cuMemCreate"},
    {"levels", levels, "cuMipmappedArrayCreate"},
    {"formats", formats, "cuArrayCreate_v2"},
    {"imported", imported, "cuMemImportFromShareableHandle"},
    {"kept", kept, "cuMemPoolTrimTo"},
    {"grows-too-much", grows_too_much, "cuMemAllocAsync"},
    {"lets-go", lets_go, "cuMemPoolTrimTo"},
    {"destroyed", destroyed, "cuMemPoolDestroy"},
    {"elsewhere", elsewhere, "cuMemAllocAsync"},
    {"captured", captured, "cuGraphAddMemAllocNode"},
    {"beside-a-capture", beside_a_capture, "cuGraphAddMemAllocNode"},
    {"graphs-in-turn", graphs_in_turn, "cuGraphAddMemAllocNode"},
    {"graphs-destroyed", graphs_destroyed, "cuGraphAddMemAllocNode"},
    {"siblings", siblings, "cuMemAllocAsync"},
};

int main(int argc, char **argv)
{
    ASSERT(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    if (argc == 3 && !strcmp(argv[1], "import"))
        return import(atoi(argv[2]));
    if (argc == 3 && !strcmp(argv[1], "sibling"))
        return sibling(atoi(argv[2]));
    if (argc == 2 && !strcmp(argv[1], "devices"))
        return devices();
    if (argc > 2)
        return 2;
    use_device();
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc == 2 && strcmp(argv[1], cases[i].name) != 0)
            continue;
        bool there = driver_find(cases[i].needs);
        if (there) {
            cases[i].test();
            ASSERT_FREE(the_limit);
        }
        printf("%s: %s\n", cases[i].name, there ? "right" : "not in this driver");
        fflush(stdout);
    }
    return 0;
}
