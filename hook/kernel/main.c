/* main.c: says hello and runs jobs until the daemon is gone. */
#include "executor.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const CUdevice_attribute told[] = {
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
};
enum { TOLD = sizeof told / sizeof *told, TELL_MS = 100 };

/* Reports progress, and ends the process when the daemon closes the pipe, even if a kernel that never ends blocks the other
 * thread. */
static void *watch(void *unused)
{
    (void)unused;
    struct pollfd p = {.fd = JOBS}; /* for POLLHUP only */
    while (poll(&p, 1, TELL_MS) <= 0)
        job_tell();
    _exit(0);
}

/* Opens the GPU; on failure, `why` says what is missing. */
static bool begin(char *name, size_t nlen, uint32_t *value, size_t *total, char *why, size_t len)
{
    CUdevice dev;
    CUcontext ctx;
    size_t unused;
    if (!driver_open(why, len))
        return false;
    CUresult r = p_cuInit(0);
    if (r == CUDA_SUCCESS)
        r = p_cuDeviceGet(&dev, 0);
    if (r == CUDA_SUCCESS)
        r = p_cuDeviceGetName(name, (int)nlen, dev);
    for (int i = 0; i < TOLD && r == CUDA_SUCCESS; i++) {
        int v = 0;
        r = p_cuDeviceGetAttribute(&v, told[i], dev);
        value[i] = (uint32_t)v;
    }
    if (r == CUDA_SUCCESS)
        r = p_cuDevicePrimaryCtxRetain(&ctx, dev);
    if (r == CUDA_SUCCESS)
        r = p_cuCtxSetCurrent(ctx);
    if (r == CUDA_SUCCESS)
        r = p_cuMemGetInfo_v2(&unused, total);
    if (r == CUDA_SUCCESS && !job_init(ctx))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS)
        snprintf(why, len, "%s", driver_error_text(r));
    return r == CUDA_SUCCESS;
}

int main(void)
{
    char name[256] = "", why[512] = "";
    uint32_t value[TOLD] = {0};
    size_t total = 0;
    static struct writer w;
    pthread_t thread;
    signal(SIGPIPE, SIG_IGN); /* message_send sees the error */
    if (pthread_create(&thread, NULL, watch, NULL))
        return 1;
    bool ready = begin(name, sizeof name, value, &total, why, sizeof why);
    put32(&w, ready);
    put_text(&w, ready ? name : why);
    for (int i = 0; i < TOLD; i++)
        put32(&w, value[i]);
    put64(&w, total);
    message_send(MSG_HELLO, &w);

    static struct outcome o;
    struct reader r;
    uint32_t kind;
    while (ready && message_receive(&kind, &r)) {
        uint64_t id = 0;
        if (kind != MSG_JOB || !job_run(&r, &id, &o)) {
            fprintf(stderr, "gfaas-kernel-executor: invalid message from gfaas-kerneld\n");
            return 1;
        }
        put64(&w, id);
        put32(&w, (uint32_t)o.result);
        put32(&w, (uint32_t)o.step);
        put32(&w, o.index);
        put32(&w, o.fatal);
        put64(&w, o.link_ns);
        put64(&w, o.copy_in_ns);
        put64(&w, o.gpu_ns);
        put64(&w, o.copy_out_ns);
        put64(&w, blocks_held());
        put_text(&w, o.text);
        message_send(MSG_DONE, &w);
        if (o.fatal)
            break; /* and wait for the daemon, which reads the outcome */
    }
    while (message_receive(&kind, &r))
        ;
    _exit(0);
}
