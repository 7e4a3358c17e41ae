/* real.h: the driver, and the addresses of its functions. */
#ifndef GFAAS_REAL_H
#define GFAAS_REAL_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* The driver's own functions, by exported name; a function that the driver
 * lacks answers CUDA_ERROR_NOT_SUPPORTED. Valid after gf_boot. */
struct gf_driver {
#define GF_FIELD_NONE(name, params)
#define GF_FIELD_PTSZ(name, params) CUresult(*name##_ptsz) params;
#define GF_FIELD_PTDS(name, params) CUresult(*name##_ptds) params;
#define CU(name, since, variant, hook, sim, stream, params, args) \
    CUresult(*name) params; \
    GF_FIELD_##variant(name, params)
#include "symbols.def"
};
extern struct gf_driver gf_real;

/* Opens the driver, once. Returns false if there is none, or none yet. It may be called
 * under the loader's lock, and takes no other. */
bool gf_boot(void);
/* Returns the driver's address of that symbol, or NULL. */
void *gf_real_find(const char *symbol);

extern __thread bool gf_booting GF_TLS; /* this thread is inside the opening of the driver */

#pragma GCC visibility pop
#endif
