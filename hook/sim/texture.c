/* texture.c: texture and surface objects: handles that store their description. Kernels compute only the operations
 * in their comments, so nothing reads through these objects. */
#include "array.h"

#include <stdlib.h>

#define ALIGNED 512    /* TEXTURE_ALIGNMENT */
#define PITCHED 32     /* TEXTURE_PITCH_ALIGNMENT */
#define MOST_LINEAR 268435456
#define MOST_WIDE 131072
#define MOST_HIGH 65000
#define MOST_PITCH 2097120

/* Reports whether that many bytes of device memory are at the address. */
static bool is_device_memory(CUdeviceptr p, size_t n)
{
    struct range *r = range_find(p);
    return r && p % ALIGNED == 0 && n && n <= range_reach(r, p, false);
}

static CUresult check_resource(const CUDA_RESOURCE_DESC *d)
{
    size_t element, size;
    if (d->flags)
        return CUDA_ERROR_INVALID_VALUE;
    switch (d->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return array_of(d->res.array.hArray) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return handle_is(d->res.mipmap.hMipmappedArray, H_MIPMAP) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_LINEAR:
        element = array_element(d->res.linear.format, d->res.linear.numChannels);
        return element && d->res.linear.sizeInBytes / element <= MOST_LINEAR &&
                       is_device_memory(d->res.linear.devPtr, d->res.linear.sizeInBytes)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_PITCH2D:
        element = array_element(d->res.pitch2D.format, d->res.pitch2D.numChannels);
        if (!element || !d->res.pitch2D.width || d->res.pitch2D.width > MOST_WIDE || !d->res.pitch2D.height ||
            d->res.pitch2D.height > MOST_HIGH || d->res.pitch2D.pitchInBytes > MOST_PITCH ||
            d->res.pitch2D.pitchInBytes % PITCHED || d->res.pitch2D.width * element > d->res.pitch2D.pitchInBytes)
            return CUDA_ERROR_INVALID_VALUE;
        size = d->res.pitch2D.pitchInBytes * (d->res.pitch2D.height - 1) + d->res.pitch2D.width * element;
        return is_device_memory(d->res.pitch2D.devPtr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Creates an object of either kind; `how` and `view` may be NULL. */
static CUresult create_object(unsigned long long *out, enum handle_kind kind, const CUDA_RESOURCE_DESC *of,
                              const CUDA_TEXTURE_DESC *how, const CUDA_RESOURCE_VIEW_DESC *view)
{
    TRY(check_resource(of));
    struct texture *t = handle_new(sizeof *t, kind);
    if (!t)
        return CUDA_ERROR_OUT_OF_MEMORY;
    t->of = *of;
    if (how)
        t->how = *how;
    if (view)
        t->view = *view;
    *out = (uintptr_t)t;
    return CUDA_SUCCESS;
}

CUresult sim_cuTexObjectCreate(struct ctx *c, CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                               const CUDA_TEXTURE_DESC *pTexDesc, const CUDA_RESOURCE_VIEW_DESC *pResViewDesc)
{
    if (!pTexObject || !pResDesc || !pTexDesc)
        return CUDA_ERROR_INVALID_VALUE;
    if (pResViewDesc && pResDesc->resType != CU_RESOURCE_TYPE_ARRAY && pResDesc->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    return create_object(pTexObject, H_TEXTURE, pResDesc, pTexDesc, pResViewDesc);
}

CUresult sim_cuTexObjectDestroy(struct texture *t, CUtexObject texObject)
{
    handle_del(t);
    free(t);
    return CUDA_SUCCESS;
}

CUresult sim_cuSurfObjectCreate(struct ctx *c, CUsurfObject *pSurfObject, const CUDA_RESOURCE_DESC *pResDesc)
{
    if (!pSurfObject || !pResDesc || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    struct array *a = array_of(pResDesc->res.array.hArray);
    if (a && !(a->desc.Flags & CUDA_ARRAY3D_SURFACE_LDST))
        return CUDA_ERROR_INVALID_VALUE;
    return create_object(pSurfObject, H_SURFACE, pResDesc, NULL, NULL);
}

CUresult sim_cuSurfObjectDestroy(struct texture *t, CUsurfObject surfObject)
{
    return sim_cuTexObjectDestroy(t, surfObject);
}
