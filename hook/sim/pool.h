/* pool.h: memory pools; see pool.c. */
#ifndef GFAAS_SIM_POOL_H
#define GFAAS_SIM_POOL_H

#include "sim.h"

#define POOL_CHUNK (32u << 20)    /* what a pool grows by, */
#define POOL_PAGE (2u << 20)      /* unless the device has less left */
#define POOL_GRAIN 512u           /* what allocations are rounded to */

/* A piece of the device that a pool has reserved. */
struct chunk {
    struct chunk *next;
    struct pool *pool;
    CUdeviceptr base;
    size_t size;
};

struct pool {
    struct pool *next; /* of the device */
    struct device *dev;
    bool fixed;        /* the device's own: cannot be destroyed */
    bool destroyed;    /* goes with its last allocation */
    unsigned handle_types;
    uint64_t id;
    int reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES + 1]; /* by attribute */
    uint64_t max, threshold;
    uint64_t reserved, reserved_high, used, used_high;
    struct chunk *chunks;
    bool exported;     /* other processes may import from it */
    bool imported;     /* another process's, the one with this serial in this slot */
    unsigned slot;
    uint64_t serial;
};

struct pool *pool_new(struct device *d);
struct pool *pool_default(struct device *d); /* NULL: no memory for it */
CUresult pool_alloc(struct pool *p, struct stream *s, size_t size, CUdeviceptr *out);
/* Frees an R_POOL range when the stream gets there. */
CUresult pool_free(struct range *r, struct stream *s);
void pool_free_now(struct range *r);
void pool_trim(struct pool *p, uint64_t keep);
void pool_destroy(struct pool *p);
/* What synchronising does: all that is unused above the thresholds goes back. */
void pool_synced(struct device *d);
void pool_release_unused(struct device *d);
void pool_reset(struct device *d); /* when no context is left on it */

#endif
