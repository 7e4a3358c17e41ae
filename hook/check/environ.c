/* environ: works with the GPU for a moment, and ends well whatever its
 * environment says: it may be refused, gated or find no such GPU, not crash. */
#include "check.h"

#include <pthread.h>
#include <unistd.h>

static void *work(void *unused)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction nop;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuCtxCreate(&context, 0, device) || cuModuleLoadData(&module, check_ptx) ||
        cuModuleGetFunction(&nop, module, "nop"))
        return unused;
    cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); /* stays at its gate */
    return unused;
}

int main(void)
{
    pthread_t thread;
    ENSURE(pthread_create(&thread, NULL, work, NULL) == 0);
    usleep(20000); /* how far it comes is not what is looked at */
    _exit(0);
}
