/* sim_access.c: memory that is mapped for reading only. Another process maps it, reads it in every
 * way, and tries to write to it. Every attempt fails, ends that process's use of CUDA, and changes
 * nothing. */
#include "kernels.h"
#include "objects.h"
#include "peer.h"

#include <stdint.h>

enum { N = 1024 };
static size_t grain;
static CUfunction vadd;

/* ---- the process with read access ---- */

static float host_bytes[N];

/* Each of these functions writes to p, which is read-only. */
static CUresult by_memset(CUdeviceptr p, CUdeviceptr own)
{
    (void)own;
    return cuMemsetD8(p, 9, 100);
}

static CUresult by_memset_2d(CUdeviceptr p, CUdeviceptr own)
{
    (void)own;
    return cuMemsetD2D32Async(p, 512, 9, 16, 4, NULL);
}

static CUresult by_upload(CUdeviceptr p, CUdeviceptr own)
{
    (void)own;
    return cuMemcpyHtoD(p, host_bytes, sizeof host_bytes);
}

static CUresult by_copy(CUdeviceptr p, CUdeviceptr own)
{
    return cuMemcpyDtoDAsync(p, own, 4096, NULL);
}

static CUresult by_any_copy(CUdeviceptr p, CUdeviceptr own)
{
    return cuMemcpyAsync(p, own, 4096, NULL);
}

static CUresult by_box(CUdeviceptr p, CUdeviceptr own)
{
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = own, .dstDevice = p};
    c.srcPitch = c.dstPitch = 512;
    c.WidthInBytes = 100;
    c.Height = 3;
    return cuMemcpy2D(&c);
}

static CUresult by_kernel(CUdeviceptr p, CUdeviceptr own)
{
    unsigned n = N;
    void *args[] = {&own, &own, &p, &n};
    return cuLaunchKernel(vadd, N / 256, 1, 1, 256, 1, 1, 0, NULL, args, NULL);
}

/* The first bytes are writable, the next ones are not. */
static CUresult by_half(CUdeviceptr p, CUdeviceptr own)
{
    (void)own;
    return cuMemsetD8(p - 64, 9, 128);
}

static CUresult by_graph(CUdeviceptr p, CUdeviceptr own)
{
    CUgraphNode n;
    CUcontext c;
    CUDA_MEMSET_NODE_PARAMS set = {.dst = p, .value = 9, .elementSize = 1, .width = 100, .height = 1};
    (void)own;
    ASSERT_SUCCESS(cuCtxGetCurrent(&c));
    CUstream s = new_stream();
    CUgraph g = new_graph();
    CUresult refused = cuGraphAddMemsetNode(&n, g, NULL, 0, &set, c);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUgraphExec e = new_instance(g);
    return cuGraphLaunch(e, s);
}

static const struct {
    const char *name;
    CUresult (*write)(CUdeviceptr p, CUdeviceptr own);
} ways[] = {
    {"a memset", by_memset},      {"a memset of rows", by_memset_2d}, {"a copy from the host", by_upload},
    {"a copy", by_copy},          {"a copy of any kind", by_any_copy}, {"a copy of rows", by_box},
    {"a kernel", by_kernel},      {"half a memset", by_half},         {"a graph", by_graph},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Reports whether p holds N floats of value 1, read in every way. */
static bool readable(CUdeviceptr p, CUdeviceptr own)
{
    float back[N];
    unsigned n = N;
    void *args[] = {&p, &p, &own, &n};
    ASSERT_SUCCESS(cuMemcpyDtoH(back, p, sizeof back));
    bool ok = back[0] == 1 && back[N - 1] == 1;
    ASSERT_SUCCESS(cuMemsetD8(own, 0, sizeof back));
    ASSERT_SUCCESS(cuMemcpyDtoD(own, p, sizeof back));
    ASSERT_SUCCESS(cuMemcpyDtoH(back, own, sizeof back));
    ok &= back[0] == 1 && back[N - 1] == 1;
    ASSERT_SUCCESS(cuLaunchKernel(vadd, N / 256, 1, 1, 256, 1, 1, 0, NULL, args, NULL));
    ASSERT_SUCCESS(cuCtxSynchronize());
    ASSERT_SUCCESS(cuMemcpyDtoH(back, own, sizeof back));
    return ok && back[0] == 2 && back[N - 1] == 2;
}

/* Returns 0 if writing failed as expected; CUDA no longer works in this process then. */
static int reader(int sock)
{
    CUcontext ctx, another;
    CUdeviceptr p, own;
    int fd;
    struct {
        size_t grain;
        int way;
    } what;
    CUdevice dev = first_device();
    if (!receive_message(sock, &what, sizeof what, &fd))
        return 1;
    ASSERT_SUCCESS(cuCtxCreate(&ctx, 0, dev));
    CUmodule m = new_module(kernels_ptx);
    ASSERT_SUCCESS(cuModuleGetFunction(&vadd, m, "vadd"));
    ASSERT_SUCCESS(cuMemAlloc(&own, sizeof host_bytes));
    CUmemGenericAllocationHandle h = new_import(fd);
    close(fd);
    CUmemGenericAllocationHandle mine = new_allocation(dev, what.grain, CU_MEM_HANDLE_TYPE_NONE);
    ASSERT_SUCCESS(cuMemAddressReserve(&p, 2 * what.grain, 0, 0, 0));
    ASSERT_SUCCESS(cuMemMap(p, what.grain, 0, mine, 0));
    ASSERT_SUCCESS(cuMemMap(p + what.grain, what.grain, 0, h, 0));
    allow(dev, p, what.grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    allow(dev, p + what.grain, what.grain, CU_MEM_ACCESS_FLAGS_PROT_READ);
    if (!readable(p + what.grain, own))
        return 3;
    CUresult wrote = ways[what.way].write(p + what.grain, own);
    CUresult after = cuCtxSynchronize();
    if (wrote == CUDA_SUCCESS && after == CUDA_SUCCESS)
        return 4;
    if (!simulated(dev))
        return 0;
    if (ways[what.way].write != by_kernel) /* the simulator checks the address before the work starts */
        return wrote == CUDA_ERROR_INVALID_VALUE && after == CUDA_SUCCESS ? 0 : 5;
    if (after != CUDA_ERROR_ILLEGAL_ADDRESS)
        return 5;
    cuCtxDestroy(ctx);
    return cuCtxCreate(&another, 0, dev) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 6;
}

/* ---- the process that owns the memory ---- */

static bool untouched(CUdeviceptr p)
{
    unsigned *b = malloc(grain);
    bool same = true;
    ASSERT_SUCCESS(cuMemcpyDtoH(b, p, grain));
    for (size_t i = 0; i < grain / 4; i++)
        same &= b[i] == 0x3f800000;
    free(b);
    return same;
}

static void writes(CUdeviceptr p, CUmemGenericAllocationHandle h, struct peer other, int way)
{
    int fd;
    struct {
        size_t grain;
        int way;
    } what = {grain, way};
    ASSERT_SUCCESS(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(send_message(other.sock, &what, sizeof what, fd));
    close(fd);
    int status = peer_wait(other);
    if (!tap(status == 0, ways[way].name, __FILE__, __LINE__))
        printf("# the reader ended with %d\n", status);
    CHECK(untouched(p));
}

static void rights(CUdevice dev, CUdeviceptr p)
{
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, dev};
    unsigned long long flags = 99;
    allow(dev, p, grain, CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetAccess(&flags, &here, p));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK(untouched(p));
    allow(dev, p, grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD32(p, 0x3f800000, grain / 4)); /* allowed again */
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
}

int main(int argc, char **argv)
{
    struct peer peers[WAYS];
    if (argc > 2)
        return reader(atoi(argv[2]));
    for (int i = 0; i < WAYS; i++)
        peers[i] = peer_start(argv[0], "read");
    CUdevice dev = first_device();
    CUmemAllocationProp prop = memory_of(dev, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (!attribute_of(dev, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
        return 77;
    CUcontext ctx = new_context(dev);
    ASSERT_SUCCESS(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    CUmemGenericAllocationHandle h = new_allocation(dev, grain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUdeviceptr p = new_mapping(dev, h, grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ASSERT_SUCCESS(cuMemsetD32(p, 0x3f800000, grain / 4)); /* 1 */
    ASSERT_SUCCESS(cuCtxSynchronize());
    PART(rights(dev, p));
    for (int i = 0; i < WAYS; i++)
        PART(writes(p, h, peers[i], i));
    ASSERT_SUCCESS(cuMemUnmap(p, grain));
    ASSERT_SUCCESS(cuMemRelease(h));
    ASSERT_SUCCESS(cuMemAddressFree(p, grain));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
