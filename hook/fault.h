/* fault.h: the error after which a process cannot use CUDA any more. */
#ifndef GFAAS_FAULT_H
#define GFAAS_FAULT_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Notes the error of a call if it ends the process's use of CUDA, and returns when the
 * daemon has been told, or after two seconds. Called without a lock. */
GF_COLD void gf_saw_error(CUresult result, const char *call);
static inline void gf_saw(CUresult result, const char *call)
{
    if (gf_unlikely(result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY))
        gf_saw_error(result, call);
}
/* Notes the result of a call of the library's own, and returns it. It never waits, and takes no
 * lock. */
CUresult gf_fault_watch(CUresult result);
/* Reports the fault to the daemon if this device's helper is to do so and has not yet on
 * its connection (told). Returns after how many ms it must be called again; -1: when the
 * helper wakes for another reason. */
int gf_fault_tend(struct gf_device *device, bool *told);
void gf_fault_fork_child(void);

#pragma GCC visibility pop
#endif
