/* budget.c: the budget of kernel blocks that a process may launch.
 *
 * If the page's flags meter blocks (policy introspective: Dilu, section 3.4.1), the daemon raises
 * the budget every few milliseconds. A kernel may be launched while the sum of all blocks launched before
 * it is below the budget, so the last kernel may exceed it. Budget and sum count from the start of the
 * connection, so the next raise pays for the excess. A launch needs a lease as well. */
#include "budget.h"

#define MAX_BLOCKS (UINT64_C(1) << 62) /* keeps an invalid grid size from overflowing the sum */

bool gf_metered(struct gf_device *device)
{
    return gf_load(&gf_load(&device->page)->flags) & GF_PAGE_METERED;
}

/* One atomic exchange checks the budget and adds the blocks, so only one of several threads can exceed it. */
bool gf_spend(struct gf_slot *slot, uint64_t blocks)
{
    if (blocks > MAX_BLOCKS)
        blocks = MAX_BLOCKS;
    uint64_t before = gf_load(&slot->blocks);
    do
        if (before >= __atomic_load_n(&slot->budget, __ATOMIC_ACQUIRE))
            return false;
    while (!__atomic_compare_exchange_n(&slot->blocks, &before, before + blocks, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
    return true;
}

void gf_unspend(struct gf_slot *slot, uint64_t blocks)
{
    uint64_t sum = gf_load(&slot->blocks), returned;
    do
        returned = blocks < sum ? blocks : sum; /* the process may have another slot now, with a smaller sum */
    while (!__atomic_compare_exchange_n(&slot->blocks, &sum, sum - returned, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}
