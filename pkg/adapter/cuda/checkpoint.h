#ifndef GFAAS_CUDA_CHECKPOINT_H
#define GFAAS_CUDA_CHECKPOINT_H

#define CUDA_EXACT_NAMES
#include "cuda.h"
#include "headers.h"

/* The driver's checkpoints of other processes. */
typedef struct checkpoints checkpoints;

/* NULL with *why set, to be freed. */
checkpoints *checkpoints_open(const char *path, char **why);
CUresult checkpoints_state(const checkpoints *c, int pid, CUprocessState *state);
CUresult checkpoints_lock(const checkpoints *c, int pid, unsigned ms);
CUresult checkpoints_save(const checkpoints *c, int pid);
CUresult checkpoints_restore(const checkpoints *c, int pid);
CUresult checkpoints_unlock(const checkpoints *c, int pid);

#endif
