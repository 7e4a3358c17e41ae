/* func.c: attributes of kernels, and how many of their blocks fit on an SM. */
#include "sim.h"

#define MAX_THREADS 1024
#define MAX_DYNAMIC 166912
#define SM_THREADS 2048
#define SM_BLOCKS 32
#define SM_SHARED 167936
#define BLOCK_RESERVED 1024

/* Opens a call on a kernel: on success the lock is held. */
static CUresult begin(CUfunction h, struct func **f)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    *f = (struct func *)h;
    if (r != CUDA_SUCCESS)
        return r;
    return handle_is(h, H_FUNC) ? CUDA_SUCCESS : sim_end(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    struct func *f;
    CUresult r = begin(hfunc, &f);
    if (r != CUDA_SUCCESS)
        return r;
    if (!pi || (unsigned)attrib >= CU_FUNC_ATTRIBUTE_MAX)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
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
    return sim_end(CUDA_SUCCESS);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    struct func *f;
    CUresult r = begin(hfunc, &f);
    if (r != CUDA_SUCCESS)
        return r;
    if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= MAX_DYNAMIC)
        f->max_dynamic = value;
    else if (attrib == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && value >= -1 && value <= 100)
        f->carveout = value;
    else
        r = CUDA_ERROR_INVALID_VALUE;
    return sim_end(r);
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    struct func *f;
    CUresult r = begin(hfunc, &f);
    if (r != CUDA_SUCCESS)
        return r;
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    f->cache = (int)config;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
    struct func *f;
    CUresult r = begin(hfunc, &f);
    if (r != CUDA_SUCCESS)
        return r;
    return sim_end((unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                                              : CUDA_SUCCESS);
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    struct func *f;
    CUresult r = begin(hfunc, &f);
    if (r != CUDA_SUCCESS)
        return r;
    if (hmod)
        *hmod = (CUmodule)f->module;
    return sim_end(hmod ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    struct func *f;
    CUresult r = begin(hfunc, &f);
    if (r != CUDA_SUCCESS)
        return r;
    if (name)
        *name = f->name;
    return sim_end(name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
    struct func *f;
    CUresult r = begin(func, &f);
    if (r != CUDA_SUCCESS)
        return r;
    if (!paramOffset || paramIndex >= f->nparams)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    *paramOffset = f->offset[paramIndex];
    if (paramSize)
        *paramSize = f->size[paramIndex];
    return sim_end(CUDA_SUCCESS);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    struct func *f;
    CUresult r = begin(function, &f);
    if (r != CUDA_SUCCESS)
        return r;
    if (state)
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return sim_end(state ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuFuncLoad(CUfunction function)
{
    struct func *f;
    CUresult r = begin(function, &f);
    return r != CUDA_SUCCESS ? r : sim_end(CUDA_SUCCESS);
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

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func, int blockSize,
                                                              size_t dynamicSMemSize, unsigned int flags)
{
    struct func *f;
    CUresult r = begin(func, &f);
    if (r != CUDA_SUCCESS)
        return r;
    if (!numBlocks || blockSize <= 0 || (flags & ~1u))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    *numBlocks = blockSize > MAX_THREADS ? 0 : func_blocks_per_sm(blockSize, dynamicSMemSize);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags)
{
    struct func *f;
    CUresult r = begin(func, &f);
    if (r != CUDA_SUCCESS)
        return r;
    sim_end(r);
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

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func, int numBlocks,
                                                 int blockSize)
{
    struct func *f;
    CUresult r = begin(func, &f);
    if (r != CUDA_SUCCESS)
        return r;
    if (!dynamicSmemSize || numBlocks <= 0 || blockSize <= 0 || blockSize > MAX_THREADS)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    size_t each = SM_SHARED / (size_t)numBlocks;
    *dynamicSmemSize = numBlocks > func_blocks_per_sm(blockSize, 0) || each < BLOCK_RESERVED ? 0
                                                                                          : each - BLOCK_RESERVED;
    if (*dynamicSmemSize > MAX_DYNAMIC)
        *dynamicSmemSize = MAX_DYNAMIC;
    return sim_end(CUDA_SUCCESS);
}
