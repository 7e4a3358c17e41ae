/* func.h: functions, and what stands for one in a context. */
#ifndef GFAAS_SIM_FUNC_H
#define GFAAS_SIM_FUNC_H

#include "sim.h"

CUresult func_get_attribute(const struct func *f, int *pi, CUfunction_attribute attrib);
CUresult func_set_attribute(struct func *f, CUfunction_attribute attrib, int value);
/* The function that a handle means in a context, be it a function's or a kernel's;
 * NULL with *r set. */
struct func *func_in(struct ctx *c, const void *handle, CUresult *r);

#endif
