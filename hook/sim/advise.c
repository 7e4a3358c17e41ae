/* advise.c: managed memory and what is said of it. Advice is kept and told, and
 * changes nothing: the simulated memory has one speed. */
#include "managed.h"

CUresult sim_cuMemAllocManaged(struct ctx *c, CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    if (!dptr || !bytesize || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    return managed_alloc(c, dptr, bytesize, flags);
}

static void advise(struct stretch *st, CUmem_advise advice, int where)
{
    uint32_t bit = where < 0 ? HOST_BIT : 1u << where;
    switch ((int)advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        st->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        st->preferred = where;
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        st->preferred = NOWHERE;
        break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        st->accessed |= bit;
        break;
    default:
        st->accessed &= ~bit;
    }
}

static bool needs_place(CUmem_advise advice)
{
    return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
           advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

CUresult sim_cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location)
{
    struct range *g = managed_find(devPtr, count);
    int where = NOWHERE;
    if (!g || advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    if (needs_place(advice) && (r = managed_where(&location, &where)) != CUDA_SUCCESS)
        return r;
    struct stretch *st = managed_cut(g, devPtr, count);
    if (!st)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (; st && st->base < devPtr + count; st = st->next)
        advise(st, advice, where);
    managed_join(g);
    return CUDA_SUCCESS;
}

CUresult sim_cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    return sim_cuMemAdvise_v2(devPtr, count, advice, managed_location(device));
}

/* ---- what is known of a range ---- */

/* Where all of the range has it, or NOWHERE. */
static int common(const struct stretch *st, CUdeviceptr end, bool prefetched)
{
    int where = prefetched ? st->prefetched : st->preferred;
    for (; st && st->base < end; st = st->next)
        if ((prefetched ? st->prefetched : st->preferred) != where)
            return NOWHERE;
    return where;
}

static int kind_of(int where)
{
    return where == NOWHERE   ? CU_MEM_LOCATION_TYPE_INVALID
           : where == ON_HOST ? CU_MEM_LOCATION_TYPE_HOST
                              : CU_MEM_LOCATION_TYPE_DEVICE;
}

static void list_accessed(int *out, size_t n, uint32_t mask)
{
    size_t k = 0;
    for (int i = 0; i < (int)g_config.visible && k < n; i++)
        if (mask & 1u << i)
            out[k++] = i;
    if ((mask & HOST_BIT) && k < n)
        out[k++] = ON_HOST;
    while (k < n)
        out[k++] = NOWHERE;
}

static CUresult tell(void *data, size_t size, CUmem_range_attribute attribute, struct range *g, CUdeviceptr p, size_t n)
{
    bool several = attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    if (!data || !size || (several ? size % sizeof(int) : size != sizeof(int)))
        return CUDA_ERROR_INVALID_VALUE;
    struct stretch *first = managed_cut(g, p, n);
    if (!first)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t accessed = UINT32_MAX;
    bool read_mostly = true;
    for (struct stretch *st = first; st && st->base < p + n; st = st->next) {
        accessed &= st->accessed;
        read_mostly &= st->read_mostly;
    }
    int preferred = common(first, p + n, false), prefetched = common(first, p + n, true);
    switch ((int)attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        *(int *)data = read_mostly;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        list_accessed(data, size / sizeof(int), accessed);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        *(int *)data = preferred;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *(int *)data = prefetched;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        *(int *)data = kind_of(preferred);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        *(int *)data = preferred < 0 ? 0 : preferred;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        *(int *)data = kind_of(prefetched);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        *(int *)data = prefetched < 0 ? 0 : prefetched;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_cuMemRangeGetAttributes(void **data, size_t *dataSizes, CUmem_range_attribute *attributes,
                                     size_t numAttributes, CUdeviceptr devPtr, size_t count)
{
    struct range *g = managed_find(devPtr, count);
    if (!g || !data || !dataSizes || !attributes || !numAttributes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < numAttributes && r == CUDA_SUCCESS; i++)
        r = tell(data[i], dataSizes[i], attributes[i], g, devPtr, count);
    managed_join(g);
    return r;
}

CUresult sim_cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute, CUdeviceptr devPtr,
                                    size_t count)
{
    return sim_cuMemRangeGetAttributes(&data, &dataSize, &attribute, 1, devPtr, count);
}

CUresult sim_cuStreamAttachMemAsync(struct stream *s, CUstream hStream, CUdeviceptr dptr, size_t length,
                                    unsigned int flags)
{
    struct range *g = range_find(dptr);
    if (!g || g->kind != R_MANAGED || g->base != dptr || (length && length != g->size))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_MEM_ATTACH_SINGLE && s->kind == S_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* everybody may touch it at any time: concurrentManagedAccess */
}
