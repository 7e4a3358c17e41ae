/* sim_memory.c: device and host memory; copies and memsets of every shape. */
#include "objects.h"

#include <stdint.h>

#define N 1000

static void plain(void)
{
    CUdeviceptr p = 0, q = 0, base = 0;
    size_t free0, free1, free2, total, size = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&free0, &total));
    CHECK(free0 > 0 && free0 <= total);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(NULL, 16));
    CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, total + 1));
    CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, SIZE_MAX));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&p, 8 << 20));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&q, 10));
    CHECK(p % 256 == 0 && q % 256 == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&free1, &total));
    CHECK(free1 <= free0 - (8 << 20));
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetAddressRange(&base, &size, p + 4096));
    CHECK(base == p && size == 8 << 20);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFree(p + 256));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(p));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(q));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetInfo(&free2, &total));
    CHECK(free2 >= free1 + (8 << 20));
}

static void linear(void)
{
    uint32_t a[N], b[N];
    for (int i = 0; i < N; i++)
        a[i] = (uint32_t)i * 2654435761u;
    CUdeviceptr p = new_memory(sizeof a), q = new_memory(sizeof a);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoD(p, a, sizeof a));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoD(q, p, sizeof a));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(b, q, sizeof a));
    CHECK(!memcmp(a, b, sizeof a));
    memset(b, 0, sizeof b);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy((CUdeviceptr)(uintptr_t)b, p, sizeof a));
    CHECK(!memcmp(a, b, sizeof a));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoDAsync(q, b, 64, NULL));
    b[0] = ~b[0]; /* the caller may reuse pageable memory at once */
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoHAsync(b, q, sizeof a, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(!memcmp(a, b, sizeof a));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoD(p, a, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(0, a, 4));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(b, 0, 4));
    DESTROY(p, q);
}

static void sets(void)
{
    unsigned char b[64];
    uint16_t h[8];
    uint32_t w[4];
    CUdeviceptr p = new_memory(64);
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8(p, 0xab, 64));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD16(p + 16, 0x1234, 8));
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD32Async(p + 32, 0xdeadbeef, 4, NULL));
    ASSERT_SUCCESS(cuMemcpyDtoH(b, p, 64));
    memcpy(h, b + 16, sizeof h);
    memcpy(w, b + 32, sizeof w);
    CHECK(b[0] == 0xab && b[15] == 0xab && b[48] == 0xab && b[63] == 0xab);
    CHECK(h[0] == 0x1234 && h[7] == 0x1234);
    CHECK(w[0] == 0xdeadbeef && w[3] == 0xdeadbeef);
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD2D8(p, 16, 7, 4, 4));
    ASSERT_SUCCESS(cuMemcpyDtoH(b, p, 64));
    CHECK(b[0] == 7 && b[3] == 7 && b[4] == 0xab && b[51] == 7 && b[52] == 0xab);
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD2D32(p, 32, 0x01020304, 2, 2));
    ASSERT_SUCCESS(cuMemcpyDtoH(b, p, 64));
    CHECK(b[0] == 4 && b[7] == 1 && b[32] == 4 && b[8] == 0xab);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(p + 1, 0, 1));
    ASSERT_SUCCESS(cuMemFree(p));
}

static void boxes(void)
{
    enum { W = 10, H = 6, D = 3 };
    unsigned char in[D][H][W], out[D][H][W];
    CUdeviceptr p;
    size_t pitch = 0;
    for (int i = 0; i < D * H * W; i++)
        ((unsigned char *)in)[i] = (unsigned char)i;
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocPitch(&p, &pitch, W, H * D, 4));
    CHECK(pitch >= W && pitch % 4 == 0);
    CUdeviceptr none; /* a real driver writes both values before it refuses */
    size_t nothing;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&none, &nothing, W, H, 3));
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = in, .srcPitch = W,
                       .WidthInBytes = W, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p,
                       .dstPitch = pitch, .Height = H};
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2D(&c));
    memset(out, 0, sizeof out);
    CUDA_MEMCPY2D back = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .srcPitch = pitch,
                          .srcXInBytes = 2, .srcY = 1, .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = out, .dstPitch = W, .WidthInBytes = 3, .Height = 2};
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2DUnaligned(&back));
    CHECK(out[0][0][0] == in[0][1][2] && out[0][0][2] == in[0][1][4] && out[0][1][0] == in[0][2][2] && !out[0][0][3]);
    back.srcPitch = 1;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&back));
    CUDA_MEMCPY3D v = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = in, .srcPitch = W,
                       .srcHeight = H, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p,
                       .dstPitch = pitch, .dstHeight = H, .WidthInBytes = W, .Height = H,
                       .Depth = D};
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy3D(&v));
    CUDA_MEMCPY3D r = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .srcPitch = pitch,
                       .srcHeight = H, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = out,
                       .dstPitch = W, .dstHeight = H, .WidthInBytes = W, .Height = H, .Depth = D};
    memset(out, 0, sizeof out);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy3DAsync(&r, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(!memcmp(in, out, sizeof in));
    ASSERT_SUCCESS(cuMemFree(p));
}

/* Drivers have this call since CUDA 12.8. */
static void batch(void)
{
    __typeof__(&cuMemcpyBatchAsync) copy = NULL;
    unsigned char a[3][64], b[3][64];
    CUdeviceptr p, dst[3], src[3], back[3];
    CUstream s;
    CUmemcpyAttributes how = {.srcAccessOrder = 1}; /* in stream order */
    size_t sizes[3] = {64, 10, 1}, first = 0, failed = 7;
    if (cuGetProcAddress("cuMemcpyBatchAsync", (void **)&copy, 12080, 0, NULL) != CUDA_SUCCESS || !copy)
        return;
    ASSERT_SUCCESS(cuMemAlloc(&p, 3 * 64));
    ASSERT_SUCCESS(cuStreamCreate(&s, 0));
    for (unsigned i = 0; i < 3; i++) {
        memset(a[i], (int)i + 1, 64);
        memset(b[i], 0, 64);
        dst[i] = p + 64 * i;
        src[i] = (CUdeviceptr)(uintptr_t)a[i];
        back[i] = (CUdeviceptr)(uintptr_t)b[i];
    }
    CHECK_RESULT(CUDA_SUCCESS, copy(dst, src, sizes, 3, &how, &first, 1, &failed, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK_RESULT(CUDA_SUCCESS, copy(back, dst, sizes, 3, &how, &first, 1, &failed, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(b[0][63] == 1 && b[1][9] == 2 && b[1][10] == 0 && b[2][0] == 3);
    CHECK(copy(dst, src, sizes, 0, &how, &first, 1, &failed, s) != CUDA_SUCCESS);
    CHECK(copy(dst, src, sizes, 3, NULL, &first, 1, &failed, s) != CUDA_SUCCESS);
    DESTROY(s, p);
}

static void host(CUcontext ctx)
{
    void *p = NULL;
    static char page[8192] __attribute__((aligned(4096)));
    CUdeviceptr d = 0, q;
    CUcontext owner = NULL;
    unsigned flags = 0, type = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK_RESULT(CUDA_SUCCESS, cuMemHostGetDevicePointer(&d, p, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemHostGetFlags(&flags, p));
    CHECK(flags & CU_MEMHOSTALLOC_DEVICEMAP);
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, d));
    CHECK(type == CU_MEMORYTYPE_HOST);
    ASSERT_SUCCESS(cuMemAlloc(&q, 4096));
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, q));
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, q));
    CHECK(owner == ctx);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                 cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&type));
    memset(p, 42, 4096);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoDAsync(q, p, 4096, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8(d, 1, 4096));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoHAsync(p, q, 100, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(((char *)p)[99] == 42 && ((char *)p)[100] == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeHost(p));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(page));
    CHECK_RESULT(CUDA_SUCCESS, cuMemHostRegister(page, sizeof page, 0));
    CHECK_RESULT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(page, sizeof page, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemHostUnregister(page));
    CHECK_RESULT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(page));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAllocHost(&p, 16));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFreeHost(p));
    ASSERT_SUCCESS(cuMemFree(q));
}

static void attributes(void)
{
    CUdeviceptr p, start = 0;
    size_t size = 0;
    unsigned type = 0;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *out[] = {&type, &start, &size};
    ASSERT_SUCCESS(cuMemAlloc(&p, 12345));
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttributes(3, which, out, p + 100));
    CHECK(type == CU_MEMORYTYPE_DEVICE && start == p && size == 12345);
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttributes(1, which, out, (CUdeviceptr)(uintptr_t)&type));
    CHECK(type == 0);
    ASSERT_SUCCESS(cuMemFree(p));
}

/* Allocations of many sizes, freed in another order, keep their contents. */
static void churn(bool sim)
{
    enum { K = 200 };
    CUdeviceptr p[K];
    size_t size[K], free0, free1, total;
    unsigned char b[20000];
    bool ok = true;
    ASSERT_SUCCESS(cuMemGetInfo(&free0, &total));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < K; i++) {
            size[i] = (size_t)(i * 7919 + round * 104729) % sizeof b + 1;
            ASSERT_SUCCESS(cuMemAlloc(&p[i], size[i]));
            ASSERT_SUCCESS(cuMemsetD8(p[i], (unsigned char)(i + round), size[i]));
        }
        for (int i = 0; i < K; i++) {
            int k = (i * 77 + 13) % K; /* 77 and 200 have no common divisor */
            ASSERT_SUCCESS(cuMemcpyDtoH(b, p[k], size[k]));
            for (size_t j = 0; j < size[k]; j++)
                ok &= b[j] == (unsigned char)(k + round);
            ASSERT_SUCCESS(cuMemFree(p[k]));
        }
    }
    CHECK(ok);
    ASSERT_SUCCESS(cuMemGetInfo(&free1, &total));
    if (sim) /* a real driver may keep some of it */
        CHECK(free1 == free0);
}

int main(void)
{
    CUdevice dev = first_device();
    CUcontext ctx = new_context(dev);
    PART(plain());
    PART(linear());
    PART(sets());
    PART(boxes());
    PART(batch());
    PART(host(ctx));
    PART(attributes());
    PART(churn(simulated(dev)));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
