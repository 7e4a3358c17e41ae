/* sim_device.c: initialisation, devices, contexts. */
#include "tap.h"

#include <pthread.h>

static void before_init(void)
{
    int n;
    CUcontext ctx;
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&ctx));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    GIVES(CUDA_SUCCESS, cuInit(0));
    GIVES(CUDA_SUCCESS, cuInit(0));
}

static void errors(void)
{
    const char *s = NULL;
    GIVES(CUDA_SUCCESS, cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &s));
    CHECK(s && !strcmp(s, "CUDA_ERROR_OUT_OF_MEMORY"));
    GIVES(CUDA_SUCCESS, cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &s));
    CHECK(s && *s);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)123456, &s));
    CHECK(s == NULL);
}

static void devices(CUdevice dev)
{
    int version = 0, n = 0, v = 0, major = 0, minor = -1;
    char name[64], bus[32], cut[4];
    size_t total = 0;
    CUuuid uuid;
    CUdevice other;
    GIVES(CUDA_SUCCESS, cuDriverGetVersion(&version));
    CHECK(version >= 12000);
    GIVES(CUDA_SUCCESS, cuDeviceGetCount(&n));
    CHECK(n >= 1);
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&other, n));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&other, -1));
    GIVES(CUDA_SUCCESS, cuDeviceGetName(name, sizeof name, dev));
    GIVES(CUDA_SUCCESS, cuDeviceGetName(cut, sizeof cut, dev));
    CHECK(strlen(cut) < sizeof cut);
    GIVES(CUDA_SUCCESS, cuDeviceTotalMem(&total, dev));
    CHECK(total > 0);
    GIVES(CUDA_SUCCESS, cuDeviceGetUuid(&uuid, dev));
    GIVES(CUDA_SUCCESS, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev));
    CHECK(v >= 1);
    GIVES(CUDA_SUCCESS, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, dev));
    CHECK(v == 32);
    GIVES(CUDA_SUCCESS, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, dev));
    CHECK(v == 1);
    GIVES(CUDA_SUCCESS, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev));
    GIVES(CUDA_SUCCESS, cuDeviceComputeCapability(&major, &minor, dev));
    CHECK(v == major && minor >= 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(NULL, CU_DEVICE_ATTRIBUTE_WARP_SIZE, dev));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99));
    GIVES(CUDA_SUCCESS, cuDeviceGetPCIBusId(bus, sizeof bus, dev));
    GIVES(CUDA_SUCCESS, cuDeviceGetByPCIBusId(&other, bus));
    CHECK(other == dev);
}

static void no_context(void)
{
    CUcontext ctx = (CUcontext)1;
    CUdeviceptr p;
    CUdevice d;
    GIVES(CUDA_SUCCESS, cuCtxGetCurrent(&ctx));
    CHECK(ctx == NULL);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&d));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 16));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&ctx));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxDestroy(NULL));
}

static void created(CUdevice dev)
{
    CUcontext a, b, c;
    CUdevice d = -1;
    unsigned flags = 99, version = 0;
    int least = -1, greatest = 1;
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate(&a, 0, 99));
    GIVES(CUDA_SUCCESS, cuCtxCreate(&a, CU_CTX_SCHED_BLOCKING_SYNC, dev));
    GIVES(CUDA_SUCCESS, cuCtxCreate(&b, 0, dev));
    GIVES(CUDA_SUCCESS, cuCtxGetCurrent(&c));
    CHECK(c == b);
    GIVES(CUDA_SUCCESS, cuCtxPopCurrent(&c));
    CHECK(c == b);
    GIVES(CUDA_SUCCESS, cuCtxGetCurrent(&c));
    CHECK(c == a);
    GIVES(CUDA_SUCCESS, cuCtxGetFlags(&flags));
    CHECK((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
    GIVES(CUDA_SUCCESS, cuCtxGetDevice(&d));
    CHECK(d == dev);
    GIVES(CUDA_SUCCESS, cuCtxGetApiVersion(a, &version));
    CHECK(version >= 3010);
    GIVES(CUDA_SUCCESS, cuCtxGetStreamPriorityRange(&least, &greatest));
    CHECK(least == 0 && greatest <= 0);
    GIVES(CUDA_SUCCESS, cuCtxPushCurrent(b));
    GIVES(CUDA_SUCCESS, cuCtxDestroy(b));
    GIVES(CUDA_SUCCESS, cuCtxGetCurrent(&c));
    CHECK(c == a);
    GIVES(CUDA_SUCCESS, cuCtxSetCurrent(NULL));
    GIVES(CUDA_SUCCESS, cuCtxGetCurrent(&c));
    CHECK(c == NULL);
    GIVES(CUDA_SUCCESS, cuCtxSetCurrent(a));
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
    GIVES(CUDA_SUCCESS, cuCtxDestroy(a));
}

static void *other_thread(void *arg)
{
    CUcontext c = (CUcontext)1, *mine = arg;
    GIVES(CUDA_SUCCESS, cuCtxGetCurrent(&c));
    CHECK(c == NULL);
    GIVES(CUDA_SUCCESS, cuCtxSetCurrent(*mine));
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
    return NULL;
}

static void primary(CUdevice dev)
{
    CUcontext a, b;
    CUdeviceptr p;
    pthread_t t;
    unsigned flags;
    int active = -1;
    GIVES(CUDA_SUCCESS, cuDevicePrimaryCtxGetState(dev, &flags, &active));
    CHECK(active == 0);
    GIVES(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&a, dev));
    GIVES(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&b, dev));
    CHECK(a == b);
    GIVES(CUDA_SUCCESS, cuDevicePrimaryCtxGetState(dev, &flags, &active));
    CHECK(active == 1);
    GIVES(CUDA_SUCCESS, cuCtxSetCurrent(a));
    GIVES(CUDA_SUCCESS, cuMemAlloc(&p, 1 << 20));
    pthread_create(&t, NULL, other_thread, &a);
    pthread_join(t, NULL);
    GIVES(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(dev));
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
    GIVES(CUDA_SUCCESS, cuDevicePrimaryCtxReset(dev));
    GIVES(CUDA_SUCCESS, cuDevicePrimaryCtxGetState(dev, &flags, &active));
    CHECK(active == 0);
    CHECK(cuCtxSynchronize() != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&a, dev));
    GIVES(CUDA_SUCCESS, cuCtxSetCurrent(a));
    GIVES(CUDA_SUCCESS, cuMemAlloc(&p, 1 << 20));
    GIVES(CUDA_SUCCESS, cuMemFree(p));
    GIVES(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(dev));
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
