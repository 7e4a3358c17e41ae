/* copybatch.c: several copies with one call. */
#include "array.h"
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

CUresult sim_cuMemcpyWithAttributesAsync(struct stream *s, CUdeviceptr dst, CUdeviceptr src, size_t size,
                                         CUmemcpyAttributes *attr, CUstream hStream)
{
    CUresult r = check(&dst, &src, &size, 1, attr, &(size_t){0}, 1);
    return r == CUDA_SUCCESS ? sim_cuMemcpyAsync(s, dst, src, size, hStream) : r;
}

/* ---- boxes ---- */

static size_t element(const struct array *a)
{
    return a ? a->pitch / a->desc.Width : 0;
}

/* One side of a box, in bytes; a row or layer of 0 is as long as the box. */
#define SIDE(p, a, o, e)                                                \
    do {                                                                \
        if ((o)->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {                \
            (p)->a##MemoryType = CU_MEMORYTYPE_ARRAY;                   \
            (p)->a##Array = (o)->op.array.array;                        \
            (p)->a##XInBytes = (o)->op.array.offset.x * (e);            \
            (p)->a##Y = (o)->op.array.offset.y;                         \
            (p)->a##Z = (o)->op.array.offset.z;                         \
        } else {                                                        \
            (p)->a##MemoryType = CU_MEMORYTYPE_UNIFIED;                 \
            (p)->a##Device = (o)->op.ptr.ptr;                           \
            (p)->a##Pitch = (o)->op.ptr.rowLength * (e);                \
            (p)->a##Height = (o)->op.ptr.layerHeight;                   \
        }                                                               \
    } while (0)

static bool known(const CUmemcpy3DOperand *o, const struct array **a)
{
    *a = o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? array_of(o->op.array.array) : NULL;
    return *a || o->type == CU_MEMCPY_OPERAND_TYPE_POINTER;
}

static CUresult box(const CUDA_MEMCPY3D_BATCH_OP *op, CUDA_MEMCPY3D *p)
{
    const struct array *from, *to;
    if (op->srcAccessOrder < ORDER_STREAM || op->srcAccessOrder > ORDER_ANY || !known(&op->src, &from) || !known(&op->dst, &to))
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = from ? element(from) : to ? element(to) : 1;
    if (from && to && element(from) != element(to))
        return CUDA_ERROR_INVALID_VALUE;
    *p = (CUDA_MEMCPY3D){.WidthInBytes = op->extent.width * bytes, .Height = op->extent.height, .Depth = op->extent.depth};
    SIDE(p, src, &op->src, bytes);
    SIDE(p, dst, &op->dst, bytes);
    return CUDA_SUCCESS;
}

CUresult sim_cuMemcpy3DWithAttributesAsync(struct stream *s, CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags,
                                           CUstream hStream)
{
    CUDA_MEMCPY3D p;
    CUresult r = !op || flags ? CUDA_ERROR_INVALID_VALUE : box(op, &p);
    return r == CUDA_SUCCESS ? sim_cuMemcpy3DAsync_v2(s, &p, hStream) : r;
}

CUresult cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx, unsigned long long flags,
                              CUstream hStream)
{
    if (failIdx)
        *failIdx = SIZE_MAX;
    if (!numOps || !opList || (!hStream && !tls_per_thread) || hStream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < numOps && r == CUDA_SUCCESS; i++) {
        r = cuMemcpy3DWithAttributesAsync(&opList[i], flags, hStream);
        if (r != CUDA_SUCCESS && failIdx)
            *failIdx = i;
    }
    return r;
}

CUresult cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, unsigned long long flags, CUstream hStream)
{
    return cuMemcpy3DBatchAsync(numOps, opList, NULL, flags, hStream);
}
