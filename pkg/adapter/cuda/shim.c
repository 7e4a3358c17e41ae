#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The functions of the driver that are called, by their symbols. */
#define CALLS(X)                                                                                       \
    X(cuInit) X(cuDeviceGet) X(cuDeviceGetAttribute) X(cuDeviceGetUuid) X(cuDevicePrimaryCtxRetain)    \
    X(cuDevicePrimaryCtxRelease_v2) X(cuCtxSetCurrent) X(cuMemGetAllocationGranularity) X(cuMemCreate) \
    X(cuMemRelease) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap)               \
    X(cuMemSetAccess) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)                \
    X(cuMemHostAlloc) X(cuMemFreeHost) X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuStreamSynchronize)  \
    X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoHAsync_v2)

struct shim {
    void *library;
    CUdevice device;
    CUcontext context;
    size_t grain; /* of memory, bytes */
    CUuuid uuid;
#define MEMBER(name) __typeof__(name) *name;
    CALLS(MEMBER)
#undef MEMBER
};

const char *shim_text(CUresult r)
{
    switch (r) {
#define TEXT(name, code, text) \
    case name:                 \
        return text " (" #name ")";
        CU_RESULTS(TEXT)
#undef TEXT
    default:
        return "an error that has no name here";
    }
}

bool shim_say(char **why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (vasprintf(why, format, args) < 0)
        *why = NULL;
    va_end(args);
    return false;
}

static bool load(shim *s, const char *path, char **why)
{
    s->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!s->library)
        return shim_say(why, "%s", dlerror());
#define LOAD(name)                                               \
    if (!(*(void **)&s->name = dlsym(s->library, #name)))        \
        return shim_say(why, "%s has no %s: it is too old", path, #name);
    CALLS(LOAD)
#undef LOAD
    return true;
}

static CUmemAllocationProp prop(const shim *s)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, s->device},
    };
}

/* Whether the device can hand memory on. */
static bool check(shim *s, char **why)
{
    const CUdevice_attribute needed[] = {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                         CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        int has = 0;
        CUresult r = s->cuDeviceGetAttribute(&has, needed[i], s->device);
        if (r != CUDA_SUCCESS)
            return shim_say(why, "attributes of the GPU: %s", shim_text(r));
        if (!has)
            return shim_say(why, "this GPU's memory cannot be handed to other processes by descriptor");
    }
    return true;
}

static bool open_device(shim *s, char **why)
{
    CUresult r = s->cuInit(0);
    if (r != CUDA_SUCCESS)
        return shim_say(why, "start of the driver: %s", shim_text(r));
    if ((r = s->cuDeviceGet(&s->device, 0)) != CUDA_SUCCESS)
        return shim_say(why, "the GPU: %s", shim_text(r));
    if (!check(s, why))
        return false;
    CUmemAllocationProp p = prop(s);
    if ((r = s->cuDeviceGetUuid(&s->uuid, s->device)) != CUDA_SUCCESS ||
        (r = s->cuMemGetAllocationGranularity(&s->grain, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM)) != CUDA_SUCCESS ||
        (r = s->cuDevicePrimaryCtxRetain(&s->context, s->device)) != CUDA_SUCCESS)
        return shim_say(why, "context on the GPU: %s", shim_text(r));
    return true;
}

shim *shim_open(const char *path, char **why)
{
    shim *s = calloc(1, sizeof *s);
    *why = NULL;
    if (s && load(s, path, why) && open_device(s, why))
        return s;
    if (s && s->library)
        dlclose(s->library);
    free(s);
    return NULL;
}

/* The library stays: drivers have threads of their own. */
CUresult shim_close(shim *s)
{
    CUresult r = s->cuDevicePrimaryCtxRelease_v2(s->device);
    free(s);
    return r;
}

size_t shim_grain(const shim *s)
{
    return s->grain;
}

void shim_uuid(const shim *s, unsigned char uuid[16])
{
    for (int i = 0; i < 16; i++)
        uuid[i] = (unsigned char)s->uuid.bytes[i];
}

/* Gives memory addresses here. */
static CUresult map(shim *s, shim_memory *m, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, s->device}, .flags = flags};
    CUresult r = s->cuMemAddressReserve(&m->at, m->size, 0, 0, 0);
    if (r != CUDA_SUCCESS)
        return r;
    if ((r = s->cuMemMap(m->at, m->size, 0, m->handle, 0)) == CUDA_SUCCESS) {
        if ((r = s->cuMemSetAccess(m->at, m->size, &access, 1)) == CUDA_SUCCESS)
            return CUDA_SUCCESS;
        s->cuMemUnmap(m->at, m->size);
    }
    s->cuMemAddressFree(m->at, m->size);
    return r;
}

CUresult shim_alloc(shim *s, size_t size, shim_memory *m)
{
    CUmemAllocationProp p = prop(s);
    CUresult r = s->cuCtxSetCurrent(s->context);
    if (size > SIZE_MAX - s->grain)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->size = (size + s->grain - 1) / s->grain * s->grain;
    if (r != CUDA_SUCCESS || (r = s->cuMemCreate(&m->handle, m->size, &p, 0)) != CUDA_SUCCESS)
        return r;
    if ((r = map(s, m, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) != CUDA_SUCCESS)
        s->cuMemRelease(m->handle);
    return r;
}

CUresult shim_import(shim *s, int fd, size_t size, shim_memory *m)
{
    CUresult r = s->cuCtxSetCurrent(s->context);
    if (r != CUDA_SUCCESS ||
        (r = s->cuMemImportFromShareableHandle(&m->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) != CUDA_SUCCESS)
        return r;
    m->size = size;
    if ((r = map(s, m, CU_MEM_ACCESS_FLAGS_PROT_READ)) != CUDA_SUCCESS)
        s->cuMemRelease(m->handle);
    return r;
}

CUresult shim_export(shim *s, const shim_memory *m, int *fd)
{
    CUresult r = s->cuCtxSetCurrent(s->context);
    return r != CUDA_SUCCESS ? r : s->cuMemExportToShareableHandle(fd, m->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

CUresult shim_free(shim *s, shim_memory *m)
{
    CUresult r = s->cuCtxSetCurrent(s->context);
    if (r == CUDA_SUCCESS)
        r = s->cuMemUnmap(m->at, m->size);
    if (r == CUDA_SUCCESS)
        r = s->cuMemAddressFree(m->at, m->size);
    CUresult released = s->cuMemRelease(m->handle);
    return r != CUDA_SUCCESS ? r : released;
}

CUresult shim_stage_make(shim *s, size_t size, shim_stage *g)
{
    CUresult r = s->cuCtxSetCurrent(s->context);
    if (r != CUDA_SUCCESS || (r = s->cuMemHostAlloc(&g->buffer, size, 0)) != CUDA_SUCCESS)
        return r;
    if ((r = s->cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING)) != CUDA_SUCCESS)
        s->cuMemFreeHost(g->buffer);
    return r;
}

CUresult shim_stage_free(shim *s, shim_stage *g)
{
    CUresult r = s->cuCtxSetCurrent(s->context);
    if (r == CUDA_SUCCESS)
        r = s->cuStreamSynchronize(g->stream);
    CUresult destroyed = s->cuStreamDestroy_v2(g->stream);
    CUresult freed = s->cuMemFreeHost(g->buffer);
    return r != CUDA_SUCCESS ? r : destroyed != CUDA_SUCCESS ? destroyed : freed;
}

CUresult shim_up(shim *s, const shim_stage *g, CUdeviceptr to, size_t n)
{
    CUresult r = s->cuCtxSetCurrent(s->context);
    return r != CUDA_SUCCESS ? r : s->cuMemcpyHtoDAsync_v2(to, g->buffer, n, g->stream);
}

CUresult shim_down(shim *s, const shim_stage *g, CUdeviceptr from, size_t n)
{
    CUresult r = s->cuCtxSetCurrent(s->context);
    return r != CUDA_SUCCESS ? r : s->cuMemcpyDtoHAsync_v2(g->buffer, from, n, g->stream);
}

CUresult shim_wait(shim *s, const shim_stage *g)
{
    CUresult r = s->cuCtxSetCurrent(s->context);
    return r != CUDA_SUCCESS ? r : s->cuStreamSynchronize(g->stream);
}
