/* device.h: the devices, each with its own gate, page and connection. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* The devices by ordinal. Ordinals from GF_DEVICES on share the last entry, which no daemon serves. */
extern struct gf_device gf_devices[GF_DEVICES + 1];
#define gf_each_device(d) struct gf_device *d = gf_devices; d <= &gf_devices[GF_DEVICES]; d++
static inline unsigned gf_ordinal(const struct gf_device *device) { return (unsigned)(device - gf_devices); }

/* Returns the device with the driver's ordinal; never NULL. */
struct gf_device *gf_device_at(CUdevice ordinal);
/* Return the device of a context, of the calling thread's current context, and of a stream. NULL: there is
 * no such context, or the driver reports an error. */
struct gf_device *gf_device_of(CUcontext context);
struct gf_device *gf_device_current(void);
struct gf_device *gf_device_of_stream(CUstream stream);
/* Sets the device's gate word, and wakes the threads that wait at the previous one. */
void gf_device_set_gate(struct gf_device *device, uint32_t *gate);
/* Closes the gate: threads wait at a word that stays 0. The page and the slot remain mapped. */
void gf_device_close_gate(struct gf_device *device);
/* Moves a mapped page to the address of the device's previous page, if there was one, and returns the address
 * of the page. */
struct gf_page *gf_device_map_page(struct gf_device *device, struct gf_page *page);
/* Returns the entry of a context that the driver may be destroying, or NULL. The caller holds
 * device->lock. */
struct gf_leaving *gf_leaving_entry(const struct gf_device *device, CUcontext context);
/* Makes the context current and returns true, unless the driver may be destroying it or refuses. The
 * caller holds device->lock, and restores the previous context by gf_context_exit. */
bool gf_context_enter(const struct gf_device *device, CUcontext context);
void gf_context_exit(void);
void gf_device_fork_child(void);

#pragma GCC visibility pop
