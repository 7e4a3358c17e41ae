/* memory_plain.c: cuMemAlloc and its kin, and managed memory, which counts
 * wherever its pages are: the program may have them all on the device. Where the
 * GPU is oversubscribed all of it is managed (memory_swap.c). */
#include "memory_private.h"

/* The device to count on, when the arguments are such that the driver may
 * allocate; what it will refuse anyway is left to its own words. */
static struct gf_device *device_if(bool sound)
{
    return sound ? gf_mem_here() : NULL;
}

static CUresult note(struct gf_block *b, CUresult result, CUdeviceptr address)
{
    if (result == CUDA_SUCCESS) {
        gf_real.cuCtxGetCurrent(&b->context);
        gf_block_put(b, address);
    } else {
        gf_block_drop(b);
    }
    return result;
}

/* What the program asks for by cuMemAlloc. */
static CUresult allocate(CUdeviceptr *dptr, size_t bytes)
{
    return gf_oversubscribed() ? gf_real.cuMemAllocManaged(dptr, bytes, CU_MEM_ATTACH_GLOBAL) : gf_real.cuMemAlloc_v2(dptr, bytes);
}

#define GF_ALLOC(symbol, params, args, call, is_managed) \
    CUresult symbol params \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        struct gf_device *d = device_if(dptr && bytes); \
        if (!d) \
            return gf_real.symbol args; \
        struct gf_block *b = gf_block_reserve(GF_PLAIN, d, bytes); \
        if (!b) \
            return CUDA_ERROR_OUT_OF_MEMORY; \
        b->managed = is_managed; \
        CUresult result = gf_mem_answer(d, call args); \
        return note(b, result, result == CUDA_SUCCESS ? *dptr : 0); \
    }
GF_ALLOC(cuMemAlloc, (CUdeviceptr_v1 *dptr, unsigned int bytes), (dptr, bytes), gf_real.cuMemAlloc, false)
GF_ALLOC(cuMemAlloc_v2, (CUdeviceptr *dptr, size_t bytes), (dptr, bytes), allocate, gf_oversubscribed())
GF_ALLOC(cuMemAllocManaged, (CUdeviceptr *dptr, size_t bytes, unsigned int flags), (dptr, bytes, flags),
         gf_real.cuMemAllocManaged, true)

/* Rows of managed memory: the driver has no function for them. */
static CUresult managed_rows(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height)
{
    enum { PITCH = 512 }; /* of NVIDIA's driver */
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    if (*pitch < width || height > SIZE_MAX / *pitch)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gf_real.cuMemAllocManaged(dptr, *pitch * height, CU_MEM_ATTACH_GLOBAL);
}

static CUresult allocate_rows(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    bool sound = element == 4 || element == 8 || element == 16;
    if (gf_oversubscribed() && sound)
        return managed_rows(dptr, pitch, width, height);
    return gf_real.cuMemAllocPitch_v2(dptr, pitch, width, height, element);
}

/* The pitch is the driver's choice: what it adds to the width is known only
 * afterwards. The program sees nothing of an allocation that is too much. */
#define GF_ALLOC_PITCH(symbol, address, size, call, free, is_managed) \
    CUresult symbol(address *dptr, size *pitch, size width, size height, unsigned int element) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        struct gf_device *d = device_if(dptr && pitch && width && height && (uint64_t)width <= UINT64_MAX / height); \
        if (!d) \
            return gf_real.symbol(dptr, pitch, width, height, element); \
        struct gf_block *b = gf_block_reserve(GF_PLAIN, d, (uint64_t)width * height); \
        if (!b) \
            return CUDA_ERROR_OUT_OF_MEMORY; \
        b->managed = is_managed; \
        address at = 0; \
        size chosen = 0; \
        CUresult result = gf_mem_answer(d, call(&at, &chosen, width, height, element)); \
        if (result == CUDA_SUCCESS && !gf_block_resize(b, (uint64_t)chosen * height)) { \
            gf_real.free(at); \
            result = CUDA_ERROR_OUT_OF_MEMORY; \
        } \
        if (result == CUDA_SUCCESS) { \
            *dptr = at; \
            *pitch = chosen; \
        } \
        return note(b, result, at); \
    }
GF_ALLOC_PITCH(cuMemAllocPitch, CUdeviceptr_v1, unsigned int, gf_real.cuMemAllocPitch, cuMemFree, false)
GF_ALLOC_PITCH(cuMemAllocPitch_v2, CUdeviceptr, size_t, allocate_rows, cuMemFree_v2, gf_oversubscribed())

#define GF_FREE(symbol, address) \
    CUresult symbol(address dptr) \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        struct gf_block *b = gf_block_claim_address(dptr); \
        CUresult result = gf_real.symbol(dptr); \
        gf_block_freed(b, result); \
        return result; \
    }
GF_FREE(cuMemFree, CUdeviceptr_v1)
GF_FREE(cuMemFree_v2, CUdeviceptr)
