/* func.h: functions, and kernels as functions of a context. */
#pragma once

#include "sim.h"

CUresult func_get_attribute(const struct func_settings *set, int *pi, CUfunction_attribute attrib);
CUresult func_set_attribute(struct func_settings *set, CUfunction_attribute attrib, int value);
CUresult func_set_cache(struct func_settings *set, CUfunc_cache config);
/* Returns the function of a handle in a context; the handle is a function's or a kernel's. NULL with *r
 * set. */
struct func *func_in(struct ctx *c, const void *handle, CUresult *r);
