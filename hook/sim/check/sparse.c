/* sparse.c: what the device's memory takes of a process that uses little of it: who
 * looks through all that can be read, as memcheck does for leaks, or writes it down,
 * as for a core dump, does not come upon the rest. Only the simulator maps it so. */
#include "tap.h"

/* What can be read of this process and, in *dumped, what is for a core dump, in
 * bytes. */
static unsigned long readable(unsigned long *dumped)
{
    char line[4096], flags[4096], *may;
    unsigned long from, to, size = 0, sum = 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    CHECK(f != NULL);
    *dumped = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx %4095s", &from, &to, flags) == 3) {
            size = to - from;
            sum += flags[0] == 'r' ? size : 0;
        } else if ((may = strstr(line, "VmFlags:"))) {
            *dumped += strstr(may, " dd") ? 0 : size;
        }
    }
    if (f)
        fclose(f);
    return sum;
}

int main(void)
{
    CUcontext ctx;
    CUdeviceptr p;
    unsigned long dumped;
    unsigned char got[2] = {0};
    size_t total;
    CUdevice dev = first_device();
    MUST(cuDeviceTotalMem(&total, dev));
    MUST(cuCtxCreate(&ctx, 0, dev));
    MUST(cuMemAlloc(&p, 1 << 20));
    MUST(cuMemsetD8(p, 7, 1 << 20));
    CHECK(readable(&dumped) < total / 16);
    CHECK(dumped < total / 16);
    MUST(cuMemFree(p));
    GIVES(CUDA_SUCCESS, cuMemAlloc(&p, total)); /* and all of it can be used */
    GIVES(CUDA_SUCCESS, cuMemsetD8(p + total - 2, 9, 2));
    GIVES(CUDA_SUCCESS, cuMemcpyDtoH(got, p + total - 2, 2));
    CHECK(got[0] == 9 && got[1] == 9);
    return tap_end();
}
