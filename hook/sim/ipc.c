/* ipc.c: device memory of other processes. A handle has the exporter's memory file and an offset in it, so it works
 * wherever the shared folder is visible. */
#include "sim.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define IPC_MAGIC 0x43504947u

struct ipc {
    uint32_t magic;
    int32_t device;
    uint32_t slot, pad;
    uint64_t serial, offset, size;
};
_Static_assert(sizeof(struct ipc) <= sizeof(CUipcMemHandle), "a handle is 64 bytes");

CUresult sim_cuIpcGetMemHandle(struct ctx *c, CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    struct range *g = range_find(dptr);
    if (!pHandle || !g || g->kind != R_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *d = g->ctx->dev;
    if (!shared_name_memory(d))
        return CUDA_ERROR_OPERATING_SYSTEM;
    struct ipc h = {.magic = IPC_MAGIC, .device = d->index, .slot = (uint32_t)d->slot, .serial = g->serial,
                    .offset = g->offset, .size = g->size};
    memset(pHandle, 0, sizeof *pHandle);
    memcpy(pHandle, &h, sizeof h);
    if (!g->flags)
        shared_fixed(d, 1);
    g->flags = 1;
    return CUDA_SUCCESS;
}

/* Returns the range where this process has already opened the memory, or NULL. */
static struct range *already_open(const struct ipc *h)
{
    for (size_t i = 0; i < range_count(); i++) {
        struct range *g = range_at(i);
        if (g->kind == R_IPC && !g->flags && g->serial == h->serial && g->offset == h->offset &&
            g->ctx->dev->index == h->device)
            return g;
    }
    return NULL;
}

/* Maps another process's bytes, at the address for programs and as the view. *g says which bytes of the memory file
 * with its serial. */
CUresult ipc_map(struct range *g, int device, unsigned slot)
{
    int fd = shared_open_memory(device, slot, g->serial);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE; /* the exporter has ended */
    off_t size = lseek(fd, 0, SEEK_END);
    if (size < 0 || g->offset > (uint64_t)size || g->span > (uint64_t)size - g->offset) {
        close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    void *view = mmap(NULL, g->span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)g->offset);
    close(fd);
    if (view == MAP_FAILED)
        return CUDA_ERROR_MAP_FAILED;
    void *base = mmap(NULL, g->span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        munmap(view, g->span);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    g->base = (CUdeviceptr)(uintptr_t)base;
    g->view = view;
    lost_watch(view, g->span);
    return CUDA_SUCCESS;
}

/* The memory of a pool's pointer may begin in the middle of a page. */
void ipc_unmap(const struct range *r)
{
    size_t skip = r->base % SIM_PAGE;
    lost_forget(r->view - skip);
    munmap(r->view - skip, skip + r->span);
    munmap((void *)(uintptr_t)(r->base - skip), skip + r->span);
}

void ipc_release(struct range *r)
{
    ipc_unmap(r);
    range_del(r);
}

CUresult sim_cuIpcOpenMemHandle_v2(struct ctx *c, CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    struct ipc h;
    memcpy(&h, &handle, sizeof h);
    if (!pdptr || (Flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
        return CUDA_ERROR_INVALID_VALUE;
    if (h.magic != IPC_MAGIC || h.device != c->dev->index || !h.size || h.offset % SIM_PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    if (h.serial == c->dev->arena_serial)
        return CUDA_ERROR_INVALID_CONTEXT; /* the exporting process cannot open it */
    struct range *open = already_open(&h);
    if (open) {
        open->refs++;
        *pdptr = open->base;
        return CUDA_SUCCESS;
    }
    struct range g = {.size = h.size, .kind = R_IPC, .dev = c->dev, .ctx = c, .refs = 1, .serial = h.serial,
                      .offset = h.offset, .span = page_up(h.size)};
    TRY(ipc_map(&g, h.device, h.slot));
    if (!range_add(&g)) {
        ipc_unmap(&g);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pdptr = g.base;
    return CUDA_SUCCESS;
}

CUresult sim_cuIpcCloseMemHandle(struct ctx *c, CUdeviceptr dptr)
{
    struct range *g = range_find(dptr);
    if (!g || g->kind != R_IPC || g->flags || g->base != dptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (--g->refs == 0) {
        wait_context(g->ctx, false);
        ipc_release(g);
    }
    return c->error;
}
