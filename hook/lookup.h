/* lookup.h: the wrappers that dlsym returns. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Returns the wrapper of a function of NVML for dlsym, if `handle` has that function, or NULL if it
 * is not wrapped. `caller` is dlsym's return address. */
void *gf_nvml_pick(void *handle, const char *name, const void *caller);

#pragma GCC visibility pop
