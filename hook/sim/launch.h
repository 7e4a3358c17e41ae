/* launch.h: the arguments of a kernel launch; see launch.c. */
#pragma once

#include "sim.h"

struct launch {
    struct func *f;
    unsigned grid[3], block[3], shared;
    bool cooperative;
    const CUlaunchAttribute *attrs; /* as passed, with or without the cooperative attribute */
    unsigned nattrs;
    void **params, **extra;
};

CUresult launch_check(const struct launch *l);
uint64_t launch_ns(const struct launch *l); /* device time */
/* Writes the first `room` bytes of the kernel's parameters, in the kernel's layout. */
CUresult launch_params(const struct launch *l, unsigned char *out, size_t room);
