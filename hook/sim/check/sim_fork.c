/* sim_fork.c: a child has none of its parent's CUDA state; a child of a parent without CUDA can use
 * it. */
#include "objects.h"

#include <sys/wait.h>
#include <unistd.h>

static int in_child(int (*fn)(void))
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int code = fn();
        fflush(stdout);
        exit(code); /* not _exit: the child's exit handlers must not free the parent's resources */
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int fresh(void)
{
    CUcontext ctx;
    CUdevice dev;
    CUdeviceptr p;
    return cuInit(0) || cuDeviceGet(&dev, 0) || cuCtxCreate(&ctx, 0, dev) || cuMemAlloc(&p, 1 << 20) || cuMemFree(p) ||
           cuCtxDestroy(ctx);
}

static int inherited(void)
{
    CUdeviceptr p;
    int n;
    return cuMemAlloc(&p, 16) == CUDA_ERROR_NOT_INITIALIZED && cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED &&
           cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED
               ? 0
               : 1;
}

int main(void)
{
    int v = 0;
    CHECK(in_child(fresh) == 0);
    CHECK(in_child(fresh) == 0);
    CUdevice dev = first_device();
    CUcontext ctx = new_context(dev);
    CUdeviceptr p = new_memory(4);
    ASSERT_SUCCESS(cuMemsetD32(p, 1234, 1));
    ASSERT_SUCCESS(cuCtxSynchronize());
    if (simulated(dev)) /* a real driver may crash the child */
        CHECK(in_child(inherited) == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&v, p, 4));
    CHECK(v == 1234);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
