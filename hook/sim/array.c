/* array.c: arrays and mipmapped arrays, as memory for copies; the simulated GPU does not sample them.
 *
 * entry.c calls the functions sim_cu... with g_lock held. Where one has a parameter before those of the CUDA
 * call, it is the current context, or the object to which entry.c has resolved the call's handle. */
#include "array.h"

#include <stdlib.h>

#define MAX_LEVELS 32u
#define FLAGS_KNOWN (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | \
                     CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_COLOR_ATTACHMENT)

struct mipmap {
    unsigned n;
    struct array level[];
};

/* Returns the memory of an array, or NULL if it was freed with its context. */
static struct range *memory_of(const struct array *a)
{
    struct range *r = range_find(a->base);
    return r && r->id == a->range ? r : NULL;
}

struct array *array_of(CUarray h)
{
    struct array *a = handle_is(h, H_ARRAY) ? (struct array *)h : NULL;
    return a && memory_of(a) ? a : NULL;
}

size_t array_element(CUarray_format format, unsigned channels)
{
    size_t n = channels;
    if (n != 1 && n != 2 && n != 4)
        return 0;
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return n;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2 * n;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4 * n;
    default:
        return 0;
    }
}

/* Checks width, height and depth against the limits for the number of dimensions. */
static bool fits(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    bool layered = d->Flags & CUDA_ARRAY3D_LAYERED;
    if (d->Flags & CUDA_ARRAY3D_CUBEMAP)
        return d->Width == d->Height && d->Depth && d->Depth % 6 == 0 && d->Width <= 32768 && d->Depth <= 6 * 2046 &&
               (layered || d->Depth == 6);
    if (layered)
        return d->Depth && d->Depth <= 2048 && d->Width <= 32768 && d->Height <= 32768;
    if (d->Depth)
        return d->Height && d->Width <= 16384 && d->Height <= 16384 && d->Depth <= 16384;
    return d->Width <= 131072 && d->Height <= 65536;
}

/* Checks the descriptor of a new array. */
static CUresult check_descriptor(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!d->Width || !array_element(d->Format, d->NumChannels) || (d->Flags & ~(unsigned)FLAGS_KNOWN) || !fits(d))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* Returns an extent at a level of a mipmap: half at each level, but at least 1. */
static size_t extent_at(size_t n, unsigned level)
{
    return n >> level ? n >> level : n != 0;
}

/* Computes the layout of a level; level 0 is the array itself. All levels have the same number of layers. */
static void lay_out(struct array *a, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
    a->desc = *d;
    a->desc.Width = extent_at(d->Width, level);
    a->desc.Height = extent_at(d->Height, level);
    if (!(d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
        a->desc.Depth = extent_at(d->Depth, level);
    a->pitch = a->desc.Width * array_element(d->Format, d->NumChannels);
    a->rows = a->desc.Height ? a->desc.Height : 1;
    a->planes = a->desc.Depth ? a->desc.Depth : 1;
}

static size_t bytes_of(const struct array *a)
{
    return a->pitch * a->rows * a->planes; /* far from overflow: see fits */
}

/* Allocates the memory of n arrays in one piece and registers their handles. r has the properties of the range
 * to allocate; own is the range as memory_place has stored it. */
static CUresult allocate_arrays(struct ctx *c, struct array *a, unsigned n)
{
    struct range r = {.kind = R_ARRAY, .ctx = c}, *own;
    bool known = true; /* all handles are registered */
    for (unsigned i = 0; i < n; i++)
        r.size += bytes_of(&a[i]);
    TRY(memory_place(c->dev, page_up(r.size), &r, &own));
    CUdeviceptr at = own->base;
    for (unsigned i = 0; i < n; i++) {
        a[i].base = at;
        a[i].range = own->id;
        at += bytes_of(&a[i]);
        known &= handle_add(&a[i], H_ARRAY);
    }
    return known ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Waits for the context's work, which may use the memory, and then frees the memory. The end of the context may
 * have freed it: before, or during the wait, which releases g_lock. */
static void free_memory(const struct array *a)
{
    struct range *r = memory_of(a);
    if (r)
        wait_context(r->ctx, false); /* false: the work in all its streams */
    if ((r = memory_of(a)))
        memory_release(r);
}

/* Frees an array that is not a level of a mipmapped array. */
static void free_array(struct array *a)
{
    handle_del(a);
    free_memory(a);
    free(a);
}

/* Creates an array with its own memory. */
static CUresult create_array(struct ctx *c, CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    TRY(check_descriptor(d));
    struct array *a = calloc(1, sizeof *a);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    lay_out(a, d, 0);
    CUresult r = allocate_arrays(c, a, 1);
    if (r == CUDA_SUCCESS)
        *out = (CUarray)a;
    else
        free_array(a);
    return r;
}

CUresult sim_cuArray3DCreate_v2(struct ctx *c, CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    return pHandle && pAllocateArray ? create_array(c, pHandle, pAllocateArray) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuArrayCreate_v2(struct ctx *c, CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    const CUDA_ARRAY_DESCRIPTOR *p = pAllocateArray;
    if (!pHandle || !p)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = p->Width, .Height = p->Height, .Format = p->Format,
                                 .NumChannels = p->NumChannels};
    return create_array(c, pHandle, &d);
}

CUresult sim_cuArrayDestroy(struct array *a, CUarray hArray)
{
    if (a->of) /* a level of a mipmapped array: only cuMipmappedArrayDestroy destroys it */
        return CUDA_ERROR_INVALID_HANDLE;
    free_array(a);
    return CUDA_SUCCESS;
}

/* STORE returns CUDA_ERROR_INVALID_VALUE if the program's pointer is NULL. */
CUresult sim_cuArrayGetDescriptor_v2(struct array *a, CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    const CUDA_ARRAY3D_DESCRIPTOR *d = &a->desc;
    return STORE(pArrayDescriptor, ((CUDA_ARRAY_DESCRIPTOR){d->Width, d->Height, d->Format, d->NumChannels}));
}

/* ---- mipmapped arrays ---- */

/* Returns the number of levels: at least one, and at most the number at which the longest side is 1. Each level
 * halves the sides: with a longest side of 8 there are at most 4 levels, of 8, 4, 2 and 1. */
static unsigned levels_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned want)
{
    size_t longest = d->Width > d->Height ? d->Width : d->Height;
    if (!(d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) && d->Depth > longest)
        longest = d->Depth;
    unsigned n = 1;
    while (n < want && n < MAX_LEVELS && longest >> n)
        n++;
    return n;
}

/* Frees a mipmapped array with all its levels. */
static void free_mipmap(struct mipmap *m)
{
    handle_del(m);
    for (unsigned i = 0; i < m->n; i++)
        handle_del(&m->level[i]);
    free_memory(&m->level[0]);
    free(m);
}

CUresult sim_cuMipmappedArrayCreate(struct ctx *c, CUmipmappedArray *pHandle,
                                    const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc, unsigned int numMipmapLevels)
{
    const CUDA_ARRAY3D_DESCRIPTOR *d = pMipmappedArrayDesc;
    if (!pHandle || !d)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(check_descriptor(d));
    unsigned n = levels_of(d, numMipmapLevels);
    struct mipmap *m = calloc(1, sizeof *m + n * sizeof m->level[0]);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->n = n;
    for (unsigned i = 0; i < n; i++) {
        lay_out(&m->level[i], d, i);
        m->level[i].of = m;
    }
    CUresult r = allocate_arrays(c, m->level, n);
    if (r == CUDA_SUCCESS && !handle_add(m, H_MIPMAP))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        *pHandle = (CUmipmappedArray)m;
    else
        free_mipmap(m);
    return r;
}

CUresult sim_cuMipmappedArrayGetLevel(struct mipmap *m, CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
                                      unsigned int level)
{
    if (!pLevelArray || level >= m->n)
        return CUDA_ERROR_INVALID_VALUE;
    *pLevelArray = (CUarray)&m->level[level];
    return CUDA_SUCCESS;
}

CUresult sim_cuMipmappedArrayDestroy(struct mipmap *m, CUmipmappedArray hMipmappedArray)
{
    free_mipmap(m);
    return CUDA_SUCCESS;
}

/* No array is sparse. */
CUresult sim_cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties, CUarray array)
{
    return array_of(array) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties,
                                                 CUmipmappedArray mipmap)
{
    return handle_is(mipmap, H_MIPMAP) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}
