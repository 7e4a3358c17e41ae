/* pointer.c: what the driver knows of an address. */
#include "sim.h"

#include <string.h>

static bool on_device(const struct range *g)
{
    return g->kind == R_DEVICE || g->kind == R_IPC;
}

/* Writes one attribute; with no range, what is said of ordinary host memory. */
static CUresult get(void *data, CUpointer_attribute attribute, CUdeviceptr ptr, const struct range *g)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = g ? (CUcontext)g->ctx : NULL;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = !g ? 0 : on_device(g) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = g ? ptr : 0;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = g && !on_device(g) ? (void *)(uintptr_t)ptr : NULL;
        return g && on_device(g) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = g ? g->id : 0;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = g ? g->ctx->ordinal : -2;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = g && g->kind == R_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = g ? g->base : 0;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = g ? g->size : 0;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)data = g != NULL;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = g ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = NULL;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    struct range *g = range_find(ptr);
    if (!data || !g)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    return sim_end(get(data, attribute, ptr, g));
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr ptr)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!numAttributes || !attributes || !data)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    struct range *g = range_find(ptr);
    for (unsigned i = 0; i < numAttributes; i++) {
        if (!data[i])
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)
            get(data[i], attributes[i], ptr, g); /* of a device address: NULL, and no error here */
        else if ((r = get(data[i], attributes[i], ptr, g)) != CUDA_SUCCESS)
            return sim_end(r);
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !range_find(ptr))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    return sim_end(CUDA_SUCCESS);
}
