/* memory_swap.c: oversubscription. Where it is asked for (gfaas run
 * --oversubscribe), what programs allocate is managed memory, so that instances
 * whose limits sum to more than the GPU fit on it one after the other: what an
 * instance that has no work holds is moved to the host, and moved back before
 * its next work (MQFQ-Sticky, section 5.2: prefetch and swap; left to itself
 * the driver moves pages only as they are touched).
 *
 * All of it is advice to the driver, which keeps the pages coherent: an error
 * means that nothing moves, and harms nobody. */
#include "memory_private.h"

#include "clock.h"

#include <stdlib.h>
#include <string.h>

#define SWAP_AFTER_NS 500000000u /* long beside the pauses of a program at work, short beside those between requests */
#define PIECE (64u << 20)        /* moved at a time: 3 ms over PCIe, by which a launch may be late */
#define LOOK_NS 200000

bool gf_oversubscribed(void)
{
    enum { UNKNOWN, NO, YES };
    static uint32_t known;
    if (!gf_load(&known)) {
        const char *value = getenv("GFAAS_OVERSUBSCRIBE");
        gf_store(&known, value && !strcmp(value, "1") ? YES : NO);
    }
    return gf_load(&known) == YES;
}

/* The managed memory of the device as it is now, to be freed; their number. */
static struct gf_range *managed(struct gf_device *d, unsigned *count)
{
    unsigned room = gf_blocks_managed(d, NULL, 0);
    struct gf_range *all = malloc((room + 1) * sizeof *all);
    *count = all ? gf_blocks_managed(d, all, room) : 0;
    if (*count > room)
        *count = room; /* what came meanwhile can wait */
    return all;
}

static CUresult prefetch(struct gf_range r, CUdevice to, CUstream stream)
{
    CUresult result = gf_real.cuMemPrefetchAsync(r.at, r.size, to, stream);
    if (result != CUDA_ERROR_NOT_SUPPORTED)
        return result;
    CUmemLocation where = {to == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, to == CU_DEVICE_CPU ? 0 : to};
    return gf_real.cuMemPrefetchAsync_v2(r.at, r.size, where, 0, stream);
}

/* The two directions take turns, piece by piece. */
static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER;

void gf_swap_in_now(struct gf_device *d, CUstream stream)
{
    unsigned count = 0;
    pthread_mutex_lock(&moving);
    bool out = d->swapped_out;
    gf_store(&d->swapped_out, false);
    gf_mem_park(d, 0);
    struct gf_range *all = out ? managed(d, &count) : NULL;
    for (unsigned i = 0; i < count; i++)
        prefetch(all[i], (CUdevice)gf_ordinal(d), stream);
    pthread_mutex_unlock(&moving);
    free(all);
}

/* In the context of the block, on this thread's own stream there: begins to move
 * the piece, or without one looks whether that is over. False: the block or its
 * context is gone, or may be. */
static bool within(struct gf_device *d, const struct gf_range *block, const struct gf_range *piece, CUresult *result)
{
    CUcontext context, popped;
    pthread_mutex_lock(&d->lock);
    bool there = gf_block_context(block->at, &context) && !gf_context_leaves(d, context) &&
                 gf_real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
    if (there) {
        *result = piece ? prefetch(*piece, CU_DEVICE_CPU, CU_STREAM_PER_THREAD) : gf_real.cuStreamQuery(CU_STREAM_PER_THREAD);
        gf_real.cuCtxPopCurrent_v2(&popped);
    }
    pthread_mutex_unlock(&d->lock);
    return there;
}

/* Whether the instance has work again. */
static bool wanted(struct gf_device *d)
{
    return __atomic_load_n(&d->waiting, __ATOMIC_SEQ_CST) || __atomic_load_n(d->gate, __ATOMIC_SEQ_CST);
}

/* Moves a block out in pieces, unless it is wanted. */
static void move_out(struct gf_device *d, struct gf_range block)
{
    for (uint64_t done = 0; done < block.size && !wanted(d);) {
        struct gf_range piece = {block.at + done, block.size - done < PIECE ? block.size - done : PIECE};
        CUresult result;
        pthread_mutex_lock(&moving);
        gf_store(&d->swapped_out, true);
        bool moves = within(d, &block, &piece, &result) && result == CUDA_SUCCESS, there = moves;
        while (there && (there = within(d, &block, NULL, &result)) && result == CUDA_ERROR_NOT_READY)
            gf_pause_ns(LOOK_NS);
        if (there && result == CUDA_SUCCESS) /* says the driver, it is on the host */
            gf_mem_park(d, d->mem_parked + piece.size);
        pthread_mutex_unlock(&moving);
        if (!moves)
            return;
        done += piece.size;
    }
}

static void swap_out(struct gf_device *d)
{
    unsigned count = 0;
    struct gf_range *all = managed(d, &count);
    for (unsigned i = 0; i < count; i++)
        move_out(d, all[i]);
    free(all);
}

int gf_swap_tend(struct gf_device *d, bool idle)
{
    uint64_t now = gf_now_ns();
    if (!idle || !gf_oversubscribed()) {
        d->idle_since = 0;
        return -1;
    }
    if (!d->idle_since)
        d->idle_since = now;
    if (d->idle_since == UINT64_MAX) /* that was done */
        return -1;
    if (now - d->idle_since < SWAP_AFTER_NS)
        return (int)((d->idle_since + SWAP_AFTER_NS - now) / 1000000) + 1;
    swap_out(d);
    d->idle_since = UINT64_MAX;
    return -1;
}

void gf_swap_fork_child(void) { pthread_mutex_init(&moving, NULL); }
