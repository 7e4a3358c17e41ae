/* visible: prints which GPUs the program sees, and with which errors it fails on a device beyond them.
 *
 *   visible [NAME=VALUE | NAME]...
 *
 * The program sets variables in its environment (NAME=VALUE) or removes them (NAME) and initialises the
 * driver. It prints "cuInit RESULT". On each device, it allocates memory and launches a kernel, and then
 * prints the device's number and the last byte of its UUID. At last, it prints "beyond" and the results of
 * cuDeviceGet, cuCtxCreate, cuDevicePrimaryCtxRetain and cuMemCreate for the number after the last. */
#include "check.h"

static void work_on(int ordinal)
{
    CUdevice device;
    CUuuid uuid;
    ASSERT_SUCCESS(cuDeviceGet(&device, ordinal));
    ASSERT_SUCCESS(cuDeviceGetUuid(&uuid, device));
    primary_of(device);
    CUdeviceptr memory = new_memory(4096);
    launch_block(kernel(check_ptx, "nop"), NULL);
    ASSERT_SUCCESS(cuCtxSynchronize());
    ASSERT_SUCCESS(cuMemFree(memory));
    ASSERT_SUCCESS(cuCtxSetCurrent(NULL));
    printf("%d: GPU %d\n", ordinal, uuid.bytes[15]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        ASSERT((value ? putenv(argv[i]) : unsetenv(argv[i])) == 0);
    }
    CUresult result = cuInit(0);
    printf("cuInit %d\n", result);
    if (result != CUDA_SUCCESS)
        return 0;
    int count;
    ASSERT_SUCCESS(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++)
        work_on(i);
    CUdevice device;
    CUcontext context;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp where = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, count}};
    printf("beyond %d", cuDeviceGet(&device, count));
    printf(" %d", cuCtxCreate(&context, 0, count));
    printf(" %d", cuDevicePrimaryCtxRetain(&context, count));
    printf(" %d\n", cuMemCreate(&handle, 2 << 20, &where, 0));
    return 0;
}
