/* sim_pool.c: memory allocated and freed in stream order, and its pools. */
#include "kernels.h"
#include "objects.h"
#include "peer.h"

#include <stdint.h>

#define MIB (1u << 20)

static uint64_t attribute(CUmemoryPool p, CUmemPool_attribute what)
{
    cuuint64_t v = 12345;
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolGetAttribute(p, what, &v));
    return v;
}

/* Makes the pool keep up to that many unused bytes instead of returning them to the device. */
static void set_release_threshold(CUmemoryPool p, cuuint64_t bytes)
{
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static CUmemoryPool new_pool(CUdevice dev, CUmemAllocationHandleType handles)
{
    CUmemoryPool p = NULL;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = handles};
    props.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, dev};
    ASSERT_SUCCESS(cuMemPoolCreate(&p, &props));
    return p;
}

static void pools_of_device(CUdevice dev)
{
    CUmemoryPool p = NULL, q = NULL, own = new_pool(dev, CU_MEM_HANDLE_TYPE_NONE);
    int flag = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetDefaultMemPool(&p, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetMemPool(&q, dev));
    CHECK(p && p == q && p != own);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetDefaultMemPool(&q, 99));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetDefaultMemPool(NULL, dev));
    SIM_CHECK(cuMemPoolDestroy(p) != CUDA_SUCCESS);
    CHECK(attribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == 0);
    for (int a = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES; a <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; a++) {
        flag = 0;
        CHECK_RESULT(CUDA_SUCCESS, cuMemPoolGetAttribute(own, (CUmemPool_attribute)a, &flag));
        CHECK(flag == 1);
        flag = 0;
        CHECK_RESULT(CUDA_SUCCESS, cuMemPoolSetAttribute(own, (CUmemPool_attribute)a, &flag));
        flag = 1;
        CHECK_RESULT(CUDA_SUCCESS, cuMemPoolGetAttribute(own, (CUmemPool_attribute)a, &flag));
        CHECK(flag == 0);
    }
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceSetMemPool(dev, own));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetMemPool(&q, dev));
    CHECK(q == own);
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolDestroy(own));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetMemPool(&q, dev));
    CHECK(q == p);
}

static void refused(CUdevice dev, CUstream s)
{
    CUmemoryPool p = new_pool(dev, CU_MEM_HANDLE_TYPE_NONE), q;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
    cuuint64_t v = 7;
    CUdeviceptr a;
    size_t total = 0;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&q, NULL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(NULL, &props));
    SIM_CHECK(cuMemPoolCreate(&q, &props) != CUDA_SUCCESS); /* without a location */
    props.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 99};
    SIM_CHECK(cuMemPoolCreate(&q, &props) != CUDA_SUCCESS);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPoolGetAttribute(p, (CUmemPool_attribute)999, &v));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, NULL));
    /* can only be reset to 0 */
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &v));
    SIM_CHECK(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v) != CUDA_SUCCESS);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(NULL, 16, p, s));
    ASSERT_SUCCESS(cuDeviceTotalMem(&total, dev));
    CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&a, total + 1, p, s));
    SIM_CHECK(cuMemFreeAsync((CUdeviceptr)(uintptr_t)&a, s) != CUDA_SUCCESS);
    ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&a, MIB, p, s));
    SIM_CHECK(cuMemFreeAsync(a + 512, s) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(a, s));
    SIM_CHECK(cuMemFreeAsync(a, s) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    SIM_CHECK(cuMemFree(a) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolDestroy(p));
    if (!simulated(dev)) /* a real driver may dereference invalid handles */
        return;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(p));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPoolTrimTo((CUmemoryPool)&a, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuMemAllocAsync(&a, 16, (CUstream)&a));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(&a, 0, s));
}

static void accounts(CUdevice dev, CUstream s)
{
    CUmemoryPool p = new_pool(dev, CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr a, b;
    cuuint64_t zero = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&a, 3 * MIB, p, s));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&b, 100, p, s));
    CHECK(a % 256 == 0 && b % 256 == 0);
    uint64_t used = attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), reserved = attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    CHECK(used >= 3 * MIB + 100 && used <= reserved);
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(a, s));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(b, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    SIM_CHECK(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0); /* the threshold is 0 */
    CHECK(attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == used);
    CHECK(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= reserved);
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    CHECK(attribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
    set_release_threshold(p, UINT64_MAX);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocFromPoolAsync(&a, 40 * MIB, p, s));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(a, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 40 * MIB);
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolTrimTo(p, MIB));
    CHECK(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= MIB);
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolTrimTo(p, 0));
    CHECK(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolDestroy(p));
}

/* Memory freed in a stream can be reused in the same stream at once, while earlier work still uses
 * it. */
static void reuse(CUdevice dev, CUstream s, CUfunction slow)
{
    CUmemoryPool p = new_pool(dev, CU_MEM_HANDLE_TYPE_NONE);
    unsigned char *values;
    CUdeviceptr a;
    bool right = true;
    set_release_threshold(p, UINT64_MAX);
    ASSERT_SUCCESS(cuMemAllocHost((void **)&values, 64));
    ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&a, 8 * MIB, p, s));
    ASSERT_SUCCESS(cuMemFreeAsync(a, s));
    uint64_t before = attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    ASSERT_SUCCESS(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
    for (int i = 0; i < 64; i++) {
        ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&a, 8 * MIB, p, s));
        ASSERT_SUCCESS(cuMemsetD8Async(a, (unsigned char)i, 8 * MIB, s));
        ASSERT_SUCCESS(cuMemcpyDtoHAsync(values + i, a + 8 * MIB - 1, 1, s));
        ASSERT_SUCCESS(cuMemFreeAsync(a, s));
    }
    SIM_CHECK(attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == before);
    ASSERT_SUCCESS(cuStreamSynchronize(s));
    for (int i = 0; i < 64; i++)
        right &= values[i] == i;
    CHECK(right);
    ASSERT_SUCCESS(cuMemFreeHost(values));
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolDestroy(p));
}

/* A kernel that was launched before its memory was freed still finds it there. */
static void kernels(CUdevice dev, CUstream s, CUfunction vadd, CUfunction slow)
{
    enum { N = 1024 };
    CUmemoryPool p = new_pool(dev, CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr a, b, c, d;
    float *h;
    unsigned n = N;
    void *args[] = {&a, &b, &c, &n};
    ASSERT_SUCCESS(cuMemAllocHost((void **)&h, N * sizeof *h));
    ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&a, N * 4, p, s));
    ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&b, N * 4, p, s));
    ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&c, N * 4, p, s));
    ASSERT_SUCCESS(cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
    ASSERT_SUCCESS(cuMemsetD32Async(a, 0x3f800000, N, s)); /* 1 */
    ASSERT_SUCCESS(cuMemsetD32Async(b, 0x40000000, N, s)); /* 2 */
    ASSERT_SUCCESS(cuLaunchKernel(vadd, N / 256, 1, 1, 256, 1, 1, 0, s, args, NULL));
    ASSERT_SUCCESS(cuMemFreeAsync(a, s));
    ASSERT_SUCCESS(cuMemFreeAsync(b, s));
    ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&d, 512, p, s)); /* probably at the address of a */
    ASSERT_SUCCESS(cuMemsetD8Async(d, 0xff, 512, s));
    ASSERT_SUCCESS(cuMemcpyDtoHAsync(h, c, N * sizeof *h, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(h[0] == 3 && h[N - 1] == 3);
    ASSERT_SUCCESS(cuMemFreeAsync(c, s));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(d)); /* allowed after its work has finished */
    ASSERT_SUCCESS(cuMemFreeHost(h));
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolDestroy(p));
}

/* A destroyed pool lives until its allocations are freed. */
static void outlived(CUdevice dev, CUstream s)
{
    CUmemoryPool p = new_pool(dev, CU_MEM_HANDLE_TYPE_NONE), of = NULL;
    CUdeviceptr a;
    int at = -1;
    unsigned char b = 0;
    ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&a, MIB, p, s));
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a));
    CHECK(of == p);
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&at, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, a));
    CHECK(at == dev);
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolDestroy(p));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8Async(a, 99, MIB, s));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoHAsync(&b, a + MIB - 1, 1, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(b == 99);
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeAsync(a, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
}

static void access_to(CUdevice dev)
{
    CUmemoryPool p = new_pool(dev, CU_MEM_HANDLE_TYPE_NONE);
    CUmemLocation l = {CU_MEM_LOCATION_TYPE_DEVICE, dev};
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUmemAccessDesc d = {l, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolGetAccess(&flags, p, &l));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolSetAccess(p, &d, 1));
    d.location.id = 99;
    SIM_CHECK(cuMemPoolSetAccess(p, &d, 1) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolDestroy(p));
}

/* Two streams allocate, write, read and free in turn, so that one may reuse memory that the other has
 * freed. Each must read the value that it has written. */
static void two_streams(CUdevice dev)
{
    enum { ROUNDS = 50 };
    CUmemoryPool p = new_pool(dev, CU_MEM_HANDLE_TYPE_NONE);
    CUstream s[2];
    CUdeviceptr a;
    unsigned char *values;
    bool right = true;
    ASSERT_SUCCESS(cuMemAllocHost((void **)&values, 2 * ROUNDS));
    for (int k = 0; k < 2; k++)
        ASSERT_SUCCESS(cuStreamCreate(&s[k], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2 * ROUNDS; i++) {
        ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&a, 5 * MIB, p, s[i % 2]));
        ASSERT_SUCCESS(cuMemsetD8Async(a, (unsigned char)i, 5 * MIB, s[i % 2]));
        ASSERT_SUCCESS(cuMemcpyDtoHAsync(values + i, a + 12345, 1, s[i % 2]));
        ASSERT_SUCCESS(cuMemFreeAsync(a, s[i % 2]));
    }
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    for (int i = 0; i < 2 * ROUNDS; i++)
        right &= values[i] == (unsigned char)i;
    CHECK(right);
    for (int k = 0; k < 2; k++)
        ASSERT_SUCCESS(cuStreamDestroy(s[k]));
    ASSERT_SUCCESS(cuMemFreeHost(values));
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolDestroy(p));
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
    ASSERT_SUCCESS(cuMemPoolImportFromShareableHandle(&p, (void *)(uintptr_t)fd,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(fd);
    ASSERT_SUCCESS(cuMemPoolImportPointer(&a, p, &ptr));
    ASSERT_SUCCESS(cuMemcpyDtoH(b, a, sizeof b));
    for (size_t i = 0; i < sizeof b; i++)
        same &= b[i] == 0x5a;
    ASSERT_SUCCESS(cuMemsetD8(a + 10, 0x77, 10));
    ASSERT_SUCCESS(cuCtxSynchronize());
    if (!same || cuMemAllocFromPoolAsync(&a, 16, p, NULL) == CUDA_SUCCESS)
        return 1;
    ASSERT_SUCCESS(cuMemFreeAsync(a, NULL));
    ASSERT_SUCCESS(cuStreamSynchronize(NULL));
    cuMemPoolDestroy(p); /* driver 580 allows only the maker to do this */
    ASSERT_SUCCESS(cuCtxDestroy(ctx));
    return !send_go(sock);
}

static void shared(CUdevice dev, CUstream s, struct peer other)
{
    CUmemoryPool p = new_pool(dev, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), own = new_pool(dev, CU_MEM_HANDLE_TYPE_NONE), q;
    CUmemPoolPtrExportData ptr;
    CUdeviceptr before_a, a;
    unsigned char b[1000];
    int fd = -1;
    ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&before_a, 700, p, s)); /* so that a is not at the start of the pool */
    ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&a, sizeof b, p, s));
    ASSERT_SUCCESS(cuMemsetD8Async(a, 0x5a, sizeof b, s));
    ASSERT_SUCCESS(cuStreamSynchronize(s));
    SIM_CHECK(cuMemPoolExportToShareableHandle(&fd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(NULL, a));
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolExportToShareableHandle(&fd, p, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolExportPointer(&ptr, a));
    CHECK(send_message(other.sock, &ptr, sizeof ptr, fd));
    close(fd);
    CHECK(receive_go(other.sock));
    CHECK(peer_wait(other) == 0);
    ASSERT_SUCCESS(cuMemcpyDtoH(b, a, sizeof b));
    CHECK(b[9] == 0x5a && b[10] == 0x77 && b[19] == 0x77 && b[20] == 0x5a);
    SIM_CHECK(cuMemPoolImportFromShareableHandle(&q, (void *)(uintptr_t)999, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                 0) != CUDA_SUCCESS);
    ASSERT_SUCCESS(cuMemFreeAsync(before_a, s));
    ASSERT_SUCCESS(cuMemFreeAsync(a, s));
    ASSERT_SUCCESS(cuStreamSynchronize(s));
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolDestroy(p));
    CHECK_RESULT(CUDA_SUCCESS, cuMemPoolDestroy(own));
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return importer(atoi(argv[2]));
    struct peer other = peer_start(argv[0], "import");
    CUdevice dev = first_device();
    if (!attribute_of(dev, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED))
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
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
