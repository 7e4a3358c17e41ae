/* blocks.c: GPU memory in numbered blocks. Allocating memory from the driver is slow, and freeing it waits for all work in
 * progress. So free blocks are kept for the next allocation of the same size class. A limit applies to the sum of
 * all blocks, used and free. The KaaS paper (section 4.1.3) does the same with ephemeral buffers. */
#include "executor.h"

#include <stdlib.h>
#include <string.h>

#define SMALLEST 512u
#define CLASSES (8 * 40)

static struct block *blocks;
static uint32_t nblocks;
static uint64_t held, limit = UINT64_MAX;

/* The free blocks, by class. */
static struct {
    CUdeviceptr *ptr;
    uint32_t n, room;
} spare[CLASSES];

/* Rounds a size up to a multiple of an eighth of the next lower power of two, as Footprint in pkg/kgraph/job does, and
 * sets *class to the size class. Example: 9 MiB and a byte become 10 MiB. */
static uint64_t rounded(uint64_t size, unsigned *class)
{
    if (size <= SMALLEST) {
        *class = 0;
        return SMALLEST;
    }
    unsigned power = 63 - (unsigned)__builtin_clzll(size - 1); /* 2^power < size <= 2^(power+1) */
    uint64_t step = (1ull << power) / 8;
    uint64_t steps = (size - (1ull << power) + step - 1) / step; /* 1 to 8 */
    *class = (power - 9) * 8 + (unsigned)steps;
    return (1ull << power) + steps * step;
}

/* Returns the block with that number, or NULL if it does not exist or ends before `end`. */
struct block *block_of(uint32_t number, uint64_t end)
{
    if (number >= nblocks || !blocks[number].ptr || end > blocks[number].size)
        return NULL;
    return &blocks[number];
}

/* Returns free blocks to the driver until `more` bytes fit within the limit. It begins with the largest, so that
 * few must be freed. */
static void shrink(uint64_t more)
{
    for (unsigned class = CLASSES; class-- > 0 && held + more > limit;)
        while (spare[class].n && held + more > limit) {
            uint64_t size = SMALLEST;
            if (class) {
                unsigned power = 9 + (class - 1) / 8, steps = (class - 1) % 8 + 1;
                size = (1ull << power) + steps * ((1ull << power) / 8);
            }
            p_cuMemFree_v2(spare[class].ptr[--spare[class].n]);
            held -= size;
        }
}

/* Sets the limit on the bytes of all blocks, used and free, and returns free blocks beyond it to the driver. */
void blocks_keep(uint64_t most)
{
    limit = most;
    shrink(0);
}

uint64_t blocks_held(void) { return held; }

CUresult block_alloc(uint32_t number, uint64_t size)
{
    if (number >= nblocks) {
        uint32_t want = number < 1024 ? 1024 : 2 * number;
        struct block *more = realloc(blocks, want * sizeof *more);
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memset(more + nblocks, 0, (want - nblocks) * sizeof *more);
        blocks = more;
        nblocks = want;
    }
    unsigned class;
    uint64_t bytes = rounded(size, &class);
    if (blocks[number].ptr || class >= CLASSES)
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr ptr = 0;
    if (spare[class].n) {
        ptr = spare[class].ptr[--spare[class].n];
    } else {
        shrink(bytes);
        if (held + bytes > limit)
            return CUDA_ERROR_OUT_OF_MEMORY;
        CUresult r = p_cuMemAlloc_v2(&ptr, bytes);
        if (r == CUDA_ERROR_OUT_OF_MEMORY) { /* other processes use memory: free the spare blocks and retry */
            uint64_t before = limit;
            blocks_keep(0);
            limit = before;
            r = p_cuMemAlloc_v2(&ptr, bytes);
        }
        if (r != CUDA_SUCCESS)
            return r;
        held += bytes;
    }
    blocks[number] = (struct block){ptr, size};
    return CUDA_SUCCESS;
}

bool block_free(uint32_t number)
{
    struct block *b = block_of(number, 0);
    if (!b)
        return false;
    unsigned class;
    uint64_t bytes = rounded(b->size, &class);
    CUdeviceptr ptr = b->ptr;
    b->ptr = 0;
    if (spare[class].n == spare[class].room) {
        uint32_t want = spare[class].room ? 2 * spare[class].room : 8;
        CUdeviceptr *more = realloc(spare[class].ptr, want * sizeof *more);
        if (!more) {
            p_cuMemFree_v2(ptr);
            held -= bytes;
            return true;
        }
        spare[class].ptr = more;
        spare[class].room = want;
    }
    spare[class].ptr[spare[class].n++] = ptr;
    return true;
}
