/* set.c: the calls that fill memory. On the device they run like copies; the
 * synchronous ones too return before they are done, as the driver documents,
 * unless the memory is the host's. */
#include "capture.h"
#include "transfer.h"

CUresult set_locate(const CUDA_MEMSET_NODE_PARAMS *p, struct copy *c, enum place *dst)
{
    const unsigned elem = p->elementSize;
    if (p->dst % elem || p->width > SIZE_MAX / 4 ||
        (p->height > 1 && (p->pitch < p->width * elem || p->pitch % elem)))
        return CUDA_ERROR_INVALID_VALUE;
    if (p->height > 1 && p->pitch > (SIZE_MAX >> 8) / p->height)
        return CUDA_ERROR_INVALID_VALUE;
    *c = (struct copy){.value = p->value, .elem = elem, .width = p->width * elem, .height = p->height, .depth = 1};
    c->dst_pitch = p->height > 1 ? p->pitch : c->width;
    if (!p->width || !p->height)
        return CUDA_SUCCESS;
    return transfer_locate(p->dst, (p->height - 1) * c->dst_pitch + c->width, true, &c->dst, dst);
}

/* Width in elements, pitch in bytes. */
static CUresult set(CUdeviceptr dst, size_t pitch, uint32_t value, unsigned elem, size_t width, size_t height,
                    CUstream h, bool sync)
{
    const CUDA_MEMSET_NODE_PARAMS p = {dst, pitch, value, elem, width, height};
    struct ctx *ctx;
    struct copy c;
    enum place to = P_DEVICE;
    CUresult r = sim_begin(&ctx);
    if (r != CUDA_SUCCESS)
        return r;
    struct stream *s = stream_get(ctx, h, &r);
    if (!s)
        return sim_end(r);
    if (s->capture && width && height)
        return sim_end(sync ? capture_refuse(s) : capture_set(s, &p));
    r = set_locate(&p, &c, &to);
    if (r != CUDA_SUCCESS || !width || !height)
        return sim_end(r);
    return sim_end(transfer_submit(s, &c, to, to, sync));
}

#define SETS(bits, type, letter)                                                                                 \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr dstDevice, type letter, size_t N)                                  \
    {                                                                                                            \
        return set(dstDevice, 0, letter, bits / 8, N, 1, NULL, true);                                            \
    }                                                                                                            \
    CUresult cuMemsetD##bits##Async(CUdeviceptr dstDevice, type letter, size_t N, CUstream hStream)              \
    {                                                                                                            \
        return set(dstDevice, 0, letter, bits / 8, N, 1, hStream, false);                                        \
    }                                                                                                            \
    CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dstDevice, size_t dstPitch, type letter, size_t Width,           \
                                    size_t Height)                                                               \
    {                                                                                                            \
        return set(dstDevice, dstPitch, letter, bits / 8, Width, Height, NULL, true);                            \
    }                                                                                                            \
    CUresult cuMemsetD2D##bits##Async(CUdeviceptr dstDevice, size_t dstPitch, type letter, size_t Width,         \
                                      size_t Height, CUstream hStream)                                           \
    {                                                                                                            \
        return set(dstDevice, dstPitch, letter, bits / 8, Width, Height, hStream, false);                        \
    }

SETS(8, unsigned char, uc)
SETS(16, unsigned short, us)
SETS(32, unsigned int, ui)
