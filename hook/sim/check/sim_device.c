/* sim_device.c: initialisation, devices, contexts. */
#include "tap.h"

#include <pthread.h>

static void before_init(void)
{
    int n;
    CUcontext ctx;
    CHECK_RESULT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
    CHECK_RESULT(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&ctx));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    CHECK_RESULT(CUDA_SUCCESS, cuInit(0));
    CHECK_RESULT(CUDA_SUCCESS, cuInit(0));
}

static void errors(void)
{
    const char *s = NULL;
    CHECK_RESULT(CUDA_SUCCESS, cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &s));
    CHECK(s && !strcmp(s, "CUDA_ERROR_OUT_OF_MEMORY"));
    CHECK_RESULT(CUDA_SUCCESS, cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &s));
    CHECK(s && *s);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)123456, &s));
    CHECK(s == NULL);
}

static void devices(CUdevice dev)
{
    int version = 0, n = 0, v = 0, major = 0, minor = -1;
    char name[64], bus[32], cut[4];
    size_t total = 0;
    CUuuid uuid;
    CUdevice other;
    CHECK_RESULT(CUDA_SUCCESS, cuDriverGetVersion(&version));
    CHECK(version >= 12000);
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetCount(&n));
    CHECK(n >= 1);
    CHECK_RESULT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&other, n));
    CHECK_RESULT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&other, -1));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetName(name, sizeof name, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetName(cut, sizeof cut, dev));
    CHECK(strlen(cut) < sizeof cut);
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceTotalMem(&total, dev));
    CHECK(total > 0);
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetUuid(&uuid, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev));
    CHECK(v >= 1);
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, dev));
    CHECK(v == 32);
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, dev));
    CHECK(v == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceComputeCapability(&major, &minor, dev));
    CHECK(v == major && minor >= 0);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(NULL, CU_DEVICE_ATTRIBUTE_WARP_SIZE, dev));
    CHECK_RESULT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetPCIBusId(bus, sizeof bus, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetByPCIBusId(&other, bus));
    CHECK(other == dev);
}

static void no_context(void)
{
    CUcontext ctx = (CUcontext)1;
    CUdeviceptr p;
    CUdevice d;
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&ctx));
    CHECK(ctx == NULL);
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&d));
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 16));
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&ctx));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuCtxDestroy(NULL));
}

static void created(CUdevice dev)
{
    CUcontext a, b, c;
    CUdevice d = -1;
    unsigned flags = 99, version = 0;
    int least = -1, greatest = 1;
    CHECK_RESULT(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate(&a, 0, 99));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxCreate(&a, CU_CTX_SCHED_BLOCKING_SYNC, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxCreate(&b, 0, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&c));
    CHECK(c == b);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxPopCurrent(&c));
    CHECK(c == b);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&c));
    CHECK(c == a);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetFlags(&flags));
    CHECK((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetDevice(&d));
    CHECK(d == dev);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetApiVersion(a, &version));
    CHECK(version >= 3010);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetStreamPriorityRange(&least, &greatest));
    CHECK(least == 0 && greatest <= 0);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxPushCurrent(b));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(b));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&c));
    CHECK(c == a);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&c));
    CHECK(c == NULL);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(a));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(a));
}

static void *other_thread(void *arg)
{
    CUcontext c = (CUcontext)1, *mine = arg;
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&c));
    CHECK(c == NULL);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(*mine));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    return NULL;
}

static void primary(CUdevice dev)
{
    CUcontext a, b;
    CUdeviceptr p;
    pthread_t t;
    unsigned flags;
    int active = -1;
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxGetState(dev, &flags, &active));
    CHECK(active == 0);
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&a, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&b, dev));
    CHECK(a == b);
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxGetState(dev, &flags, &active));
    CHECK(active == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(a));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&p, 1 << 20));
    pthread_create(&t, NULL, other_thread, &a);
    pthread_join(t, NULL);
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(dev));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxReset(dev));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxGetState(dev, &flags, &active));
    CHECK(active == 0);
    CHECK(cuCtxSynchronize() != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&a, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSetCurrent(a));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&p, 1 << 20));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(p));
    CHECK_RESULT(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(dev));
}

int main(void)
{
    PART(before_init());
    CUdevice dev = first_device();
    PART(errors());
    PART(devices(dev));
    PART(no_context());
    PART(created(dev));
    PART(primary(dev));
    return tap_end();
}
