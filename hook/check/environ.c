/* environ: uses the GPU briefly in any environment. Its calls may be refused, wait at the gate or
 * find no GPU, but the program must not crash. */
#include "check.h"

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
    cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); /* waits at the gate */
    return unused;
}

int main(void)
{
    start_thread(work, NULL);
    usleep(20000); /* how far the thread gets does not matter */
    _exit(0);
}
