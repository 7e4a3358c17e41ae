/* visible.h: maps the program's devices to the instance's GPUs. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Reads the lists of GPUs when the driver is about to read them; the driver reads them once, when it
 * starts. */
void gf_visible_read(void);
/* Finds out which of the instance's GPUs the program sees. `initialised` is the driver's result of
 * cuInit. Returns the result for the program: CUDA_ERROR_NO_DEVICE, with a message, if the program sees
 * none. It takes the loader's lock, and a lock of the library only to copy the lists. */
CUresult gf_visible_resolve(CUresult initialised);
/* Reports whether the positions of the devices are known, so that gf_visible_place takes no lock and
 * makes no call of the driver. */
bool gf_visible_known(void);
/* Returns the position of a device in the instance's list of GPUs, or GF_DEVICES if it is not in it. */
unsigned gf_visible_place(unsigned ordinal);
/* Returns the position in a list of the GPU or MIG instance with that index (UINT_MAX: unknown) or UUID,
 * or GF_DEVICES if it is not in the list. */
unsigned gf_visible_find(const char *list, unsigned number, const char *uuid);
/* Reports whether a device is hidden from the program, because it, or a device before it, is not one of
 * the instance's GPUs. */
bool gf_visible_hides(CUdevice ordinal);
void gf_visible_fork_child(void);

#pragma GCC visibility pop
