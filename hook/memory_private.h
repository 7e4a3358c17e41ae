/* memory_private.h: what the memory_*.c files share among themselves. */
#ifndef GFAAS_MEMORY_PRIVATE_H
#define GFAAS_MEMORY_PRIVATE_H

#include "device.h"
#include "limit.h"
#include "memory.h"
#include "real.h"

#pragma GCC visibility push(hidden)

/* Return the device with that ordinal, and that of the current context, once the daemon has sent the
 * limit. NULL: there is none, and the driver will return an error. Called without a lock. */
struct gf_device *gf_mem_of(CUdevice ordinal);
struct gf_device *gf_mem_here(void);

/* Takes bytes from the limit. If too few are left, trims the pools first. Returns false if there are
 * still too few. Called without a lock of pools or blocks. */
bool gf_mem_take_hard(struct gf_device *d, uint64_t bytes);

/* ---- blocks: the table of what was allocated ---- */

enum gf_block_kind { GF_PLAIN, GF_POOLED, GF_HANDLE, GF_MAPPING, GF_ARRAY, GF_MIPMAP };

struct gf_block {
    enum gf_block_kind kind;
    uint64_t key; /* address or handle, unique in its kind */
    uint64_t size;
    struct gf_device *device; /* size is taken from its limit; NULL: it is not */
    struct gf_device *lent;   /* GF_HANDLE: another process's, of which so much is mapped; NULL: it is not */
    CUcontext context;        /* goes with it; NULL: outlives contexts */
    struct gf_pool *pool;     /* GF_POOLED: where it comes from */
    struct gf_block *of;      /* GF_MAPPING: the memory that is mapped; NULL: not ours */
    bool managed;             /* GF_PLAIN: its pages can be on the host */
    unsigned refs, maps;      /* GF_HANDLE: it lives while either is left */
    struct gf_block *next;
};

/* These take the lock of the table, and must be called without it. */

/* Returns a new block whose bytes are taken from the limit, or NULL. */
struct gf_block *gf_block_reserve(enum gf_block_kind kind, struct gf_device *d, uint64_t bytes);
/* Changes the size of a block that is not in the table, and takes or gives back the difference. Returns
 * false if it is more than the limit leaves. */
bool gf_block_resize(struct gf_block *b, uint64_t bytes);
/* Returns a new block whose bytes are counted elsewhere, or NULL. */
struct gf_block *gf_block_new(enum gf_block_kind kind, uint64_t bytes);
/* Puts the block into the table. If the table has one of that kind and key, that is stale and is dropped. */
void gf_block_put(struct gf_block *b, uint64_t key);
/* Takes a block out of the table before the driver's free, after which the address may be given out
 * again at once. Returns NULL if there is none. gf_block_freed puts it back if the free failed, and
 * drops it if not. */
struct gf_block *gf_block_claim(enum gf_block_kind kind, uint64_t key);
struct gf_block *gf_block_claim_address(CUdeviceptr address); /* GF_PLAIN or GF_POOLED */
/* Gives the block's bytes back and frees it; b may be NULL. */
void gf_block_drop(struct gf_block *b);
void gf_block_freed(struct gf_block *b, CUresult result);

/* For the kinds that need more than that: the lock of the table, and functions that are called with it. */
extern pthread_mutex_t gf_blocks_lock;
struct gf_block *gf_block_find(enum gf_block_kind kind, uint64_t key);
void gf_block_link(struct gf_block *b);
void gf_block_unlink(struct gf_block *b);
/* Returns a block of the kind that covers the address, or NULL. */
struct gf_block *gf_block_around(enum gf_block_kind kind, uint64_t address);

/* These take the lock again. */

/* Takes the blocks of the kind that lie in the range out of the table. Returns false, and takes none, if
 * one lies across an end of the range. */
bool gf_blocks_within(enum gf_block_kind kind, uint64_t at, uint64_t size, struct gf_block **found);
/* Takes the blocks that were made in the context, and in the pool or with NULL in none, out of the table. */
struct gf_block *gf_blocks_of(CUcontext context, struct gf_pool *pool);

/* Address and size. */
struct gf_range { CUdeviceptr at; uint64_t size; };
/* Writes the ranges of the device's managed memory, as many as there is room for, and returns how many
 * there are. */
unsigned gf_blocks_managed(struct gf_device *d, struct gf_range *into, unsigned room);
/* Sets the context of a plain block. Returns false if there is no such block. */
bool gf_block_context(CUdeviceptr address, CUcontext *context);

void gf_blocks_fork_child(void);

/* Notes that a mapping of that memory is gone, and drops the memory's block if it was the last. */
void gf_mapping_gone(struct gf_block *of);

/* ---- pools ---- */

/* A pool of the driver's. All that it reserves counts, used or not, since no other process can have it.
 * Memory of graphs is such a pool too, one a device. */
struct gf_pool {
    struct gf_device *device; /* the device of its memory; NULL: not counted here */
    CUmemoryPool handle;      /* NULL: out of use; its own address: destroyed, but blocks remain */
    bool graphs;              /* has no handle */
    pthread_mutex_t lock;
    uint64_t live;    /* bytes of its blocks */
    uint64_t counted; /* bytes taken from the limit */
    uint64_t needed;  /* bytes of all graphs that may be launched */
    uint64_t past;    /* the most that destroyed graphs may still have: allocated by them, or as they run */
    uint64_t coming;  /* bytes that launches in progress may add */
    unsigned launching;
    uint64_t last;    /* serial of the graph that was launched last; 0: none, or a trim followed */
    uint64_t had;     /* `counted` after that launch */
    bool over;        /* the driver reserved more than the limit left, and the limit is still exceeded */
    struct gf_pool *next;
};

/* Returns the pool of that handle, or NULL. */
struct gf_pool *gf_pool_find(CUmemoryPool handle);
/* Returns the pool of the device's graph memory, or NULL. */
struct gf_pool *gf_pool_of_graphs(struct gf_device *d);
/* Returns the pool with that handle, or a new one like this; NULL: no memory. gf_pool_made is for one
 * that the driver has just made, and retires a pool that had its handle. */
struct gf_pool *gf_pool_make(const struct gf_pool *like);
void gf_pool_made(const struct gf_pool *like);
/* Has the driver destroy the pool, and returns its answer. */
CUresult gf_pool_destroy(struct gf_pool *p);
/* Takes bytes from the limit until that many of the pool are counted. Returns false if too few are left.
 * The caller holds p->lock. */
bool gf_pool_cover(struct gf_pool *p, uint64_t bytes);
/* Counts what the driver reserves for the pool. Returns false if that exceeds the limit; it counts all the
 * same. The caller of the first holds p->lock; the second takes it. */
bool gf_pool_settle(struct gf_pool *p);
void gf_pool_settle_now(struct gf_pool *p);
/* Notes that a block of a pool is gone. Takes p->lock. */
void gf_pool_freed(struct gf_block *b);
/* Settles all pools of the device: they shrink when the program synchronises. With squeeze it trims
 * them first; a pool that is `over` it always trims. Takes the pools' locks. */
void gf_pools_look(struct gf_device *d, bool squeeze);
/* Has the helper settle the device's pools for a while, after a block of one was freed. */
void gf_mem_shrinks(struct gf_device *d);
/* Drops the blocks of a context that went with it. */
void gf_pools_context_gone(CUcontext context);
void gf_pools_fork_child(void);

/* ---- swapping ---- */

/* Reports whether plain memory is to be managed memory. */
bool gf_oversubscribed(void);
/* Moves managed memory to the host once the device has been idle for a while. Returns in how many ms it
 * wants to be called again; -1: when that changes. Called by the helper. */
int gf_swap_tend(struct gf_device *d, bool idle);
void gf_swap_fork_child(void);

#pragma GCC visibility pop
#endif
