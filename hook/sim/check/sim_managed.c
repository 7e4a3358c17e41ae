/* sim_managed.c: memory that is visible to both host and device. */
#include "kernels.h"
#include "objects.h"

#include <stdint.h>

#define MIB (1u << 20)
#define PAGE 4096u /* the smallest unit that a driver moves; a divisor of larger pages */

static void refused(CUdevice dev)
{
    CUdeviceptr p, q;
    int v;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(NULL, 16, CU_MEM_ATTACH_GLOBAL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&p, 16, CU_MEM_ATTACH_SINGLE));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&p, 16, 0));
    ASSERT_SUCCESS(cuMemAllocManaged(&p, MIB, CU_MEM_ATTACH_GLOBAL));
    ASSERT_SUCCESS(cuMemAlloc(&q, MIB));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(q, MIB, dev, NULL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(p, 0, dev, NULL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync(p, MIB, 99, NULL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAdvise(q, MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, dev));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAdvise(p, MIB, (CUmem_advise)99, dev));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_DEVICE, cuMemAdvise(p, MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 99));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                     cuMemRangeGetAttribute(&v, 1, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, MIB));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                     cuMemRangeGetAttribute(NULL, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, MIB));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                     cuMemRangeGetAttribute(&v, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, q, MIB));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFree(p + PAGE));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(p));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(q));
}

/* The host writes, a kernel computes, the host reads, all at one address. */
static void both_sides(CUdevice dev, CUfunction vadd, bool prefetch)
{
    enum { N = 1 << 18 };
    CUdeviceptr p[3];
    float *h[3];
    unsigned n = N;
    void *args[] = {&p[0], &p[1], &p[2], &n};
    bool right = true;
    for (int k = 0; k < 3; k++) {
        CHECK_RESULT(CUDA_SUCCESS, cuMemAllocManaged(&p[k], N * sizeof(float), CU_MEM_ATTACH_GLOBAL));
        h[k] = (float *)(uintptr_t)p[k];
    }
    for (int i = 0; i < N; i++) {
        h[0][i] = (float)i;
        h[1][i] = 1;
    }
    for (int k = 0; prefetch && k < 3; k++)
        CHECK_RESULT(CUDA_SUCCESS, cuMemPrefetchAsync(p[k], N * sizeof(float), dev, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(vadd, N / 256, 1, 1, 256, 1, 1, 0, NULL, args, NULL));
    if (prefetch)
        CHECK_RESULT(CUDA_SUCCESS, cuMemPrefetchAsync(p[2], N * sizeof(float), -1, NULL)); /* CU_DEVICE_CPU */
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    for (int i = 0; i < N; i++)
        right &= h[2][i] == (float)i + 1;
    CHECK(right);
    for (int k = 0; k < 3; k++)
        CHECK_RESULT(CUDA_SUCCESS, cuMemFree(p[k]));
}

static void copies(void)
{
    CUdeviceptr p, q;
    unsigned char *h;
    ASSERT_SUCCESS(cuMemAllocManaged(&p, MIB, CU_MEM_ATTACH_GLOBAL));
    ASSERT_SUCCESS(cuMemAlloc(&q, MIB));
    h = (unsigned char *)(uintptr_t)p;
    memset(h, 0x11, MIB);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoD(q, p, MIB));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8(p, 0x22, MIB / 2));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(h[0] == 0x22 && h[MIB / 2 - 1] == 0x22 && h[MIB / 2] == 0x11);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(h, q, MIB));
    CHECK(h[0] == 0x11);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy(q, p, MIB));
    DESTROY(p, q);
}

static int attribute(CUmem_range_attribute what, CUdeviceptr p, size_t n)
{
    int v = -77;
    CHECK_RESULT(CUDA_SUCCESS, cuMemRangeGetAttribute(&v, sizeof v, what, p, n));
    return v;
}

static void advice(CUdevice dev)
{
    CUdeviceptr p;
    int by[4] = {-7, -7, -7, -7}, mostly = -7;
    size_t half = 8 * MIB;
    ASSERT_SUCCESS(cuMemAllocManaged(&p, 2 * half, CU_MEM_ATTACH_GLOBAL));
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 2 * half) == 0);
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 2 * half) == -2);
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 2 * half) == -2);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAdvise(p, half, CU_MEM_ADVISE_SET_READ_MOSTLY, dev));
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, half) == 1);
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 2 * half) == 0); /* only a part of it */
    CHECK_RESULT(CUDA_SUCCESS, cuMemAdvise(p, half, CU_MEM_ADVISE_UNSET_READ_MOSTLY, dev));
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, half) == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAdvise(p, 2 * half, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, dev));
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 2 * half) == dev);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAdvise(p + half, half, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, -1));
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p + half, half) == -1);
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 2 * half) == -2);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAdvise(p, 2 * half, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAdvise(p, 2 * half, CU_MEM_ADVISE_SET_ACCESSED_BY, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuMemRangeGetAttribute(by, sizeof by, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, 2 * half));
    CHECK(by[0] == dev && by[1] == -2 && by[3] == -2);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAdvise(p, 2 * half, CU_MEM_ADVISE_UNSET_ACCESSED_BY, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuMemPrefetchAsync(p, half, dev, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, half) == dev);
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 2 * half) == -2);
    void *out[] = {&mostly, by};
    size_t sizes[] = {sizeof mostly, sizeof by};
    CUmem_range_attribute which[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY};
    CHECK_RESULT(CUDA_SUCCESS, cuMemRangeGetAttributes(out, sizes, which, 2, p, half));
    CHECK(mostly == 0 && by[0] == -2);
    ASSERT_SUCCESS(cuMemFree(p));
}

static void pointers(CUcontext ctx)
{
    CUdeviceptr p, base = 0;
    CUstream s;
    CUcontext of = NULL;
    unsigned managed = 0;
    size_t size = 0;
    void *host = NULL;
    ASSERT_SUCCESS(cuMemAllocManaged(&p, 12345, CU_MEM_ATTACH_HOST));
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p + 100));
    CHECK(managed == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, p + 100));
    CHECK(host == (void *)(uintptr_t)(p + 100));
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    SIM_CHECK(of == ctx);
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetAddressRange(&base, &size, p + 100));
    CHECK(base == p && size >= 12345);
    ASSERT_SUCCESS(cuStreamCreate(&s, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_SINGLE));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_GLOBAL));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(s, p, 0, 99));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    ASSERT_SUCCESS(cuMemAlloc(&base, 4096));
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, base));
    CHECK(managed == 0);
    SIM_CHECK(cuStreamAttachMemAsync(s, base, 0, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS);
    DESTROY(base, s, p);
}

static size_t free_now(void)
{
    size_t free_bytes, total;
    ASSERT_SUCCESS(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

static void place(CUdeviceptr p, size_t n, CUdevice to)
{
    ASSERT_SUCCESS(cuMemPrefetchAsync(p, n, to, NULL));
    ASSERT_SUCCESS(cuCtxSynchronize());
}

static float placing_ms(CUdeviceptr p, size_t n, CUdevice to)
{
    float ms = 0;
    CUevent begun = new_event(0), ended = new_event(0);
    ASSERT_SUCCESS(cuEventRecord(begun, NULL));
    ASSERT_SUCCESS(cuMemPrefetchAsync(p, n, to, NULL));
    ASSERT_SUCCESS(cuEventRecord(ended, NULL));
    ASSERT_SUCCESS(cuEventSynchronize(ended));
    ASSERT_SUCCESS(cuEventElapsedTime(&ms, begun, ended));
    DESTROY(begun, ended);
    return ms;
}

/* Only the simulator promises this: pages count as the device's from the prefetch on, there may be
 * more pages than device memory, and the least recently used pages are evicted. Pages move at 16
 * GB/s. */
static void residency(CUdevice dev)
{
    size_t total;
    CUdeviceptr a, b, c, d;
    ASSERT_SUCCESS(cuDeviceTotalMem(&total, dev));
    if (total > 1u << 30)
        return; /* moving that many pages would take too long */
    size_t before = free_now(), part = (total / 2 + total / 8) & ~(size_t)(PAGE - 1);
    ASSERT_SUCCESS(cuMemAllocManaged(&a, part, CU_MEM_ATTACH_GLOBAL));
    ASSERT_SUCCESS(cuMemAllocManaged(&b, part, CU_MEM_ATTACH_GLOBAL));
    CHECK(free_now() == before);
    place(a, 10 * PAGE, dev);
    CHECK(free_now() == before - 10 * PAGE);
    place(a + 5 * PAGE, 10 * PAGE, dev);
    CHECK(free_now() == before - 15 * PAGE);
    place(a + 5 * PAGE, PAGE, -1);
    CHECK(free_now() == before - 14 * PAGE);
    CHECK(placing_ms(a, part, dev) >= (float)(part - 14 * PAGE) / 16e6f);
    CHECK(free_now() == before - part);
    ASSERT_SUCCESS(cuMemPrefetchAsync(a, part, dev, NULL));
    CHECK(cuStreamQuery(NULL) == CUDA_SUCCESS); /* it was already there */
    place(b, part, dev); /* evicts a part of a */
    CHECK(free_now() == 0);
    place(b, part, -1);
    CHECK(free_now() == part);
    place(a, part, dev);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&c, before - PAGE)); /* evicts pages to make room */
    CHECK(free_now() <= PAGE);
    place(b, part, dev); /* but cuMemAlloc's memory cannot be evicted */
    CHECK(free_now() == 0);
    CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&d, 2 * PAGE));
    DESTROY(c, a, b);
    CHECK(free_now() == before);
}

int main(void)
{
    CUdevice dev = first_device();
    if (!attribute_of(dev, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) ||
        !attribute_of(dev, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS))
        return 77;
    CUcontext ctx = new_context(dev);
    CUmodule m = new_module(kernels_ptx);
    CUfunction vadd = function_of(m, "vadd");
    PART(refused(dev));
    PART(both_sides(dev, vadd, false));
    PART(both_sides(dev, vadd, true));
    PART(copies());
    PART(advice(dev));
    PART(pointers(ctx));
    if (simulated(dev))
        PART(residency(dev));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
