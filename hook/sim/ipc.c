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

/* Unmaps the whole pages in which the bytes lie: memory from a pool may begin in the middle of a page. */
static void unmap(const struct range *r)
{
    size_t skip = r->base % SIM_PAGE;
    lost_forget(r->view - skip);
    munmap(r->view - skip, skip + r->span);
    munmap((void *)(uintptr_t)(r->base - skip), skip + r->span);
}

CUresult ipc_open(struct range *g, unsigned slot, CUdeviceptr *out)
{
    size_t skip = g->offset % SIM_PAGE, bytes = page_up(skip + g->size);
    uint64_t from = g->offset - skip;
    int fd = shared_open_memory(g->dev->index, slot, g->serial);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE; /* the exporter has ended */
    off_t end = lseek(fd, 0, SEEK_END);
    if (end < 0 || from > (uint64_t)end || bytes > (uint64_t)end - from) {
        close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    char *view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)from);
    close(fd);
    if (view == MAP_FAILED)
        return CUDA_ERROR_MAP_FAILED;
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        munmap(view, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    g->base = (CUdeviceptr)(uintptr_t)base + skip;
    g->view = view + skip;
    lost_watch(view, bytes);
    if (!range_add(g)) {
        unmap(g);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = g->base;
    return CUDA_SUCCESS;
}

void ipc_release(struct range *r)
{
    unmap(r);
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
    return ipc_open(&g, h.slot, pdptr);
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
