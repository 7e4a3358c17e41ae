/* pool.h: memory pools; see pool.c. */
#pragma once

#include "sim.h"

#define POOL_CHUNK (32u << 20)    /* size of chunks */
#define POOL_PAGE (2u << 20)      /* granularity of smaller chunks, if the device has less memory left */
#define POOL_GRAIN 512u           /* granularity of allocations */

/* A piece of device memory that a pool has reserved. */
struct chunk {
    struct chunk *next;
    struct pool *pool;
    CUdeviceptr base;
    size_t size;
};

struct pool {
    struct pool *next; /* in the device's list */
    struct device *dev;
    bool fixed;        /* the device's default pool, which cannot be destroyed */
    bool destroyed;    /* freed after its last allocation */
    unsigned handle_types;
    uint64_t id;
    int reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES + 1]; /* by attribute */
    uint64_t max, threshold;
    uint64_t reserved, reserved_high, used, used_high;
    struct chunk *chunks;
    bool exported;     /* other processes may import from it */
    bool imported;     /* the pool of the process with this serial in this slot */
    unsigned slot;
    uint64_t serial;
};

struct pool *pool_new(struct device *d);
struct pool *pool_default(struct device *d); /* NULL: out of memory */
CUresult pool_alloc(struct pool *p, struct stream *s, size_t size, CUdeviceptr *out);
/* Frees an R_POOL range when the stream reaches the call. */
CUresult pool_free(struct range *r, struct stream *s);
void pool_free_now(struct range *r);
void pool_trim(struct pool *p, uint64_t keep);
void pool_destroy(struct pool *p);
/* Performs a synchronization's part: frees unused memory above the thresholds. */
void pool_synced(struct device *d);
void pool_release_unused(struct device *d);
void pool_reset(struct device *d); /* after its last context */
