/* budget.h: the budget of kernel blocks that a process may launch. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Reports whether blocks are metered on the device. */
bool gf_metered(struct gf_device *device);
/* Takes blocks from the budget. Returns false if the budget is used up. */
bool gf_spend(struct gf_slot *slot, uint64_t blocks);
/* Returns blocks that were not launched to the budget. */
void gf_unspend(struct gf_slot *slot, uint64_t blocks);

#pragma GCC visibility pop
