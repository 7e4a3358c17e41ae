/* drive: launches as the lines on its standard input say. The line
 *
 *   THREAD DEVICE BLOCKS COUNT
 *
 * makes a thread (0 to 7, started on first use) launch COUNT kernels of BLOCKS blocks on a device.
 * It prints "THREAD DEVICE" when a launch has returned, and waits for the kernels at the end of the
 * line. With BLOCKS 0 it copies to the device instead; with negative BLOCKS it launches a kernel
 * that the driver refuses. With DEVICE -1 it launches on all devices with one call, which the
 * simulated driver refuses. After its input has ended, it finishes the remaining work and ends.
 *
 *   drive [BLOCK_US] */
#include "check.h"

#include <unistd.h>

#pragma weak cuLaunchCooperativeKernelMultiDevice
enum { THREADS = 8, DEVICES = 16 };

struct order { int device, blocks, count; };

static int block_us;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { CUcontext context; CUfunction kernel; } on[DEVICES];

/* Makes the device's primary context current. On first use it retains the context and loads the
 * kernel. */
static void turn_to(int device)
{
    pthread_mutex_lock(&lock);
    if (!on[device].context) {
        on[device].context = primary_of(device);
        on[device].kernel = timed_kernel(block_us);
    }
    pthread_mutex_unlock(&lock);
    ASSERT_SUCCESS(cuCtxSetCurrent(on[device].context));
}

/* Makes the device current and returns this thread's stream on it. */
static CUstream stream_on(int device, CUstream *streams)
{
    turn_to(device);
    if (!streams[device])
        ASSERT_SUCCESS(cuStreamCreate(&streams[device], CU_STREAM_NON_BLOCKING));
    return streams[device];
}

static void obey_everywhere(int thread, struct order o, CUstream *streams)
{
    CUDA_LAUNCH_PARAMS p[DEVICES] = {0};
    int devices;
    ASSERT_SUCCESS(cuDeviceGetCount(&devices));
    ASSERT(devices <= DEVICES && cuLaunchCooperativeKernelMultiDevice);
    for (int d = 0; d < devices; d++) {
        p[d].hStream = stream_on(d, streams);
        p[d].function = on[d].kernel;
        p[d].gridDimX = (unsigned)o.blocks;
        p[d].gridDimY = p[d].gridDimZ = p[d].blockDimX = p[d].blockDimY = p[d].blockDimZ = 1;
    }
    for (int i = 0; i < o.count; i++) {
        cuLaunchCooperativeKernelMultiDevice(p, (unsigned)devices, 0);
        printf("%d -1\n", thread);
        fflush(stdout);
    }
}

static void obey(int thread, struct order o, CUstream *streams)
{
    char bytes[64] = "";
    CUdeviceptr to = 0;
    CUstream stream = stream_on(o.device, streams);
    if (o.blocks == 0)
        ASSERT_SUCCESS(cuMemAlloc(&to, sizeof bytes));
    for (int i = 0; i < o.count; i++) {
        if (o.blocks > 0)
            ASSERT_SUCCESS(cuLaunchKernel(on[o.device].kernel, (unsigned)o.blocks, 1, 1, 1, 1, 1, 0, stream, NULL,
                                          NULL));
        else if (o.blocks < 0)
            ASSERT(cuLaunchKernel(on[o.device].kernel, (unsigned)o.blocks, 1, 1, 1, 1, 1, 0, stream, NULL,
                                  NULL) != CUDA_SUCCESS);
        else
            ASSERT_SUCCESS(cuMemcpyHtoD(to, bytes, sizeof bytes));
        printf("%d %d\n", thread, o.device);
        fflush(stdout);
    }
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    if (to)
        ASSERT_SUCCESS(cuMemFree(to));
}

static int inbox[THREADS][2];

static void *work(void *arg)
{
    int thread = (int)(size_t)arg;
    CUstream stream[DEVICES] = {0};
    struct order o;
    while (read(inbox[thread][0], &o, sizeof o) == sizeof o)
        (o.device < 0 ? obey_everywhere : obey)(thread, o, stream);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int made[THREADS] = {0}, thread;
    struct order o;
    block_us = argc > 1 ? atoi(argv[1]) : 10;
    ASSERT_SUCCESS(cuInit(0));
    while (scanf("%d %d %d %d", &thread, &o.device, &o.blocks, &o.count) == 4) {
        ASSERT(thread >= 0 && thread < THREADS && o.device >= -1 && o.device < DEVICES);
        if (!made[thread]++) {
            ASSERT(pipe(inbox[thread]) == 0);
            threads[thread] = start_thread(work, (void *)(size_t)thread);
        }
        ASSERT(write(inbox[thread][1], &o, sizeof o) == sizeof o);
    }
    for (thread = 0; thread < THREADS; thread++)
        if (made[thread]) {
            close(inbox[thread][1]);
            pthread_join(threads[thread], NULL);
        }
    return 0;
}
