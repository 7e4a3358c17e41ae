/* vmm.c: reserved addresses, and mapping memory there. */
#include "vmm.h"

#include <stdlib.h>
#include <sys/mman.h>

static struct reservation *reservations;

struct reservation *vmm_reservation(CUdeviceptr p)
{
    for (struct reservation *v = reservations; v; v = v->next)
        if (p - v->base < v->size)
            return v;
    return NULL;
}

/* Mappings beside each other are one piece to copies and kernels, as far as they
 * may be accessed. */
size_t vmm_reach(const struct range *r, CUdeviceptr p)
{
    size_t reach = 0, i = range_after(r->base);
    for (CUdeviceptr at = p; r->kind == R_VMM && r->flags; r = range_at(i++)) {
        if (at < r->base || at - r->base > r->size)
            break;
        reach += r->base + r->size - at;
        at = r->base + r->size;
        if (i >= range_count() || range_at(i)->base != at || vmm_reservation(at) != vmm_reservation(at - 1))
            break;
    }
    return reach;
}

static bool aligned(uint64_t n)
{
    return n % VMM_GRAIN == 0;
}

static void *nothing(size_t size, CUdeviceptr hint)
{
    void *p = mmap((void *)(uintptr_t)hint, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Address space that begins at a multiple of align, at the hint if it is free. */
static char *space(size_t size, size_t align, CUdeviceptr hint)
{
    char *p = hint % align ? NULL : nothing(size, hint);
    if (p && (uintptr_t)p % align == 0)
        return p;
    if (p)
        munmap(p, size);
    if (size + align < size || !(p = nothing(size + align, 0)))
        return NULL;
    size_t skip = (align - (uintptr_t)p % align) % align;
    if (skip)
        munmap(p, skip);
    munmap(p + skip + size, align - skip);
    return p + skip;
}

CUresult sim_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                 unsigned long long flags)
{
    if (!ptr || !size || !aligned(size) || flags || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment < VMM_GRAIN)
        alignment = VMM_GRAIN;
    struct reservation *v = calloc(1, sizeof *v);
    char *base = space(size, alignment, addr), *view = base ? nothing(size, 0) : NULL;
    if (!v || !view) {
        if (base)
            munmap(base, size);
        free(v);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *v = (struct reservation){reservations, (CUdeviceptr)(uintptr_t)base, size, view};
    reservations = v;
    *ptr = v->base;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    struct reservation *v = vmm_reservation(ptr);
    if (!v || v->base != ptr || v->size != size || range_overlaps(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    struct reservation **at = &reservations;
    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    munmap((void *)(uintptr_t)v->base, v->size);
    munmap(v->view, v->size);
    free(v);
    return CUDA_SUCCESS;
}

/* The reservation that holds all of [ptr, ptr+size), or NULL. */
static struct reservation *around(CUdeviceptr ptr, size_t size)
{
    struct reservation *v = vmm_reservation(ptr);
    return v && size && aligned(ptr) && aligned(size) && size <= v->size - (ptr - v->base) ? v : NULL;
}

CUresult sim_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags)
{
    struct alloc *a = (struct alloc *)(uintptr_t)handle;
    struct reservation *v = around(ptr, size);
    if (!handle_is(a, H_ALLOC) || !v || flags || offset || size > a->size || range_overlaps(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t at;
    int fd = alloc_file(a, &at);
    struct range g = {.base = ptr, .size = size, .span = size, .kind = R_VMM, .dev = a->dev, .alloc = a};
    g.view = v->view + (ptr - v->base);
    void *p = mmap(g.view, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, (off_t)at);
    if (p == MAP_FAILED || !range_add(&g))
        return CUDA_ERROR_OUT_OF_MEMORY;
    a->maps++;
    return CUDA_SUCCESS;
}

/* Whether [ptr, ptr+size) is mapped from end to end by whole mappings. */
static bool whole_mappings(CUdeviceptr ptr, size_t size)
{
    for (CUdeviceptr at = ptr; at < ptr + size;) {
        struct range *g = range_find(at);
        if (!g || g->kind != R_VMM || g->base != at || g->size > ptr + size - at)
            return false;
        at += g->size;
    }
    return true;
}

/* What is taken away is replaced by other memory, not by nothing: a copy of the
 * program's own fault may still be at it. */
CUresult sim_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    if (!around(ptr, size) || !whole_mappings(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    memory_wait(range_find(ptr)->dev);
    if (!around(ptr, size) || !whole_mappings(ptr, size))
        return CUDA_ERROR_INVALID_VALUE; /* another thread was faster */
    for (CUdeviceptr at = ptr; at < ptr + size;) {
        struct range *g = range_find(at);
        struct alloc *a = g->alloc;
        at += g->size;
        mmap(g->view, g->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        range_del(g);
        a->maps--;
        alloc_unref(a);
    }
    return CUDA_SUCCESS;
}

/* Devices here are no peers, and the host does not reach device memory. */
static CUresult check_access(const CUmemAccessDesc *d, const struct range *g)
{
    if (d->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return d->location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    if (d->location.id < 0 || d->location.id >= (int)g_config.visible || d->location.id != g->dev->ordinal)
        return CUDA_ERROR_INVALID_DEVICE;
    return d->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || d->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                   d->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    if (!around(ptr, size) || !desc || !count || !whole_mappings(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++)
        r = check_access(&desc[i], range_find(ptr));
    for (CUdeviceptr at = ptr; r == CUDA_SUCCESS && at < ptr + size;) {
        struct range *g = range_find(at);
        g->flags = desc[count - 1].flags;
        at += g->size;
    }
    return r;
}

CUresult sim_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    struct range *g = range_find(ptr);
    if (!flags || !location || !g || g->kind != R_VMM || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        location->id < 0 || location->id >= (int)g_config.visible)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = location->id == g->dev->ordinal ? g->flags : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

/* ---- what a device without sparse arrays and without multicast says ---- */
