/* limit.h: the account of a device's memory: what this process holds of the limit. */
#ifndef GFAAS_LIMIT_H
#define GFAAS_LIMIT_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* These may be called under any lock of the library's: they take none but their own, and
 * do not call the driver. Bytes throughout. */

/* Returns what an instance's processes hold together, by their page. */
uint64_t gf_mem_on_page(struct gf_page *page);
/* Returns what this process has allocated on the device. */
uint64_t gf_mem_used(struct gf_device *device);
/* Returns the device's limit, or 0 if there is none, and what all processes hold together. */
uint64_t gf_mem_limit(struct gf_device *device);
uint64_t gf_mem_used_by_all(struct gf_device *device);
/* Takes bytes from the limit. Returns false, and takes none, if fewer are left. */
bool gf_mem_take(struct gf_device *device, uint64_t bytes);
void gf_mem_give(struct gf_device *device, uint64_t bytes);
/* Takes what the driver has reserved already, even beyond the limit. */
void gf_mem_force(struct gf_device *device, uint64_t bytes);
/* Reports whether more is held than the limit. */
bool gf_mem_over(struct gf_device *device);
/* Sets how much of what is held is on the host. */
void gf_mem_park(struct gf_device *device, uint64_t bytes);
/* Adds to, or subtracts from, what is mapped here of other processes' memory. */
void gf_mem_import(struct gf_device *device, int64_t bytes);
/* Returns the driver's answer to a request for memory, or for what takes memory, and
 * counts it if the driver had too little. device is NULL if the request is not known to be
 * for a device that the daemon serves. */
CUresult gf_mem_answer(struct gf_device *device, CUresult answer);
/* Makes page and slot the device's, moves the account there, and returns the slot's address. */
struct gf_slot *gf_mem_move(struct gf_device *device, struct gf_page *page, unsigned slot);
/* Returns what counts towards the limit in one slot. */
uint64_t gf_mem_in_slot(struct gf_slot *slot);
void gf_limit_fork_child(void);

#pragma GCC visibility pop
#endif
