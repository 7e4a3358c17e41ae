/* nodes.h: parameters for graph nodes. */
#pragma once

#include "tap.h"

static inline CUDA_KERNEL_NODE_PARAMS kernel(CUfunction f, unsigned blocks, unsigned threads, void **params)
{
    CUDA_KERNEL_NODE_PARAMS p = {.func = f, .kernelParams = params};
    p.gridDimX = blocks;
    p.blockDimX = threads;
    p.gridDimY = p.gridDimZ = p.blockDimY = p.blockDimZ = 1;
    return p;
}

/* Sets n words. */
static inline CUDA_MEMSET_NODE_PARAMS fill(CUdeviceptr at, unsigned value, size_t n)
{
    CUDA_MEMSET_NODE_PARAMS p = {.dst = at, .value = value, .elementSize = 4, .width = n, .height = 1};
    return p;
}
