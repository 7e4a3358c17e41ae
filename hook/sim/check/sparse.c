/* sparse.c: if a process uses little of the device's memory, the rest is not readable and not part of core
 * dumps. Otherwise a tool that reads all readable memory (memcheck, when it searches for leaks) and a core
 * dump would read the memory of the whole device. Only the simulator maps memory in this way. */
#include "objects.h"

/* Returns the number of readable bytes of this process, and sets *dumped to the number of bytes that a core
 * dump would contain: those of mappings without the flag "dd" (do not dump). */
static unsigned long readable_bytes(unsigned long *dumped)
{
    char line[4096], permissions[4096], *flags;
    unsigned long from, to, size = 0, sum = 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    CHECK(f != NULL);
    *dumped = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx %4095s", &from, &to, permissions) == 3) {
            size = to - from;
            sum += permissions[0] == 'r' ? size : 0;
        } else if ((flags = strstr(line, "VmFlags:"))) {
            *dumped += strstr(flags, " dd") ? 0 : size;
        }
    }
    if (f)
        fclose(f);
    return sum;
}

int main(void)
{
    unsigned long dumped;
    unsigned char got[2] = {0};
    size_t total;
    CUdevice dev = first_device();
    ASSERT_SUCCESS(cuDeviceTotalMem(&total, dev));
    new_context(dev);
    CUdeviceptr p = new_memory(1 << 20);
    ASSERT_SUCCESS(cuMemsetD8(p, 7, 1 << 20));
    CHECK(readable_bytes(&dumped) < total / 16);
    CHECK(dumped < total / 16);
    ASSERT_SUCCESS(cuMemFree(p));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&p, total)); /* nevertheless, the process can use all of it */
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8(p + total - 2, 9, 2));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoH(got, p + total - 2, 2));
    CHECK(got[0] == 9 && got[1] == 9);
    return tap_end();
}
