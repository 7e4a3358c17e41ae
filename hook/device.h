/* device.h: the devices, each with a gate, a page and a connection of its own. */
#ifndef GFAAS_DEVICE_H
#define GFAAS_DEVICE_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* By ordinal. Devices beyond GF_DEVICES share the last, which no daemon serves. */
extern struct gf_device gf_devices[GF_DEVICES + 1];
#define gf_each_device(d) struct gf_device *d = gf_devices; d <= &gf_devices[GF_DEVICES]; d++
static inline unsigned gf_ordinal(const struct gf_device *device) { return (unsigned)(device - gf_devices); }

/* Returns the device of a driver's ordinal; never NULL. */
struct gf_device *gf_device_at(CUdevice ordinal);
/* Return the device of a context, of the calling thread's current context, and of a
 * stream; NULL if there is none. */
struct gf_device *gf_device_of(CUcontext context);
struct gf_device *gf_device_current(void);
struct gf_device *gf_device_of_stream(CUstream stream);
/* Makes the gate word the device's, and wakes the threads that wait at the one before. */
void gf_device_open(struct gf_device *device, uint32_t *gate);
/* Closes the gate: threads wait at a word that stays closed. Page and slot stay. */
void gf_device_close(struct gf_device *device);
/* Maps the page at the address of the device's last one, if it had one, and returns
 * the address. */
struct gf_page *gf_device_lay(struct gf_device *device, struct gf_page *page);
/* Returns the entry of a context that the driver may be destroying, or NULL. The caller holds
 * device->lock. */
struct gf_leaving *gf_context_leaves(const struct gf_device *device, CUcontext context);
void gf_device_fork_child(void);

#pragma GCC visibility pop
#endif
