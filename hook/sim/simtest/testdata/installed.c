/* installed.c: links and runs with the installed simulated driver. It prints the numbers of
 * devices that CUDA and NVML report. */
#include "cuda.h"
#include "nvml.h"

#include <stdio.h>

int main(void)
{
    int devices = 0;
    unsigned managed = 0;
    CUdevice device;
    CUcontext context;
    CUdeviceptr memory;
    unsigned word = 0;
    if (cuInit(0) || cuDeviceGetCount(&devices) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context) || cuMemAlloc(&memory, sizeof word) || cuMemsetD32(memory, 7, 1) ||
        cuMemcpyDtoH(&word, memory, sizeof word) || word != 7)
        return 1;
    if (nvmlInit_v2() || nvmlDeviceGetCount_v2(&managed))
        return 2;
    printf("%d %u\n", devices, managed);
    return 0;
}
