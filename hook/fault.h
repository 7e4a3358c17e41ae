/* fault.h: the error after which a process cannot use CUDA any more. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Notes the error of a call if it ends the process's use of CUDA. Returns when the daemon knows it, or
 * after two seconds. Called without a lock. */
GF_COLD void gf_saw_error(CUresult result, const char *call);
static inline void gf_saw(CUresult result, const char *call)
{
    if (gf_unlikely(result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY))
        gf_saw_error(result, call);
}
/* Notes the result of a call of the library's own, and returns the result. Does not wait and takes no
 * lock. */
CUresult gf_fault_watch(CUresult result);
/* Reports the fault to the daemon if that is this device's helper's task and it has not done it on its
 * connection (*told). Returns the ms until it must be called again, or -1 if another event wakes the
 * helper. */
int gf_fault_tend(struct gf_device *device, bool *told);
void gf_fault_fork_child(void);

#pragma GCC visibility pop
