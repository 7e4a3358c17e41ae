/* stress: for SECONDS, THREADS threads create and destroy contexts, streams and memory, launch on
 * streams of every kind and check every result. It prints how many kernels it launched, and waits
 * for the end of its standard input.
 *
 *   stress THREADS SECONDS */
#include "check.h"

enum { N = 512, STREAMS = 3 };

static CUdevice device;
static double until;
static unsigned long launches;

/* What a thread works with, in a context of its own or in the primary one. */
struct workspace {
    CUcontext context;
    int primary;
    CUmodule module;
    CUfunction add;
    CUstream stream[STREAMS];
    unsigned seed;
};

static void open_workspace(struct workspace *b)
{
    if (b->primary) {
        ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&b->context, device));
        ASSERT_SUCCESS(cuCtxSetCurrent(b->context));
    } else {
        ASSERT_SUCCESS(cuCtxCreate(&b->context, 0, device));
    }
    ASSERT_SUCCESS(cuModuleLoadData(&b->module, check_ptx));
    ASSERT_SUCCESS(cuModuleGetFunction(&b->add, b->module, "add"));
    for (int i = 0; i < STREAMS; i++)
        ASSERT_SUCCESS(cuStreamCreate(&b->stream[i], i ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
}

static void close_workspace(struct workspace *b)
{
    for (int i = 0; i < STREAMS; i++)
        ASSERT_SUCCESS(cuStreamDestroy(b->stream[i]));
    ASSERT_SUCCESS(cuModuleUnload(b->module));
    if (b->primary)
        ASSERT_SUCCESS(cuDevicePrimaryCtxRelease(device)); /* other threads may still use it */
    else
        ASSERT_SUCCESS(cuCtxDestroy(b->context));
}

/* Adds two vectors on a randomly chosen stream and checks the sum. */
static void add_once(struct workspace *b)
{
    float x[N], y[N], z[N];
    for (int i = 0; i < N; i++) {
        x[i] = (float)(rand_r(&b->seed) % 1000);
        y[i] = (float)i;
    }
    CUdeviceptr p, q, r;
    ASSERT_SUCCESS(cuMemAlloc(&p, sizeof x));
    ASSERT_SUCCESS(cuMemAlloc(&q, sizeof x));
    ASSERT_SUCCESS(cuMemAlloc(&r, sizeof x));
    int n = N, kind = rand_r(&b->seed) % (STREAMS + 3), brief = kind == STREAMS + 2;
    void *params[] = {&p, &q, &r, &n};
    CUstream stream = kind < STREAMS ? b->stream[kind] : kind == STREAMS ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
    if (brief)
        ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASSERT_SUCCESS(cuMemcpyHtoDAsync(p, x, sizeof x, stream));
    ASSERT_SUCCESS(cuMemcpyHtoDAsync(q, y, sizeof y, stream));
    int times = 1 + rand_r(&b->seed) % 4;
    for (int i = 0; i < times; i++)
        ASSERT_SUCCESS(cuLaunchKernel(b->add, N / 64, 1, 1, 64, 1, 1, 0, stream, params, NULL));
    __atomic_add_fetch(&launches, (unsigned long)times, __ATOMIC_RELAXED);
    if (brief) {
        ASSERT_SUCCESS(cuStreamDestroy(stream)); /* its work continues */
        ASSERT_SUCCESS(cuCtxSynchronize());
    } else {
        ASSERT_SUCCESS(cuStreamSynchronize(stream));
    }
    ASSERT_SUCCESS(cuMemcpyDtoH(z, r, sizeof z));
    for (int i = 0; i < N; i++)
        ASSERT(z[i] == x[i] + y[i]);
    ASSERT_SUCCESS(cuMemFree(p));
    ASSERT_SUCCESS(cuMemFree(q));
    ASSERT_SUCCESS(cuMemFree(r));
}

/* A short-lived thread, which has its own per-thread stream. */
static void *brief_thread(void *arg)
{
    struct workspace *b = arg, own = *b;
    own.seed++;
    ASSERT_SUCCESS(cuCtxSetCurrent(b->context));
    add_once(&own);
    ASSERT_SUCCESS(cuCtxSetCurrent(NULL));
    return NULL;
}

static void *work(void *arg)
{
    struct workspace b = {.seed = (unsigned)(size_t)arg, .primary = (size_t)arg % 2};
    while (now_s() < until) {
        open_workspace(&b);
        for (int i = rand_r(&b.seed) % 60; i >= 0 && now_s() < until; i--) {
            add_once(&b);
            if (i % 16 == 7) {
                pthread_t thread = start_thread(brief_thread, &b);
                pthread_join(thread, NULL);
            }
        }
        close_workspace(&b);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    enum { MAX_THREADS = 64 };
    int threads = atoi(argv[1]);
    ASSERT(threads > 0 && threads <= MAX_THREADS);
    ASSERT_SUCCESS(cuInit(0));
    ASSERT_SUCCESS(cuDeviceGet(&device, 0));
    until = now_s() + atof(argv[2]);
    pthread_t thread[MAX_THREADS];
    for (int i = 0; i < threads; i++)
        thread[i] = start_thread(work, (void *)(size_t)(i + 1));
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("launched %lu\n", launches);
    fflush(stdout);
    await_end();
    return 0;
}
