/* pointer.c: queries about addresses. */
#include "pool.h"
#include "vmm.h"

/* The driver's knowledge of an address: its range, and the reservation if it is reserved. */
struct known {
    const struct range *g;
    const struct reservation *v;
};

/* Looks an address up. */
static struct known find_address(CUdeviceptr p)
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

static unsigned access_to(const struct range *g)
{
    return !g ? CU_MEM_ACCESS_FLAGS_PROT_NONE : g->kind == R_VMM ? g->flags : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

/* Writes one attribute; without a range, the value for ordinary host memory. */
static CUresult store_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr, struct known k)
{
    const struct range *g = k.g;
    const bool pool = g && g->kind == R_POOL;
#define VALUE(name, type, value)             \
    case CU_POINTER_ATTRIBUTE_##name:        \
        *(type *)data = (type)(value);       \
        return CUDA_SUCCESS;
    switch ((int)attribute) {
        VALUE(CONTEXT, CUcontext, g ? g->ctx : NULL) /* NULL for memory without a context: pools, mappings */
        VALUE(MEMORY_TYPE, unsigned, type_of(g))
        VALUE(DEVICE_POINTER, CUdeviceptr, g ? ptr : 0)
        VALUE(SYNC_MEMOPS, unsigned, 0)
        VALUE(BUFFER_ID, unsigned long long, g ? g->id : 0)
        VALUE(IS_MANAGED, unsigned, g && g->kind == R_MANAGED)
        VALUE(DEVICE_ORDINAL, int, !g ? -2 : g->ctx ? g->ctx->ordinal : g->dev->ordinal)
        VALUE(IS_LEGACY_CUDA_IPC_CAPABLE, unsigned, g && g->kind == R_DEVICE)
        VALUE(RANGE_START_ADDR, CUdeviceptr, k.v ? k.v->base : g ? g->base : 0)
        VALUE(RANGE_SIZE, size_t, k.v ? k.v->size : g ? g->size : 0)
        VALUE(MAPPED, unsigned, g != NULL)
        VALUE(ALLOWED_HANDLE_TYPES, unsigned long long, handle_types(g))
        VALUE(IS_GPU_DIRECT_RDMA_CAPABLE, unsigned, 0)
        VALUE(ACCESS_FLAGS, unsigned, access_to(g))
        VALUE(MEMPOOL_HANDLE, CUmemoryPool, pool ? g->chunk->pool : NULL)
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)data = host_can_read(g) ? (void *)(uintptr_t)ptr : NULL;
        return g && !host_can_read(g) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_cuPointerGetAttribute(struct ctx *c, void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct known k = find_address(ptr);
    if (!data || (!k.g && !k.v))
        return CUDA_ERROR_INVALID_VALUE;
    return store_attribute(data, attribute, ptr, k);
}

CUresult sim_cuPointerGetAttributes(struct ctx *c, unsigned int numAttributes, CUpointer_attribute *attributes,
                                    void **data, CUdeviceptr ptr)
{
    if (!numAttributes || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    struct known k = find_address(ptr);
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < numAttributes; i++) {
        if (!data[i])
            return CUDA_ERROR_INVALID_VALUE;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)
            store_attribute(data[i], attributes[i], ptr, k); /* NULL for a device address, which is no error here */
        else if ((r = store_attribute(data[i], attributes[i], ptr, k)) != CUDA_SUCCESS)
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
