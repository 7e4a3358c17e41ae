/* kinds.h: the ways to allocate device memory, each as a pair of functions get and put. */
#pragma once

#include "check.h"

#include <execinfo.h>
#include <signal.h>
#include <stdbool.h>

#define DRIVER(name) ((__typeof__(&name))driver_find(#name))

/* An allocation. */
struct held {
    CUdeviceptr at;
    size_t bytes;
    CUmemoryPool pool;
    CUmemGenericAllocationHandle handle;
    CUarray array;
    CUmipmappedArray mipmap;
    CUgraph graph;
    CUgraphExec exec;
};

static CUdevice the_device;
static size_t the_limit, the_chunk;

static inline CUresult get_plain(struct held *h) { return cuMemAlloc(&h->at, h->bytes); }
static inline void put_plain(struct held *h) { ASSERT_SUCCESS(cuMemFree(h->at)); }

enum { ROW = 4096 }; /* bytes; a valid pitch in any driver */

static inline CUresult get_pitch(struct held *h)
{
    size_t pitch = 0;
    CUresult result = cuMemAllocPitch(&h->at, &pitch, ROW, h->bytes / ROW, 4);
    ASSERT(result != CUDA_SUCCESS || pitch == ROW);
    return result;
}

static inline CUresult get_managed(struct held *h) { return DRIVER(cuMemAllocManaged)(&h->at, h->bytes, CU_MEM_ATTACH_GLOBAL); }

static inline CUresult get_async(struct held *h) { return DRIVER(cuMemAllocAsync)(&h->at, h->bytes, NULL); }

static inline void put_async(struct held *h)
{
    ASSERT_SUCCESS(DRIVER(cuMemFreeAsync)(h->at, NULL));
    ASSERT_SUCCESS(cuStreamSynchronize(NULL));
}

static inline void put_async_now(struct held *h)
{
    ASSERT_SUCCESS(cuMemFree(h->at));
    ASSERT_SUCCESS(cuStreamSynchronize(NULL)); /* a pool releases its unused memory */
}

static inline CUresult get_thread(struct held *h) { return DRIVER(cuMemAllocAsync_ptsz)(&h->at, h->bytes, NULL); }

static inline void put_thread(struct held *h)
{
    ASSERT_SUCCESS(DRIVER(cuMemFreeAsync_ptsz)(h->at, NULL));
    ASSERT_SUCCESS(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

/* Allocates from a new pool. */
static inline CUresult get_pool(struct held *h)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, the_device}};
    ASSERT_SUCCESS(DRIVER(cuMemPoolCreate)(&h->pool, &props));
    CUresult result = DRIVER(cuMemAllocFromPoolAsync)(&h->at, h->bytes, h->pool, NULL);
    if (result != CUDA_SUCCESS)
        ASSERT_SUCCESS(DRIVER(cuMemPoolDestroy)(h->pool));
    return result;
}

/* Destroys the pool first; it lives until its last allocation is freed. */
static inline void put_pool(struct held *h)
{
    ASSERT_SUCCESS(DRIVER(cuMemPoolDestroy)(h->pool));
    put_async(h);
}

static inline CUresult get_vmm(struct held *h)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, the_device}};
    CUresult result = DRIVER(cuMemCreate)(&h->handle, h->bytes, &prop, 0);
    if (result != CUDA_SUCCESS)
        return result;
    ASSERT_SUCCESS(DRIVER(cuMemAddressReserve)(&h->at, h->bytes, 0, 0, 0));
    ASSERT_SUCCESS(DRIVER(cuMemMap)(h->at, h->bytes, 0, h->handle, 0));
    return result;
}

static inline void put_vmm(struct held *h)
{
    ASSERT_SUCCESS(DRIVER(cuMemRelease)(h->handle)); /* before the unmapping, which ends the memory */
    ASSERT_SUCCESS(DRIVER(cuMemUnmap)(h->at, h->bytes));
    ASSERT_SUCCESS(DRIVER(cuMemAddressFree)(h->at, h->bytes));
}

enum { FLOAT = 0x20 };

static inline CUresult get_array(struct held *h)
{
    CUDA_ARRAY_DESCRIPTOR d = {.Width = ROW / 4, .Height = h->bytes / ROW, .Format = FLOAT, .NumChannels = 1};
    return DRIVER(cuArrayCreate_v2)(&h->array, &d);
}

static inline CUresult get_array3d(struct held *h)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 256, .Height = 16, .Depth = h->bytes / (256 * 16 * 16), .Format = FLOAT, .NumChannels = 4};
    return DRIVER(cuArray3DCreate_v2)(&h->array, &d);
}

static inline void put_array(struct held *h) { ASSERT_SUCCESS(DRIVER(cuArrayDestroy)(h->array)); }

static inline CUresult get_mipmap(struct held *h)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = ROW / 4, .Height = h->bytes / ROW, .Format = FLOAT, .NumChannels = 1};
    return DRIVER(cuMipmappedArrayCreate)(&h->mipmap, &d, 1);
}

static inline void put_mipmap(struct held *h) { ASSERT_SUCCESS(DRIVER(cuMipmappedArrayDestroy)(h->mipmap)); }

/* A graph that allocates and does not free. */
static inline CUresult get_graph(struct held *h)
{
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, the_device}},
        .bytesize = h->bytes,
    };
    ASSERT_SUCCESS(DRIVER(cuGraphCreate)(&h->graph, 0));
    ASSERT_SUCCESS(DRIVER(cuGraphAddMemAllocNode)(&node, h->graph, NULL, 0, &params));
    ASSERT_SUCCESS(DRIVER(cuGraphInstantiateWithFlags)(&h->exec, h->graph, 0));
    h->at = params.dptr;
    CUresult result = DRIVER(cuGraphLaunch)(h->exec, CU_STREAM_PER_THREAD);
    if (result == CUDA_SUCCESS) {
        ASSERT_SUCCESS(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    } else {
        ASSERT_SUCCESS(DRIVER(cuGraphExecDestroy)(h->exec));
        ASSERT_SUCCESS(DRIVER(cuGraphDestroy)(h->graph));
    }
    return result;
}

static inline void put_graph(struct held *h)
{
    ASSERT_SUCCESS(DRIVER(cuMemFreeAsync)(h->at, CU_STREAM_PER_THREAD));
    ASSERT_SUCCESS(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    ASSERT_SUCCESS(DRIVER(cuGraphExecDestroy)(h->exec));
    ASSERT_SUCCESS(DRIVER(cuGraphDestroy)(h->graph));
    ASSERT_SUCCESS(DRIVER(cuDeviceGraphMemTrim)(the_device));
}

struct kind {
    const char *name;
    CUresult (*get)(struct held *h);
    void (*put)(struct held *h);
    const char *needs[7]; /* functions of the driver */
};

static const struct kind all_kinds[] = {
    {"plain", get_plain, put_plain, {NULL}},
    {"pitch", get_pitch, put_plain, {NULL}},
    {"managed", get_managed, put_plain, {"cuMemAllocManaged"}},
    {"async", get_async, put_async, {"cuMemAllocAsync", "cuMemFreeAsync", "cuMemPoolGetAttribute"}},
    {"async-thread", get_thread, put_thread, {"cuMemAllocAsync_ptsz", "cuMemFreeAsync_ptsz", "cuMemPoolGetAttribute"}},
    {"async-free", get_async, put_async_now, {"cuMemAllocAsync", "cuMemPoolGetAttribute"}},
    {"plain-free-async", get_plain, put_async, {"cuMemFreeAsync"}},
    {"pool", get_pool, put_pool, {"cuMemPoolCreate", "cuMemPoolDestroy", "cuMemAllocFromPoolAsync", "cuMemFreeAsync"}},
    {"vmm", get_vmm, put_vmm, {"cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemAddressReserve", "cuMemAddressFree"}},
    {"array", get_array, put_array, {"cuArrayCreate_v2", "cuArrayDestroy"}},
    {"array3d", get_array3d, put_array, {"cuArray3DCreate_v2", "cuArrayDestroy"}},
    {"mipmap", get_mipmap, put_mipmap, {"cuMipmappedArrayCreate", "cuMipmappedArrayDestroy"}},
    {"graph", get_graph, put_graph,
     {"cuGraphAddMemAllocNode", "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecDestroy", "cuDeviceGraphMemTrim", "cuMemFreeAsync"}},
};
enum { KINDS = sizeof all_kinds / sizeof *all_kinds };

static inline bool driver_has(const struct kind *k)
{
    for (unsigned i = 0; i < 7 && k->needs[i]; i++)
        if (!driver_find(k->needs[i]))
            return false;
    return true;
}

enum { CHUNKS = 8 };

/* Prints a backtrace, which shows whether the library or the driver crashed. The signal, whose
 * action has been reset, then ends the process. */
static inline void crashed(int sig)
{
    void *at[32];
    (void)sig;
    backtrace_symbols_fd(at, backtrace(at, 32), 2);
}

/* Starts to use the device. Its memory is the limit. */
static inline void use_device(void)
{
    struct sigaction action = {.sa_handler = crashed, .sa_flags = (int)SA_RESETHAND};
    ASSERT(!sigaction(SIGFPE, &action, NULL) && !sigaction(SIGSEGV, &action, NULL));
    primary_context();
    ASSERT_SUCCESS(cuCtxGetDevice(&the_device));
    ASSERT_SUCCESS(cuDeviceTotalMem(&the_limit, the_device));
    the_chunk = the_limit / CHUNKS;
    /* the step by which pools grow, a multiple of all other page sizes */
    ASSERT(the_limit && the_chunk % (32 << 20) == 0);
}

/* Returns the free memory that the program sees. the_limit is the total. */
static inline size_t free_bytes(void)
{
    size_t unused, total;
    ASSERT_SUCCESS(cuMemGetInfo(&unused, &total));
    ASSERT(total == the_limit && unused <= total);
    return unused;
}

/* Exits with status 1 unless the program sees this many bytes of free memory. */
#define ASSERT_FREE(bytes) \
    do { \
        size_t got_ = free_bytes(), want_ = (bytes); \
        if (got_ != want_) { \
            fprintf(stderr, "%s:%d: free memory: got %zu bytes of %zu, want %zu (%s)\n", __FILE__, __LINE__, got_, the_limit, want_, #bytes); \
            exit(1); \
        } \
    } while (0)
