/* vmm.c: virtual memory management: memory without addresses, which can be exported to other processes; reserved
 * addresses; mappings of memory to addresses. */
#include "shared.h"
#include "vmm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- memory without addresses ---- */

#define TRAILER_MAGIC 0x56534d47u

/* The description behind the bytes of an allocation in a file. A descriptor of the file is all that another process
 * needs. */
struct trailer {
    uint32_t magic;
    int32_t device;
    uint64_t id, size;
};

static struct alloc *files; /* the allocations with files */

/* Adds an allocation with a file to the list, in which imports find it by its id. */
static void list_file(struct alloc *a)
{
    a->next = files;
    files = a;
}

/* Checks the properties of new memory. */
static CUresult check_prop(const CUmemAllocationProp *prop)
{
    TRY(prop ? memory_check(prop->type, &prop->location) : CUDA_ERROR_INVALID_VALUE);
    if (!device_of(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                           CUmemAllocationGranularity_flags option)
{
    if (!granularity || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(check_prop(prop));
    *granularity = VMM_GRAIN;
    return CUDA_SUCCESS;
}

/* Returns the file with an allocation's bytes, and their offset in it. */
static int file_of(const struct alloc *a, uint64_t *offset)
{
    *offset = a->hidden ? a->hidden->offset : 0;
    return a->hidden ? a->dev->arena_fd : a->fd;
}

/* Allocates memory that cannot be exported. */
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

/* Allocates memory that can be exported, in a file of its own. */
static CUresult in_file(struct alloc *a)
{
    TRY(memory_reserve(a->dev, a->size));
    a->fd = shared_new_file();
    struct trailer trailer = {TRAILER_MAGIC, a->dev->index, a->id = export_new_id(a->dev), a->size};
    if (a->fd >= 0 && ftruncate(a->fd, (off_t)(a->size + SIM_PAGE)) == 0 &&
        pwrite(a->fd, &trailer, sizeof trailer, (off_t)a->size) == sizeof trailer && poison_file(a)) {
        list_file(a);
        return CUDA_SUCCESS;
    }
    if (a->fd >= 0)
        close(a->fd);
    shared_mem_release(a->dev, a->size);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Notes that other processes hold the allocation, or can. */
static void mark_shared(struct alloc *a)
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

/* Frees the allocation after its last handle and mapping. */
static void unref(struct alloc *a)
{
    if (!a->refs)
        handle_del(a);
    if (a->refs || a->maps)
        return;
    LIST_UNLINK(&files, a, next);
    if (a->fd >= 0)
        close(a->fd);
    if (a->hidden)
        memory_release(a->hidden);
    else if (a->shared)
        stop_sharing(a);
    else
        shared_mem_release(a->dev, a->size);
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
    TRY(check_prop(prop));
    struct device *d = device_of(prop->location.id);
    TRY(shared_join(d));
    struct alloc *a = calloc(1, sizeof *a);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *a = (struct alloc){.dev = d, .size = size, .handle_types = prop->requestedHandleTypes, .refs = 1, .fd = -1};
    CUresult r = a->handle_types ? in_file(a) : in_arena(a);
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

CUresult sim_cuMemRelease(struct alloc *a, CUmemGenericAllocationHandle handle)
{
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

CUresult sim_cuMemGetAllocationPropertiesFromHandle(struct alloc *a, CUmemAllocationProp *prop,
                                                    CUmemGenericAllocationHandle handle)
{
    if (!prop)
        return CUDA_ERROR_INVALID_VALUE;
    memset(prop, 0, sizeof *prop);
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->requestedHandleTypes = a->handle_types;
    prop->location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, a->dev->ordinal};
    return CUDA_SUCCESS;
}

/* ---- between processes ---- */

CUresult sim_cuMemExportToShareableHandle(struct alloc *a, void *shareableHandle, CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType handleType, unsigned long long flags)
{
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
    mark_shared(a);
    *(int *)shareableHandle = fd;
    return CUDA_SUCCESS;
}

/* Reads the description of an allocation's file. Returns false if the descriptor is of another file. */
static bool read_trailer(int fd, struct trailer *trailer)
{
    off_t end = lseek(fd, 0, SEEK_END);
    return end > (off_t)SIM_PAGE && pread(fd, trailer, sizeof *trailer, end - (off_t)SIM_PAGE) == sizeof *trailer &&
           trailer->magic == TRAILER_MAGIC && trailer->size == (uint64_t)end - SIM_PAGE &&
           trailer->size % VMM_GRAIN == 0;
}

/* Returns the allocation with that id if this process has it, else NULL. */
static struct alloc *find_file(const struct device *d, uint64_t id)
{
    struct alloc *a = files;
    while (a && (a->dev != d || a->id != id))
        a = a->next;
    return a;
}

/* Returns the allocation of a descriptor, adding it if it is not known. */
static CUresult import_file(int fd, const struct trailer *trailer, struct alloc **out)
{
    struct device *d = device_at(trailer->device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult r = shared_join(d);
    if (r != CUDA_SUCCESS || (*out = find_file(d, trailer->id)))
        return r;
    struct alloc *a = calloc(1, sizeof *a);
    if (!a || !export_hold(d, trailer->id, trailer->size, false)) {
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *a = (struct alloc){.dev = d, .size = trailer->size, .id = trailer->id};
    mark_shared(a);
    a->handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    a->fd = shared_move_up(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    list_file(a);
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
    TRY(import_file(fd, &trailer, &a));
    if (!a->refs++ && !handle_add(a, H_ALLOC)) {
        a->refs--;
        unref(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)a;
    return CUDA_SUCCESS;
}

/* ---- addresses and mappings ---- */

static struct reservation *reservations;

struct reservation *vmm_reservation(CUdeviceptr p)
{
    for (struct reservation *v = reservations; v; v = v->next)
        if (p - v->base < v->size)
            return v;
    return NULL;
}

/* Adjacent mappings are one piece for copies and kernels, as far as their access rights allow. */
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

/* Maps inaccessible address space, at the hint if that is free. */
static void *map_inaccessible(size_t size, CUdeviceptr hint)
{
    void *p = mmap((void *)(uintptr_t)hint, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Maps inaccessible address space that begins at a multiple of align, at the hint if it is free. */
static char *map_aligned(size_t size, size_t align, CUdeviceptr hint)
{
    char *p = hint % align ? NULL : map_inaccessible(size, hint);
    if (p && (uintptr_t)p % align == 0)
        return p;
    if (p)
        munmap(p, size);
    if (size + align < size || !(p = map_inaccessible(size + align, 0)))
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
    char *base = map_aligned(size, alignment, addr), *view = base ? map_inaccessible(size, 0) : NULL;
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
    LIST_UNLINK(&reservations, v, next);
    munmap((void *)(uintptr_t)v->base, v->size);
    lost_forget(v->view);
    munmap(v->view, v->size);
    free(v);
    return CUDA_SUCCESS;
}

/* Returns the reservation that contains all of [ptr, ptr+size), or NULL. */
static struct reservation *reservation_around(CUdeviceptr ptr, size_t size)
{
    struct reservation *v = vmm_reservation(ptr);
    return v && size && aligned(ptr) && aligned(size) && size <= v->size - (ptr - v->base) ? v : NULL;
}

CUresult sim_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags)
{
    struct alloc *a = (struct alloc *)(uintptr_t)handle;
    struct reservation *v = reservation_around(ptr, size);
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

/* Reports whether [ptr, ptr+size) consists of whole mappings. */
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

/* Replaces the mappings by anonymous memory, since the program may wrongly have a copy in progress there, which must
 * not crash it. A range without mappings is no error, as with driver 580. */
CUresult sim_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    if (reservation_around(ptr, size) && !range_overlaps(ptr, size))
        return CUDA_SUCCESS;
    if (!reservation_around(ptr, size) || !whole_mappings(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    memory_wait(range_find(ptr)->dev);
    if (!reservation_around(ptr, size) || !whole_mappings(ptr, size))
        return CUDA_ERROR_INVALID_VALUE; /* another thread has changed it */
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

/* Devices are no peers here, and the host cannot access device memory. */
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
    if (!reservation_around(ptr, size) || !desc || !count || !whole_mappings(ptr, size))
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
