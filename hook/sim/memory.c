/* memory.c: device memory. Every process has an arena, twice as large as the device so that it does not fragment.
 * Its pages come from a file that the device's processes share. shared.c counts the memory in use over all
 * processes. */
#include "graph.h"
#include "pool.h"

#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>

/* Returns a hole of that size at or after `from`, or 0 if there is none. */
static CUdeviceptr find_hole(const struct device *d, CUdeviceptr from, size_t span)
{
    CUdeviceptr end = d->arena_base + d->arena_size, at = from;
    size_t i = range_after(from);
    if (i && range_at(i - 1)->base >= d->arena_base) {
        CUdeviceptr over = range_at(i - 1)->base + range_at(i - 1)->span;
        at = over > at ? over : at;
    }
    for (; i < range_count() && range_at(i)->base < end; i++) {
        if (range_at(i)->base - at >= span)
            return at;
        at = range_at(i)->base + range_at(i)->span;
    }
    return at <= end && end - at >= span ? at : 0;
}

/* Reports whether the file system has room. Writing to a full shared-memory file system would kill the process. */
static bool host_has_room(const struct device *d, size_t span)
{
    struct statvfs fs;
    return fstatvfs(d->arena_fd, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize >= span;
}

/* Counts device memory for this process, if the device and the host have it. */
static bool reserve(struct device *d, size_t span)
{
    return host_has_room(d, span) && shared_mem_reserve(d, span);
}

/* Does the same. If memory is short, it first frees unused memory of this process's pools, and evicts managed memory
 * of this process from the device; like the driver, never that of other processes. */
static bool reserve_or_evict(struct device *d, size_t span)
{
    if (reserve(d, span))
        return true;
    pool_release_unused(d);
    if (reserve(d, span))
        return true;
    while (managed_evict(d, span))
        if (reserve(d, span))
            return true;
    return false;
}

CUresult memory_reserve(struct device *d, size_t bytes)
{
    return bytes <= g_config.mem && reserve_or_evict(d, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult memory_check(CUmemAllocationType type, const CUmemLocation *l)
{
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    if (l->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return l->type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult memory_hole(struct device *d, size_t span, struct range *r, struct range **out)
{
    CUdeviceptr at = d->arena_hint ? find_hole(d, d->arena_hint, span) : 0;
    if (!at)
        at = find_hole(d, d->arena_base, span);
    r->base = at;
    r->span = span;
    r->dev = d;
    r->offset = at - d->arena_base;
    r->view = d->arena_view + r->offset;
    r->serial = d->arena_serial;
    if (!at || !shared_open_arena(d, r->offset + span) || !(*out = range_add(r)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    d->arena_hint = at + span;
    return CUDA_SUCCESS;
}

/* On a GPU, new memory has the contents that its last user left. Here it is zeroed, which hides that a program
 * reads memory that it never wrote. All ones is not a number in any floating-point format. */
void memory_poison(void *view, size_t n)
{
    if (g_config.poison)
        memset(view, 0xff, n);
}

CUresult memory_place(struct device *d, size_t span, struct range *r, struct range **out)
{
    if (memory_reserve(d, span) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = memory_hole(d, span, r, out);
    if (result == CUDA_SUCCESS)
        memory_poison((*out)->view, span);
    else
        shared_mem_release(d, span);
    return result;
}

CUresult memory_alloc(struct ctx *c, CUdeviceptr *out, size_t size)
{
    struct range r = {.size = size, .kind = R_DEVICE, .ctx = c}, *own;
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > g_config.mem)
        return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(memory_place(c->dev, page_up(size), &r, &own));
    *out = own->base;
    return CUDA_SUCCESS;
}

void memory_release(struct range *r)
{
    struct device *d = r->dev;
    fallocate(d->arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r->offset, (off_t)r->span);
    shared_mem_release(d, r->span);
    range_del(r);
}

/* Frees an allocation of any kind that no work uses. */
static void free_now(struct range *r)
{
    if (r->kind == R_DEVICE || r->kind == R_ARRAY)
        memory_release(r);
    else if (r->kind == R_POOL)
        pool_free_now(r);
    else if (r->kind == R_GRAPH)
        mem_free_now(r);
    else if (r->kind == R_MANAGED)
        managed_release(r);
    else if (r->kind == R_IPC)
        ipc_release(r);
    else
        hostmem_release(r);
}

void memory_free_ctx(struct ctx *c)
{
    for (size_t i = range_count(); i-- > 0;)
        if (range_at(i)->ctx == c)
            free_now(range_at(i));
}

void memory_wait(struct device *d)
{
    for (struct ctx *c = g_contexts; c; c = c->next)
        if (c->dev == d && c->created)
            wait_context(c, false);
}

CUresult sim_cuMemAlloc_v2(struct ctx *c, CUdeviceptr *dptr, size_t bytesize)
{
    return dptr ? memory_alloc(c, dptr, bytesize) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemAllocPitch_v2(struct ctx *c, CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                unsigned int ElementSizeBytes)
{
    if (!dptr || !pPitch || !WidthInBytes || !Height || WidthInBytes > (1ull << 31) ||
        (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t pitch = (WidthInBytes + 511) & ~(size_t)511;
    if (Height > SIZE_MAX / pitch)
        return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(memory_alloc(c, dptr, pitch * Height));
    *pPitch = pitch;
    return CUDA_SUCCESS;
}

/* Reports whether cuMemFree may free the range: p must be the first address of an allocation. */
static bool can_free(const struct range *g, CUdeviceptr p)
{
    if (g && g->base == p && g->kind == R_GRAPH)
        return mem_can_free(g);
    return g && g->base == p && (g->kind == R_DEVICE || g->kind == R_MANAGED || g->kind == R_POOL ||
                                 (g->kind == R_IPC && g->flags)); /* from another process's pool */
}

/* Waits for the work of the context, as the driver does when it must. */
CUresult sim_cuMemFree_v2(CUdeviceptr dptr)
{
    CUresult r = ctx_release();
    if (r != CUDA_SUCCESS || !dptr)
        return r;
    struct range *g = range_find(dptr);
    if (!can_free(g, dptr))
        return CUDA_ERROR_INVALID_VALUE;
    if (g->ctx)
        wait_context(g->ctx, false);
    else
        memory_wait(g->dev);
    g = range_find(dptr);
    if (!can_free(g, dptr))
        return CUDA_ERROR_INVALID_VALUE; /* freed by another thread meanwhile */
    r = g->ctx ? g->ctx->error : CUDA_SUCCESS;
    free_now(g);
    return r;
}

CUresult sim_cuMemGetInfo_v2(struct ctx *c, size_t *free, size_t *total)
{
    shared_reap(c->dev, now_ns());
    uint64_t used = shared_mem_used(c->dev);
    if (free)
        *free = used < g_config.mem ? g_config.mem - used : 0;
    if (total)
        *total = g_config.mem;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemGetAddressRange_v2(struct ctx *c, CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    struct range *g = range_find(dptr);
    if (!g)
        return CUDA_ERROR_NOT_FOUND;
    if (pbase)
        *pbase = g->base;
    if (psize)
        *psize = g->size;
    return CUDA_SUCCESS;
}
