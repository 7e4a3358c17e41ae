/* memory_vmm.c: physical memory that is created, mapped and released. It lives
 * until its handle is released as often as it was given out and no mapping of
 * it is left. What is imported was created, and counts, in another process: here
 * it is only shown, as large as what is mapped of it.
 *
 * A range to be unmapped is made of whole mappings, as CUDA says; if the driver takes
 * one with holes, what is mapped in it counts no more. Driver 580 takes a part of a
 * mapping all the same, and what becomes of the rest is not known, so it could not be
 * counted: it is refused here.
 *
 * Not followed: memory that an exported descriptor, a tile of a sparse array or
 * a multicast object keeps alive after its handle and mappings are gone, or after its
 * maker is. Whether that has it still is not to be known here, and to count what is
 * imported would count it twice.
 * Multicast objects have no memory of their own. */
#include "memory_private.h"

#include <stdlib.h>

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                               unsigned long long flags)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    struct gf_device *d = NULL;
    if (handle && size && prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) /* the host's does not count */
        d = gf_mem_of(prop->location.id);
    if (!d)
        return gf_real.cuMemCreate(handle, size, prop, flags);
    struct gf_block *b = gf_block_reserve(GF_HANDLE, d, size);
    if (!b)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = gf_mem_answer(d, gf_real.cuMemCreate(handle, size, prop, flags));
    if (result != CUDA_SUCCESS) {
        gf_block_drop(b);
        return result;
    }
    b->refs = 1;
    gf_block_put(b, *handle);
    return CUDA_SUCCESS;
}

/* Counts a handle that was given out once more, or a release that failed. A
 * handle that was released is none the driver knows: it is not in the table. */
static void refer(struct gf_block *b)
{
    if (b && !b->refs++)
        gf_block_link(b);
}

/* Counts a release: true when that was the last. */
static void unrefer(struct gf_block *b)
{
    if (b && !--b->refs)
        gf_block_unlink(b);
}

/* Whether nothing is left of it. */
static bool is_over(const struct gf_block *b) { return b && !b->refs && !b->maps; }

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&gf_blocks_lock);
    struct gf_block *b = gf_block_find(GF_HANDLE, handle);
    if (b)
        b->maps++; /* it is ours to drop until this call ends */
    unrefer(b);
    pthread_mutex_unlock(&gf_blocks_lock);
    CUresult result = gf_real.cuMemRelease(handle);
    pthread_mutex_lock(&gf_blocks_lock);
    if (result != CUDA_SUCCESS)
        refer(b);
    if (b)
        b->maps--;
    bool over = is_over(b);
    pthread_mutex_unlock(&gf_blocks_lock);
    if (over)
        gf_block_drop(b);
    return result;
}

/* A handle was given out of memory that may be here already: of this process's
 * own making, or found by an address that it is mapped at. */
static void again(CUmemGenericAllocationHandle handle, const void *address)
{
    pthread_mutex_lock(&gf_blocks_lock);
    struct gf_block *b = gf_block_find(GF_HANDLE, handle);
    struct gf_block *mapping = b ? NULL : gf_block_around(GF_MAPPING, (uintptr_t)address);
    if (mapping && mapping->of && !mapping->of->refs) {
        b = mapping->of; /* released, but mapped still */
        b->key = handle;
    }
    refer(b);
    pthread_mutex_unlock(&gf_blocks_lock);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuMemRetainAllocationHandle(handle, addr);
    if (result == CUDA_SUCCESS)
        again(*handle, addr);
    return result;
}

/* The device that memory is on; NULL: none that counts. */
static struct gf_device *device_of(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp prop;
    if (gf_real.cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS ||
        prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return NULL;
    return gf_mem_of(prop.location.id);
}

/* A handle of another process's memory, or of this one's that is known. */
static void imported(CUmemGenericAllocationHandle handle)
{
    struct gf_device *d = device_of(handle);
    struct gf_block *fresh = d ? gf_block_new(GF_HANDLE, 0) : NULL;
    pthread_mutex_lock(&gf_blocks_lock);
    struct gf_block *b = gf_block_find(GF_HANDLE, handle);
    if (!b && fresh) {
        fresh->lent = d;
        fresh->key = handle;
        b = fresh;
        fresh = NULL;
    }
    refer(b);
    pthread_mutex_unlock(&gf_blocks_lock);
    free(fresh);
}

/* That much of a lent block is mapped now. */
static void show(struct gf_block *b, uint64_t bytes)
{
    pthread_mutex_lock(&gf_blocks_lock);
    if (bytes > b->size) {
        gf_mem_import(b->lent, (int64_t)(bytes - b->size));
        b->size = bytes;
    }
    pthread_mutex_unlock(&gf_blocks_lock);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared,
                                                  CUmemAllocationHandleType type)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuMemImportFromShareableHandle(handle, shared, type);
    if (result == CUDA_SUCCESS)
        imported(*handle);
    return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                            unsigned long long flags)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    struct gf_block *mapping = gf_block_new(GF_MAPPING, size);
    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&gf_blocks_lock);
    mapping->of = gf_block_find(GF_HANDLE, handle);
    if (mapping->of)
        mapping->of->maps++; /* before the call: the handle may be released meanwhile */
    pthread_mutex_unlock(&gf_blocks_lock);
    CUresult result = gf_real.cuMemMap(ptr, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && mapping->of && mapping->of->lent)
        show(mapping->of, offset + size);
    if (result == CUDA_SUCCESS)
        gf_block_put(mapping, ptr);
    else
        gf_block_drop(mapping);
    return result;
}

void gf_mapping_gone(struct gf_block *of)
{
    pthread_mutex_lock(&gf_blocks_lock);
    of->maps--;
    bool over = is_over(of);
    pthread_mutex_unlock(&gf_blocks_lock);
    if (over)
        gf_block_drop(of);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    struct gf_block *b;
    if (!gf_blocks_within(GF_MAPPING, ptr, size, &b))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = gf_real.cuMemUnmap(ptr, size);
    for (struct gf_block *next; b; b = next) {
        next = b->next;
        gf_block_freed(b, result);
    }
    return result;
}
