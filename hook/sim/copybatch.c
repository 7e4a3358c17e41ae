/* copybatch.c: several copies with one call. */
#include "transfer.h"

enum { ORDER_STREAM = 1, ORDER_ANY = 3 }; /* what CUmemcpyAttributes may say of the source */

static CUresult check(const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes, size_t count,
                      const CUmemcpyAttributes *attrs, const size_t *first, size_t n)
{
    if (!dsts || !srcs || !sizes || !count || !attrs || !first || !n || n > count || first[0])
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++)
        if (attrs[i].srcAccessOrder < ORDER_STREAM || attrs[i].srcAccessOrder > ORDER_ANY || first[i] >= count ||
            (i && first[i] <= first[i - 1]))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* Sources that the call must have read when it returns are read by then anyway. */
CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
                            CUstream hStream)
{
    if (failIdx)
        *failIdx = SIZE_MAX; /* of no copy in particular */
    if ((!hStream && !tls_per_thread) || hStream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = check(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs);
    for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++) {
        r = sizes[i] ? cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream) : CUDA_ERROR_INVALID_VALUE;
        if (r != CUDA_SUCCESS && failIdx)
            *failIdx = i;
    }
    return r;
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream)
{
    return cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, NULL, hStream);
}
