/* limit.h: the account of a device's memory, in bytes: this process's share of the limit. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* These functions may be called with any lock of the library held: they take only their own, and
 * do not call the driver. All amounts are bytes. */

/* Returns the memory of all processes of an instance, from its page. */
uint64_t gf_mem_on_page(struct gf_page *page);
/* Returns the memory that this process has allocated on the device. */
uint64_t gf_mem_used(struct gf_device *device);
/* Return the device's limit (0: none) and the memory of all processes of the instance. */
uint64_t gf_mem_limit(struct gf_device *device);
uint64_t gf_mem_used_by_all(struct gf_device *device);
/* Adds bytes to the account. Returns false, and adds nothing, if they exceed the limit. */
bool gf_mem_charge(struct gf_device *device, uint64_t bytes);
void gf_mem_uncharge(struct gf_device *device, uint64_t bytes);
/* Adds bytes that the driver has already reserved, even beyond the limit. */
void gf_mem_force_charge(struct gf_device *device, uint64_t bytes);
/* Reports whether the account exceeds the limit. */
bool gf_mem_over_limit(struct gf_device *device);
/* Sets how many of the allocated bytes are on the host. */
void gf_mem_set_parked(struct gf_device *device, uint64_t bytes);
/* Adds bytes of other processes' memory that are mapped here; subtracts if negative. */
void gf_mem_import(struct gf_device *device, int64_t bytes);
/* Returns `answer`, the driver's answer to a call that needs memory, and counts it if the driver
 * was out of memory. device is NULL if the request is not known to be for a device that the daemon
 * serves. */
CUresult gf_mem_answer(struct gf_device *device, CUresult answer);
/* Moves the device's account to another page and slot, and returns the slot's address. */
struct gf_slot *gf_mem_move(struct gf_device *device, struct gf_page *page, unsigned slot);
/* Returns the bytes of one slot that count towards the limit. */
uint64_t gf_mem_in_slot(struct gf_slot *slot);
void gf_limit_fork_child(void);

#pragma GCC visibility pop
