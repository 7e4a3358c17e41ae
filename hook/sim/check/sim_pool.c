/* sim_pool.c: memory allocated and freed in stream order, and its pools. */
#include "kernels.h"
#include "objects.h"
#include "peer.h"

#include <stdint.h>

#define MIB (1u << 20)

static uint64_t told(CUmemoryPool p, CUmemPool_attribute what)
{
    cuuint64_t v = 12345;
    GIVES(CUDA_SUCCESS, cuMemPoolGetAttribute(p, what, &v));
    return v;
}

static void keep(CUmemoryPool p, cuuint64_t bytes)
{
    GIVES(CUDA_SUCCESS, cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static CUmemoryPool make(CUdevice dev, CUmemAllocationHandleType handles)
{
    CUmemoryPool p = NULL;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = handles};
    props.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, dev};
    MUST(cuMemPoolCreate(&p, &props));
    return p;
}

static void pools_of_device(CUdevice dev)
{
    CUmemoryPool p = NULL, q = NULL, own = make(dev, CU_MEM_HANDLE_TYPE_NONE);
    int flag = 0;
    GIVES(CUDA_SUCCESS, cuDeviceGetDefaultMemPool(&p, dev));
    GIVES(CUDA_SUCCESS, cuDeviceGetMemPool(&q, dev));
    CHECK(p && p == q && p != own);
    USUALLY_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetDefaultMemPool(&q, 99));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetDefaultMemPool(NULL, dev));
    USUALLY(cuMemPoolDestroy(p) != CUDA_SUCCESS);
    CHECK(told(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == 0);
    for (int a = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES; a <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; a++) {
        flag = 0;
        GIVES(CUDA_SUCCESS, cuMemPoolGetAttribute(own, (CUmemPool_attribute)a, &flag));
        CHECK(flag == 1);
        flag = 0;
        GIVES(CUDA_SUCCESS, cuMemPoolSetAttribute(own, (CUmemPool_attribute)a, &flag));
        flag = 1;
        GIVES(CUDA_SUCCESS, cuMemPoolGetAttribute(own, (CUmemPool_attribute)a, &flag));
        CHECK(flag == 0);
    }
    GIVES(CUDA_SUCCESS, cuDeviceSetMemPool(dev, own));
    GIVES(CUDA_SUCCESS, cuDeviceGetMemPool(&q, dev));
    CHECK(q == own);
    GIVES(CUDA_SUCCESS, cuMemPoolDestroy(own));
    GIVES(CUDA_SUCCESS, cuDeviceGetMemPool(&q, dev));
    CHECK(q == p);
}

static void refused(CUdevice dev, CUstream s)
{
    CUmemoryPool p = make(dev, CU_MEM_HANDLE_TYPE_NONE), q;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
    cuuint64_t v = 7;
    CUdeviceptr a;
    size_t total = 0;
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&q, NULL));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(NULL, &props));
    USUALLY(cuMemPoolCreate(&q, &props) != CUDA_SUCCESS); /* without a location */
    props.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 99};
    USUALLY(cuMemPoolCreate(&q, &props) != CUDA_SUCCESS);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolGetAttribute(p, (CUmemPool_attribute)999, &v));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, NULL));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &v)); /* can only be reset to 0 */
    USUALLY(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v) != CUDA_SUCCESS);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(NULL, 16, p, s));
    MUST(cuDeviceTotalMem(&total, dev));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&a, total + 1, p, s));
    USUALLY(cuMemFreeAsync((CUdeviceptr)(uintptr_t)&a, s) != CUDA_SUCCESS);
    MUST(cuMemAllocFromPoolAsync(&a, MIB, p, s));
    USUALLY(cuMemFreeAsync(a + 512, s) != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuMemFreeAsync(a, s));
    USUALLY(cuMemFreeAsync(a, s) != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(s));
    USUALLY(cuMemFree(a) != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuMemPoolDestroy(p));
    if (!simulated(dev)) /* a real driver may dereference invalid handles */
        return;
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(p));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolTrimTo((CUmemoryPool)&a, 0));
    USUALLY_GIVES(CUDA_ERROR_INVALID_HANDLE, cuMemAllocAsync(&a, 16, (CUstream)&a));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(&a, 0, s));
}

static void accounts(CUdevice dev, CUstream s)
{
    CUmemoryPool p = make(dev, CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr a, b;
    cuuint64_t zero = 0;
    GIVES(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&a, 3 * MIB, p, s));
    GIVES(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&b, 100, p, s));
    CHECK(a % 256 == 0 && b % 256 == 0);
    uint64_t used = told(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), reserved = told(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    CHECK(used >= 3 * MIB + 100 && used <= reserved);
    GIVES(CUDA_SUCCESS, cuMemFreeAsync(a, s));
    GIVES(CUDA_SUCCESS, cuMemFreeAsync(b, s));
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(told(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    USUALLY(told(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0); /* the threshold is 0 */
    CHECK(told(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == used);
    CHECK(told(p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= reserved);
    GIVES(CUDA_SUCCESS, cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    CHECK(told(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
    keep(p, UINT64_MAX);
    GIVES(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&a, 40 * MIB, p, s));
    GIVES(CUDA_SUCCESS, cuMemFreeAsync(a, s));
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(told(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 40 * MIB);
    GIVES(CUDA_SUCCESS, cuMemPoolTrimTo(p, MIB));
    CHECK(told(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= MIB);
    GIVES(CUDA_SUCCESS, cuMemPoolTrimTo(p, 0));
    CHECK(told(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
    GIVES(CUDA_SUCCESS, cuMemPoolDestroy(p));
}

/* Memory freed in a stream can be reused in the same stream at once, while earlier work still uses
 * it. */
static void reuse(CUdevice dev, CUstream s, CUfunction slow)
{
    CUmemoryPool p = make(dev, CU_MEM_HANDLE_TYPE_NONE);
    unsigned char *seen;
    CUdeviceptr a;
    bool right = true;
    keep(p, UINT64_MAX);
    MUST(cuMemAllocHost((void **)&seen, 64));
    MUST(cuMemAllocFromPoolAsync(&a, 8 * MIB, p, s));
    MUST(cuMemFreeAsync(a, s));
    uint64_t before = told(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    MUST(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
    for (int i = 0; i < 64; i++) {
        MUST(cuMemAllocFromPoolAsync(&a, 8 * MIB, p, s));
        MUST(cuMemsetD8Async(a, (unsigned char)i, 8 * MIB, s));
        MUST(cuMemcpyDtoHAsync(seen + i, a + 8 * MIB - 1, 1, s));
        MUST(cuMemFreeAsync(a, s));
    }
    USUALLY(told(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == before);
    MUST(cuStreamSynchronize(s));
    for (int i = 0; i < 64; i++)
        right &= seen[i] == i;
    CHECK(right);
    MUST(cuMemFreeHost(seen));
    GIVES(CUDA_SUCCESS, cuMemPoolDestroy(p));
}

/* A kernel that was launched before its memory was freed still finds it there. */
static void kernels(CUdevice dev, CUstream s, CUfunction vadd, CUfunction slow)
{
    enum { N = 1024 };
    CUmemoryPool p = make(dev, CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr a, b, c, d;
    float *h;
    unsigned n = N;
    void *args[] = {&a, &b, &c, &n};
    MUST(cuMemAllocHost((void **)&h, N * sizeof *h));
    MUST(cuMemAllocFromPoolAsync(&a, N * 4, p, s));
    MUST(cuMemAllocFromPoolAsync(&b, N * 4, p, s));
    MUST(cuMemAllocFromPoolAsync(&c, N * 4, p, s));
    MUST(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
    MUST(cuMemsetD32Async(a, 0x3f800000, N, s)); /* 1 */
    MUST(cuMemsetD32Async(b, 0x40000000, N, s)); /* 2 */
    MUST(cuLaunchKernel(vadd, N / 256, 1, 1, 256, 1, 1, 0, s, args, NULL));
    MUST(cuMemFreeAsync(a, s));
    MUST(cuMemFreeAsync(b, s));
    MUST(cuMemAllocFromPoolAsync(&d, 512, p, s)); /* probably at the address of a */
    MUST(cuMemsetD8Async(d, 0xff, 512, s));
    MUST(cuMemcpyDtoHAsync(h, c, N * sizeof *h, s));
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(h[0] == 3 && h[N - 1] == 3);
    MUST(cuMemFreeAsync(c, s));
    GIVES(CUDA_SUCCESS, cuMemFree(d)); /* allowed after its work has finished */
    MUST(cuMemFreeHost(h));
    GIVES(CUDA_SUCCESS, cuMemPoolDestroy(p));
}

/* A destroyed pool lives until its allocations are freed. */
static void outlived(CUdevice dev, CUstream s)
{
    CUmemoryPool p = make(dev, CU_MEM_HANDLE_TYPE_NONE), of = NULL;
    CUdeviceptr a;
    int at = -1;
    unsigned char b = 0;
    MUST(cuMemAllocFromPoolAsync(&a, MIB, p, s));
    GIVES(CUDA_SUCCESS, cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a));
    CHECK(of == p);
    GIVES(CUDA_SUCCESS, cuPointerGetAttribute(&at, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, a));
    CHECK(at == dev);
    GIVES(CUDA_SUCCESS, cuMemPoolDestroy(p));
    GIVES(CUDA_SUCCESS, cuMemsetD8Async(a, 99, MIB, s));
    GIVES(CUDA_SUCCESS, cuMemcpyDtoHAsync(&b, a + MIB - 1, 1, s));
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(b == 99);
    GIVES(CUDA_SUCCESS, cuMemFreeAsync(a, s));
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(s));
}

static void access_to(CUdevice dev)
{
    CUmemoryPool p = make(dev, CU_MEM_HANDLE_TYPE_NONE);
    CUmemLocation l = {CU_MEM_LOCATION_TYPE_DEVICE, dev};
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUmemAccessDesc d = {l, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    GIVES(CUDA_SUCCESS, cuMemPoolGetAccess(&flags, p, &l));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    GIVES(CUDA_SUCCESS, cuMemPoolSetAccess(p, &d, 1));
    d.location.id = 99;
    USUALLY(cuMemPoolSetAccess(p, &d, 1) != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuMemPoolDestroy(p));
}

/* Streams that wait for each other's memory. The numbers are right whichever stream gets which
 * memory. */
static void two_streams(CUdevice dev)
{
    enum { ROUNDS = 50 };
    CUmemoryPool p = make(dev, CU_MEM_HANDLE_TYPE_NONE);
    CUstream s[2];
    CUdeviceptr a;
    unsigned char *seen;
    bool right = true;
    MUST(cuMemAllocHost((void **)&seen, 2 * ROUNDS));
    for (int k = 0; k < 2; k++)
        MUST(cuStreamCreate(&s[k], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2 * ROUNDS; i++) {
        MUST(cuMemAllocFromPoolAsync(&a, 5 * MIB, p, s[i % 2]));
        MUST(cuMemsetD8Async(a, (unsigned char)i, 5 * MIB, s[i % 2]));
        MUST(cuMemcpyDtoHAsync(seen + i, a + 12345, 1, s[i % 2]));
        MUST(cuMemFreeAsync(a, s[i % 2]));
    }
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
    for (int i = 0; i < 2 * ROUNDS; i++)
        right &= seen[i] == (unsigned char)i;
    CHECK(right);
    for (int k = 0; k < 2; k++)
        MUST(cuStreamDestroy(s[k]));
    MUST(cuMemFreeHost(seen));
    GIVES(CUDA_SUCCESS, cuMemPoolDestroy(p));
}

/* ---- another process ---- */

static int importer(int sock)
{
    CUmemoryPool p;
    CUmemPoolPtrExportData ptr;
    CUdeviceptr a;
    unsigned char b[1000];
    bool same = true;
    int fd;
    CUcontext ctx = new_context(first_device());
    if (!receive_message(sock, &ptr, sizeof ptr, &fd))
        return 1;
    MUST(cuMemPoolImportFromShareableHandle(&p, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(fd);
    MUST(cuMemPoolImportPointer(&a, p, &ptr));
    MUST(cuMemcpyDtoH(b, a, sizeof b));
    for (size_t i = 0; i < sizeof b; i++)
        same &= b[i] == 0x5a;
    MUST(cuMemsetD8(a + 10, 0x77, 10));
    MUST(cuCtxSynchronize());
    if (!same || cuMemAllocFromPoolAsync(&a, 16, p, NULL) == CUDA_SUCCESS)
        return 1;
    MUST(cuMemFreeAsync(a, NULL));
    MUST(cuStreamSynchronize(NULL));
    cuMemPoolDestroy(p); /* driver 580 allows only the maker to do this */
    MUST(cuCtxDestroy(ctx));
    return !send_go(sock);
}

static void shared(CUdevice dev, CUstream s, struct peer other)
{
    CUmemoryPool p = make(dev, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), own = make(dev, CU_MEM_HANDLE_TYPE_NONE), q;
    CUmemPoolPtrExportData ptr;
    CUdeviceptr first, a;
    unsigned char b[1000];
    int fd = -1;
    MUST(cuMemAllocFromPoolAsync(&first, 700, p, s));
    MUST(cuMemAllocFromPoolAsync(&a, sizeof b, p, s));
    MUST(cuMemsetD8Async(a, 0x5a, sizeof b, s));
    MUST(cuStreamSynchronize(s));
    USUALLY(cuMemPoolExportToShareableHandle(&fd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(NULL, a));
    GIVES(CUDA_SUCCESS, cuMemPoolExportToShareableHandle(&fd, p, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    GIVES(CUDA_SUCCESS, cuMemPoolExportPointer(&ptr, a));
    CHECK(send_message(other.sock, &ptr, sizeof ptr, fd));
    close(fd);
    CHECK(receive_go(other.sock));
    CHECK(peer_wait(other) == 0);
    MUST(cuMemcpyDtoH(b, a, sizeof b));
    CHECK(b[9] == 0x5a && b[10] == 0x77 && b[19] == 0x77 && b[20] == 0x5a);
    USUALLY(cuMemPoolImportFromShareableHandle(&q, (void *)(uintptr_t)999, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
    MUST(cuMemFreeAsync(first, s));
    MUST(cuMemFreeAsync(a, s));
    MUST(cuStreamSynchronize(s));
    GIVES(CUDA_SUCCESS, cuMemPoolDestroy(p));
    GIVES(CUDA_SUCCESS, cuMemPoolDestroy(own));
}

int main(int argc, char **argv)
{
    int pools = 0;
    if (argc > 2)
        return importer(atoi(argv[2]));
    struct peer other = peer_start(argv[0], "import");
    CUdevice dev = first_device();
    MUST(cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, dev));
    if (!pools)
        return 77;
    CUcontext ctx = new_context(dev);
    CUstream s = new_stream();
    CUmodule m = new_module(kernels_ptx);
    CUfunction vadd = function_of(m, "vadd"), slow = function_of(m, "slow");
    PART(pools_of_device(dev));
    PART(refused(dev, s));
    PART(accounts(dev, s));
    PART(reuse(dev, s, slow));
    PART(kernels(dev, s, vadd, slow));
    PART(outlived(dev, s));
    PART(access_to(dev));
    PART(two_streams(dev));
    PART(shared(dev, s, other));
    GIVES(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
