/* func.c: attributes of kernels, and occupancy. */
#include "func.h"

#define MAX_THREADS 1024
#define MAX_DYNAMIC 166912
#define SM_THREADS 2048
#define SM_BLOCKS 32
#define SM_SHARED 167936
#define BLOCK_RESERVED 1024

CUresult func_get_attribute(const struct func_settings *set, int *pi, CUfunction_attribute attrib)
{
    const int values[CU_FUNC_ATTRIBUTE_MAX] = {
        [CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = MAX_THREADS,
        [CU_FUNC_ATTRIBUTE_NUM_REGS] = 32,
        [CU_FUNC_ATTRIBUTE_PTX_VERSION] = 80,
        [CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 80,
        [CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = set->max_dynamic,
        [CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = set->carveout,
    };
    return (unsigned)attrib < CU_FUNC_ATTRIBUTE_MAX ? STORE(pi, values[attrib]) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuFuncGetAttribute(struct func *f, int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    return func_get_attribute(&f->set, pi, attrib);
}

CUresult func_set_attribute(struct func_settings *set, CUfunction_attribute attrib, int value)
{
    if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= MAX_DYNAMIC)
        set->max_dynamic = value;
    else if (attrib == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && value >= -1 && value <= 100)
        set->carveout = value;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult sim_cuFuncSetAttribute(struct func *f, CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    return func_set_attribute(&f->set, attrib, value);
}

CUresult func_set_cache(struct func_settings *set, CUfunc_cache config)
{
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    set->cache = (int)config;
    return CUDA_SUCCESS;
}

CUresult sim_cuFuncSetCacheConfig(struct func *f, CUfunction hfunc, CUfunc_cache config)
{
    return func_set_cache(&f->set, config);
}

CUresult sim_cuFuncSetSharedMemConfig(struct func *f, CUfunction hfunc, CUsharedconfig config)
{
    return (unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult sim_cuFuncGetParamInfo(struct func *f, CUfunction func, size_t paramIndex, size_t *paramOffset,
                                size_t *paramSize)
{
    if (!paramOffset || paramIndex >= f->nparams)
        return CUDA_ERROR_INVALID_VALUE;
    *paramOffset = f->offset[paramIndex];
    if (paramSize)
        *paramSize = f->size[paramIndex];
    return CUDA_SUCCESS;
}

CUresult sim_cuFuncLoad(struct func *f, CUfunction function)
{
    return CUDA_SUCCESS;
}

/* Returns how many blocks with that many threads and that much shared memory fit on an SM. */
int func_blocks_per_sm(int threads, size_t dynamic)
{
    int warps = (threads + 31) / 32;
    int n = SM_THREADS / (32 * warps);
    size_t by_shared = SM_SHARED / (dynamic + BLOCK_RESERVED);
    if (n > SM_BLOCKS)
        n = SM_BLOCKS;
    return by_shared < (size_t)n ? (int)by_shared : n;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(struct func *f, int *numBlocks, CUfunction func,
                                                                  int blockSize, size_t dynamicSMemSize,
                                                                  unsigned int flags)
{
    if (!numBlocks || blockSize <= 0 || (flags & ~1u))
        return CUDA_ERROR_INVALID_VALUE;
    *numBlocks = blockSize > MAX_THREADS ? 0 : func_blocks_per_sm(blockSize, dynamicSMemSize);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags)
{
    struct ctx *c;
    TRY(sim_begin(&c));
    TRY(sim_end(handle_is(func, H_FUNC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE));
    if (!minGridSize || !blockSize || blockSizeLimit < 0 || (flags & ~1u))
        return CUDA_ERROR_INVALID_VALUE;
    int limit = blockSizeLimit && blockSizeLimit < MAX_THREADS ? blockSizeLimit : MAX_THREADS;
    int best = 0, best_threads = 0;
    for (int n = (limit + 31) / 32 * 32; n >= 32; n -= 32) {
        int threads = n < limit ? n : limit;
        size_t dynamic = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(threads) : dynamicSMemSize;
        int blocks = func_blocks_per_sm(threads, dynamic);
        if (blocks * threads > best * best_threads) {
            best = blocks;
            best_threads = threads;
        }
    }
    *minGridSize = best * (int)g_config.granted;
    *blockSize = best_threads;
    return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyAvailableDynamicSMemPerBlock(struct func *f, size_t *dynamicSmemSize, CUfunction func,
                                                     int numBlocks, int blockSize)
{
    if (!dynamicSmemSize || numBlocks <= 0 || blockSize <= 0 || blockSize > MAX_THREADS)
        return CUDA_ERROR_INVALID_VALUE;
    size_t each = SM_SHARED / (size_t)numBlocks;
    *dynamicSmemSize = numBlocks > func_blocks_per_sm(blockSize, 0) || each < BLOCK_RESERVED ? 0
                                                                                          : each - BLOCK_RESERVED;
    if (*dynamicSmemSize > MAX_DYNAMIC)
        *dynamicSmemSize = MAX_DYNAMIC;
    return CUDA_SUCCESS;
}
