/* launch.h: a kernel launch as it was asked for; see launch.c. */
#ifndef GFAAS_SIM_LAUNCH_H
#define GFAAS_SIM_LAUNCH_H

#include "sim.h"

struct launch {
    struct func *f;
    unsigned grid[3], block[3], shared;
    bool cooperative;
    const CUlaunchAttribute *attrs; /* as given, cooperative among them or not */
    unsigned nattrs;
    void **params, **extra;
};

CUresult launch_check(const struct launch *l);
uint64_t launch_ns(const struct launch *l); /* of device time */
/* The kernel's parameters, laid out as it reads them: the first `room` bytes. */
CUresult launch_params(const struct launch *l, unsigned char *out, size_t room);

#endif
