/* memory.c: the memory limit of an instance, for all kinds of allocation.
 *
 * Bytes are taken from the limit (limit.c) before the driver is asked and given back after it
 * has freed, and no lock is held while the driver works (pools apart: memory_pool.c). */
#include "memory_private.h"

#include "link.h"

#define SHRINK_LOOK_MS 20 /* between looks at pools that something was freed in */
#define SHRINK_LOOKS 10

struct gf_device *gf_mem_of(CUdevice ordinal)
{
    int count = 0;
    if (gf_real.cuDeviceGetCount(&count) != CUDA_SUCCESS || ordinal < 0 || ordinal >= count)
        return NULL;
    struct gf_device *d = gf_device_at(ordinal);
    gf_link_wait_page(d);
    return d;
}

struct gf_device *gf_mem_here(void)
{
    struct gf_device *d = gf_device_current();
    if (d)
        gf_link_wait_page(d);
    return d;
}

bool gf_mem_take_hard(struct gf_device *d, uint64_t bytes)
{
    if (gf_mem_take(d, bytes))
        return true;
    gf_pools_look(d, true);
    return gf_mem_take(d, bytes);
}

CUresult gf_mem_answer_on(CUdevice ordinal, CUresult answer)
{
    return answer == CUDA_ERROR_OUT_OF_MEMORY ? gf_mem_answer(gf_mem_of(ordinal), answer) : answer;
}

void gf_mem_context_gone(CUcontext context)
{
    for (struct gf_block *b = gf_blocks_of(context, NULL), *next; b; b = next) {
        next = b->next;
        gf_block_drop(b);
    }
    gf_pools_context_gone(context);
}

void gf_mem_look(struct gf_device *d) { gf_pools_look(d, false); }

int gf_mem_tend(struct gf_device *d, bool idle)
{
    int swap = gf_swap_tend(d, idle);
    if (!gf_load(&d->pools_shrink))
        return swap;
    __atomic_sub_fetch(&d->pools_shrink, 1, __ATOMIC_RELAXED);
    gf_pools_look(d, false);
    return swap < 0 || swap > SHRINK_LOOK_MS ? SHRINK_LOOK_MS : swap;
}

/* Pools shrink when the program synchronises, which it does soon after it frees, if
 * at all: so they are looked at a few times. */
void gf_mem_shrinks(struct gf_device *d)
{
    bool known = gf_load(&d->pools_shrink);
    gf_store(&d->pools_shrink, SHRINK_LOOKS);
    if (!known)
        gf_link_kick(d);
}

void gf_mem_fork_child(void)
{
    gf_blocks_fork_child();
    gf_pools_fork_child();
    gf_swap_fork_child();
}
