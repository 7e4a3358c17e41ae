/* sim_word.c: words of memory that streams write in stream order, or wait for. */
#define _GNU_SOURCE
#include "kernels.h"
#include "objects.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static CUstream a, b;
static CUdeviceptr word;      /* two words of 64 bits on the device */
static volatile uint64_t *host; /* two words that the host can see */
static CUdeviceptr seen;      /* their address on the device */

static CUstream stream(void)
{
    CUstream s = new_stream();
    return s;
}

static uint64_t value(CUdeviceptr at)
{
    uint64_t got = 0;
    ASSERT_SUCCESS(cuMemcpyDtoH(&got, at, sizeof got));
    return got;
}

static void clear(void)
{
    ASSERT_SUCCESS(cuMemsetD32(word, 0, 4));
    ASSERT_SUCCESS(cuCtxSynchronize());
    host[0] = host[1] = 0;
}

static void writes(void)
{
    clear();
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWriteValue32(a, word, 0x80000001u, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWriteValue64(a, word + 8, 1ull << 63 | 7, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                 cuStreamWriteValue64(a, word + 8, 1, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWriteValue32(a, seen, 5, 0));
    ASSERT_SUCCESS(cuStreamSynchronize(a));
    CHECK(value(word) == 0x80000001u);
    CHECK(value(word + 8) == (1ull << 63 | 7));
    CHECK(host[0] == 5);
}

/* Two streams take turns, five times. */
static void turns(void)
{
    clear();
    for (uint32_t i = 1; i <= 5; i++) {
        ASSERT_SUCCESS(cuStreamWaitValue32(b, word, 2 * i - 1, CU_STREAM_WAIT_VALUE_EQ));
        ASSERT_SUCCESS(cuStreamWriteValue32(b, word, 2 * i, 0));
    }
    for (uint32_t i = 1; i <= 5; i++) {
        ASSERT_SUCCESS(cuStreamWriteValue32(a, word, 2 * i - 1, 0));
        ASSERT_SUCCESS(cuStreamWaitValue32(a, word, 2 * i, CU_STREAM_WAIT_VALUE_EQ));
    }
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(a));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(b));
    CHECK((uint32_t)value(word) == 10);
}

/* A stream waits for the host while others continue. */
static void for_the_host(void)
{
    clear();
    CUmodule m = new_module(kernels_ptx);
    CUfunction tick = function_of(m, "tick");
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitValue64(a, seen, 1ull << 40, CU_STREAM_WAIT_VALUE_GEQ));
    ASSERT_SUCCESS(cuStreamWriteValue32(a, word, 1, 0));
    ASSERT_SUCCESS(cuLaunchKernel(tick, 1, 1, 1, 32, 1, 1, 0, b, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(b));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    host[0] = 1ull << 40;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(a));
    CHECK((uint32_t)value(word) == 1);
    ASSERT_SUCCESS(cuModuleUnload(m));
}

/* Reports whether a wait for `wanted` ends at once if the word has the value `is`. */
static bool over(uint32_t is, uint32_t wanted, unsigned flags)
{
    host[0] = is;
    ASSERT_SUCCESS(cuStreamWaitValue32(a, seen, wanted, flags));
    ASSERT_SUCCESS(cuStreamWriteValue32(a, seen + 8, 1, 0));
    for (int i = 0; i < 50 && !(uint32_t)host[1]; i++)
        usleep(1000);
    bool is_over = (uint32_t)host[1];
    host[0] = flags == CU_STREAM_WAIT_VALUE_NOR ? 0 : flags == CU_STREAM_WAIT_VALUE_AND ? UINT32_MAX : wanted;
    ASSERT_SUCCESS(cuStreamSynchronize(a));
    host[1] = 0;
    return is_over;
}

static void conditions(void)
{
    clear();
    CHECK(over(7, 7, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(over(8, 7, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(!over(6, 7, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(over(2, UINT32_MAX, CU_STREAM_WAIT_VALUE_GEQ)); /* the value has wrapped around */
    CHECK(!over(UINT32_MAX, 2, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(!over(8, 7, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(over(6, 2, CU_STREAM_WAIT_VALUE_AND));
    CHECK(!over(5, 2, CU_STREAM_WAIT_VALUE_AND));
    CHECK(over(5, 2, CU_STREAM_WAIT_VALUE_NOR));
    CHECK(!over(~2u, 2, CU_STREAM_WAIT_VALUE_NOR));
}

static void batches(void)
{
    CUstreamBatchMemOpParams p[3];
    memset(p, 0, sizeof p);
    clear();
    p[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    p[0].waitValue.address = seen;
    p[0].waitValue.value = 3;
    p[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    p[1].writeValue.address = seen + 8;
    p[1].writeValue.value64 = 1ull << 50;
    p[2].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    p[2].waitValue.address = seen + 8;
    p[2].waitValue.value64 = 1ull << 50;
    p[2].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamBatchMemOp(a, 3, p, 0));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    CHECK(host[1] == 0);
    host[0] = 3;
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(a));
    CHECK(host[1] == 1ull << 50);
    p[2].operation = 77;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(a, 3, p, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(a, 257, p, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(a, 1, NULL, 0)); /* driver 580 crashes */
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(a, 1, p, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamQuery(a)); /* no part of a refused batch has begun */
}

static void refused(void)
{
    uint32_t local = 0;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(a, word + 2, 1, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64(a, word + 4, 1, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(a, 0, 1, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(a, (CUdeviceptr)(uintptr_t)&local, 0, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(a, word, 0, 4));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(a, word, 0, 2));
}

/* Timeline semaphores. Those of a real driver are made by another interface. */
static void semaphores(void)
{
    CUdevice dev;
    ASSERT_SUCCESS(cuCtxGetDevice(&dev));
    if (!simulated(dev))
        return;
    CUexternalSemaphore sem;
    int fd = memfd_create("semaphore", MFD_CLOEXEC);
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {.type = 1, .handle.fd = fd};
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS until = {.params.fence.value = 5};
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS to = {.params.fence.value = 6};
    CHECK_RESULT(CUDA_ERROR_NOT_SUPPORTED, cuImportExternalSemaphore(&sem, &desc));
    desc.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuImportExternalSemaphore(&sem, &desc)); /* the file is empty */
    CHECK(ftruncate(fd, 8) == 0);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuImportExternalSemaphore(NULL, &desc));
    CHECK_RESULT(CUDA_SUCCESS, cuImportExternalSemaphore(&sem, &desc));
    CHECK(fcntl(fd, F_GETFD) < 0); /* the driver has taken the descriptor */
    CHECK_RESULT(CUDA_SUCCESS, cuWaitExternalSemaphoresAsync(&sem, &until, 1, a));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    CHECK_RESULT(CUDA_SUCCESS, cuSignalExternalSemaphoresAsync(&sem, &to, 1, b));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(a));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuWaitExternalSemaphoresAsync(&sem, &until, 0, a));
    CHECK_RESULT(CUDA_SUCCESS, cuDestroyExternalSemaphore(sem));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuWaitExternalSemaphoresAsync(&sem, &until, 1, a));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuDestroyExternalSemaphore(sem));
}

int main(void)
{
    CUdevice dev = first_device();
    void *both;
    CUcontext ctx = new_context(dev);
    CHECK(attribute_of(dev, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
    CHECK(attribute_of(dev, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR));
    ASSERT_SUCCESS(cuMemAlloc(&word, 16));
    ASSERT_SUCCESS(cuMemHostAlloc(&both, 16, CU_MEMHOSTALLOC_DEVICEMAP));
    ASSERT_SUCCESS(cuMemHostGetDevicePointer(&seen, both, 0));
    host = both;
    a = stream();
    b = stream();
    PART(writes());
    PART(turns());
    PART(for_the_host());
    PART(conditions());
    PART(batches());
    PART(refused());
    PART(semaphores());
    DESTROY(a, b);
    ASSERT_SUCCESS(cuMemFreeHost(both));
    ASSERT_SUCCESS(cuMemFree(word));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
