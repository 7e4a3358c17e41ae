/* copy3d.c: the calls that copy rectangles and boxes. */
#include "array.h"
#include "capture.h"
#include "transfer.h"

/* One side of a box. */
struct side {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, lod, pitch, rows;
};

struct box {
    struct side src, dst;
    size_t width, height, depth;
};

static CUresult find_in_array(const struct side *a, const struct box *b, char **view, enum place *where,
                              size_t *pitch, size_t *slice)
{
    const struct array *in = array_of(a->array);
    if (!in)
        return CUDA_ERROR_INVALID_HANDLE;
    if (a->lod || a->x > in->pitch || b->width > in->pitch - a->x || a->y > in->rows || b->height > in->rows - a->y ||
        a->z > in->planes || b->depth > in->planes - a->z)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = in->pitch;
    *slice = in->pitch * in->rows;
    size_t skip = a->z * *slice + a->y * *pitch + a->x;
    size_t span = (b->depth - 1) * *slice + (b->height - 1) * *pitch + b->width;
    return transfer_locate(in->base + skip, span, true, view, where);
}

static CUresult find(const struct side *a, const struct box *b, char **view, enum place *where, size_t *pitch,
                     size_t *slice)
{
    if (a->type == CU_MEMORYTYPE_ARRAY)
        return find_in_array(a, b, view, where, pitch, slice);
    if (a->type != CU_MEMORYTYPE_HOST && a->type != CU_MEMORYTYPE_DEVICE && a->type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = a->pitch ? a->pitch : a->x + b->width;
    size_t rows = a->rows ? a->rows : a->y + b->height;
    if (a->lod || *pitch < a->x + b->width || (b->depth > 1 && rows < a->y + b->height))
        return CUDA_ERROR_INVALID_VALUE;
    if (rows && *pitch > (SIZE_MAX >> 8) / rows)
        return CUDA_ERROR_INVALID_VALUE;
    *slice = *pitch * rows;
    size_t skip = a->z * *slice + a->y * *pitch + a->x;
    size_t span = (b->depth - 1) * *slice + (b->height - 1) * *pitch + b->width;
    CUdeviceptr p = a->type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)a->host : a->device;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    return transfer_locate(p + skip, span, a->type == CU_MEMORYTYPE_DEVICE, view, where);
}

static CUresult locate(const struct box *b, struct copy *c, enum place *from, enum place *to)
{
    char *view;
    *c = (struct copy){.width = b->width, .height = b->height, .depth = b->depth};
    CUresult r = find(&b->src, b, &view, from, &c->src_pitch, &c->src_slice);
    c->src = view;
    return r != CUDA_SUCCESS ? r : find(&b->dst, b, &c->dst, to, &c->dst_pitch, &c->dst_slice);
}

#define FROM_SIDE(a, s)                                                                                  \
    .a##Array = (s).array, .a##XInBytes = (s).x, .a##Y = (s).y, .a##Z = (s).z, .a##LOD = (s).lod, .a##MemoryType = (s).type,    \
    .a##Pitch = (s).pitch, .a##Height = (s).rows

static CUresult capture(struct stream *s, const struct box *b)
{
    CUDA_MEMCPY3D p = {FROM_SIDE(src, b->src), FROM_SIDE(dst, b->dst)};
    p.srcHost = b->src.host;
    p.srcDevice = b->src.device;
    p.dstHost = (void *)(uintptr_t)b->dst.host;
    p.dstDevice = b->dst.device;
    p.WidthInBytes = b->width;
    p.Height = b->height;
    p.Depth = b->depth;
    return capture_copy(s, &p);
}

static CUresult submit(struct stream *s, const struct box *b, bool sync)
{
    struct copy c;
    enum place from, to;
    if (!b->width || !b->height || !b->depth)
        return CUDA_SUCCESS;
    if (s->capture)
        return sync ? capture_refuse(s) : capture(s, b);
    CUresult r = locate(b, &c, &from, &to);
    return r == CUDA_SUCCESS ? transfer_submit(s, &c, from, to, sync) : r;
}

#define SIDE(p, a)                                                                           \
    {                                                                                        \
        .type = (p)->a##MemoryType, .host = (p)->a##Host, .device = (p)->a##Device,          \
        .array = (p)->a##Array,                                                              \
        .x = (p)->a##XInBytes, .y = (p)->a##Y, .pitch = (p)->a##Pitch                        \
    }

static CUresult copy2d(struct stream *s, const CUDA_MEMCPY2D *p, bool sync)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    struct box b = {.src = SIDE(p, src), .dst = SIDE(p, dst), .width = p->WidthInBytes, .height = p->Height};
    b.depth = 1;
    return submit(s, &b, sync);
}

#define DEEP(b, p)                                                         \
    do {                                                                   \
        (b).src.z = (p)->srcZ, (b).src.lod = (p)->srcLOD;                  \
        (b).dst.z = (p)->dstZ, (b).dst.lod = (p)->dstLOD;                  \
        (b).src.rows = (p)->srcHeight, (b).dst.rows = (p)->dstHeight;      \
        (b).depth = (p)->Depth;                                            \
    } while (0)

CUresult copy3d_locate(const CUDA_MEMCPY3D *p, struct copy *c, enum place *src, enum place *dst)
{
    struct box b = {.src = SIDE(p, src), .dst = SIDE(p, dst), .width = p->WidthInBytes, .height = p->Height};
    DEEP(b, p);
    return b.width && b.height && b.depth ? locate(&b, c, src, dst) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy3d(struct stream *s, const CUDA_MEMCPY3D *p, bool sync)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    struct box b = {.src = SIDE(p, src), .dst = SIDE(p, dst), .width = p->WidthInBytes, .height = p->Height};
    DEEP(b, p);
    return submit(s, &b, sync);
}

static CUresult copy3d_peer(struct stream *s, const CUDA_MEMCPY3D_PEER *p, bool sync)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    struct box b = {.src = SIDE(p, src), .dst = SIDE(p, dst), .width = p->WidthInBytes, .height = p->Height};
    DEEP(b, p);
    return submit(s, &b, sync);
}

CUresult sim_cuMemcpy2D_v2(struct stream *s, const CUDA_MEMCPY2D *pCopy)
{
    return copy2d(s, pCopy, true);
}

CUresult sim_cuMemcpy2DUnaligned_v2(struct stream *s, const CUDA_MEMCPY2D *pCopy)
{
    return copy2d(s, pCopy, true);
}

CUresult sim_cuMemcpy2DAsync_v2(struct stream *s, const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    return copy2d(s, pCopy, false);
}

CUresult sim_cuMemcpy3D_v2(struct stream *s, const CUDA_MEMCPY3D *pCopy)
{
    return copy3d(s, pCopy, true);
}

CUresult sim_cuMemcpy3DAsync_v2(struct stream *s, const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return copy3d(s, pCopy, false);
}

CUresult sim_cuMemcpy3DPeer(struct stream *s, const CUDA_MEMCPY3D_PEER *pCopy)
{
    return copy3d_peer(s, pCopy, true);
}

CUresult sim_cuMemcpy3DPeerAsync(struct stream *s, const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
    return copy3d_peer(s, pCopy, false);
}
