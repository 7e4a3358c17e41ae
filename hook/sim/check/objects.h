/* objects.h: makes and destroys objects of the driver without which the PART makes no sense. */
#pragma once

#include "tap.h"

#include <stdint.h>

static inline int attribute_of(CUdevice dev, CUdevice_attribute attribute)
{
    int value = 0;
    ASSERT_SUCCESS(cuDeviceGetAttribute(&value, attribute, dev));
    return value;
}

static inline CUcontext new_context(CUdevice dev)
{
    CUcontext c;
    ASSERT_SUCCESS(cuCtxCreate(&c, 0, dev));
    return c;
}

static inline CUdeviceptr new_memory(size_t bytes)
{
    CUdeviceptr p;
    ASSERT_SUCCESS(cuMemAlloc(&p, bytes));
    return p;
}

static inline CUstream new_stream(void)
{
    CUstream s;
    ASSERT_SUCCESS(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static inline CUevent new_event(unsigned flags)
{
    CUevent e;
    ASSERT_SUCCESS(cuEventCreate(&e, flags));
    return e;
}

static inline CUgraph new_graph(void)
{
    CUgraph g;
    ASSERT_SUCCESS(cuGraphCreate(&g, 0));
    return g;
}

static inline CUgraphExec new_instance(CUgraph g)
{
    CUgraphExec e;
    ASSERT_SUCCESS(cuGraphInstantiate(&e, g, 0));
    return e;
}

static inline CUmodule new_module(const char *ptx)
{
    CUmodule m;
    ASSERT_SUCCESS(cuModuleLoadData(&m, ptx));
    return m;
}

static inline CUfunction function_of(CUmodule m, const char *name)
{
    CUfunction f;
    ASSERT_SUCCESS(cuModuleGetFunction(&f, m, name));
    return f;
}

static inline CUmemAllocationProp memory_of(CUdevice dev, CUmemAllocationHandleType handles)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = handles,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}};
}

static inline CUmemGenericAllocationHandle new_allocation(CUdevice dev, size_t size, CUmemAllocationHandleType handles)
{
    CUmemGenericAllocationHandle h = 0;
    CUmemAllocationProp p = memory_of(dev, handles);
    ASSERT_SUCCESS(cuMemCreate(&h, size, &p, 0));
    return h;
}

static inline CUmemGenericAllocationHandle new_import(int fd)
{
    CUmemGenericAllocationHandle h = 0;
    ASSERT_SUCCESS(cuMemImportFromShareableHandle(&h, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return h;
}

static inline void allow(CUdevice dev, CUdeviceptr p, size_t size, CUmemAccess_flags flags)
{
    CUmemAccessDesc d = {{CU_MEM_LOCATION_TYPE_DEVICE, dev}, flags};
    ASSERT_SUCCESS(cuMemSetAccess(p, size, &d, 1));
}

/* Maps an allocation of that size at a new address. */
static inline CUdeviceptr new_mapping(CUdevice dev, CUmemGenericAllocationHandle h, size_t size,
                                      CUmemAccess_flags flags)
{
    CUdeviceptr p;
    ASSERT_SUCCESS(cuMemAddressReserve(&p, size, 0, 0, 0));
    ASSERT_SUCCESS(cuMemMap(p, size, 0, h, 0));
    allow(dev, p, size, flags);
    return p;
}

/* Reports whether all n bytes have that value. */
static inline bool all_bytes(CUdeviceptr p, size_t n, unsigned char value)
{
    unsigned char *b = malloc(n);
    bool same = true;
    ASSERT_SUCCESS(cuMemcpyDtoH(b, p, n));
    for (size_t i = 0; i < n; i++)
        same &= b[i] == value;
    free(b);
    return same;
}

static inline size_t free_memory(void)
{
    size_t free_bytes, total;
    ASSERT_SUCCESS(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

/* Destroys up to six objects, each by the function for its type. */
#define DESTROY(...) DESTROY_N(__VA_ARGS__, DESTROY6, DESTROY5, DESTROY4, DESTROY3, DESTROY2, DESTROY1)(__VA_ARGS__)
#define DESTROY_N(a, b, c, d, e, f, destroy, ...) destroy
#define DESTROY1(a) ASSERT_SUCCESS(_Generic((a), \
    CUdeviceptr: cuMemFree, CUstream: cuStreamDestroy, CUevent: cuEventDestroy, \
    CUgraph: cuGraphDestroy, CUgraphExec: cuGraphExecDestroy, CUcontext: cuCtxDestroy)(a))
#define DESTROY2(a, b) do { DESTROY1(a); DESTROY1(b); } while (0)
#define DESTROY3(a, ...) do { DESTROY1(a); DESTROY2(__VA_ARGS__); } while (0)
#define DESTROY4(a, ...) do { DESTROY1(a); DESTROY3(__VA_ARGS__); } while (0)
#define DESTROY5(a, ...) do { DESTROY1(a); DESTROY4(__VA_ARGS__); } while (0)
#define DESTROY6(a, ...) do { DESTROY1(a); DESTROY5(__VA_ARGS__); } while (0)
