/* memory: allocates CHUNK MiB at a time until the allocation fails, in PROCESSES processes at once.
 * Each prints how many MiB it got, and the total that the driver reports. No process frees memory
 * before all of them have finished allocating. With FILE, it does not start the other processes;
 * each is started separately with the same FILE.
 *
 *   memory CHUNK PROCESSES [FILE] */
#include "check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int met; /* a file with a byte for each process that has finished allocating */

static void meet(int processes)
{
    const double patience = 60;
    struct stat s = {.st_size = 0};
    ASSERT(write(met, "", 1) == 1);
    for (double end = now_s() + patience; fstat(met, &s) == 0 && s.st_size < processes; usleep(1000))
        ASSERT(now_s() < end);
}

static int fill(size_t chunk, int processes)
{
    CUdevice device;
    CUcontext context;
    size_t unused, total, device_total;
    ASSERT_SUCCESS(cuInit(0));
    ASSERT_SUCCESS(cuDeviceGet(&device, 0));
    ASSERT_SUCCESS(cuDeviceTotalMem(&device_total, device));
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    ASSERT_SUCCESS(cuMemGetInfo(&unused, &total));
    ASSERT(total == device_total && unused <= total);
    CUdeviceptr block, first = 0;
    size_t got = 0;
    CUresult result;
    while ((result = cuMemAlloc(&block, chunk)) == CUDA_SUCCESS) {
        if (!first)
            first = block;
        got += chunk;
    }
    ASSERT(result == CUDA_ERROR_OUT_OF_MEMORY);
    size_t before;
    ASSERT_SUCCESS(cuMemGetInfo(&before, &total));
    printf("%zu of %zu MiB\n", got >> 20, total >> 20);
    fflush(stdout);
    meet(processes);
    if (first) {
        ASSERT_SUCCESS(cuMemFree(first));
        ASSERT_SUCCESS(cuMemAlloc(&block, chunk / 2));
    }
    ASSERT_SUCCESS(cuCtxDestroy(context));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4)
        return 2;
    size_t chunk = (size_t)atoi(argv[1]) << 20;
    int processes = atoi(argv[2]), failed = 0, status;
    met = argc == 4 ? open(argv[3], O_WRONLY | O_CREAT | O_APPEND, 0600) : fileno(tmpfile());
    ASSERT(met >= 0);
    if (processes == 1 || argc == 4)
        return fill(chunk, processes);
    for (int i = 0; i < processes; i++)
        if (fork() == 0)
            exit(fill(chunk, processes)); /* the driver is first used after the fork */
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
