/* memory_array.c: arrays and mipmapped arrays. The driver chooses an array's size. The library counts the
 * size of its elements, or the size that the driver reports, if it does. Sparse and deferred arrays have
 * no memory of their own; memory that is mapped to them is counted where it is created. */
#include "memory_private.h"

enum { LAYERED = 0x01, CUBEMAP = 0x04, SPARSE = 0x40, DEFERRED = 0x80 };

/* Returns the bytes of one element. */
static uint64_t element(unsigned format, unsigned channels)
{
    switch (format) {
    case 0x01: /* unsigned and signed bytes */
    case 0x08:
        return channels;
    case 0x02: /* two bytes, and half floats */
    case 0x09:
    case 0x10:
        return 2ull * channels;
    case 0xb0: /* NV12: four bytes of luma share two bytes of chroma; NV16; YUY2 */
    case 0xa2:
    case 0xa5:
        return 2;
    case 0xb2: /* one byte of each component, in three planes or in two */
    case 0xb4:
    case 0x9f: /* P010 and P016: like NV12, with two bytes per component */
    case 0xa1:
        return 3;
    case 0x50: /* three components of ten bits, one of two bits */
    case 0xa3: /* P210, P216, Y210, Y216: like NV16 and YUY2, with two bytes per component */
    case 0xa4:
    case 0xa6:
    case 0xa7:
    case 0xa8: /* AYUV, Y410 */
    case 0xa9:
        return 4;
    case 0xb3: /* two bytes of each component, in three planes or in two */
    case 0xb5:
        return 6;
    case 0xb1: /* Y416 */
        return 8;
    default:
        break;
    }
    if (format >= 0x91 && format <= 0x9e) /* block-compressed: 8 or 16 bytes per 4 x 4 elements */
        return 1;
    if (format >= 0xc0 && format <= 0xcb) { /* normalized: 1, 2 or 4 channels of one byte, then of two bytes */
        unsigned at = (format - 0xc0) % 6;
        return (at < 3 ? 1ull : 2ull) << at % 3;
    }
    return 4ull * channels;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Returns the bytes of one level of the array; a dimension of 0 is absent. */
static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
    bool layers = d->Flags & (LAYERED | CUBEMAP); /* Depth is then the number of layers, the same in each level */
    uint64_t width = d->Width >> level, height = d->Height >> level, depth = layers ? d->Depth : d->Depth >> level;
    uint64_t texels = times(times(width ? width : 1, height ? height : 1), depth ? depth : 1);
    return times(texels, element((unsigned)d->Format, d->NumChannels));
}

/* Returns the bytes of an array with that many levels: at least one, and at most as many as halve its
 * longest side to one. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    uint64_t sum = 0, longest = d->Width > d->Height ? d->Width : d->Height;
    if (!(d->Flags & (LAYERED | CUBEMAP)) && d->Depth > longest)
        longest = d->Depth;
    for (unsigned i = 0; !i || (i < levels && i < 64 && longest >> i); i++) {
        uint64_t bytes = level_bytes(d, i);
        sum = bytes > UINT64_MAX - sum ? UINT64_MAX : sum + bytes;
    }
    return d->Flags & (SPARSE | DEFERRED) ? 0 : sum;
}

/* Returns the array's size as the driver reports it, or 0. */
static uint64_t array_says(struct gf_block *b, CUdevice device)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
    CUresult result;
    if (b->kind == GF_ARRAY)
        result = gf_real.cuArrayGetMemoryRequirements(&needs, (CUarray)(uintptr_t)b->key, device);
    else
        result = gf_real.cuMipmappedArrayGetMemoryRequirements(&needs, (CUmipmappedArray)(uintptr_t)b->key, device);
    return result == CUDA_SUCCESS ? needs.size : 0;
}

/* Adds the array's size to the account. Returns false if it exceeds the limit. Sets *b to NULL if nothing
 * is counted or the driver will refuse. */
static bool begin(struct gf_block **b, enum gf_block_kind kind, CUDA_ARRAY3D_DESCRIPTOR desc, unsigned levels)
{
    struct gf_device *here = gf_mem_current_device();
    *b = here ? gf_block_reserve(kind, here, array_bytes(&desc, levels)) : NULL;
    return *b || !here;
}

static CUresult destroy(enum gf_block_kind kind, uint64_t handle)
{
    if (kind == GF_ARRAY)
        return gf_real.cuArrayDestroy((CUarray)(uintptr_t)handle);
    return gf_real.cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)handle);
}

static CUresult end(struct gf_block *b, CUresult result, uint64_t handle)
{
    CUdevice device;
    if (!b || result != CUDA_SUCCESS) {
        gf_block_drop(b);
        return result;
    }
    b->key = handle;
    gf_real.cuCtxGetCurrent(&b->context);
    uint64_t bytes = b->size && gf_real.cuCtxGetDevice(&device) == CUDA_SUCCESS ? array_says(b, device) : 0;
    if (bytes && !gf_block_resize(b, bytes)) {
        destroy(b->kind, handle);
        gf_block_drop(b);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    gf_block_put(b, handle);
    return CUDA_SUCCESS;
}

/* `desc` converts the descriptor to its widest form. */
#define GF_CREATE(symbol, kind, type, params, desc, levels, args) \
    CUresult symbol params \
    { \
        type made = NULL, *out = handle && d ? &made : handle; \
        struct gf_block *b = NULL; \
        if (out == &made && !begin(&b, kind, desc, levels)) \
            return CUDA_ERROR_OUT_OF_MEMORY; \
        CUresult result = gf_mem_answer(b ? b->device : NULL, gf_real.symbol args); \
        result = end(b, result, (uintptr_t)made); \
        if (result == CUDA_SUCCESS && out == &made) \
            *handle = made; \
        return result; \
    }
#define GF_FLAT ((CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0})
#define GF_DEEP ((CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags})
GF_CREATE(cuArrayCreate, GF_ARRAY, CUarray, (CUarray *handle, const CUDA_ARRAY_DESCRIPTOR_v1 *d), GF_FLAT, 1, (out, d))
GF_CREATE(cuArrayCreate_v2, GF_ARRAY, CUarray, (CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *d), GF_FLAT, 1, (out, d))
GF_CREATE(cuArray3DCreate, GF_ARRAY, CUarray, (CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d), GF_DEEP, 1, (out, d))
GF_CREATE(cuArray3DCreate_v2, GF_ARRAY, CUarray, (CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *d), GF_DEEP, 1, (out, d))
GF_CREATE(cuMipmappedArrayCreate, GF_MIPMAP, CUmipmappedArray,
          (CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels), *d, levels, (out, d, levels))

GF_FREE(cuArrayDestroy, (CUarray array), (array), gf_block_claim(GF_ARRAY, (uintptr_t)array))
GF_FREE(cuMipmappedArrayDestroy, (CUmipmappedArray array), (array), gf_block_claim(GF_MIPMAP, (uintptr_t)array))
