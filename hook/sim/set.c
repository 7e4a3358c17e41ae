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
static CUresult set(struct stream *s, CUdeviceptr dst, size_t pitch, uint32_t value, unsigned elem, size_t width,
                    size_t height, bool sync)
{
    const CUDA_MEMSET_NODE_PARAMS p = {dst, pitch, value, elem, width, height};
    struct copy c;
    enum place to = P_DEVICE;
    if (s->capture && width && height)
        return sync ? capture_refuse(s) : capture_set(s, &p);
    CUresult r = set_locate(&p, &c, &to);
    return r == CUDA_SUCCESS && width && height ? transfer_submit(s, &c, to, to, sync) : r;
}

#define SETS(bits, type, letter)                                                                                    \
    CUresult sim_cuMemsetD##bits##_v2(struct stream *s, CUdeviceptr dstDevice, type letter, size_t N)               \
    {                                                                                                               \
        return set(s, dstDevice, 0, letter, bits / 8, N, 1, true);                                                  \
    }                                                                                                               \
    CUresult sim_cuMemsetD##bits##Async(struct stream *s, CUdeviceptr dstDevice, type letter, size_t N,             \
                                        CUstream hStream)                                                           \
    {                                                                                                               \
        return set(s, dstDevice, 0, letter, bits / 8, N, 1, false);                                                 \
    }                                                                                                               \
    CUresult sim_cuMemsetD2D##bits##_v2(struct stream *s, CUdeviceptr dstDevice, size_t dstPitch, type letter,      \
                                        size_t Width, size_t Height)                                                \
    {                                                                                                               \
        return set(s, dstDevice, dstPitch, letter, bits / 8, Width, Height, true);                                  \
    }                                                                                                               \
    CUresult sim_cuMemsetD2D##bits##Async(struct stream *s, CUdeviceptr dstDevice, size_t dstPitch, type letter,    \
                                          size_t Width, size_t Height, CUstream hStream)                            \
    {                                                                                                               \
        return set(s, dstDevice, dstPitch, letter, bits / 8, Width, Height, false);                                 \
    }

SETS(8, unsigned char, uc)
SETS(16, unsigned short, us)
SETS(32, unsigned int, ui)
