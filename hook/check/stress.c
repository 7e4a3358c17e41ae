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
        MUST(cuDevicePrimaryCtxRetain(&b->context, device));
        MUST(cuCtxSetCurrent(b->context));
    } else {
        MUST(cuCtxCreate(&b->context, 0, device));
    }
    MUST(cuModuleLoadData(&b->module, check_ptx));
    MUST(cuModuleGetFunction(&b->add, b->module, "add"));
    for (int i = 0; i < STREAMS; i++)
        MUST(cuStreamCreate(&b->stream[i], i ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
}

static void close_workspace(struct workspace *b)
{
    for (int i = 0; i < STREAMS; i++)
        MUST(cuStreamDestroy(b->stream[i]));
    MUST(cuModuleUnload(b->module));
    if (b->primary)
        MUST(cuDevicePrimaryCtxRelease(device)); /* other threads may still use it */
    else
        MUST(cuCtxDestroy(b->context));
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
    MUST(cuMemAlloc(&p, sizeof x));
    MUST(cuMemAlloc(&q, sizeof x));
    MUST(cuMemAlloc(&r, sizeof x));
    int n = N, kind = rand_r(&b->seed) % (STREAMS + 3), brief = kind == STREAMS + 2;
    void *params[] = {&p, &q, &r, &n};
    CUstream stream = kind < STREAMS ? b->stream[kind] : kind == STREAMS ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
    if (brief)
        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemcpyHtoDAsync(p, x, sizeof x, stream));
    MUST(cuMemcpyHtoDAsync(q, y, sizeof y, stream));
    int times = 1 + rand_r(&b->seed) % 4;
    for (int i = 0; i < times; i++)
        MUST(cuLaunchKernel(b->add, N / 64, 1, 1, 64, 1, 1, 0, stream, params, NULL));
    __atomic_add_fetch(&launches, (unsigned long)times, __ATOMIC_RELAXED);
    if (brief) {
        MUST(cuStreamDestroy(stream)); /* its work continues */
        MUST(cuCtxSynchronize());
    } else {
        MUST(cuStreamSynchronize(stream));
    }
    MUST(cuMemcpyDtoH(z, r, sizeof z));
    for (int i = 0; i < N; i++)
        ENSURE(z[i] == x[i] + y[i]);
    MUST(cuMemFree(p));
    MUST(cuMemFree(q));
    MUST(cuMemFree(r));
}

/* A short-lived thread, which has its own per-thread stream. */
static void *brief_thread(void *arg)
{
    struct workspace *b = arg, own = *b;
    own.seed++;
    MUST(cuCtxSetCurrent(b->context));
    add_once(&own);
    MUST(cuCtxSetCurrent(NULL));
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
    ENSURE(threads > 0 && threads <= MAX_THREADS);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
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
