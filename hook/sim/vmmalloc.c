/* vmmalloc.c: memory without addresses: making it, letting go of it, and handing
 * it to other processes. */
#include "shared.h"
#include "vmm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CARD_MAGIC 0x56534d47u

/* Behind the bytes of an allocation that has a file of its own: what it is. A
 * descriptor of the file is all that another process needs. */
struct card {
    uint32_t magic;
    int32_t device;
    uint64_t id, size;
};

static struct alloc *files; /* the allocations that have one */

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

static CUresult check_prop(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return prop && prop->type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_ERROR_NOT_SUPPORTED
                                                                    : CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return prop->location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE
                                                                   : CUDA_ERROR_NOT_SUPPORTED;
    if (prop->location.id < 0 || prop->location.id >= (int)g_config.visible)
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

int alloc_file(const struct alloc *a, uint64_t *offset)
{
    *offset = a->hidden ? a->hidden->offset : 0;
    return a->hidden ? a->dev->arena_fd : a->fd;
}

static CUresult in_arena(struct alloc *a)
{
    struct range r = {.kind = R_HIDDEN};
    return memory_place(a->dev, a->size, &r, &a->hidden);
}

static CUresult in_file(struct alloc *a)
{
    CUresult r = memory_take(a->dev, a->size);
    if (r != CUDA_SUCCESS)
        return r;
    a->fd = shared_new_file();
    struct card card = {CARD_MAGIC, a->dev->index, a->id = export_new_id(a->dev), a->size};
    if (a->fd >= 0 && ftruncate(a->fd, (off_t)(a->size + SIM_PAGE)) == 0 &&
        pwrite(a->fd, &card, sizeof card, (off_t)a->size) == sizeof card) {
        list(a);
        return CUDA_SUCCESS;
    }
    if (a->fd >= 0)
        close(a->fd);
    shared_mem_give(a->dev, a->size);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                         unsigned long long flags)
{
    if (!handle || !size || size % VMM_GRAIN || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = check_prop(prop);
    if (r != CUDA_SUCCESS)
        return r;
    struct device *d = &g_device[g_config.visible_index[prop->location.id]];
    if ((r = shared_join(d)) != CUDA_SUCCESS)
        return r;
    struct alloc *a = calloc(1, sizeof *a);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *a = (struct alloc){.dev = d, .size = size, .handle_types = prop->requestedHandleTypes, .refs = 1, .fd = -1};
    r = a->handle_types ? in_file(a) : in_arena(a);
    if (r == CUDA_SUCCESS && !handle_add(a, H_ALLOC)) {
        a->refs = 0;
        alloc_unref(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r == CUDA_SUCCESS)
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)a;
    else
        free(a);
    return r;
}

void alloc_unref(struct alloc *a)
{
    if (!a->refs)
        handle_del(a);
    if (a->refs || a->maps)
        return;
    if (a->hidden)
        memory_release(a->hidden);
    else if (a->shared)
        export_drop(a->dev, a->id);
    else
        shared_mem_give(a->dev, a->size);
    unlist(a);
    if (a->fd >= 0)
        close(a->fd);
    free(a);
}

CUresult sim_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct alloc *a = handle_of((void *)(uintptr_t)handle, H_ALLOC);
    if (!a)
        return CUDA_ERROR_INVALID_VALUE;
    a->refs--;
    alloc_unref(a);
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
    if (!a->shared && !export_hold(a->dev, a->id, a->size, true)) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    a->shared = true;
    *(int *)shareableHandle = fd;
    return CUDA_SUCCESS;
}

/* Whether a descriptor is of an allocation's file, and of which. */
static bool read_card(int fd, struct card *card)
{
    off_t end = lseek(fd, 0, SEEK_END);
    return end > (off_t)SIM_PAGE && pread(fd, card, sizeof *card, end - (off_t)SIM_PAGE) == sizeof *card &&
           card->magic == CARD_MAGIC && card->size == (uint64_t)end - SIM_PAGE && card->size % VMM_GRAIN == 0;
}

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

static CUresult take_over(int fd, const struct card *card, struct alloc **out)
{
    struct device *d = device_at(card->device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult r = shared_join(d);
    if (r != CUDA_SUCCESS || (*out = known(d, card->id)))
        return r;
    struct alloc *a = calloc(1, sizeof *a);
    if (!a || !export_hold(d, card->id, card->size, false)) {
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *a = (struct alloc){.dev = d, .size = card->size, .id = card->id, .shared = true};
    a->handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    a->fd = shared_move_up(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    list(a);
    if (a->fd < 0) {
        alloc_unref(a);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *out = a;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                            CUmemAllocationHandleType shHandleType)
{
    struct card card;
    struct alloc *a = NULL;
    int fd = (int)(intptr_t)osHandle;
    if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fd < 0 || !read_card(fd, &card))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = take_over(fd, &card, &a);
    if (r != CUDA_SUCCESS)
        return r;
    if (!a->refs++ && !handle_add(a, H_ALLOC)) {
        a->refs--;
        alloc_unref(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)a;
    return CUDA_SUCCESS;
}
