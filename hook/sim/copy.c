/* copy.c: the calls that copy and fill memory. */
#include "array.h"
#include "capture.h"
#include "transfer.h"

/* ---- runs of bytes ---- */

enum { SYNC = 1, SRC_DEVICE = 2, DST_DEVICE = 4 };

/* Adds the copy as a node; calls that return after the copy cannot be captured. */
static CUresult capture_linear(struct stream *s, CUdeviceptr dst, CUdeviceptr src, size_t n, int how)
{
    bool any = !(how & (SRC_DEVICE | DST_DEVICE));
    CUDA_MEMCPY3D p = {.srcDevice = src, .dstDevice = dst, .WidthInBytes = n, .Height = 1, .Depth = 1};
    p.srcMemoryType = any ? CU_MEMORYTYPE_UNIFIED : how & SRC_DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    p.dstMemoryType = any ? CU_MEMORYTYPE_UNIFIED : how & DST_DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    p.srcHost = (const void *)(uintptr_t)src;
    p.dstHost = (void *)(uintptr_t)dst;
    return how & SYNC ? capture_refuse(s) : capture_copy(s, &p);
}

/* Copies n bytes. `how` has the kinds of addresses that the call's name promises, and SYNC if the call
 * returns after the copy. */
static CUresult linear(struct stream *s, CUdeviceptr dst, CUdeviceptr src, size_t n, int how)
{
    struct copy c = {.width = n, .height = 1, .depth = 1, .dst_pitch = n, .src_pitch = n};
    enum mem_kind from, to;
    char *view;
    if (!n)
        return CUDA_SUCCESS;
    if (s->capture)
        return capture_linear(s, dst, src, n, how);
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

/* Defines two calls that copy bytes: one that returns when they are copied, and one that
 * does not wait for that. */
#define COPIES(kind, version, to, from, dst, src, how)                                                        \
    CUresult sim_cuMemcpy##kind##version(struct stream *s, to, from, size_t ByteCount)                        \
    {                                                                                                         \
        return linear(s, dst, src, ByteCount, SYNC | (how));                                                  \
    }                                                                                                         \
    CUresult sim_cuMemcpy##kind##Async##version(struct stream *s, to, from, size_t ByteCount, CUstream hStream) \
    {                                                                                                         \
        return linear(s, dst, src, ByteCount, how);                                                           \
    }

COPIES(, , CUdeviceptr to, CUdeviceptr from, to, from, 0)
COPIES(HtoD, _v2, CUdeviceptr to, const void *from, to, host(from), DST_DEVICE)
COPIES(DtoH, _v2, void *to, CUdeviceptr from, host(to), from, SRC_DEVICE)
COPIES(DtoD, _v2, CUdeviceptr to, CUdeviceptr from, to, from, SRC_DEVICE | DST_DEVICE)

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

/* Sets *p to the address of n bytes of an array. */
static CUresult array_address(CUarray h, size_t offset, size_t n, CUdeviceptr *p)
{
    const struct array *a = array_of(h);
    if (!a)
        return CUDA_ERROR_INVALID_HANDLE;
    size_t size = a->pitch * a->rows * a->planes;
    *p = a->base + offset;
    return offset > size || n > size - offset ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Copies to an array at an offset; from_array copies from one. */
static CUresult to_array(struct stream *s, CUarray dst, size_t offset, CUdeviceptr src, size_t n, int how)
{
    CUdeviceptr p;
    TRY(array_address(dst, offset, n, &p));
    return linear(s, p, src, n, how | DST_DEVICE);
}

static CUresult from_array(struct stream *s, CUdeviceptr dst, CUarray src, size_t offset, size_t n, int how)
{
    CUdeviceptr p;
    TRY(array_address(src, offset, n, &p));
    return linear(s, dst, p, n, how | SRC_DEVICE);
}

/* Defines a call that copies bytes to or from an array. */
#define ARRAY_COPY(name, params, copy) \
    CUresult sim_cuMemcpy##name(struct stream *s, SIM_LIST params) { return copy; }

ARRAY_COPY(DtoA_v2, (CUarray to, size_t offset, CUdeviceptr from, size_t n),
           to_array(s, to, offset, from, n, SYNC | SRC_DEVICE))
ARRAY_COPY(AtoD_v2, (CUdeviceptr to, CUarray from, size_t offset, size_t n),
           from_array(s, to, from, offset, n, SYNC | DST_DEVICE))
ARRAY_COPY(HtoA_v2, (CUarray to, size_t offset, const void *from, size_t n),
           to_array(s, to, offset, host(from), n, SYNC))
ARRAY_COPY(AtoH_v2, (void *to, CUarray from, size_t offset, size_t n),
           from_array(s, host(to), from, offset, n, SYNC))
ARRAY_COPY(HtoAAsync_v2, (CUarray to, size_t offset, const void *from, size_t n, CUstream hStream),
           to_array(s, to, offset, host(from), n, 0))
ARRAY_COPY(AtoHAsync_v2, (void *to, CUarray from, size_t offset, size_t n, CUstream hStream),
           from_array(s, host(to), from, offset, n, 0))

CUresult sim_cuMemcpyAtoA_v2(struct stream *s, CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                             size_t ByteCount)
{
    CUdeviceptr src;
    TRY(array_address(srcArray, srcOffset, ByteCount, &src));
    return to_array(s, dstArray, dstOffset, src, ByteCount, SYNC | SRC_DEVICE);
}

/* ---- rectangles and boxes ---- */

/* One side of a box. */
struct side {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, lod, pitch, rows;
};

/* Locates the side of a box that is in an array. */
static CUresult find_in_array(const struct side *a, const CUDA_MEMCPY3D *b, char **view, enum mem_kind *where,
                              size_t *pitch, size_t *slice)
{
    const struct array *in = array_of(a->array);
    if (!in)
        return CUDA_ERROR_INVALID_HANDLE;
    if (a->lod || a->x > in->pitch || b->WidthInBytes > in->pitch - a->x || a->y > in->rows || b->Height > in->rows - a->y ||
        a->z > in->planes || b->Depth > in->planes - a->z)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = in->pitch;
    *slice = in->pitch * in->rows;
    size_t skip = a->z * *slice + a->y * *pitch + a->x;
    size_t span = (b->Depth - 1) * *slice + (b->Height - 1) * *pitch + b->WidthInBytes;
    return transfer_locate(in->base + skip, span, DRIVER_MEMORY, view, where);
}

/* Locates one side of a box: its first byte, and the distances between rows and planes. */
static CUresult find_side(const struct side *a, const CUDA_MEMCPY3D *b, char **view, enum mem_kind *where, size_t *pitch,
                          size_t *slice)
{
    if (a->type == CU_MEMORYTYPE_ARRAY)
        return find_in_array(a, b, view, where, pitch, slice);
    if (a->type != CU_MEMORYTYPE_HOST && a->type != CU_MEMORYTYPE_DEVICE && a->type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = a->pitch ? a->pitch : a->x + b->WidthInBytes;
    size_t rows = a->rows ? a->rows : a->y + b->Height;
    if (a->lod || *pitch < a->x + b->WidthInBytes || (b->Depth > 1 && rows < a->y + b->Height))
        return CUDA_ERROR_INVALID_VALUE;
    if (rows && *pitch > (SIZE_MAX >> 8) / rows)
        return CUDA_ERROR_INVALID_VALUE;
    *slice = *pitch * rows;
    size_t skip = a->z * *slice + a->y * *pitch + a->x;
    size_t span = (b->Depth - 1) * *slice + (b->Height - 1) * *pitch + b->WidthInBytes;
    CUdeviceptr p = a->type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)a->host : a->device;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    return transfer_locate(p + skip, span, a->type == CU_MEMORYTYPE_DEVICE, view, where);
}

#define SIDE(p, a)                                                                                                  \
    {                                                                                                               \
        .type = (p)->a##MemoryType, .host = (p)->a##Host, .device = (p)->a##Device, .array = (p)->a##Array,         \
        .x = (p)->a##XInBytes, .y = (p)->a##Y, .z = (p)->a##Z, .lod = (p)->a##LOD, .pitch = (p)->a##Pitch,          \
        .rows = (p)->a##Height                                                                                      \
    }

CUresult copy3d_locate(const CUDA_MEMCPY3D *p, struct copy *c, enum mem_kind *from, enum mem_kind *to)
{
    const struct side src = SIDE(p, src), dst = SIDE(p, dst);
    char *view;
    if (!p->WidthInBytes || !p->Height || !p->Depth)
        return CUDA_ERROR_INVALID_VALUE;
    *c = (struct copy){.width = p->WidthInBytes, .height = p->Height, .depth = p->Depth};
    CUresult r = find_side(&src, p, &view, from, &c->src_pitch, &c->src_slice);
    c->src = view;
    return r != CUDA_SUCCESS ? r : find_side(&dst, p, &c->dst, to, &c->dst_pitch, &c->dst_slice);
}

/* Copies a box in stream order, or captures the copy. */
static CUresult copy_box(struct stream *s, CUDA_MEMCPY3D p, bool sync)
{
    struct copy c;
    enum mem_kind from, to;
    if (!p.WidthInBytes || !p.Height || !p.Depth)
        return CUDA_SUCCESS;
    if (s->capture)
        return sync ? capture_refuse(s) : capture_copy(s, &p);
    TRY(copy3d_locate(&p, &c, &from, &to));
    return transfer_submit(s, &c, from, to, sync);
}

#define FLAT_SIDE(p, a)                                                                                             \
    .a##XInBytes = (p)->a##XInBytes, .a##Y = (p)->a##Y, .a##MemoryType = (p)->a##MemoryType,                        \
    .a##Host = (p)->a##Host, .a##Device = (p)->a##Device, .a##Array = (p)->a##Array, .a##Pitch = (p)->a##Pitch

/* Returns a rectangle as a box of depth 1. */
static CUDA_MEMCPY3D flat(const CUDA_MEMCPY2D *p)
{
    return (CUDA_MEMCPY3D){FLAT_SIDE(p, src), FLAT_SIDE(p, dst),
                           .WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = 1};
}

/* Returns a box without its contexts: all contexts see the same addresses. */
static CUDA_MEMCPY3D deep(const CUDA_MEMCPY3D *p)
{
    CUDA_MEMCPY3D box = *p;
    box.srcContext = box.dstContext = NULL;
    return box;
}

/* Defines two calls that copy boxes, as COPIES does. */
#define BOXES(kind, version, params, box)                                                                           \
    CUresult sim_cuMemcpy##kind##version(struct stream *s, const params *pCopy)                                     \
    {                                                                                                               \
        return pCopy ? copy_box(s, box(pCopy), true) : CUDA_ERROR_INVALID_VALUE;                                    \
    }                                                                                                               \
    CUresult sim_cuMemcpy##kind##Async##version(struct stream *s, const params *pCopy, CUstream hStream)            \
    {                                                                                                               \
        return pCopy ? copy_box(s, box(pCopy), false) : CUDA_ERROR_INVALID_VALUE;                                   \
    }
BOXES(2D, _v2, CUDA_MEMCPY2D, flat)
BOXES(3D, _v2, CUDA_MEMCPY3D, deep)
BOXES(3DPeer, , CUDA_MEMCPY3D_PEER, deep)

/* ---- several copies with one call ---- */

enum { ORDER_STREAM = 1, ORDER_ANY = 3 }; /* values of srcAccessOrder in CUmemcpyAttributes */

/* Checks the arrays of attributes of a batch. */
static CUresult check_batch(const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes, size_t count,
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

/* The sources have been read when the call returns, also those for which that is not required. */
CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
                            CUstream hStream)
{
    if (failIdx)
        *failIdx = SIZE_MAX; /* no particular copy */
    if ((!hStream && !tls_per_thread) || hStream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = check_batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs);
    for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++) {
        r = sizes[i] ? cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream) : CUDA_ERROR_INVALID_VALUE;
        if (r != CUDA_SUCCESS && failIdx)
            *failIdx = i;
    }
    return r;
}

CUresult sim_cuMemcpyWithAttributesAsync(struct stream *s, CUdeviceptr dst, CUdeviceptr src, size_t size,
                                         CUmemcpyAttributes *attr, CUstream hStream)
{
    TRY(check_batch(&dst, &src, &size, 1, attr, &(size_t){0}, 1));
    return sim_cuMemcpyAsync(s, dst, src, size, hStream);
}

/* ---- boxes ---- */

static size_t element_size(const struct array *a)
{
    return a ? a->pitch / a->desc.Width : 0;
}

/* Converts one side of a box to bytes; a row length or layer height of 0 means the box's. */
#define OPERAND(p, a, o, e)                                                \
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

/* Reports whether a side is a pointer or an existing array (*a). */
static bool known_operand(const CUmemcpy3DOperand *o, const struct array **a)
{
    *a = o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? array_of(o->op.array.array) : NULL;
    return *a || o->type == CU_MEMCPY_OPERAND_TYPE_POINTER;
}

/* Converts the newer description of a box to the older one. */
static CUresult box_of(const CUDA_MEMCPY3D_BATCH_OP *op, CUDA_MEMCPY3D *p)
{
    const struct array *from, *to;
    if (op->srcAccessOrder < ORDER_STREAM || op->srcAccessOrder > ORDER_ANY || !known_operand(&op->src, &from) ||
        !known_operand(&op->dst, &to))
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = from ? element_size(from) : to ? element_size(to) : 1;
    if (from && to && element_size(from) != element_size(to))
        return CUDA_ERROR_INVALID_VALUE;
    *p = (CUDA_MEMCPY3D){.WidthInBytes = op->extent.width * bytes, .Height = op->extent.height};
    p->Depth = op->extent.depth;
    OPERAND(p, src, &op->src, bytes);
    OPERAND(p, dst, &op->dst, bytes);
    return CUDA_SUCCESS;
}

CUresult sim_cuMemcpy3DWithAttributesAsync(struct stream *s, CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags,
                                           CUstream hStream)
{
    CUDA_MEMCPY3D p;
    TRY(!op || flags ? CUDA_ERROR_INVALID_VALUE : box_of(op, &p));
    return sim_cuMemcpy3DAsync_v2(s, &p, hStream);
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

/* ---- fills ---- */

/* Locates the bytes of a fill, in rows. */
CUresult set_locate(const CUDA_MEMSET_NODE_PARAMS *p, struct copy *c, enum mem_kind *dst)
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
    return transfer_locate(p->dst, (p->height - 1) * c->dst_pitch + c->width, DRIVER_MEMORY, &c->dst, dst);
}

/* Fills memory; width is in elements, pitch in bytes. */
static CUresult set(struct stream *s, CUdeviceptr dst, size_t pitch, uint32_t value, unsigned elem, size_t width,
                    size_t height, bool sync)
{
    const CUDA_MEMSET_NODE_PARAMS p = {dst, pitch, value, elem, width, height};
    struct copy c;
    enum mem_kind to = MEM_DEVICE;
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
