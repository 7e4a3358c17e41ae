/* texture.c: texture and surface objects, as handles that remember what they are of.
 * Kernels compute only what their comments name, so nothing reads through them. */
#include "array.h"

#include <stdlib.h>

#define ALIGNED 512    /* TEXTURE_ALIGNMENT */
#define PITCHED 32     /* TEXTURE_PITCH_ALIGNMENT */
#define MOST_LINEAR 268435456
#define MOST_WIDE 131072
#define MOST_HIGH 65000
#define MOST_PITCH 2097120

struct texture {
    CUDA_RESOURCE_DESC of;
    CUDA_TEXTURE_DESC how;
    CUDA_RESOURCE_VIEW_DESC view;
};

/* Whether that many bytes of the device are at an address. */
static bool there(CUdeviceptr p, size_t n)
{
    struct range *r = range_find(p);
    return r && p % ALIGNED == 0 && n && n <= range_reach(r, p, false);
}

static CUresult check(const CUDA_RESOURCE_DESC *d)
{
    size_t element;
    if (d->flags)
        return CUDA_ERROR_INVALID_VALUE;
    switch (d->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return array_of(d->res.array.hArray) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return handle_is(d->res.mipmap.hMipmappedArray, H_MIPMAP) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_LINEAR:
        element = array_element(d->res.linear.format, d->res.linear.numChannels);
        return element && d->res.linear.sizeInBytes / element <= MOST_LINEAR && there(d->res.linear.devPtr, d->res.linear.sizeInBytes)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_PITCH2D:
        element = array_element(d->res.pitch2D.format, d->res.pitch2D.numChannels);
        if (!element || !d->res.pitch2D.width || d->res.pitch2D.width > MOST_WIDE || !d->res.pitch2D.height ||
            d->res.pitch2D.height > MOST_HIGH || d->res.pitch2D.pitchInBytes > MOST_PITCH ||
            d->res.pitch2D.pitchInBytes % PITCHED || d->res.pitch2D.width * element > d->res.pitch2D.pitchInBytes)
            return CUDA_ERROR_INVALID_VALUE;
        return there(d->res.pitch2D.devPtr, d->res.pitch2D.pitchInBytes * (d->res.pitch2D.height - 1) + d->res.pitch2D.width * element)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Makes an object of either kind; how and view are NULL where there is none. */
static CUresult make(unsigned long long *out, enum handle_kind kind, const CUDA_RESOURCE_DESC *of, const CUDA_TEXTURE_DESC *how,
                     const CUDA_RESOURCE_VIEW_DESC *view)
{
    CUresult r = check(of);
    if (r != CUDA_SUCCESS)
        return r;
    struct texture *t = calloc(1, sizeof *t);
    if (!t || !handle_add(t, kind)) {
        free(t);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    t->of = *of;
    if (how)
        t->how = *how;
    if (view)
        t->view = *view;
    *out = (uintptr_t)t;
    return CUDA_SUCCESS;
}

static struct texture *texture_of(unsigned long long object, enum handle_kind kind)
{
    return handle_of((const void *)(uintptr_t)object, kind);
}

static CUresult destroy(unsigned long long object, enum handle_kind kind)
{
    struct texture *t = texture_of(object, kind);
    if (!t)
        return CUDA_ERROR_INVALID_VALUE;
    handle_del(t);
    free(t);
    return CUDA_SUCCESS;
}

CUresult sim_cuTexObjectCreate(struct ctx *c, CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                               const CUDA_TEXTURE_DESC *pTexDesc, const CUDA_RESOURCE_VIEW_DESC *pResViewDesc)
{
    if (!pTexObject || !pResDesc || !pTexDesc)
        return CUDA_ERROR_INVALID_VALUE;
    if (pResViewDesc && pResDesc->resType != CU_RESOURCE_TYPE_ARRAY && pResDesc->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    return make(pTexObject, H_TEXTURE, pResDesc, pTexDesc, pResViewDesc);
}

CUresult sim_cuTexObjectDestroy(CUtexObject texObject)
{
    return destroy(texObject, H_TEXTURE);
}

CUresult sim_cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUtexObject texObject)
{
    struct texture *t = texture_of(texObject, H_TEXTURE);
    if (!t || !pResDesc)
        return CUDA_ERROR_INVALID_VALUE;
    *pResDesc = t->of;
    return CUDA_SUCCESS;
}

CUresult sim_cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *pTexDesc, CUtexObject texObject)
{
    struct texture *t = texture_of(texObject, H_TEXTURE);
    if (!t || !pTexDesc)
        return CUDA_ERROR_INVALID_VALUE;
    *pTexDesc = t->how;
    return CUDA_SUCCESS;
}

CUresult sim_cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *pResViewDesc, CUtexObject texObject)
{
    struct texture *t = texture_of(texObject, H_TEXTURE);
    if (!t || !pResViewDesc)
        return CUDA_ERROR_INVALID_VALUE;
    *pResViewDesc = t->view;
    return CUDA_SUCCESS;
}

CUresult sim_cuSurfObjectCreate(struct ctx *c, CUsurfObject *pSurfObject, const CUDA_RESOURCE_DESC *pResDesc)
{
    if (!pSurfObject || !pResDesc || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    struct array *a = array_of(pResDesc->res.array.hArray);
    if (a && !(a->desc.Flags & CUDA_ARRAY3D_SURFACE_LDST))
        return CUDA_ERROR_INVALID_VALUE;
    return make(pSurfObject, H_SURFACE, pResDesc, NULL, NULL);
}

CUresult sim_cuSurfObjectDestroy(CUsurfObject surfObject)
{
    return destroy(surfObject, H_SURFACE);
}

CUresult sim_cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUsurfObject surfObject)
{
    struct texture *t = texture_of(surfObject, H_SURFACE);
    if (!t || !pResDesc)
        return CUDA_ERROR_INVALID_VALUE;
    *pResDesc = t->of;
    return CUDA_SUCCESS;
}
