/* memory.c: devices and contexts, and the helper's work, for the memory limit.
 *
 * In all memory_*.c files, bytes are added to the account (limit.c) before the driver is called, and
 * removed after it has freed them. No lock is held while the driver is called, except for pools
 * (memory_pool.c). */
#include "memory_private.h"

#include "link.h"

#define RECOUNT_MS 20 /* interval between recounts of the pools after a block of one was freed */
#define RECOUNTS 10   /* number of these recounts */

struct gf_device *gf_mem_device(CUdevice ordinal)
{
    int count = 0;
    if (gf_real.cuDeviceGetCount(&count) != CUDA_SUCCESS || ordinal < 0 || ordinal >= count)
        return NULL;
    struct gf_device *d = gf_device_at(ordinal);
    gf_link_wait_page(d);
    return d;
}

struct gf_device *gf_mem_current_device(void)
{
    struct gf_device *d = gf_device_current();
    if (d)
        gf_link_wait_page(d);
    return d;
}

bool gf_mem_charge_or_trim(struct gf_device *d, uint64_t bytes)
{
    if (gf_mem_charge(d, bytes))
        return true;
    gf_pools_recount(d, true);
    return gf_mem_charge(d, bytes);
}

CUresult gf_mem_answer_on(CUdevice ordinal, CUresult answer)
{
    return answer == CUDA_ERROR_OUT_OF_MEMORY ? gf_mem_answer(gf_mem_device(ordinal), answer) : answer;
}

void gf_mem_context_destroyed(CUcontext context)
{
    for (struct gf_block *b = gf_blocks_of(context, NULL), *next; b; b = next) {
        next = b->next;
        gf_block_drop(b);
    }
    gf_pools_context_destroyed(context);
}

void gf_mem_recount_pools(struct gf_device *d) { gf_pools_recount(d, false); }

int gf_mem_maintain(struct gf_device *d, bool idle)
{
    int swap_ms = gf_swap_maintain(d, idle);
    if (!gf_load(&d->pool_recounts))
        return swap_ms;
    __atomic_sub_fetch(&d->pool_recounts, 1, __ATOMIC_RELAXED);
    gf_pools_recount(d, false);
    return swap_ms < 0 || swap_ms > RECOUNT_MS ? RECOUNT_MS : swap_ms;
}

/* A pool shrinks when the program synchronizes, not when it frees a block. It usually synchronizes soon
 * after a free, so a few recounts are enough. */
void gf_mem_expect_shrink(struct gf_device *d)
{
    bool recounting = gf_load(&d->pool_recounts);
    gf_store(&d->pool_recounts, RECOUNTS);
    if (!recounting)
        gf_link_kick(d);
}

void gf_mem_fork_child(void)
{
    gf_blocks_fork_child();
    gf_pools_fork_child();
    gf_swap_fork_child();
}
