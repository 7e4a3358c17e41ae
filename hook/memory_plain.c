/* memory_plain.c: cuMemAlloc and its variants, and managed memory. Managed memory counts wherever
 * its pages are, because the program may move them all to the device. On an oversubscribed GPU all
 * of it is managed (memory_swap.c). */
#include "memory_private.h"

/* Returns the device on whose account an allocation counts: that of the current context. Returns NULL if
 * the arguments are invalid; the call then goes to the driver, which reports the error. */
static struct gf_device *account_device(bool valid)
{
    return valid ? gf_mem_current_device() : NULL;
}

/* Adds the block to the table or, if the driver refused the allocation, frees it. Returns the result. */
static CUresult finish_block(struct gf_block *b, CUresult result, CUdeviceptr address)
{
    if (result == CUDA_SUCCESS) {
        gf_real.cuCtxGetCurrent(&b->context);
        gf_block_put(b, address);
    } else {
        gf_block_drop(b);
    }
    return result;
}

/* Allocates managed memory in place of device memory. Its bytes are already on the account. */
static CUresult allocate_managed(CUdeviceptr *dptr, size_t bytes)
{
    struct gf_device *d = gf_mem_current_device();
    uint64_t most = d ? gf_swap_limit(d) : 0;
    if (most && gf_mem_used_by_all(d) > most)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gf_real.cuMemAllocManaged(dptr, bytes, CU_MEM_ATTACH_GLOBAL);
}

/* Allocates memory for cuMemAlloc_v2. */
static CUresult allocate(CUdeviceptr *dptr, size_t bytes)
{
    return gf_oversubscribed() ? allocate_managed(dptr, bytes) : gf_real.cuMemAlloc_v2(dptr, bytes);
}

#define GF_ALLOC(symbol, params, args, call, is_managed) \
    CUresult symbol params \
    { \
        struct gf_device *d = account_device(dptr && bytes); \
        if (!d) \
            return gf_real.symbol args; \
        struct gf_block *b = gf_block_reserve(GF_PLAIN, d, bytes); \
        if (!b) \
            return CUDA_ERROR_OUT_OF_MEMORY; \
        b->managed = is_managed; \
        CUresult result = gf_mem_answer(d, call args); \
        return finish_block(b, result, result == CUDA_SUCCESS ? *dptr : 0); \
    }
GF_ALLOC(cuMemAlloc, (CUdeviceptr_v1 *dptr, unsigned int bytes), (dptr, bytes), gf_real.cuMemAlloc, false)
GF_ALLOC(cuMemAlloc_v2, (CUdeviceptr *dptr, size_t bytes), (dptr, bytes), allocate, gf_oversubscribed())
GF_ALLOC(cuMemAllocManaged, (CUdeviceptr *dptr, size_t bytes, unsigned int flags), (dptr, bytes, flags),
         gf_real.cuMemAllocManaged, true)

/* Like cuMemAllocPitch for managed memory, for which the driver has no such function. */
static CUresult managed_rows(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height)
{
    enum { PITCH = 512 }; /* as NVIDIA's driver chooses it */
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    if (*pitch < width || height > SIZE_MAX / *pitch)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return allocate_managed(dptr, *pitch * height);
}

/* Allocates memory for cuMemAllocPitch_v2. */
static CUresult allocate_rows(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    bool valid = element == 4 || element == 8 || element == 16;
    if (gf_oversubscribed() && valid)
        return managed_rows(dptr, pitch, width, height);
    return gf_real.cuMemAllocPitch_v2(dptr, pitch, width, height, element);
}

/* The driver chooses the pitch, so the size is known only after the allocation. If it exceeds the
 * limit, the memory is freed again before the program sees it. */
#define GF_ALLOC_PITCH(symbol, address, size, call, free, is_managed) \
    CUresult symbol(address *dptr, size *pitch, size width, size height, unsigned int element) \
    { \
        struct gf_device *d = account_device(dptr && pitch && width && height && (uint64_t)width <= UINT64_MAX / height); \
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
        return finish_block(b, result, at); \
    }
GF_ALLOC_PITCH(cuMemAllocPitch, CUdeviceptr_v1, unsigned int, gf_real.cuMemAllocPitch, cuMemFree, false)
GF_ALLOC_PITCH(cuMemAllocPitch_v2, CUdeviceptr, size_t, allocate_rows, cuMemFree_v2, gf_oversubscribed())

GF_FREE(cuMemFree, (CUdeviceptr_v1 dptr), (dptr), gf_block_claim_address(dptr))
GF_FREE(cuMemFree_v2, (CUdeviceptr dptr), (dptr), gf_block_claim_address(dptr))
