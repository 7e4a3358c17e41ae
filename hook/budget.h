/* budget.h: how many blocks of kernels a process may launch. */
#ifndef GFAAS_BUDGET_H
#define GFAAS_BUDGET_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Reports whether blocks are metered on the device. */
bool gf_metered(struct gf_device *device);
/* Takes blocks from the budget; returns false if it is used up. */
bool gf_spend(struct gf_slot *slot, uint64_t blocks);
/* Puts back blocks that were not launched. */
void gf_unspend(struct gf_slot *slot, uint64_t blocks);

#pragma GCC visibility pop
#endif
