/* hostmem.c: pinned and registered host memory. Addresses are unified: its device address is its host address. */
#include "sim.h"

#include <sys/mman.h>

static bool is_host(const struct range *r)
{
    return r->kind == R_HOST || r->kind == R_REGISTERED;
}

void hostmem_release(struct range *r)
{
    if (r->kind == R_HOST)
        munmap(r->view, r->span);
    range_del(r);
}

CUresult sim_cuMemHostAlloc(struct ctx *c, void **pp, size_t bytesize, unsigned int Flags)
{
    if (!pp || !bytesize || (Flags & ~7u))
        return CUDA_ERROR_INVALID_VALUE;
    size_t span = page_up(bytesize);
    if (span < bytesize)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct range g = {.base = (CUdeviceptr)(uintptr_t)p, .size = bytesize, .span = span, .kind = R_HOST,
                      .ctx = c, .view = p, .flags = Flags | CU_MEMHOSTALLOC_DEVICEMAP};
    if (!range_add(&g)) {
        munmap(p, span);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pp = p;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemFreeHost(void *p)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    struct range *g = range_find(at);
    TRY(ctx_release());
    if (!g || g->base != at || g->kind != R_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    struct ctx *c = g->ctx;
    wait_context(c, false);
    hostmem_release(g);
    return c->error;
}

CUresult sim_cuMemHostGetDevicePointer_v2(struct ctx *c, CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    struct range *g = range_find((CUdeviceptr)(uintptr_t)p);
    if (!pdptr || Flags || !g || !is_host(g))
        return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetFlags(struct ctx *c, unsigned int *pFlags, void *p)
{
    struct range *g = range_find((CUdeviceptr)(uintptr_t)p);
    if (!pFlags || !g || g->kind != R_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *pFlags = g->flags;
    return CUDA_SUCCESS;
}

CUresult sim_cuMemHostRegister_v2(struct ctx *c, void *p, size_t bytesize, unsigned int Flags)
{
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)p;
    if (!p || !bytesize || (Flags & ~15u) || base + bytesize < base)
        return CUDA_ERROR_INVALID_VALUE;
    if (range_overlaps(base, bytesize))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct range g = {.base = base, .size = bytesize, .span = bytesize, .kind = R_REGISTERED, .ctx = c,
                      .view = p, .flags = Flags};
    return range_add(&g) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemHostUnregister(struct ctx *c, void *p)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    struct range *g = range_find(at);
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    if (!g || g->base != at || g->kind != R_REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    wait_context(g->ctx, false);
    hostmem_release(g);
    return c->error;
}
