/* memory: allocates CHUNK MiB at a time until there is no more, in PROCESSES
 * processes at once, and prints how many MiB each got, then what the driver
 * says is there.
 *
 *   memory CHUNK PROCESSES */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static int fill(size_t chunk)
{
    CUdevice device;
    CUcontext context;
    size_t unused, total, device_total;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDeviceTotalMem(&device_total, device));
    MUST(cuCtxCreate(&context, 0, device));
    MUST(cuMemGetInfo(&unused, &total));
    ENSURE(total == device_total && unused <= total);
    CUdeviceptr block, first = 0;
    size_t got = 0;
    CUresult result;
    while ((result = cuMemAlloc(&block, chunk)) == CUDA_SUCCESS) {
        if (!first)
            first = block;
        got += chunk;
    }
    ENSURE(result == CUDA_ERROR_OUT_OF_MEMORY);
    size_t before;
    MUST(cuMemGetInfo(&before, &total));
    printf("%zu of %zu MiB\n", got >> 20, total >> 20);
    fflush(stdout);
    sleep(1); /* holds what it has while its siblings take theirs */
    if (first) {
        MUST(cuMemFree(first));
        MUST(cuMemAlloc(&block, chunk / 2));
    }
    MUST(cuCtxDestroy(context));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t chunk = (size_t)atoi(argv[1]) << 20;
    int processes = atoi(argv[2]), failed = 0, status;
    if (processes == 1)
        return fill(chunk);
    for (int i = 0; i < processes; i++)
        if (fork() == 0)
            exit(fill(chunk)); /* the driver is first used after the fork */
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
