/* memory_info.c: what programs are told of free and total memory. The limit is
 * their device: nobody sees more than it, and free is what is left of it. */
#include "memory_private.h"

/* Bytes left of the limit, UINT64_MAX without one. */
static uint64_t left(struct gf_device *d)
{
    uint64_t most = gf_mem_limit(d), held = gf_mem_used_by_all(d);
    return !most ? UINT64_MAX : held < most ? most - held : 0;
}

static uint64_t total(struct gf_device *d)
{
    uint64_t most = gf_mem_limit(d);
    return most ? most : UINT64_MAX;
}

/* What can be had of the device, of which so much is unused: all of it where it
 * is oversubscribed, for others make room. */
static uint64_t room(struct gf_device *d, size_t unused)
{
    if (gf_oversubscribed())
        gf_real.cuDeviceTotalMem_v2(&unused, (CUdevice)gf_ordinal(d));
    return unused;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The driver's answer first, so that what it refuses is refused in its words. */
#define GF_INFO(symbol, type) \
    CUresult symbol(type *free_bytes, type *total_bytes) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        CUresult result = gf_real.symbol(free_bytes, total_bytes); \
        struct gf_device *d = result == CUDA_SUCCESS ? gf_mem_here() : NULL; \
        if (!d) \
            return result; \
        gf_pools_look(d, false); \
        if (total_bytes) \
            *total_bytes = (type)least(*total_bytes, total(d)); \
        if (free_bytes) \
            *free_bytes = (type)least(room(d, *free_bytes), left(d)); \
        return CUDA_SUCCESS; \
    }
GF_INFO(cuMemGetInfo_v2, size_t)
GF_INFO(cuMemGetInfo, unsigned int) /* up to 4 GiB */

#define GF_TOTAL(symbol, type) \
    CUresult symbol(type *bytes, CUdevice dev) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        CUresult result = gf_real.symbol(bytes, dev); \
        struct gf_device *d = result == CUDA_SUCCESS && bytes ? gf_mem_of(dev) : NULL; \
        if (d) \
            *bytes = (type)least(*bytes, total(d)); \
        return result; \
    }
GF_TOTAL(cuDeviceTotalMem_v2, size_t)
GF_TOTAL(cuDeviceTotalMem, unsigned int)
