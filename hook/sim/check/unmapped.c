/* unmapped.c: a device whose memory finds no room in the program's address space.
 * The context is refused, nothing stays mapped, and when there is room again the
 * device works. Only the simulator maps memory so. */
#include "tap.h"

#include <sys/resource.h>

/* Bytes of address space in use. */
static size_t mapped(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%lu", &pages) == 1);
    if (f)
        fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

int main(void)
{
    CUcontext ctx;
    CUdeviceptr p;
    size_t total;
    struct rlimit all;
    CUdevice dev = first_device();
    MUST(cuDeviceTotalMem(&total, dev));
    mapped(); /* the first use of stdio takes memory too */
    size_t before = mapped();
    CHECK(!getrlimit(RLIMIT_AS, &all));
    /* The driver maps twice the device's memory two times: room for one of them. */
    CHECK(!setrlimit(RLIMIT_AS, &(struct rlimit){before + 3 * total, all.rlim_max}));
    for (int i = 0; i < 3; i++)
        GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate(&ctx, 0, dev));
    CHECK(mapped() < before + total);
    CHECK(!setrlimit(RLIMIT_AS, &all));
    GIVES(CUDA_SUCCESS, cuCtxCreate(&ctx, 0, dev));
    GIVES(CUDA_SUCCESS, cuMemAlloc(&p, total));
    GIVES(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
