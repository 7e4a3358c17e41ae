/* visible.h: which of the instance's GPUs a device is. */
#ifndef GFAAS_VISIBLE_H
#define GFAAS_VISIBLE_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Reads the lists of GPUs, as the driver is about to: once it has started it keeps to
 * what it read. */
void gf_visible_read(void);
/* Finds out which of the instance's GPUs the program sees, after the driver has started
 * with that result, and returns what cuInit returns: CUDA_ERROR_NO_DEVICE, with a message, if
 * the program sees none of them. It takes the loader's lock, and none of the library's
 * for longer than a copy. */
CUresult gf_visible_settle(CUresult initialised);
/* Returns the place of a device among the instance's GPUs; GF_DEVICES if it is none of
 * them. */
unsigned gf_visible_place(unsigned ordinal);
/* Returns the place in a list of the GPU or MIG instance with that number (UINT_MAX: it has
 * none) or that UUID; GF_DEVICES if it is not in the list. */
unsigned gf_visible_find(const char *list, unsigned number, const char *uuid);
/* Reports whether a device is hidden from the program: it, or one before it in the list, is
 * none of the instance's GPUs. */
bool gf_visible_outside(CUdevice ordinal);
void gf_visible_fork_child(void);

#pragma GCC visibility pop
#endif
