/* func.c: attributes of kernels, and how many of their blocks fit on an SM. */
#include "func.h"

#define MAX_THREADS 1024
#define MAX_DYNAMIC 166912
#define SM_THREADS 2048
#define SM_BLOCKS 32
#define SM_SHARED 167936
#define BLOCK_RESERVED 1024

CUresult func_get_attribute(const struct func *f, int *pi, CUfunction_attribute attrib)
{
    if (!pi || (unsigned)attrib >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attrib) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *pi = MAX_THREADS;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *pi = 32;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *pi = 80;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *pi = f->max_dynamic;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *pi = f->carveout;
        break;
    default:
        *pi = 0;
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuFuncGetAttribute(struct ctx *c, int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    struct func *f = handle_of(hfunc, H_FUNC);
    return f ? func_get_attribute(f, pi, attrib) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult func_set_attribute(struct func *f, CUfunction_attribute attrib, int value)
{
    if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= MAX_DYNAMIC)
        f->max_dynamic = value;
    else if (attrib == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && value >= -1 && value <= 100)
        f->carveout = value;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult sim_cuFuncSetAttribute(struct ctx *c, CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    struct func *f = handle_of(hfunc, H_FUNC);
    return f ? func_set_attribute(f, attrib, value) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_cuFuncSetCacheConfig(struct ctx *c, CUfunction hfunc, CUfunc_cache config)
{
    struct func *f = handle_of(hfunc, H_FUNC);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    f->cache = (int)config;
    return CUDA_SUCCESS;
}

CUresult sim_cuFuncSetSharedMemConfig(struct ctx *c, CUfunction hfunc, CUsharedconfig config)
{
    struct func *f = handle_of(hfunc, H_FUNC);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    return (unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult sim_cuFuncGetModule(struct ctx *c, CUmodule *hmod, CUfunction hfunc)
{
    struct func *f = handle_of(hfunc, H_FUNC);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (hmod)
        *hmod = (CUmodule)f->module;
    return hmod ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuFuncGetName(struct ctx *c, const char **name, CUfunction hfunc)
{
    struct func *f = handle_of(hfunc, H_FUNC);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (name)
        *name = f->name;
    return name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuFuncGetParamInfo(struct ctx *c, CUfunction func, size_t paramIndex, size_t *paramOffset,
                                size_t *paramSize)
{
    struct func *f = handle_of(func, H_FUNC);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!paramOffset || paramIndex >= f->nparams)
        return CUDA_ERROR_INVALID_VALUE;
    *paramOffset = f->offset[paramIndex];
    if (paramSize)
        *paramSize = f->size[paramIndex];
    return CUDA_SUCCESS;
}

CUresult sim_cuFuncGetParamCount(struct ctx *c, CUfunction func, size_t *paramCount)
{
    struct func *f = handle_of(func, H_FUNC);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (paramCount)
        *paramCount = f->nparams;
    return paramCount ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuFuncIsLoaded(struct ctx *c, CUfunctionLoadingState *state, CUfunction function)
{
    struct func *f = handle_of(function, H_FUNC);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (state)
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return state ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuFuncLoad(struct ctx *c, CUfunction function)
{
    return handle_is(function, H_FUNC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Blocks of that many threads and that much shared memory that one SM holds. */
int func_blocks_per_sm(int threads, size_t dynamic)
{
    int warps = (threads + 31) / 32;
    int n = SM_THREADS / (32 * warps);
    size_t by_shared = SM_SHARED / (dynamic + BLOCK_RESERVED);
    if (n > SM_BLOCKS)
        n = SM_BLOCKS;
    return by_shared < (size_t)n ? (int)by_shared : n;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(struct ctx *c, int *numBlocks, CUfunction func,
                                                                  int blockSize, size_t dynamicSMemSize,
                                                                  unsigned int flags)
{
    struct func *f = handle_of(func, H_FUNC);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!numBlocks || blockSize <= 0 || (flags & ~1u))
        return CUDA_ERROR_INVALID_VALUE;
    *numBlocks = blockSize > MAX_THREADS ? 0 : func_blocks_per_sm(blockSize, dynamicSMemSize);
    return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessor(struct ctx *c, int *numBlocks, CUfunction func, int blockSize,
                                                         size_t dynamicSMemSize)
{
    return sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(c, numBlocks, func, blockSize, dynamicSMemSize, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    r = sim_end(handle_is(func, H_FUNC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
    if (r != CUDA_SUCCESS)
        return r;
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

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                          int blockSizeLimit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                     dynamicSMemSize, blockSizeLimit, 0);
}

CUresult sim_cuOccupancyAvailableDynamicSMemPerBlock(struct ctx *c, size_t *dynamicSmemSize, CUfunction func,
                                                     int numBlocks, int blockSize)
{
    struct func *f = handle_of(func, H_FUNC);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!dynamicSmemSize || numBlocks <= 0 || blockSize <= 0 || blockSize > MAX_THREADS)
        return CUDA_ERROR_INVALID_VALUE;
    size_t each = SM_SHARED / (size_t)numBlocks;
    *dynamicSmemSize = numBlocks > func_blocks_per_sm(blockSize, 0) || each < BLOCK_RESERVED ? 0
                                                                                          : each - BLOCK_RESERVED;
    if (*dynamicSmemSize > MAX_DYNAMIC)
        *dynamicSmemSize = MAX_DYNAMIC;
    return CUDA_SUCCESS;
}
