/* managed.h: managed memory; see managed.c. */
#ifndef GFAAS_SIM_MANAGED_H
#define GFAAS_SIM_MANAGED_H

#include "sim.h"

#define ON_HOST (-1) /* CU_DEVICE_CPU */
#define NOWHERE (-2) /* CU_DEVICE_INVALID */

/* A part of a managed allocation of which the same is true. */
struct stretch {
    struct stretch *next;
    CUdeviceptr base;
    size_t size;
    int on;          /* the device where it is, as this process counts, or ON_HOST */
    uint64_t used;   /* when it was last used there, by a counter */
    int preferred, prefetched; /* a device, ON_HOST or NOWHERE */
    bool read_mostly;
    uint32_t accessed; /* bit N: by device N; HOST_BIT: by the host */
};
#define HOST_BIT (1u << 31)

CUresult managed_alloc(struct ctx *c, CUdeviceptr *out, size_t size, unsigned flags);
void managed_release(struct range *r);
/* Brings [p, p+n) to a device or to the host, as far as there is room. */
void managed_place(struct range *r, CUdeviceptr p, size_t n, int where);
/* Makes room for that much on a device, or for less; false when it cannot. */
bool managed_evict(struct device *d, size_t bytes);
/* The first stretch of [p, p+n), cut so that stretches begin and end there with
 * the pages; NULL when there is no memory for that. */
struct stretch *managed_cut(struct range *r, CUdeviceptr p, size_t n);
void managed_join(struct range *r);
/* The managed range that holds all of [p, p+n), or NULL. */
struct range *managed_find(CUdeviceptr p, size_t n);
/* Where a location is: a device or ON_HOST; and a location by the old numbers. */
CUresult managed_where(const CUmemLocation *l, int *where);
CUmemLocation managed_location(CUdevice dev);

#endif
