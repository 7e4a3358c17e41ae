/* hostmem.c: pinned and registered host memory. Its device address is its host
 * address: addresses are unified. */
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

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    struct ctx *c;
    CUresult r = sim_begin_unsafe(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!pp || !bytesize || (Flags & ~7u))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    size_t span = (bytesize + SIM_PAGE - 1) & ~(size_t)(SIM_PAGE - 1);
    if (span < bytesize)
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    void *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    struct range g = {.base = (CUdeviceptr)(uintptr_t)p, .size = bytesize, .span = span, .kind = R_HOST};
    g.ctx = c;
    g.view = p;
    g.flags = Flags | CU_MEMHOSTALLOC_DEVICEMAP;
    if (!range_add(&g)) {
        munmap(p, span);
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *pp = p;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void *p)
{
    struct ctx *c;
    CUresult r = sim_begin_unsafe(&c);
    if (r != CUDA_SUCCESS)
        return r;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    struct range *g = range_find(at);
    if (!g || g->base != at || g->kind != R_HOST)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    wait_context(g->ctx, false);
    hostmem_release(g);
    return sim_end(c->error);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    struct range *g = range_find((CUdeviceptr)(uintptr_t)p);
    if (!pdptr || Flags || !g || !is_host(g))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    *pdptr = (CUdeviceptr)(uintptr_t)p;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    struct range *g = range_find((CUdeviceptr)(uintptr_t)p);
    if (!pFlags || !g || g->kind != R_HOST)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    *pFlags = g->flags;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    struct ctx *c;
    CUresult r = sim_begin_unsafe(&c);
    if (r != CUDA_SUCCESS)
        return r;
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)p;
    if (!p || !bytesize || (Flags & ~15u) || base + bytesize < base)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    if (range_overlaps(base, bytesize))
        return sim_end(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    struct range g = {.base = base, .size = bytesize, .span = bytesize, .kind = R_REGISTERED, .ctx = c};
    g.view = p;
    g.flags = Flags;
    return sim_end(range_add(&g) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
    return cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void *p)
{
    struct ctx *c;
    CUresult r = sim_begin_unsafe(&c);
    if (r != CUDA_SUCCESS)
        return r;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    struct range *g = range_find(at);
    if (!p)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    if (!g || g->base != at || g->kind != R_REGISTERED)
        return sim_end(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    wait_context(g->ctx, false);
    hostmem_release(g);
    return sim_end(c->error);
}
