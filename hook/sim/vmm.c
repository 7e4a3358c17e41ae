/* vmm.c: virtual memory management: memory without addresses, which may be handed
 * to other processes, reserved addresses, and mapping one at the other. */
#include "shared.h"
#include "vmm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- memory without addresses ---- */

#define TRAILER_MAGIC 0x56534d47u

/* Behind the bytes of an allocation that has a file of its own: what it is. A
 * descriptor of the file is all that another process needs. */
struct trailer {
    uint32_t magic;
    int32_t device;
    uint64_t id, size;
};

static struct alloc *files; /* the allocations that have one */

/* Allocations with files are found by the id that other processes know. */
static void list(struct alloc *a)
{
    a->next = files;
    files = a;
}

static void unlist(const struct alloc *a)
{
    for (struct alloc **at = &files; *at; at = &(*at)->next)
        if (*at == a) {
            *at = a->next;
            return;
        }
}

/* Whether there is memory of that kind here. */
static CUresult check_prop(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return prop && prop->type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_ERROR_NOT_SUPPORTED
                                                                    : CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return prop->location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE
                                                                   : CUDA_ERROR_NOT_SUPPORTED;
    if (!device_of(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                           CUmemAllocationGranularity_flags option)
{
    CUresult r = check_prop(prop);
    if (!granularity || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        *granularity = VMM_GRAIN;
    return r;
}

/* The file that has an allocation's bytes, and where in it. */
static int file_of(const struct alloc *a, uint64_t *offset)
{
    *offset = a->hidden ? a->hidden->offset : 0;
    return a->hidden ? a->dev->arena_fd : a->fd;
}

/* Memory that stays in this process. */
static CUresult in_arena(struct alloc *a)
{
    struct range r = {.kind = R_HIDDEN};
    return memory_place(a->dev, a->size, &r, &a->hidden);
}

static bool poison_file(const struct alloc *a)
{
    if (!g_config.poison)
        return true;
    void *p = mmap(NULL, a->size, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
    if (p == MAP_FAILED)
        return false;
    memory_poison(p, a->size);
    munmap(p, a->size);
    return true;
}

/* Memory that may be handed on: a file of its own. */
static CUresult in_file(struct alloc *a)
{
    CUresult r = memory_take(a->dev, a->size);
    if (r != CUDA_SUCCESS)
        return r;
    a->fd = shared_new_file();
    struct trailer trailer = {TRAILER_MAGIC, a->dev->index, a->id = export_new_id(a->dev), a->size};
    if (a->fd >= 0 && ftruncate(a->fd, (off_t)(a->size + SIM_PAGE)) == 0 &&
        pwrite(a->fd, &trailer, sizeof trailer, (off_t)a->size) == sizeof trailer && poison_file(a)) {
        list(a);
        return CUDA_SUCCESS;
    }
    if (a->fd >= 0)
        close(a->fd);
    shared_mem_give(a->dev, a->size);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Others have it too, or may have it. */
static void share(struct alloc *a)
{
    if (!a->shared)
        shared_fixed(a->dev, 1);
    a->shared = true;
}

static void stop_sharing(struct alloc *a)
{
    export_drop(a->dev, a->id);
    shared_fixed(a->dev, -1);
}

/* When it has lost a handle or a mapping. */
static void unref(struct alloc *a)
{
    if (!a->refs)
        handle_del(a);
    if (a->refs || a->maps)
        return;
    unlist(a);
    if (a->fd >= 0)
        close(a->fd);
    if (a->hidden)
        memory_release(a->hidden);
    else if (a->shared)
        stop_sharing(a);
    else
        shared_mem_give(a->dev, a->size);
    free(a);
}

void vmm_leave(struct device *d)
{
    for (struct alloc *a = files; a; a = a->next)
        if (a->dev == d && a->fd >= 0) {
            close(a->fd);
            a->fd = -1;
        }
}

CUresult sim_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                         unsigned long long flags)
{
    if (!handle || !size || size % VMM_GRAIN || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = check_prop(prop);
    if (r != CUDA_SUCCESS)
        return r;
    struct device *d = device_of(prop->location.id);
    if ((r = shared_join(d)) != CUDA_SUCCESS)
        return r;
    struct alloc *a = calloc(1, sizeof *a);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *a = (struct alloc){.dev = d, .size = size, .handle_types = prop->requestedHandleTypes, .refs = 1, .fd = -1};
    r = a->handle_types ? in_file(a) : in_arena(a);
    if (r == CUDA_SUCCESS && !handle_add(a, H_ALLOC)) {
        a->refs = 0;
        unref(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r == CUDA_SUCCESS)
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)a;
    else
        free(a);
    return r;
}

CUresult sim_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct alloc *a = handle_of((void *)(uintptr_t)handle, H_ALLOC);
    if (!a)
        return CUDA_ERROR_INVALID_VALUE;
    a->refs--;
    unref(a);
    return CUDA_SUCCESS;
}

CUresult sim_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    struct range *g = range_find((CUdeviceptr)(uintptr_t)addr);
    if (!handle || !g || g->kind != R_VMM)
        return CUDA_ERROR_INVALID_VALUE;
    if (!g->alloc->refs && !handle_add(g->alloc, H_ALLOC))
        return CUDA_ERROR_OUT_OF_MEMORY;
    g->alloc->refs++;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)g->alloc;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    struct alloc *a = handle_of((void *)(uintptr_t)handle, H_ALLOC);
    if (!a || !prop)
        return CUDA_ERROR_INVALID_VALUE;
    memset(prop, 0, sizeof *prop);
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->requestedHandleTypes = a->handle_types;
    prop->location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, a->dev->ordinal};
    return CUDA_SUCCESS;
}

/* ---- between processes ---- */

CUresult sim_cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType handleType, unsigned long long flags)
{
    struct alloc *a = handle_of((void *)(uintptr_t)handle, H_ALLOC);
    if (!a)
        return CUDA_ERROR_INVALID_VALUE;
    if (!shareableHandle || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(a->handle_types & handleType))
        return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (!a->shared && !(export_publish(a->dev, a->id, a->fd) && export_hold(a->dev, a->id, a->size, true))) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    share(a);
    *(int *)shareableHandle = fd;
    return CUDA_SUCCESS;
}

/* Whether a descriptor is of an allocation's file, and of which. */
static bool read_trailer(int fd, struct trailer *trailer)
{
    off_t end = lseek(fd, 0, SEEK_END);
    return end > (off_t)SIM_PAGE && pread(fd, trailer, sizeof *trailer, end - (off_t)SIM_PAGE) == sizeof *trailer &&
           trailer->magic == TRAILER_MAGIC && trailer->size == (uint64_t)end - SIM_PAGE &&
           trailer->size % VMM_GRAIN == 0;
}

/* The visible device of that place on the machine, or NULL. */
static struct device *device_at(int index)
{
    for (unsigned i = 0; i < g_config.visible; i++)
        if (g_config.visible_index[i] == index)
            return &g_device[index];
    return NULL;
}

/* The allocation of that name, if this process has it already. */
static struct alloc *known(const struct device *d, uint64_t id)
{
    struct alloc *a = files;
    while (a && (a->dev != d || a->id != id))
        a = a->next;
    return a;
}

/* The allocation that a descriptor means, made known here if it is not. */
static CUresult take_over(int fd, const struct trailer *trailer, struct alloc **out)
{
    struct device *d = device_at(trailer->device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult r = shared_join(d);
    if (r != CUDA_SUCCESS || (*out = known(d, trailer->id)))
        return r;
    struct alloc *a = calloc(1, sizeof *a);
    if (!a || !export_hold(d, trailer->id, trailer->size, false)) {
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *a = (struct alloc){.dev = d, .size = trailer->size, .id = trailer->id};
    share(a);
    a->handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    a->fd = shared_move_up(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    list(a);
    if (a->fd < 0) {
        unref(a);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *out = a;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                            CUmemAllocationHandleType shHandleType)
{
    struct trailer trailer;
    struct alloc *a = NULL;
    int fd = (int)(intptr_t)osHandle;
    if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fd < 0 || !read_trailer(fd, &trailer))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = take_over(fd, &trailer, &a);
    if (r != CUDA_SUCCESS)
        return r;
    if (!a->refs++ && !handle_add(a, H_ALLOC)) {
        a->refs--;
        unref(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)a;
    return CUDA_SUCCESS;
}

/* ---- addresses, and mapping memory there ---- */

static struct reservation *reservations;

struct reservation *vmm_reservation(CUdeviceptr p)
{
    for (struct reservation *v = reservations; v; v = v->next)
        if (p - v->base < v->size)
            return v;
    return NULL;
}

/* Mappings beside each other are one piece to copies and kernels, as far as they
 * may be accessed so. */
size_t vmm_reach(const struct range *r, CUdeviceptr p, unsigned access)
{
    size_t reach = 0, i = range_after(r->base);
    for (CUdeviceptr at = p; r->kind == R_VMM && (r->flags & access) == access; r = range_at(i++)) {
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

/* Addresses with nothing behind them, at the hint if that is free. */
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
        if (view)
            munmap(view, size);
        free(v);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    lost_watch(view, size);
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
    lost_forget(v->view);
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
    int fd = file_of(a, &at);
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

/* What is unmapped is replaced by anonymous memory: a copy may still be under way
 * there by the program's fault, and shall not kill it. */
/* Where nothing is mapped nothing needs to be done, as driver 580 has it. */
CUresult sim_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    if (around(ptr, size) && !range_overlaps(ptr, size))
        return CUDA_SUCCESS;
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
        unref(a);
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
        !device_of(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = location->id == g->dev->ordinal ? g->flags : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
