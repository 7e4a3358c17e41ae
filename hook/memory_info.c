/* memory_info.c: free and total memory, as programs query it. The limit is the total, and the free
 * memory is what remains of the limit. */
#include "memory_private.h"

/* Returns the bytes that remain of the limit, or UINT64_MAX if there is no limit. */
static uint64_t remaining(struct gf_device *d)
{
    uint64_t most = gf_swap_limit(d), held = gf_mem_used_by_all(d);
    return !most ? UINT64_MAX : held < most ? most - held : 0;
}

static uint64_t total(struct gf_device *d)
{
    uint64_t most = gf_swap_limit(d);
    return most ? most : UINT64_MAX;
}

/* Returns how much of the device the process can allocate, given its unused memory: all memory if
 * the device is oversubscribed, because other instances are moved out. */
static uint64_t room(struct gf_device *d, size_t unused)
{
    if (gf_oversubscribed())
        gf_real.cuDeviceTotalMem_v2(&unused, (CUdevice)gf_ordinal(d));
    return unused;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The driver is called first, so that invalid arguments get its error. */
#define GF_INFO(symbol, type) \
    CUresult symbol(type *free_bytes, type *total_bytes) \
    { \
        CUresult result = gf_real.symbol(free_bytes, total_bytes); \
        struct gf_device *d = result == CUDA_SUCCESS ? gf_mem_current_device() : NULL; \
        if (!d) \
            return result; \
        gf_pools_recount(d, false); \
        if (total_bytes) \
            *total_bytes = (type)least(*total_bytes, total(d)); \
        if (free_bytes) \
            *free_bytes = (type)least(room(d, *free_bytes), remaining(d)); \
        return CUDA_SUCCESS; \
    }
GF_INFO(cuMemGetInfo_v2, size_t)
GF_INFO(cuMemGetInfo, unsigned int) /* up to 4 GiB */

#define GF_TOTAL(symbol, type) \
    CUresult symbol(type *bytes, CUdevice dev) \
    { \
        CUresult result = gf_real.symbol(bytes, dev); \
        struct gf_device *d = result == CUDA_SUCCESS && bytes ? gf_mem_device(dev) : NULL; \
        if (d) \
            *bytes = (type)least(*bytes, total(d)); \
        return result; \
    }
GF_TOTAL(cuDeviceTotalMem_v2, size_t)
GF_TOTAL(cuDeviceTotalMem, unsigned int)
