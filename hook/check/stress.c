/* stress: creates and destroys contexts, streams and memory in many threads.
 *
 *   stress THREADS SECONDS
 *
 * For SECONDS, each of THREADS threads launches kernels on streams of every kind and checks every result.
 * Then the program prints "launched N", where N is the number of launched kernels, and waits for the end
 * of its standard input. */
#include "check.h"

enum { N = 512, STREAMS = 3 };

static CUdevice device;
static double deadline; /* time of now_s at which the threads end */
static unsigned long launches;

/* The objects that a thread uses. */
struct workspace {
    CUcontext context;
    int primary; /* 1: context is the primary context, which threads share; 0: the thread creates one */
    CUmodule module;
    CUfunction add;
    CUstream stream[STREAMS]; /* the first is a blocking stream, the others are non-blocking */
    unsigned seed;            /* of rand_r */
};

static void open_workspace(struct workspace *w)
{
    if (w->primary)
        w->context = primary_of(device);
    else
        ASSERT_SUCCESS(cuCtxCreate(&w->context, 0, device));
    ASSERT_SUCCESS(cuModuleLoadData(&w->module, check_ptx));
    ASSERT_SUCCESS(cuModuleGetFunction(&w->add, w->module, "add"));
    for (int i = 0; i < STREAMS; i++)
        ASSERT_SUCCESS(cuStreamCreate(&w->stream[i], i ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
}

static void close_workspace(struct workspace *w)
{
    for (int i = 0; i < STREAMS; i++)
        ASSERT_SUCCESS(cuStreamDestroy(w->stream[i]));
    ASSERT_SUCCESS(cuModuleUnload(w->module));
    if (w->primary)
        ASSERT_SUCCESS(cuDevicePrimaryCtxRelease(device)); /* other threads may still use it */
    else
        ASSERT_SUCCESS(cuCtxDestroy(w->context));
}

/* Adds two vectors on a randomly chosen stream and checks the sum. */
static void add_once(struct workspace *w)
{
    float x[N], y[N], z[N];
    for (int i = 0; i < N; i++) {
        x[i] = (float)(rand_r(&w->seed) % 1000);
        y[i] = (float)i;
    }
    CUdeviceptr p = new_memory(sizeof x), q = new_memory(sizeof x), r = new_memory(sizeof x);
    int n = N;
    void *params[] = {&p, &q, &r, &n};
    /* One of the workspace's streams, the legacy stream, the per-thread stream, or a new stream that is
     * destroyed as soon as the work is queued. */
    enum { LEGACY = STREAMS, PER_THREAD, BRIEF, CHOICES };
    int choice = rand_r(&w->seed) % CHOICES;
    CUstream stream = choice < STREAMS   ? w->stream[choice]
                      : choice == LEGACY ? CU_STREAM_LEGACY
                      : choice == BRIEF  ? new_stream()
                                         : CU_STREAM_PER_THREAD;
    ASSERT_SUCCESS(cuMemcpyHtoDAsync(p, x, sizeof x, stream));
    ASSERT_SUCCESS(cuMemcpyHtoDAsync(q, y, sizeof y, stream));
    int times = 1 + rand_r(&w->seed) % 4;
    for (int i = 0; i < times; i++)
        ASSERT_SUCCESS(cuLaunchKernel(w->add, N / 64, 1, 1, 64, 1, 1, 0, stream, params, NULL));
    __atomic_add_fetch(&launches, (unsigned long)times, __ATOMIC_RELAXED);
    if (choice == BRIEF) {
        ASSERT_SUCCESS(cuStreamDestroy(stream)); /* the driver still runs the queued work */
        ASSERT_SUCCESS(cuCtxSynchronize());
    } else {
        ASSERT_SUCCESS(cuStreamSynchronize(stream));
    }
    ASSERT_SUCCESS(cuMemcpyDtoH(z, r, sizeof z));
    for (int i = 0; i < N; i++)
        ASSERT_ELEMENT(z, i, x[i] + y[i]);
    ASSERT_SUCCESS(cuMemFree(p));
    ASSERT_SUCCESS(cuMemFree(q));
    ASSERT_SUCCESS(cuMemFree(r));
}

/* Adds once in a short-lived thread, which has its own per-thread stream. The context and the streams of
 * the workspace are those of the starting thread. */
static void *brief_thread(void *arg)
{
    struct workspace *w = arg, own = *w;
    own.seed++; /* the thread makes other random choices than its starter */
    ASSERT_SUCCESS(cuCtxSetCurrent(w->context));
    add_once(&own);
    ASSERT_SUCCESS(cuCtxSetCurrent(NULL));
    return NULL;
}

/* Uses one workspace after another until the deadline. The argument is the number of the thread. Threads
 * with an odd number use the primary context. */
static void *work(void *arg)
{
    struct workspace w = {.seed = (unsigned)(size_t)arg, .primary = (size_t)arg % 2};
    while (now_s() < deadline) {
        open_workspace(&w);
        for (int i = rand_r(&w.seed) % 60; i >= 0 && now_s() < deadline; i--) {
            add_once(&w);
            if (i % 16 == 7) { /* now and then */
                pthread_t thread = start_thread(brief_thread, &w);
                pthread_join(thread, NULL);
            }
        }
        close_workspace(&w);
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
    deadline = now_s() + atof(argv[2]);
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
