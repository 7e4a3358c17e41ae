/* lookup.h: the wrappers that dlsym returns. */
#ifndef GFAAS_LOOKUP_H
#define GFAAS_LOOKUP_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Returns the wrapper of a function of the management library, where `handle` has that
 * function; NULL if it is not wrapped. */
void *gf_nvml_pick(void *handle, const char *name, const void *caller);

#pragma GCC visibility pop
#endif
