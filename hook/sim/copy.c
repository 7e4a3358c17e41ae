/* copy.c: the calls that copy runs of bytes. */
#include "transfer.h"

enum { SYNC = 1, SRC_DEVICE = 2, DST_DEVICE = 4 };

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
