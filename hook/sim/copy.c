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

static CUresult linear(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream h, int how)
{
    struct ctx *ctx;
    struct copy c = {.width = n, .height = 1, .depth = 1, .dst_pitch = n, .src_pitch = n};
    enum place from, to;
    char *view;
    CUresult r = sim_begin(&ctx);
    if (r != CUDA_SUCCESS)
        return r;
    struct stream *s = stream_get(ctx, h, &r);
    if (!s || !n)
        return sim_end(r);
    if (s->capture)
        return sim_end(capture(s, dst, src, n, how));
    r = transfer_locate(src, n, how & SRC_DEVICE, &view, &from);
    c.src = view;
    if (r == CUDA_SUCCESS)
        r = transfer_locate(dst, n, how & DST_DEVICE, &c.dst, &to);
    if (r == CUDA_SUCCESS)
        r = transfer_submit(s, &c, from, to, how & SYNC);
    return sim_end(r);
}

static CUdeviceptr host(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    return linear(dst, src, ByteCount, NULL, SYNC);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    return linear(dst, src, ByteCount, hStream, 0);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    return linear(dstDevice, host(srcHost), ByteCount, NULL, SYNC | DST_DEVICE);
}

CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    return linear(host(dstHost), srcDevice, ByteCount, NULL, SYNC | SRC_DEVICE);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return linear(dstDevice, srcDevice, ByteCount, NULL, SYNC | SRC_DEVICE | DST_DEVICE);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
    return linear(dstDevice, host(srcHost), ByteCount, hStream, DST_DEVICE);
}

CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    return linear(host(dstHost), srcDevice, ByteCount, hStream, SRC_DEVICE);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    return linear(dstDevice, srcDevice, ByteCount, hStream, SRC_DEVICE | DST_DEVICE);
}

static CUresult check_contexts(CUcontext a, CUcontext b)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    return sim_end(handle_is(a, H_CTX) && handle_is(b, H_CTX) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                      size_t ByteCount)
{
    CUresult r = check_contexts(dstContext, srcContext);
    return r != CUDA_SUCCESS ? r : linear(dstDevice, srcDevice, ByteCount, NULL, SYNC | SRC_DEVICE | DST_DEVICE);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                           size_t ByteCount, CUstream hStream)
{
    CUresult r = check_contexts(dstContext, srcContext);
    return r != CUDA_SUCCESS ? r : linear(dstDevice, srcDevice, ByteCount, hStream, SRC_DEVICE | DST_DEVICE);
}

/* ---- arrays of one dimension ---- */

/* The address of n bytes of an array. */
static CUresult at(CUarray h, size_t offset, size_t n, CUdeviceptr *p)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    const struct array *a = array_of(h);
    if (!a)
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    size_t size = a->pitch * a->rows * a->planes;
    *p = a->base + offset;
    return sim_end(offset > size || n > size - offset ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

static CUresult to_array(CUarray dst, size_t offset, CUdeviceptr src, size_t n, CUstream h, int how)
{
    CUdeviceptr p;
    CUresult r = at(dst, offset, n, &p);
    return r != CUDA_SUCCESS ? r : linear(p, src, n, h, how | DST_DEVICE);
}

static CUresult from_array(CUdeviceptr dst, CUarray src, size_t offset, size_t n, CUstream h, int how)
{
    CUdeviceptr p;
    CUresult r = at(src, offset, n, &p);
    return r != CUDA_SUCCESS ? r : linear(dst, p, n, h, how | SRC_DEVICE);
}

CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount)
{
    return to_array(dstArray, dstOffset, srcDevice, ByteCount, NULL, SYNC | SRC_DEVICE);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    return from_array(dstDevice, srcArray, srcOffset, ByteCount, NULL, SYNC | DST_DEVICE);
}

CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount)
{
    return to_array(dstArray, dstOffset, host(srcHost), ByteCount, NULL, SYNC);
}

CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    return from_array(host(dstHost), srcArray, srcOffset, ByteCount, NULL, SYNC);
}

CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    CUdeviceptr src;
    CUresult r = at(srcArray, srcOffset, ByteCount, &src);
    return r != CUDA_SUCCESS ? r : to_array(dstArray, dstOffset, src, ByteCount, NULL, SYNC | SRC_DEVICE);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount,
                              CUstream hStream)
{
    return to_array(dstArray, dstOffset, host(srcHost), ByteCount, hStream, 0);
}

CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream)
{
    return from_array(host(dstHost), srcArray, srcOffset, ByteCount, hStream, 0);
}
