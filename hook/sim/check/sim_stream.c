/* sim_stream.c: streams, events, callbacks, and the order they keep. */
#include "kernels.h"
#include "tap.h"

#include <pthread.h>
#include <unistd.h>

static CUfunction tick, slow;
static bool sim;
static int sms;

static void run(CUfunction f, unsigned blocks, CUstream s)
{
    MUST(cuLaunchKernel(f, blocks, 1, 1, 32, 1, 1, 0, s, NULL, NULL));
}

static double elapsed(CUevent a, CUevent b)
{
    float ms = -1;
    MUST(cuEventElapsedTime(&ms, a, b));
    return ms;
}

static int gate_open;

static void wait_at_gate(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&gate_open, __ATOMIC_ACQUIRE))
        usleep(200);
}

/* Holds a stream until go(), so that what is queued behind is all there before the
 * first of it begins, however busy the host is. */
static void hold(CUstream s)
{
    gate_open = 0;
    MUST(cuLaunchHostFunc(s, wait_at_gate, NULL));
}

static void go(void)
{
    __atomic_store_n(&gate_open, 1, __ATOMIC_RELEASE);
}

/* Holds the legacy stream; what is queued behind follows a kernel without a gap. */
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
    CUstream s;
    float ms;
    MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    GIVES(CUDA_SUCCESS, cuEventCreate(&a, 0));
    GIVES(CUDA_SUCCESS, cuEventCreate(&b, CU_EVENT_BLOCKING_SYNC));
    GIVES(CUDA_SUCCESS, cuEventCreate(&quiet, CU_EVENT_DISABLE_TIMING));
    GIVES(CUDA_SUCCESS, cuEventQuery(a));
    GIVES(CUDA_SUCCESS, cuEventSynchronize(a));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, a, b));
    GIVES(CUDA_SUCCESS, cuEventRecord(a, s));
    run(tick, 1, s);
    GIVES(CUDA_SUCCESS, cuEventRecord(b, s));
    GIVES(CUDA_SUCCESS, cuEventRecord(quiet, s));
    GIVES(CUDA_SUCCESS, cuEventSynchronize(b));
    GIVES(CUDA_SUCCESS, cuEventQuery(b));
    GIVES(CUDA_SUCCESS, cuEventElapsedTime(&ms, a, b));
    CHECK(ms >= 0);
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(s));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, a, quiet));
    GIVES(CUDA_SUCCESS, cuEventDestroy(a));
    GIVES(CUDA_SUCCESS, cuEventDestroy(b));
    GIVES(CUDA_SUCCESS, cuEventDestroy(quiet));
    GIVES(CUDA_SUCCESS, cuStreamDestroy(s));
}

/* The rule of the simulated GPU: ceil(blocks / SMs) times the time of a block. */
static void block_rule(void)
{
    unsigned blocks[] = {1, (unsigned)sms, (unsigned)sms + 1, 4u * (unsigned)sms};
    double want[] = {1, 1, 2, 4};
    CUevent e[5];
    for (int i = 0; i < 5; i++)
        MUST(cuEventCreate(&e[i], 0));
    lead();
    MUST(cuEventRecord(e[0], NULL));
    for (int i = 0; i < 4; i++) {
        run(tick, blocks[i], NULL);
        MUST(cuEventRecord(e[i + 1], NULL));
    }
    go();
    MUST(cuCtxSynchronize());
    for (int i = 0; i < 4; i++)
        CHECK(near(elapsed(e[i], e[i + 1]), want[i]));
    double before = seconds();
    run(tick, 20u * (unsigned)sms, NULL);
    MUST(cuCtxSynchronize());
    CHECK(seconds() - before >= 0.020);
    for (int i = 0; i < 5; i++)
        MUST(cuEventDestroy(e[i]));
}

/* A thousand short kernels back to back take as long as one of their length. */
static void exactness(void)
{
    CUevent a, b;
    MUST(cuEventCreate(&a, 0));
    MUST(cuEventCreate(&b, 0));
    lead();
    MUST(cuEventRecord(a, NULL));
    for (int i = 0; i < 200; i++)
        run(tick, 1, NULL);
    MUST(cuEventRecord(b, NULL));
    go();
    MUST(cuEventSynchronize(b));
    double ms = elapsed(a, b);
    CHECK(ms > 199.999 && ms < 200.001);
    MUST(cuEventDestroy(a));
    MUST(cuEventDestroy(b));
}

static void waiting(void)
{
    CUstream s, t;
    CUevent e, done;
    MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&e, 0));
    MUST(cuEventCreate(&done, 0));
    hold(s);
    run(slow, 25u * (unsigned)sms, s);
    GIVES(CUDA_SUCCESS, cuEventRecord(e, s));
    GIVES(CUDA_SUCCESS, cuStreamWaitEvent(t, e, 0));
    GIVES(CUDA_SUCCESS, cuEventRecord(done, t));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(done));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(t));
    go();
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(t));
    GIVES(CUDA_SUCCESS, cuEventQuery(e));
    CHECK(elapsed(e, done) >= 0);
    GIVES(CUDA_SUCCESS, cuStreamQuery(s));
    MUST(cuStreamDestroy(s));
    MUST(cuStreamDestroy(t));
    MUST(cuEventDestroy(e));
    MUST(cuEventDestroy(done));
}

/* Work in the legacy stream waits for blocking streams and they for it;
 * a non-blocking stream does neither. */
static void legacy(void)
{
    CUstream blocking, free_stream;
    CUevent a, b, c;
    MUST(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    MUST(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&a, 0));
    MUST(cuEventCreate(&b, 0));
    MUST(cuEventCreate(&c, 0));
    hold(blocking);
    run(slow, 25u * (unsigned)sms, blocking); /* 50 ms */
    MUST(cuEventRecord(a, NULL));
    MUST(cuEventRecord(b, free_stream));
    MUST(cuEventRecord(c, blocking));
    GIVES(CUDA_SUCCESS, cuEventSynchronize(b));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(a));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(c));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    go();
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(CU_STREAM_LEGACY));
    GIVES(CUDA_SUCCESS, cuEventQuery(a));
    CHECK(elapsed(b, a) > 45);
    hold(NULL);
    MUST(cuEventRecord(c, blocking));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(c));
    GIVES(CUDA_SUCCESS, cuStreamQuery(free_stream));
    go();
    GIVES(CUDA_SUCCESS, cuEventSynchronize(c));
    GIVES(CUDA_SUCCESS, cuStreamDestroy(blocking));
    GIVES(CUDA_SUCCESS, cuStreamDestroy(free_stream));
    MUST(cuEventDestroy(a));
    MUST(cuEventDestroy(b));
    MUST(cuEventDestroy(c));
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
    CUstream s;
    CUdeviceptr p;
    int v = 0;
    MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&p, 4));
    run(tick, 1, s);
    GIVES(CUDA_SUCCESS, cuLaunchHostFunc(s, host_fn, (void *)1));
    MUST(cuMemsetD32Async(p, 99, 1, s));
    GIVES(CUDA_SUCCESS, cuStreamAddCallback(s, callback, (void *)2, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(s, callback, NULL, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(s, NULL, NULL));
    GIVES(CUDA_SUCCESS, cuStreamSynchronize(s));
    CHECK(calls == 2 && order[0] == 1 && order[1] == 2);
    CHECK(inside == CUDA_ERROR_NOT_PERMITTED);
    CHECK(reported == CUDA_SUCCESS);
    MUST(cuMemcpyDtoH(&v, p, 4));
    CHECK(v == 99);
    MUST(cuMemFree(p));
    MUST(cuStreamDestroy(s));
}

static void *own_stream(void *arg)
{
    unsigned long long *id = arg;
    MUST(cuStreamGetId(CU_STREAM_PER_THREAD, id));
    return NULL;
}

static void *own_stream_in(void *arg)
{
    void **a = arg;
    MUST(cuCtxSetCurrent(a[0]));
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
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&s, 8));
    GIVES(CUDA_SUCCESS, cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -100));
    GIVES(CUDA_SUCCESS, cuStreamGetFlags(s, &flags));
    CHECK(flags == CU_STREAM_NON_BLOCKING);
    GIVES(CUDA_SUCCESS, cuStreamGetPriority(s, &priority));
    CHECK(priority < 0 && priority > -100);
    GIVES(CUDA_SUCCESS, cuStreamGetCtx(s, &of));
    CHECK(of == ctx);
    GIVES(CUDA_SUCCESS, cuStreamDestroy(s));
    own_stream(&mine);
    own_stream(&again);
    pthread_create(&t, NULL, own_stream_in, arg);
    pthread_join(t, NULL);
    CHECK(mine == again && mine != theirs);
}

/* A launch returns at once until the queue is full, and then blocks. */
static void queue(void)
{
    CUevent led;
    MUST(cuEventCreate(&led, 0));
    lead();
    MUST(cuEventRecord(led, NULL));
    for (int i = 0; i < 100; i++)
        run(tick, 1, NULL);
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(led));
    go();
    MUST(cuCtxSynchronize());
    MUST(cuEventDestroy(led));
    double before = seconds();
    for (int i = 0; i < 1024 + 100; i++)
        run(tick, 1, NULL);
    CHECK(seconds() - before > 0.090);
    MUST(cuCtxSynchronize());
}

/* Destroying a stream lets its work finish. */
static void destroyed(void)
{
    CUstream s;
    CUdeviceptr p;
    int v = 0;
    MUST(cuMemAlloc(&p, 4));
    MUST(cuMemsetD32(p, 1, 1));
    MUST(cuCtxSynchronize());
    MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    run(slow, 1, s);
    MUST(cuMemsetD32Async(p, 2, 1, s));
    GIVES(CUDA_SUCCESS, cuStreamDestroy(s));
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
    MUST(cuMemcpyDtoH(&v, p, 4));
    CHECK(v == 2);
    MUST(cuMemFree(p));
}

/* What the host has to do for the device, here computing effects behind copies,
 * may be late without the device's time being longer. */
static void busy_host(CUfunction saxpy)
{
    enum { N = 1 << 21, COPIES = 10, KERNELS = 3 };
    CUstream kernels, copies;
    CUevent begun, ended;
    CUdeviceptr x, y;
    void *host;
    float k = 2;
    unsigned n = 32;
    void *args[] = {&k, &x, &y, &n};
    MUST(cuStreamCreate(&kernels, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&begun, 0));
    MUST(cuEventCreate(&ended, 0));
    MUST(cuMemAlloc(&x, N * sizeof(float)));
    MUST(cuMemAlloc(&y, N * sizeof(float)));
    MUST(cuMemAllocHost(&host, N * sizeof(float)));
    hold(kernels);
    MUST(cuEventRecord(begun, kernels));
    for (int i = 0; i < KERNELS; i++)
        MUST(cuLaunchKernel(saxpy, 20 * (unsigned)sms, 1, 1, 32, 1, 1, 0, kernels, args, NULL));
    MUST(cuEventRecord(ended, kernels));
    for (int i = 0; i < COPIES; i++)
        MUST(cuMemcpyHtoDAsync(x, host, N * sizeof(float), copies));
    go();
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(near(elapsed(begun, ended), KERNELS * 0.4));
    MUST(cuMemFreeHost(host));
    MUST(cuMemFree(x));
    MUST(cuMemFree(y));
    MUST(cuEventDestroy(begun));
    MUST(cuEventDestroy(ended));
    MUST(cuStreamDestroy(kernels));
    MUST(cuStreamDestroy(copies));
}

int main(void)
{
    CUfunction saxpy;
    CUcontext ctx;
    CUmodule m;
    CUdevice dev = first_device();
    sim = simulated(dev);
    MUST(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev));
    MUST(cuCtxCreate(&ctx, 0, dev));
    MUST(cuModuleLoadData(&m, kernels_ptx));
    MUST(cuModuleGetFunction(&tick, m, "tick"));
    MUST(cuModuleGetFunction(&slow, m, "slow"));
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
        MUST(cuModuleGetFunction(&saxpy, m, "saxpy"));
        PART(busy_host(saxpy));
    }
    GIVES(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
