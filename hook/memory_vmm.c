/* memory_vmm.c: physical memory that is created, mapped and released.
 *
 * Physical memory exists until its handle has been released as often as it was returned and no mapping
 * remains. Imported memory was created, and counts, in another process; here only its mapped size is shown.
 *
 * CUDA requires an unmapped range to consist of whole mappings. If the driver accepts a range with holes,
 * the mappings in it no longer count. Driver 580 also accepts a part of a mapping. The state of the rest is
 * then unknown and could not be counted, so this library refuses such a call.
 *
 * Not tracked: memory that an exported descriptor, a tile of a sparse array or a multicast object keeps
 * alive after its handle and mappings are gone, or after its creator has ended. The library cannot know
 * whether it still exists, and counting imported memory would count it twice. Multicast objects have no
 * memory of their own. */
#include "memory_private.h"

#include <stdlib.h>

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                               unsigned long long flags)
{
    struct gf_device *d = NULL;
    if (handle && size && prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) /* host memory is not counted */
        d = gf_mem_device(prop->location.id);
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

/* Counts a handle that was returned again, or a release that failed. A released handle is not in the
 * table, because the driver does not know it. The caller holds the lock. */
static void refer(struct gf_block *b)
{
    if (b && !b->refs++)
        gf_block_link(b);
}

/* Counts a release and removes the block from the table after the last one. The caller holds the lock. */
static void unrefer(struct gf_block *b)
{
    if (b && !--b->refs)
        gf_block_unlink(b);
}

/* Reports whether the memory has neither handles nor mappings. */
static bool is_over(const struct gf_block *b) { return b && !b->refs && !b->maps; }

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&gf_blocks_lock);
    struct gf_block *b = gf_block_find(GF_HANDLE, handle);
    if (b)
        b->maps++; /* keeps the block until this call ends */
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

/* Counts a handle that was returned for memory that may be known: created by this process, or mapped at
 * the address. */
static void retained(CUmemGenericAllocationHandle handle, const void *address)
{
    pthread_mutex_lock(&gf_blocks_lock);
    struct gf_block *b = gf_block_find(GF_HANDLE, handle);
    struct gf_block *mapping = b ? NULL : gf_block_around(GF_MAPPING, (uintptr_t)address);
    if (mapping && mapping->of && !mapping->of->refs) {
        b = mapping->of; /* released, but still mapped */
        b->key = handle;
    }
    refer(b);
    pthread_mutex_unlock(&gf_blocks_lock);
}

GF_AFTER(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *handle, void *addr), (handle, addr),
         retained(*handle, addr))

/* Returns the device of the memory, or NULL if it is not counted. */
static struct gf_device *device_of(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp prop;
    if (gf_real.cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS ||
        prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return NULL;
    return gf_mem_device(prop.location.id);
}

/* Counts an imported handle, of another process's memory or of known memory of this one. */
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

/* Notes that the first `bytes` bytes of another process's memory are mapped. */
static void set_mapped(struct gf_block *b, uint64_t bytes)
{
    pthread_mutex_lock(&gf_blocks_lock);
    if (bytes > b->size) {
        gf_mem_import(b->lent, (int64_t)(bytes - b->size));
        b->size = bytes;
    }
    pthread_mutex_unlock(&gf_blocks_lock);
}

GF_AFTER(cuMemImportFromShareableHandle,
         (CUmemGenericAllocationHandle *handle, void *shared, CUmemAllocationHandleType type), (handle, shared, type),
         imported(*handle))

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                            unsigned long long flags)
{
    struct gf_block *mapping = gf_block_new(GF_MAPPING, size);
    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&gf_blocks_lock);
    mapping->of = gf_block_find(GF_HANDLE, handle);
    if (mapping->of)
        mapping->of->maps++; /* before the call, because the handle may be released during it */
    pthread_mutex_unlock(&gf_blocks_lock);
    CUresult result = gf_real.cuMemMap(ptr, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && mapping->of && mapping->of->lent)
        set_mapped(mapping->of, offset + size);
    if (result == CUDA_SUCCESS)
        gf_block_put(mapping, ptr);
    else
        gf_block_drop(mapping);
    return result;
}

void gf_mapping_removed(struct gf_block *of)
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
