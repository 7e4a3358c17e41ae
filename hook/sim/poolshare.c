/* poolshare.c: pools between processes. A handle is a descriptor of a file that
 * says whose pool it is; a pointer says where in that process's memory file the
 * allocation is. The memory counts as its owner's, and is gone for new importers
 * when the owner is; what is imported then stays readable. */
#include "pool.h"
#include "shared.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define POOL_MAGIC 0x50534d47u
#define POINTER_MAGIC 0x52504d47u

struct card {
    uint32_t magic;
    int32_t device;
    uint32_t slot, pad;
    uint64_t serial, id;
};

struct pointer {
    struct card pool;
    uint64_t offset, size;
};
_Static_assert(sizeof(struct pointer) <= sizeof(CUmemPoolPtrExportData), "64 bytes");

static struct card card_of(const struct pool *p, uint32_t magic)
{
    return (struct card){magic, p->dev->index, (uint32_t)p->dev->slot, 0, p->dev->arena_serial, p->id};
}

static bool is_pool(CUmemoryPool h)
{
    return handle_is(h, H_POOL);
}

CUresult sim_cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType,
                                              unsigned long long flags)
{
    struct pool *p = (struct pool *)pool;
    if (!handle_out || !is_pool(pool) || flags || p->imported ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(p->handle_types & handleType))
        return CUDA_ERROR_INVALID_VALUE;
    struct card card = card_of(p, POOL_MAGIC);
    int high = shared_new_file(), fd = -1;
    if (high >= 0 && shared_name_memory(p->dev) && write(high, &card, sizeof card) == sizeof card)
        fd = fcntl(high, F_DUPFD_CLOEXEC, 0);
    if (high >= 0)
        close(high);
    if (fd >= 0)
        *(int *)handle_out = fd;
    return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult sim_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                                CUmemAllocationHandleType handleType, unsigned long long flags)
{
    struct card card;
    int fd = (int)(intptr_t)handle;
    if (!pool_out || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fd < 0 ||
        pread(fd, &card, sizeof card, 0) != sizeof card || card.magic != POOL_MAGIC || card.device < 0 ||
        card.device >= SIM_MAX_DEVICES || g_device[card.device].ordinal < 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *d = &g_device[card.device];
    CUresult r = shared_join(d);
    if (r != CUDA_SUCCESS)
        return r;
    struct pool *p = pool_new(d);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->imported = true;
    p->slot = card.slot;
    p->serial = card.serial;
    p->id = card.id;
    *pool_out = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)
{
    struct range *g = range_find(ptr);
    if (!shareData_out || !g || g->kind != R_POOL || !g->chunk->pool->handle_types)
        return CUDA_ERROR_INVALID_VALUE;
    struct pointer out = {card_of(g->chunk->pool, POINTER_MAGIC), g->offset, g->size};
    memset(shareData_out, 0, sizeof *shareData_out);
    memcpy(shareData_out, &out, sizeof out);
    return CUDA_SUCCESS;
}

/* Pages are what can be mapped; allocations are smaller. */
static CUresult map(struct ctx *c, struct pool *p, const struct pointer *in, CUdeviceptr *out)
{
    size_t skip = in->offset % SIM_PAGE;
    struct range g = {.kind = R_IPC, .dev = p->dev, .ctx = c, .refs = 1, .flags = 1, .serial = in->pool.serial};
    g.offset = in->offset - skip;
    g.span = (skip + in->size + SIM_PAGE - 1) & ~(size_t)(SIM_PAGE - 1);
    CUresult r = ipc_map(&g, p->dev->index, in->pool.slot);
    if (r != CUDA_SUCCESS)
        return r;
    g.base += skip;
    g.view += skip;
    g.size = g.span = in->size;
    if (!range_add(&g)) {
        ipc_unmap(&g);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = g.base;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolImportPointer(struct ctx *c, CUdeviceptr *ptr_out, CUmemoryPool pool,
                                    CUmemPoolPtrExportData *shareData)
{
    struct pointer in;
    struct pool *p = (struct pool *)pool;
    if (!ptr_out || !shareData || !is_pool(pool) || !p->imported)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&in, shareData, sizeof in);
    if (in.pool.magic != POINTER_MAGIC || in.pool.device != p->dev->index || in.pool.serial != p->serial ||
        in.pool.slot != p->slot || in.pool.id != p->id || !in.size || in.size > g_config.mem)
        return CUDA_ERROR_INVALID_VALUE;
    return map(c, p, &in, ptr_out);
}
