/* set.c: the calls that fill memory. On the device they run like copies; the
 * synchronous ones too return before they are done, as the driver documents,
 * unless the memory is the host's. */
#include "transfer.h"

/* Width in elements, pitch in bytes. */
static CUresult set(CUdeviceptr dst, size_t pitch, uint32_t value, unsigned elem, size_t width, size_t height,
                    CUstream h, bool sync)
{
    struct ctx *ctx;
    enum place to;
    CUresult r = sim_begin(&ctx);
    if (r != CUDA_SUCCESS)
        return r;
    struct stream *s = stream_get(ctx, h, &r);
    if (!s)
        return sim_end(r);
    if (dst % elem || width > SIZE_MAX / 4 || (height > 1 && (pitch < width * elem || pitch % elem)))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    if (!width || !height)
        return sim_end(CUDA_SUCCESS);
    if (height > 1 && pitch > (SIZE_MAX >> 8) / height)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    struct copy c = {.value = value, .elem = elem, .width = width * elem, .height = height, .depth = 1};
    c.dst_pitch = height > 1 ? pitch : c.width;
    r = transfer_locate(dst, (height - 1) * c.dst_pitch + c.width, true, &c.dst, &to);
    if (r == CUDA_SUCCESS)
        r = transfer_submit(s, &c, to, to, sync);
    return sim_end(r);
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
