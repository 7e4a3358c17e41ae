/* sim_stream.c: streams, events, callbacks, and their order. */
#include "kernels.h"
#include "objects.h"

#include <pthread.h>
#include <unistd.h>

static CUfunction tick, slow;
static bool sim;
static int sms;

static void run(CUfunction f, unsigned blocks, CUstream s)
{
    ASSERT_SUCCESS(cuLaunchKernel(f, blocks, 1, 1, 32, 1, 1, 0, s, NULL, NULL));
}

static double elapsed(CUevent a, CUevent b)
{
    float ms = -1;
    ASSERT_SUCCESS(cuEventElapsedTime(&ms, a, b));
    return ms;
}

static int gate_open;

static void wait_at_gate(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&gate_open, __ATOMIC_ACQUIRE))
        usleep(200);
}

/* Holds a stream back until open_gate(), so that all following work is queued before the first piece
 * begins, however busy the host is. */
static void hold(CUstream s)
{
    gate_open = 0;
    ASSERT_SUCCESS(cuLaunchHostFunc(s, wait_at_gate, NULL));
}

static void open_gate(void)
{
    __atomic_store_n(&gate_open, 1, __ATOMIC_RELEASE);
}

/* Holds the legacy stream back, with a kernel as its first work, so that the following work starts
 * without a gap. */
static void lead(void)
{
    hold(NULL);
    run(tick, (unsigned)sms, NULL);
}

static bool near(double got, double want)
{
    bool ok = got > want * 0.99 && got < want * 1.01;
    if (!ok)
        printf("# got %g, expected %g\n", got, want);
    return ok;
}

static void events(void)
{
    CUevent a, b, quiet;
    float ms;
    CUstream s = new_stream();
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&a, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&b, CU_EVENT_BLOCKING_SYNC));
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&quiet, CU_EVENT_DISABLE_TIMING));
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(a));
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(a));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, a, b));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(a, s));
    run(tick, 1, s);
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(b, s));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(quiet, s));
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(b));
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(b));
    CHECK_RESULT(CUDA_SUCCESS, cuEventElapsedTime(&ms, a, b));
    CHECK(ms >= 0);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, a, quiet));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(a));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(b));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(quiet));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(s));
}

/* On the simulated GPU, a kernel takes ceil(blocks / SMs) times the time of a block. */
static void block_rule(void)
{
    unsigned blocks[] = {1, (unsigned)sms, (unsigned)sms + 1, 4u * (unsigned)sms};
    double want[] = {1, 1, 2, 4};
    CUevent e[5];
    for (int i = 0; i < 5; i++)
        ASSERT_SUCCESS(cuEventCreate(&e[i], 0));
    lead();
    ASSERT_SUCCESS(cuEventRecord(e[0], NULL));
    for (int i = 0; i < 4; i++) {
        run(tick, blocks[i], NULL);
        ASSERT_SUCCESS(cuEventRecord(e[i + 1], NULL));
    }
    open_gate();
    ASSERT_SUCCESS(cuCtxSynchronize());
    for (int i = 0; i < 4; i++)
        CHECK(near(elapsed(e[i], e[i + 1]), want[i]));
    double before = seconds();
    run(tick, 20u * (unsigned)sms, NULL);
    ASSERT_SUCCESS(cuCtxSynchronize());
    CHECK(seconds() - before >= 0.020);
    for (int i = 0; i < 5; i++)
        ASSERT_SUCCESS(cuEventDestroy(e[i]));
}

/* A thousand short kernels in sequence take as long as a single kernel of their total length. */
static void exactness(void)
{
    CUevent a = new_event(0), b = new_event(0);
    lead();
    ASSERT_SUCCESS(cuEventRecord(a, NULL));
    for (int i = 0; i < 200; i++)
        run(tick, 1, NULL);
    ASSERT_SUCCESS(cuEventRecord(b, NULL));
    open_gate();
    ASSERT_SUCCESS(cuEventSynchronize(b));
    double ms = elapsed(a, b);
    CHECK(ms > 199.999 && ms < 200.001);
    DESTROY(a, b);
}

static void waiting(void)
{
    CUstream s = new_stream(), t = new_stream();
    CUevent e = new_event(0), done = new_event(0);
    hold(s);
    run(slow, 25u * (unsigned)sms, s);
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(e, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamWaitEvent(t, e, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(done, t));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(done));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(t));
    open_gate();
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(t));
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(e));
    CHECK(elapsed(e, done) >= 0);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamQuery(s));
    DESTROY(s, t, e, done);
}

/* Work in the legacy stream waits for blocking streams, and they wait for it. A non-blocking stream
 * does neither. */
static void legacy(void)
{
    CUstream blocking, free_stream;
    ASSERT_SUCCESS(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    ASSERT_SUCCESS(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    CUevent a = new_event(0), b = new_event(0), c = new_event(0);
    hold(blocking);
    run(slow, 25u * (unsigned)sms, blocking); /* 50 ms */
    ASSERT_SUCCESS(cuEventRecord(a, NULL));
    ASSERT_SUCCESS(cuEventRecord(b, free_stream));
    ASSERT_SUCCESS(cuEventRecord(c, blocking));
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(b));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(a));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(c));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    open_gate();
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(CU_STREAM_LEGACY));
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(a));
    CHECK(elapsed(b, a) > 45);
    hold(NULL);
    ASSERT_SUCCESS(cuEventRecord(c, blocking));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(c));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamQuery(free_stream));
    open_gate();
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(c));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(blocking));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(free_stream));
    DESTROY(a, b, c);
}

static int order[8], calls;
static CUresult inside = CUDA_SUCCESS, reported = CUDA_ERROR_UNKNOWN;

static void host_fn(void *data)
{
    CUdevice d;
    inside = cuCtxGetDevice(&d);
    order[calls++] = (int)(intptr_t)data;
}

static void callback(CUstream s, CUresult status, void *data)
{
    (void)s;
    reported = status;
    order[calls++] = (int)(intptr_t)data;
}

static void callbacks(void)
{
    int v = 0;
    CUstream s = new_stream();
    CUdeviceptr p = new_memory(4);
    run(tick, 1, s);
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchHostFunc(s, host_fn, (void *)1));
    ASSERT_SUCCESS(cuMemsetD32Async(p, 99, 1, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamAddCallback(s, callback, (void *)2, 0));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(s, callback, NULL, 1));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(s, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(calls == 2 && order[0] == 1 && order[1] == 2);
    CHECK(inside == CUDA_ERROR_NOT_PERMITTED);
    CHECK(reported == CUDA_SUCCESS);
    ASSERT_SUCCESS(cuMemcpyDtoH(&v, p, 4));
    CHECK(v == 99);
    DESTROY(p, s);
}

static void *own_stream(void *arg)
{
    unsigned long long *id = arg;
    ASSERT_SUCCESS(cuStreamGetId(CU_STREAM_PER_THREAD, id));
    return NULL;
}

static void *own_stream_in(void *arg)
{
    void **a = arg;
    ASSERT_SUCCESS(cuCtxSetCurrent(a[0]));
    return own_stream(a[1]);
}

static void kinds(CUcontext ctx)
{
    CUstream s;
    CUcontext of = NULL;
    pthread_t t;
    unsigned flags = 9;
    int priority = 9;
    unsigned long long mine = 0, theirs = 0, again = 0;
    void *arg[] = {ctx, &theirs};
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&s, 8));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -100));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetFlags(s, &flags));
    CHECK(flags == CU_STREAM_NON_BLOCKING);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetPriority(s, &priority));
    CHECK(priority < 0 && priority > -100);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamGetCtx(s, &of));
    CHECK(of == ctx);
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(s));
    own_stream(&mine);
    own_stream(&again);
    pthread_create(&t, NULL, own_stream_in, arg);
    pthread_join(t, NULL);
    CHECK(mine == again && mine != theirs);
}

/* A launch returns at once until the queue is full, and then blocks. */
static void queue(void)
{
    CUevent led = new_event(0);
    lead();
    ASSERT_SUCCESS(cuEventRecord(led, NULL));
    for (int i = 0; i < 100; i++)
        run(tick, 1, NULL);
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(led));
    open_gate();
    ASSERT_SUCCESS(cuCtxSynchronize());
    ASSERT_SUCCESS(cuEventDestroy(led));
    double before = seconds();
    for (int i = 0; i < 1024 + 100; i++)
        run(tick, 1, NULL);
    CHECK(seconds() - before > 0.090);
    ASSERT_SUCCESS(cuCtxSynchronize());
}

/* A destroyed stream completes its work. */
static void destroyed(void)
{
    int v = 0;
    CUdeviceptr p = new_memory(4);
    ASSERT_SUCCESS(cuMemsetD32(p, 1, 1));
    ASSERT_SUCCESS(cuCtxSynchronize());
    CUstream s = new_stream();
    run(slow, 1, s);
    ASSERT_SUCCESS(cuMemsetD32Async(p, 2, 1, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamDestroy(s));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    ASSERT_SUCCESS(cuMemcpyDtoH(&v, p, 4));
    CHECK(v == 2);
    ASSERT_SUCCESS(cuMemFree(p));
}

/* Delays on the host (here it computes the effects of kernels while it copies) do not lengthen the
 * device's time. */
static void busy_host(CUfunction saxpy)
{
    enum { N = 1 << 21, COPIES = 10, KERNELS = 3 };
    CUdeviceptr x, y;
    void *host;
    float k = 2;
    unsigned n = 32;
    void *args[] = {&k, &x, &y, &n};
    CUstream kernels = new_stream(), copies = new_stream();
    CUevent begun = new_event(0), ended = new_event(0);
    ASSERT_SUCCESS(cuMemAlloc(&x, N * sizeof(float)));
    ASSERT_SUCCESS(cuMemAlloc(&y, N * sizeof(float)));
    ASSERT_SUCCESS(cuMemAllocHost(&host, N * sizeof(float)));
    hold(kernels);
    ASSERT_SUCCESS(cuEventRecord(begun, kernels));
    for (int i = 0; i < KERNELS; i++)
        ASSERT_SUCCESS(cuLaunchKernel(saxpy, 20 * (unsigned)sms, 1, 1, 32, 1, 1, 0, kernels, args, NULL));
    ASSERT_SUCCESS(cuEventRecord(ended, kernels));
    for (int i = 0; i < COPIES; i++)
        ASSERT_SUCCESS(cuMemcpyHtoDAsync(x, host, N * sizeof(float), copies));
    open_gate();
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(near(elapsed(begun, ended), KERNELS * 0.4));
    ASSERT_SUCCESS(cuMemFreeHost(host));
    DESTROY(x, y, begun, ended, kernels, copies);
}

int main(void)
{
    CUfunction saxpy;
    CUdevice dev = first_device();
    sim = simulated(dev);
    sms = attribute_of(dev, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    CUcontext ctx = new_context(dev);
    CUmodule m = new_module(kernels_ptx);
    ASSERT_SUCCESS(cuModuleGetFunction(&tick, m, "tick"));
    ASSERT_SUCCESS(cuModuleGetFunction(&slow, m, "slow"));
    PART(events());
    PART(waiting());
    PART(callbacks());
    PART(kinds(ctx));
    PART(destroyed());
    if (sim) {
        PART(block_rule());
        PART(exactness());
        PART(legacy());
        PART(queue());
        ASSERT_SUCCESS(cuModuleGetFunction(&saxpy, m, "saxpy"));
        PART(busy_host(saxpy));
    }
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
