/* prefetch.c: bringing managed memory somewhere, in stream order. What has to
 * move takes its time, as over a link to the host of 16 GB/s (that of PCIe 3.0
 * with 16 lanes at its best), whatever else moves and computes meanwhile. Pages
 * that kernels bring, and those pushed out to make room, take none. */
#include "managed.h"
#include "transfer.h"

#include <string.h>

#define LINK_BYTES_PER_NS 16

static void arrive(const struct task *t)
{
    struct range *g = managed_find(t->p, t->n);
    if (g)
        managed_place(g, t->p, t->n, t->where);
}

static uint64_t on_the_way(const struct task *t)
{
    uint64_t bytes = 0;
    struct range *g = managed_find(t->p, t->n);
    for (struct stretch *st = g ? managed_cut(g, t->p, t->n) : NULL; st && st->base < t->p + t->n; st = st->next)
        bytes += st->on != t->where ? st->size : 0;
    return bytes / LINK_BYTES_PER_NS;
}

static CUresult prefetch(struct stream *s, CUdeviceptr p, size_t n, const CUmemLocation *l)
{
    struct range *g = managed_find(p, n);
    struct task t = {.run = arrive, .takes = on_the_way, .p = p, .n = n};
    if (!g)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = managed_where(l, &t.where);
    if (r == CUDA_SUCCESS && t.where >= 0)
        r = shared_join(&g_device[g_config.visible_index[t.where]]);
    if (r != CUDA_SUCCESS)
        return r;
    for (struct stretch *st = managed_cut(g, p, n); st && st->base < p + n; st = st->next)
        st->prefetched = t.where;
    return transfer_task(s, &t);
}

CUresult sim_cuMemPrefetchAsync_v2(struct stream *s, CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                   unsigned int flags, CUstream hStream)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(s, devPtr, count, &location);
}

CUresult sim_cuMemPrefetchAsync(struct stream *s, CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                                CUstream hStream)
{
    return sim_cuMemPrefetchAsync_v2(s, devPtr, count, managed_location(dstDevice), 0, hStream);
}

/* To discard is to say that the contents do not matter. Nobody shall rely on them
 * all the same: they are lost. */
static void lose(const struct task *t)
{
    if (managed_find(t->p, t->n))
        memset((void *)(uintptr_t)t->p, 0xdd, t->n);
}

static CUresult batch(struct stream *s, bool discard, CUdeviceptr *dptrs, size_t *sizes, size_t count,
                      const CUmemLocation *to, const size_t *first, size_t places, unsigned long long flags)
{
    CUresult r = CUDA_SUCCESS;
    if (!dptrs || !sizes || !count || flags || (to && (!first || !places || places > count || first[0])))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, k = 0; i < count && r == CUDA_SUCCESS; i++) {
        if (to && k + 1 < places && first[k + 1] <= i)
            k++;
        struct task t = {.run = lose, .p = dptrs[i], .n = sizes[i]};
        if (!managed_find(dptrs[i], sizes[i]))
            r = CUDA_ERROR_INVALID_VALUE;
        else if (discard)
            r = transfer_task(s, &t);
        if (r == CUDA_SUCCESS && to)
            r = prefetch(s, dptrs[i], sizes[i], &to[k]);
    }
    return r;
}

CUresult sim_cuMemPrefetchBatchAsync(struct stream *s, CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                     CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs, size_t numPrefetchLocs,
                                     unsigned long long flags, CUstream hStream)
{
    if (!prefetchLocs)
        return CUDA_ERROR_INVALID_VALUE;
    return batch(s, false, dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags);
}

CUresult sim_cuMemDiscardBatchAsync(struct stream *s, CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                    unsigned long long flags, CUstream hStream)
{
    return batch(s, true, dptrs, sizes, count, NULL, NULL, 0, flags);
}

CUresult sim_cuMemDiscardAndPrefetchBatchAsync(struct stream *s, CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                               CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs,
                                               size_t numPrefetchLocs, unsigned long long flags, CUstream hStream)
{
    if (!prefetchLocs)
        return CUDA_ERROR_INVALID_VALUE;
    return batch(s, true, dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags);
}
