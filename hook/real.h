/* real.h: the driver and the addresses of its functions. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* The driver's own functions, by exported name. A function that the driver lacks returns
 * CUDA_ERROR_NOT_SUPPORTED. Valid after gf_boot. */
struct gf_driver {
#define CU_SYMBOL(symbol, since, hook, params, args) CUresult(*symbol) params;
#include "symbols.def"
};
extern struct gf_driver gf_real;

/* Opens the driver once. Returns false if there is none, or none yet. It may be called with the
 * loader's lock held, and takes no other lock. */
bool gf_boot(void);
/* Returns the driver's function at that offset of gf_real, or NULL if the driver lacks it. Valid after
 * gf_boot. */
void *gf_real_at(size_t offset);

extern __thread bool gf_booting GF_TLS; /* this thread is opening the driver */

/* Define gated functions that run `action`, which may use the parameters, before the call of the driver's
 * function, and after it if it succeeded. */
#define GF_BEFORE(symbol, params, args, action) \
    CUresult symbol params \
    { \
        action; \
        return gf_real.symbol args; \
    }
#define GF_AFTER(symbol, params, args, action) \
    CUresult symbol params \
    { \
        CUresult result = gf_real.symbol args; \
        if (result == CUDA_SUCCESS) { \
            action; \
        } \
        return result; \
    }

#pragma GCC visibility pop
