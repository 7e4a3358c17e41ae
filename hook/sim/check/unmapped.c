/* unmapped.c: if the device's memory does not fit into the program's address space, the creation of a
 * context fails and leaves nothing mapped. It succeeds after the limit on the address space was raised.
 * Only the simulator maps the device's memory. */
#include "tap.h"

#include <sys/resource.h>

/* Returns the size of all mappings of this process, in bytes. */
static size_t mapped_bytes(void)
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
    struct rlimit original;
    CUdevice dev = first_device();
    ASSERT_SUCCESS(cuDeviceTotalMem(&total, dev));
    mapped_bytes(); /* the first use of stdio maps memory, too */
    size_t before = mapped_bytes();
    CHECK(!getrlimit(RLIMIT_AS, &original));
    /* The driver makes two mappings of twice the device's memory each. The first fits below this limit, the
     * second does not. */
    CHECK(!setrlimit(RLIMIT_AS, &(struct rlimit){before + 3 * total, original.rlim_max}));
    for (int i = 0; i < 3; i++)
        CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate(&ctx, 0, dev));
    CHECK(mapped_bytes() < before + total);
    CHECK(!setrlimit(RLIMIT_AS, &original));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxCreate(&ctx, 0, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&p, total));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
