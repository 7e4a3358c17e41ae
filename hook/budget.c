/* budget.c: how many blocks of kernels a process may launch.
 *
 * Where the page says that blocks are metered (policy introspective: Dilu,
 * section 3.4.1) the daemon raises a budget every few milliseconds and a kernel
 * may go while what was launched before it is less. So the last may go over it:
 * the budget counts from the beginning of the connection, and what is over is
 * paid by the next raise. The gate is beside it: a budget is of no use without
 * a lease. */
#include "budget.h"

#define MOST (UINT64_C(1) << 62) /* a grid that is none must not wrap the sum */

bool gf_metered(struct gf_device *device)
{
    return gf_load(&gf_load(&device->page)->flags) & GF_PAGE_METERED;
}

/* One exchange says both that there was budget and that it is taken: of threads
 * that come at once only one can be the last. */
bool gf_spend(struct gf_slot *slot, uint64_t blocks)
{
    if (blocks > MOST)
        blocks = MOST;
    uint64_t before = gf_load(&slot->blocks);
    do
        if (before >= __atomic_load_n(&slot->budget, __ATOMIC_ACQUIRE))
            return false;
    while (!__atomic_compare_exchange_n(&slot->blocks, &before, before + blocks, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
    return true;
}

void gf_unspend(struct gf_slot *slot, uint64_t blocks)
{
    uint64_t now = gf_load(&slot->blocks), back;
    do
        back = blocks < now ? blocks : now; /* the slot may be another since */
    while (!__atomic_compare_exchange_n(&slot->blocks, &now, now - back, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}
