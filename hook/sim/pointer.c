/* pointer.c: what the driver knows of an address. */
#include "pool.h"
#include "vmm.h"

#include <string.h>

/* What programs can be told of an address: its range, and of reserved addresses
 * with nothing there the reservation. */
struct known {
    const struct range *g;
    const struct reservation *v;
};

/* What there is at an address. */
static struct known look_up(CUdeviceptr p)
{
    struct known k = {range_find(p), NULL};
    if (!k.g || k.g->kind == R_VMM)
        k.v = vmm_reservation(p);
    return k;
}

static unsigned type_of(const struct range *g)
{
    return !g ? 0 : g->dev ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

static bool host_can_read(const struct range *g)
{
    return g && !range_on_device(g);
}

static unsigned long long handle_types(const struct range *g)
{
    return !g ? 0 : g->kind == R_VMM ? g->alloc->handle_types : g->kind == R_POOL ? g->chunk->pool->handle_types : 0;
}

/* Writes one attribute; with no range, what is said of ordinary host memory. */
static CUresult get(void *data, CUpointer_attribute attribute, CUdeviceptr ptr, struct known k)
{
    const struct range *g = k.g;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: /* none of what belongs to no context: pools, mappings */
        *(CUcontext *)data = g ? (CUcontext)g->ctx : NULL;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = type_of(g);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = g ? ptr : 0;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = host_can_read(g) ? (void *)(uintptr_t)ptr : NULL;
        return g && !host_can_read(g) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = g ? g->id : 0;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = g && g->kind == R_MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = !g ? -2 : g->ctx ? g->ctx->ordinal : g->dev->ordinal;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = g && g->kind == R_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = k.v ? k.v->base : g ? g->base : 0;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = k.v ? k.v->size : g ? g->size : 0;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)data = g != NULL;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = handle_types(g);
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = !g ? CU_MEM_ACCESS_FLAGS_PROT_NONE
                            : g->kind == R_VMM ? g->flags : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = g && g->kind == R_POOL ? (CUmemoryPool)g->chunk->pool : NULL;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuPointerGetAttribute(struct ctx *c, void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct known k = look_up(ptr);
    if (!data || (!k.g && !k.v))
        return CUDA_ERROR_INVALID_VALUE;
    return get(data, attribute, ptr, k);
}

CUresult sim_cuPointerGetAttributes(struct ctx *c, unsigned int numAttributes, CUpointer_attribute *attributes,
                                    void **data, CUdeviceptr ptr)
{
    if (!numAttributes || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    struct known k = look_up(ptr);
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < numAttributes; i++) {
        if (!data[i])
            return CUDA_ERROR_INVALID_VALUE;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)
            get(data[i], attributes[i], ptr, k); /* of a device address: NULL, and no error here */
        else if ((r = get(data[i], attributes[i], ptr, k)) != CUDA_SUCCESS)
            return r;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuPointerSetAttribute(struct ctx *c, const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !range_find(ptr))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
