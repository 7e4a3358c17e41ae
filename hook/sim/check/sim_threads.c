/* sim_threads.c: many threads, each with its own streams, events, memory and callbacks, in one
 * context. The sums must be right. Then two threads that use the primary context one after the
 * other. */
#include "kernels.h"
#include "objects.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define THREADS 6
#define ROUNDS 40
#define N 512

static CUcontext ctx;
static CUfunction vadd, tick;
static atomic_int calls, wrong;

static void count(void *data)
{
    (void)data;
    atomic_fetch_add(&calls, 1);
}

/* c = c + a several times, over two streams that alternate through events. */
static void round_of(CUstream s[2], CUevent e[2], CUdeviceptr a, CUdeviceptr c, int adds)
{
    int n = N;
    void *args[] = {&c, &a, &c, &n};
    for (int i = 0; i < adds; i++) {
        CUstream here = s[i % 2], there = s[(i + 1) % 2];
        ASSERT_SUCCESS(cuLaunchKernel(vadd, 2, 1, 1, 256, 1, 1, 0, here, args, NULL));
        if (i % 3 == 0)
            ASSERT_SUCCESS(cuLaunchHostFunc(here, count, NULL));
        ASSERT_SUCCESS(cuEventRecord(e[i % 2], here));
        ASSERT_SUCCESS(cuStreamWaitEvent(there, e[i % 2], 0));
    }
}

static void *work(void *arg)
{
    int seed = (int)(intptr_t)arg;
    CUstream s[2];
    CUevent e[2];
    CUdeviceptr a, c;
    float in[N], out[N];
    ASSERT_SUCCESS(cuCtxSetCurrent(ctx));
    for (int i = 0; i < 2; i++) {
        ASSERT_SUCCESS(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
        ASSERT_SUCCESS(cuEventCreate(&e[i], CU_EVENT_DISABLE_TIMING));
    }
    for (int r = 0; r < ROUNDS; r++) {
        int adds = (seed + r) % 9 + 1;
        for (int i = 0; i < N; i++)
            in[i] = (float)(seed + i);
        ASSERT_SUCCESS(cuMemAlloc(&a, sizeof in));
        ASSERT_SUCCESS(cuMemAlloc(&c, sizeof in));
        ASSERT_SUCCESS(cuMemcpyHtoDAsync(a, in, sizeof in, s[0]));
        ASSERT_SUCCESS(cuMemsetD32Async(c, 0, N, s[0]));
        round_of(s, e, a, c, adds);
        if (r % 5 == 0)
            ASSERT_SUCCESS(cuLaunchKernel(tick, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_PER_THREAD, NULL, NULL));
        ASSERT_SUCCESS(cuMemcpyDtoHAsync(out, c, sizeof out, s[adds % 2]));
        ASSERT_SUCCESS(cuStreamSynchronize(s[adds % 2]));
        for (int i = 0; i < N; i++)
            if (out[i] != (float)adds * in[i])
                atomic_fetch_add(&wrong, 1);
        DESTROY(a, c);
    }
    for (int i = 0; i < 2; i++) {
        DESTROY(s[i], e[i]);
    }
    return NULL;
}

static atomic_bool letting_go;

static void slow(void *unused)
{
    (void)unused;
    usleep(200000);
}

/* The only holder releases the context while its work still runs. */
static void *lets_go(void *unused)
{
    CUcontext primary;
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&primary, first_device()));
    ASSERT_SUCCESS(cuCtxSetCurrent(primary));
    ASSERT_SUCCESS(cuLaunchHostFunc(CU_STREAM_LEGACY, slow, NULL));
    letting_go = true;
    ASSERT_SUCCESS(cuDevicePrimaryCtxRelease(first_device()));
    return unused;
}

/* Objects that a thread creates in the primary context, while another thread releases the context,
 * live until this thread releases it, too. */
static void takes_over(CUdevice dev)
{
    CUcontext primary;
    pthread_t t;
    pthread_create(&t, NULL, lets_go, NULL);
    while (!letting_go)
        usleep(1000);
    usleep(50000);
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&primary, dev));
    ASSERT_SUCCESS(cuCtxSetCurrent(primary));
    CUstream s = new_stream();
    pthread_join(t, NULL);
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(s, count, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(s));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(dev));
}

int main(void)
{
    pthread_t t[THREADS];
    size_t before, after, total;
    int expected = 0;
    CUdevice dev = first_device();
    ASSERT_SUCCESS(cuCtxCreate(&ctx, 0, dev));
    CUmodule m = new_module(kernels_ptx);
    ASSERT_SUCCESS(cuModuleGetFunction(&vadd, m, "vadd"));
    ASSERT_SUCCESS(cuModuleGetFunction(&tick, m, "tick"));
    ASSERT_SUCCESS(cuMemGetInfo(&before, &total));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, work, (void *)(intptr_t)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    ASSERT_SUCCESS(cuCtxSynchronize());
    ASSERT_SUCCESS(cuMemGetInfo(&after, &total));
    for (int i = 0; i < THREADS; i++)
        for (int r = 0; r < ROUNDS; r++)
            expected += ((i + r) % 9 + 1 + 2) / 3;
    CHECK(wrong == 0);
    CHECK(calls == expected);
    if (simulated(dev))
        CHECK(before == after);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    takes_over(dev);
    return tap_end();
}
