/* memory.c: device memory. Every process has an arena, twice as large as the
 * device so that it does not fragment, whose pages come from a file the device's
 * processes share; how much of it may be in use, over all processes, is counted
 * in shared.c. */
#include "sim.h"

#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>

static size_t round_up(size_t n)
{
    return (n + SIM_PAGE - 1) & ~(size_t)(SIM_PAGE - 1);
}

/* A hole of that size at or after `from`; 0 when there is none. */
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

/* Writing to a shared-memory file system that is full kills the writer; better
 * to find out now. */
static bool host_has_room(const struct device *d, size_t span)
{
    struct statvfs fs;
    return fstatvfs(d->arena_fd, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize >= span;
}

CUresult memory_alloc(struct ctx *c, CUdeviceptr *out, size_t size)
{
    struct device *d = c->dev;
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > g_config.mem)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t span = round_up(size);
    if (!host_has_room(d, span) || !shared_mem_take(d, span))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUdeviceptr at = d->arena_hint ? find_hole(d, d->arena_hint, span) : 0;
    if (!at)
        at = find_hole(d, d->arena_base, span);
    struct range r = {.base = at, .size = size, .span = span, .kind = R_DEVICE, .ctx = c};
    r.offset = at - d->arena_base;
    r.view = d->arena_view + r.offset;
    r.serial = d->arena_serial;
    if (!at || !range_add(&r)) {
        shared_mem_give(d, span);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    d->arena_hint = at + span;
    *out = at;
    return CUDA_SUCCESS;
}

void memory_release(struct range *r)
{
    struct device *d = r->ctx->dev;
    fallocate(d->arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r->offset, (off_t)r->span);
    shared_mem_give(d, r->span);
    range_del(r);
}

void memory_free_ctx(struct ctx *c)
{
    for (size_t i = range_count(); i-- > 0;) {
        struct range *r = range_at(i);
        if (r->ctx != c)
            continue;
        if (r->kind == R_DEVICE)
            memory_release(r);
        else if (r->kind == R_IPC)
            ipc_release(r);
        else
            hostmem_release(r);
    }
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    return sim_end(dptr ? memory_alloc(c, dptr, bytesize) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!dptr || !pPitch || !WidthInBytes || !Height || WidthInBytes > (1ull << 31) ||
        (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    size_t pitch = (WidthInBytes + 511) & ~(size_t)511;
    if (Height > SIZE_MAX / pitch)
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    r = memory_alloc(c, dptr, pitch * Height);
    if (r == CUDA_SUCCESS)
        *pPitch = pitch;
    return sim_end(r);
}

/* Freeing waits for the work of the context, as the driver does where it must. */
CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!dptr)
        return sim_end(CUDA_SUCCESS);
    struct range *g = range_find(dptr);
    if (!g || g->base != dptr || g->kind != R_DEVICE)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    wait_context(g->ctx, false);
    g = range_find(dptr);
    if (!g || g->base != dptr || g->kind != R_DEVICE)
        return sim_end(CUDA_ERROR_INVALID_VALUE); /* freed by another thread meanwhile */
    memory_release(g);
    return sim_end(c->error);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!free && !total)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    shared_reap(c->dev, now_ns());
    uint64_t used = shared_mem_used(c->dev);
    if (free)
        *free = used < g_config.mem ? g_config.mem - used : 0;
    if (total)
        *total = g_config.mem;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    struct range *g = range_find(dptr);
    if (!g)
        return sim_end(CUDA_ERROR_NOT_FOUND);
    if (pbase)
        *pbase = g->base;
    if (psize)
        *psize = g->size;
    return sim_end(CUDA_SUCCESS);
}
