/* mapping.c: the driver, which is opened at the first use, and mappings of another process's memory. */
#include "model.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The driver's functions in use, by their symbols. */
#define CALLS(X)                                                                                              \
    X(cuInit) X(cuGetErrorName) X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxPushCurrent_v2)                   \
    X(cuCtxPopCurrent_v2) X(cuDeviceGet) X(cuDeviceGetUuid) X(cuDevicePrimaryCtxRetain)                       \
    X(cuDevicePrimaryCtxRelease_v2) X(cuMemImportFromShareableHandle) X(cuMemAddressReserve)                  \
    X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemRelease) X(cuMemcpy)               \
    X(cuStreamSynchronize) X(cuCtxSynchronize)

static struct {
#define MEMBER(name) __typeof__(name) *name;
    CALLS(MEMBER)
#undef MEMBER
} driver;
static int opened;

/* Threads that run this at the same time do the same and store the same values. A lock could deadlock: dlopen takes
 * the loader's lock, which the caller may already hold, in the constructor of a library. */
static int open_driver(void)
{
    if (__atomic_load_n(&opened, __ATOMIC_ACQUIRE))
        return GFAAS_MODEL_OK;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return model_fail(GFAAS_MODEL_DRIVER, "cannot load the CUDA driver: %s", dlerror());
#define FIND(name)                                                                          \
    void *name##_at = dlsym(library, #name);                                                \
    if (!name##_at)                                                                         \
        return model_fail(GFAAS_MODEL_DRIVER, "the CUDA driver has no " #name ": it is too old"); \
    __atomic_store_n((void **)&driver.name, name##_at, __ATOMIC_RELAXED);
    CALLS(FIND)
#undef FIND
    __atomic_store_n(&opened, 1, __ATOMIC_RELEASE);
    return GFAAS_MODEL_OK;
}

static int failed(const char *what, CUresult r)
{
    const char *name = NULL;
    driver.cuGetErrorName(r, &name);
    return model_fail(GFAAS_MODEL_DRIVER, "%s: error %d (%s)", what, (int)r, name ? name : "unknown");
}

/* Checks that a device is the GPU with that UUID, as nvidia-smi prints it. */
static int check_gpu(CUdevice device, const char *gpu)
{
    CUuuid id;
    char text[64] = "GPU-";
    CUresult r = driver.cuDeviceGetUuid(&id, device);
    if (r != CUDA_SUCCESS)
        return failed("cannot read the UUID of the GPU", r);
    for (int i = 0; i < 16; i++)
        snprintf(text + strlen(text), 4, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)id.bytes[i]);
    if (!strcmp(gpu, text))
        return GFAAS_MODEL_OK;
    return model_fail(GFAAS_MODEL_DRIVER, "the model is on %s, but this thread uses %s: make a context of the model's GPU current, or set CUDA_VISIBLE_DEVICES", gpu, text);
}

static CUresult set_access(const struct mapping *m, bool writable)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, m->device},
                              writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ};
    return driver.cuMemSetAccess(m->base, m->size, &access, 1);
}

/* Maps the memory at a new address; undoes its steps if one fails. */
static int map_at(struct mapping *m, CUmemGenericAllocationHandle handle, bool writable)
{
    CUresult r = driver.cuMemAddressReserve(&m->base, m->size, 0, 0, 0);
    if (r != CUDA_SUCCESS)
        return failed("cannot reserve addresses for the model", r);
    r = driver.cuMemMap(m->base, m->size, 0, handle, 0);
    if (r == CUDA_SUCCESS && (r = set_access(m, writable)) != CUDA_SUCCESS)
        driver.cuMemUnmap(m->base, m->size);
    if (r == CUDA_SUCCESS)
        return GFAAS_MODEL_OK;
    driver.cuMemAddressFree(m->base, m->size);
    return failed("cannot map the model", r);
}

static int map(struct mapping *m, int fd, const char *gpu, bool writable)
{
    CUmemGenericAllocationHandle handle;
    int code = check_gpu(m->device, gpu);
    if (code)
        return code;
    CUresult r = driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (r != CUDA_SUCCESS)
        return failed("cannot import the model's memory", r);
    code = map_at(m, handle, writable);
    driver.cuMemRelease(handle); /* the mapping keeps the memory */
    return code;
}

/* Makes the primary context of the device current, above the current context. */
static CUresult push_primary(CUdevice device)
{
    CUcontext context;
    CUresult r = driver.cuDevicePrimaryCtxRetain(&context, device);
    if (r != CUDA_SUCCESS)
        return r;
    r = driver.cuCtxPushCurrent_v2(context);
    if (r != CUDA_SUCCESS)
        driver.cuDevicePrimaryCtxRelease_v2(device);
    return r;
}

/* Makes a context current: the current one, or else device 0's primary context, which is pushed. */
static int enter(struct mapping *m)
{
    CUcontext current = NULL;
    CUresult r = driver.cuInit(0);
    if (r == CUDA_SUCCESS)
        r = driver.cuCtxGetCurrent(&current);
    if (r == CUDA_SUCCESS)
        r = current ? driver.cuCtxGetDevice(&m->device) : driver.cuDeviceGet(&m->device, 0);
    if (r != CUDA_SUCCESS)
        return failed("cannot initialise CUDA", r);
    if (current)
        return GFAAS_MODEL_OK;
    r = push_primary(m->device);
    m->primary = r == CUDA_SUCCESS;
    return m->primary ? GFAAS_MODEL_OK : failed("cannot use the primary context of device 0", r);
}

int mapping_make(struct mapping *m, int fd, uint64_t size, const char *gpu, bool writable)
{
    CUcontext popped;
    *m = (struct mapping){.size = size};
    int code = open_driver();
    if (!code)
        code = enter(m);
    if (code)
        return code;
    code = map(m, fd, gpu, writable);
    if (m->primary)
        driver.cuCtxPopCurrent_v2(&popped);
    if (code && m->primary)
        driver.cuDevicePrimaryCtxRelease_v2(m->device);
    return code;
}

/* Makes a context of the mapping's device current: the current one or, if that is of another device, the device's
 * primary context, which is pushed. */
static int enter_device(const struct mapping *m, bool *pushed)
{
    CUcontext context = NULL;
    CUdevice device = -1;
    CUresult r = driver.cuCtxGetCurrent(&context);
    if (r == CUDA_SUCCESS && context)
        r = driver.cuCtxGetDevice(&device);
    *pushed = r == CUDA_SUCCESS && device != m->device;
    if (*pushed)
        r = push_primary(m->device);
    return r == CUDA_SUCCESS ? GFAAS_MODEL_OK : failed("cannot use the GPU of the model", r);
}

static void leave_device(const struct mapping *m, bool pushed)
{
    CUcontext context;
    if (!pushed)
        return;
    driver.cuCtxPopCurrent_v2(&context);
    driver.cuDevicePrimaryCtxRelease_v2(m->device);
}

int mapping_copy(const struct mapping *m, uint64_t to, const void *from, uint64_t bytes)
{
    bool pushed;
    int code = enter_device(m, &pushed);
    if (code)
        return code;
    CUresult r = driver.cuMemcpy(to, (CUdeviceptr)(uintptr_t)from, bytes);
    if (r == CUDA_SUCCESS)
        r = driver.cuStreamSynchronize(NULL); /* a copy within the GPU may still run */
    leave_device(m, pushed);
    return r == CUDA_SUCCESS ? GFAAS_MODEL_OK : failed("cannot copy to the GPU", r);
}

int mapping_seal(const struct mapping *m)
{
    bool pushed;
    int code = enter_device(m, &pushed);
    if (code)
        return code;
    CUresult r = driver.cuCtxSynchronize();
    code = r == CUDA_SUCCESS ? GFAAS_MODEL_OK : failed("work that writes the model failed", r);
    if (!code && (r = set_access(m, false)) != CUDA_SUCCESS)
        code = failed("cannot make the model read-only", r);
    leave_device(m, pushed);
    return code;
}

void mapping_free(struct mapping *m)
{
    driver.cuMemUnmap(m->base, m->size);
    driver.cuMemAddressFree(m->base, m->size);
    if (m->primary)
        driver.cuDevicePrimaryCtxRelease_v2(m->device);
}
