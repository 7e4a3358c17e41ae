/* copy.c: the calls that copy runs of bytes. */
#include "array.h"
#include "capture.h"
#include "transfer.h"

enum { SYNC = 1, SRC_DEVICE = 2, DST_DEVICE = 4 };

static CUresult capture(struct stream *s, CUdeviceptr dst, CUdeviceptr src, size_t n, int how)
{
    bool any = !(how & (SRC_DEVICE | DST_DEVICE));
    CUDA_MEMCPY3D p = {.srcDevice = src, .dstDevice = dst, .WidthInBytes = n, .Height = 1, .Depth = 1};
    p.srcMemoryType = any ? CU_MEMORYTYPE_UNIFIED : how & SRC_DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    p.dstMemoryType = any ? CU_MEMORYTYPE_UNIFIED : how & DST_DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    p.srcHost = (const void *)(uintptr_t)src;
    p.dstHost = (void *)(uintptr_t)dst;
    return how & SYNC ? capture_refuse(s) : capture_copy(s, &p);
}

/* Copies n bytes. `how` says what kinds of addresses the call's name promises, and
 * whether it returns only when the copy is done. */
static CUresult linear(struct stream *s, CUdeviceptr dst, CUdeviceptr src, size_t n, int how)
{
    struct copy c = {.width = n, .height = 1, .depth = 1, .dst_pitch = n, .src_pitch = n};
    enum place from, to;
    char *view;
    if (!n)
        return CUDA_SUCCESS;
    if (s->capture)
        return capture(s, dst, src, n, how);
    CUresult r = transfer_locate(src, n, how & SRC_DEVICE, &view, &from);
    c.src = view;
    if (r == CUDA_SUCCESS)
        r = transfer_locate(dst, n, how & DST_DEVICE, &c.dst, &to);
    return r == CUDA_SUCCESS ? transfer_submit(s, &c, from, to, how & SYNC) : r;
}

static CUdeviceptr host(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

CUresult sim_cuMemcpy(struct stream *s, CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    return linear(s, dst, src, ByteCount, SYNC);
}

CUresult sim_cuMemcpyAsync(struct stream *s, CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    return linear(s, dst, src, ByteCount, 0);
}

CUresult sim_cuMemcpyHtoD_v2(struct stream *s, CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    return linear(s, dstDevice, host(srcHost), ByteCount, SYNC | DST_DEVICE);
}

CUresult sim_cuMemcpyDtoH_v2(struct stream *s, void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    return linear(s, host(dstHost), srcDevice, ByteCount, SYNC | SRC_DEVICE);
}

CUresult sim_cuMemcpyDtoD_v2(struct stream *s, CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return linear(s, dstDevice, srcDevice, ByteCount, SYNC | SRC_DEVICE | DST_DEVICE);
}

CUresult sim_cuMemcpyHtoDAsync_v2(struct stream *s, CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                  CUstream hStream)
{
    return linear(s, dstDevice, host(srcHost), ByteCount, DST_DEVICE);
}

CUresult sim_cuMemcpyDtoHAsync_v2(struct stream *s, void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                  CUstream hStream)
{
    return linear(s, host(dstHost), srcDevice, ByteCount, SRC_DEVICE);
}

CUresult sim_cuMemcpyDtoDAsync_v2(struct stream *s, CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                  CUstream hStream)
{
    return linear(s, dstDevice, srcDevice, ByteCount, SRC_DEVICE | DST_DEVICE);
}

static bool contexts(CUcontext a, CUcontext b)
{
    return handle_is(a, H_CTX) && handle_is(b, H_CTX);
}

CUresult sim_cuMemcpyPeer(struct stream *s, CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                          CUcontext srcContext, size_t ByteCount)
{
    if (!contexts(dstContext, srcContext))
        return CUDA_ERROR_INVALID_CONTEXT;
    return linear(s, dstDevice, srcDevice, ByteCount, SYNC | SRC_DEVICE | DST_DEVICE);
}

CUresult sim_cuMemcpyPeerAsync(struct stream *s, CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                               CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
    if (!contexts(dstContext, srcContext))
        return CUDA_ERROR_INVALID_CONTEXT;
    return linear(s, dstDevice, srcDevice, ByteCount, SRC_DEVICE | DST_DEVICE);
}

/* ---- arrays of one dimension ---- */

/* The address of n bytes of an array. */
static CUresult at(CUarray h, size_t offset, size_t n, CUdeviceptr *p)
{
    const struct array *a = array_of(h);
    if (!a)
        return CUDA_ERROR_INVALID_HANDLE;
    size_t size = a->pitch * a->rows * a->planes;
    *p = a->base + offset;
    return offset > size || n > size - offset ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult to_array(struct stream *s, CUarray dst, size_t offset, CUdeviceptr src, size_t n, int how)
{
    CUdeviceptr p;
    CUresult r = at(dst, offset, n, &p);
    return r != CUDA_SUCCESS ? r : linear(s, p, src, n, how | DST_DEVICE);
}

static CUresult from_array(struct stream *s, CUdeviceptr dst, CUarray src, size_t offset, size_t n, int how)
{
    CUdeviceptr p;
    CUresult r = at(src, offset, n, &p);
    return r != CUDA_SUCCESS ? r : linear(s, dst, p, n, how | SRC_DEVICE);
}

CUresult sim_cuMemcpyDtoA_v2(struct stream *s, CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice,
                             size_t ByteCount)
{
    return to_array(s, dstArray, dstOffset, srcDevice, ByteCount, SYNC | SRC_DEVICE);
}

CUresult sim_cuMemcpyAtoD_v2(struct stream *s, CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset,
                             size_t ByteCount)
{
    return from_array(s, dstDevice, srcArray, srcOffset, ByteCount, SYNC | DST_DEVICE);
}

CUresult sim_cuMemcpyHtoA_v2(struct stream *s, CUarray dstArray, size_t dstOffset, const void *srcHost,
                             size_t ByteCount)
{
    return to_array(s, dstArray, dstOffset, host(srcHost), ByteCount, SYNC);
}

CUresult sim_cuMemcpyAtoH_v2(struct stream *s, void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    return from_array(s, host(dstHost), srcArray, srcOffset, ByteCount, SYNC);
}

CUresult sim_cuMemcpyAtoA_v2(struct stream *s, CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                             size_t ByteCount)
{
    CUdeviceptr src;
    CUresult r = at(srcArray, srcOffset, ByteCount, &src);
    return r != CUDA_SUCCESS ? r : to_array(s, dstArray, dstOffset, src, ByteCount, SYNC | SRC_DEVICE);
}

CUresult sim_cuMemcpyHtoAAsync_v2(struct stream *s, CUarray dstArray, size_t dstOffset, const void *srcHost,
                                  size_t ByteCount, CUstream hStream)
{
    return to_array(s, dstArray, dstOffset, host(srcHost), ByteCount, 0);
}

CUresult sim_cuMemcpyAtoHAsync_v2(struct stream *s, void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                                  CUstream hStream)
{
    return from_array(s, host(dstHost), srcArray, srcOffset, ByteCount, 0);
}
