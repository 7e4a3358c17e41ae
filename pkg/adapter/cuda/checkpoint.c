#include "checkpoint.h"
#include "shim.h"

#include <dlfcn.h>
#include <stdlib.h>

/* The functions of the driver that are called, by their symbols. */
#define CALLS(X)                                                                           \
    X(cuInit) X(cuCheckpointProcessGetState) X(cuCheckpointProcessLock)                    \
    X(cuCheckpointProcessCheckpoint) X(cuCheckpointProcessRestore) X(cuCheckpointProcessUnlock)

struct checkpoints {
#define MEMBER(name) __typeof__(name) *name;
    CALLS(MEMBER)
#undef MEMBER
};

static bool load(checkpoints *c, const char *path, char **why)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* and stays: drivers have threads of their own */
    if (!library)
        return shim_say(why, "%s", dlerror());
#define LOAD(name)                                       \
    if (!(*(void **)&c->name = dlsym(library, #name)))   \
        return shim_say(why, "%s has no %s: drivers from 570 on do", path, #name);
    CALLS(LOAD)
#undef LOAD
    CUresult r = c->cuInit(0);
    return r == CUDA_SUCCESS || shim_say(why, "start of the driver: %s", shim_text(r));
}

checkpoints *checkpoints_open(const char *path, char **why)
{
    checkpoints *c = calloc(1, sizeof *c);
    *why = NULL;
    if (c && load(c, path, why))
        return c;
    free(c);
    return NULL;
}

CUresult checkpoints_state(const checkpoints *c, int pid, CUprocessState *state)
{
    return c->cuCheckpointProcessGetState(pid, state);
}

CUresult checkpoints_lock(const checkpoints *c, int pid, unsigned ms)
{
    CUcheckpointLockArgs args = {.timeoutMs = ms};
    return c->cuCheckpointProcessLock(pid, &args);
}

CUresult checkpoints_save(const checkpoints *c, int pid)
{
    return c->cuCheckpointProcessCheckpoint(pid, NULL);
}

CUresult checkpoints_restore(const checkpoints *c, int pid)
{
    return c->cuCheckpointProcessRestore(pid, NULL);
}

CUresult checkpoints_unlock(const checkpoints *c, int pid)
{
    return c->cuCheckpointProcessUnlock(pid, NULL);
}
