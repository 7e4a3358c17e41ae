/* exits.c: a program that last uses CUDA in an exit handler registered after cuInit, as OpenMP
 * runtimes do. The driver must still work then. */
#include "tap.h"

static CUcontext ctx;
static CUdeviceptr p;

static void last(void)
{
    char b;
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(&b, p, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(p));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    if (tap_end())
        _exit(1);
}

int main(void)
{
    CUdevice dev = first_device();
    atexit(last);
    ASSERT_SUCCESS(cuCtxCreate(&ctx, 0, dev));
    ASSERT_SUCCESS(cuMemAlloc(&p, 4096));
    return 0;
}
