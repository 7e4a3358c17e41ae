/* memory_private.h: the declarations that the memory_*.c files share. */
#pragma once

#include "device.h"
#include "limit.h"
#include "memory.h"
#include "real.h"

#pragma GCC visibility push(hidden)

/* gf_mem_device returns the device with that ordinal, and gf_mem_current_device that of the current
 * context. They first wait until the daemon has sent the limit. They return NULL if there is no such
 * device, and then the driver will return an error. Called without a lock. */
struct gf_device *gf_mem_device(CUdevice ordinal);
struct gf_device *gf_mem_current_device(void);

/* Adds bytes to the account. If that exceeds the limit, it trims the pools and tries again. Returns
 * false, and adds nothing, if the limit is still exceeded. Called without a lock of pools or blocks. */
bool gf_mem_charge_or_trim(struct gf_device *d, uint64_t bytes);

/* ---- blocks: the table of allocations ---- */

enum gf_block_kind { GF_PLAIN, GF_POOLED, GF_HANDLE, GF_MAPPING, GF_ARRAY, GF_MIPMAP };

struct gf_block {
    enum gf_block_kind kind;
    uint64_t key; /* address or handle, unique within the kind */
    uint64_t size;
    struct gf_device *device; /* the device whose account has `size`; NULL: none */
    struct gf_device *lent;   /* GF_HANDLE of another process: the device on which `size` bytes are mapped; NULL: own memory */
    CUcontext context;        /* its memory is freed with this context; NULL: it outlives contexts */
    struct gf_pool *pool;     /* GF_POOLED: the pool it was allocated from */
    struct gf_block *of;      /* GF_MAPPING: the mapped memory; NULL: not counted by this library */
    bool managed;             /* GF_PLAIN: its pages can be on the host */
    unsigned refs, maps;      /* GF_HANDLE: the block lives while either is not 0 */
    struct gf_block *next;
};

/* The following functions take the lock of the table; the caller does not hold it. */

/* Returns a new block whose bytes are in the account, or NULL. */
struct gf_block *gf_block_reserve(enum gf_block_kind kind, struct gf_device *d, uint64_t bytes);
/* Changes the size of a block that is not in the table, and adjusts the account. Returns false if
 * the new size exceeds the limit. */
bool gf_block_resize(struct gf_block *b, uint64_t bytes);
/* Returns a new block whose bytes are counted elsewhere, or NULL if out of memory. */
struct gf_block *gf_block_new(enum gf_block_kind kind, uint64_t bytes);
/* Adds the block to the table. An entry with the same kind and key is stale and is dropped. */
void gf_block_put(struct gf_block *b, uint64_t key);
/* Removes a block from the table, before the driver's free, after which the address may be in use
 * again at once. Returns NULL if there is none. gf_block_freed drops it, or puts it back if the free
 * failed. */
struct gf_block *gf_block_claim(enum gf_block_kind kind, uint64_t key);
struct gf_block *gf_block_claim_address(CUdeviceptr address); /* GF_PLAIN or GF_POOLED */
/* Frees the block and removes its bytes from the account; b may be NULL. */
void gf_block_drop(struct gf_block *b);
void gf_block_freed(struct gf_block *b, CUresult result);
/* Defines a gated function that frees the memory of the block that the expression `claim` returns. */
#define GF_FREE(symbol, params, args, claim) \
    CUresult symbol params \
    { \
        struct gf_block *b = claim; \
        CUresult result = gf_real.symbol args; \
        gf_block_freed(b, result); \
        return result; \
    }

/* For the kinds that need more: the lock of the table, and functions whose caller holds it. */
extern pthread_mutex_t gf_blocks_lock;
struct gf_block *gf_block_find(enum gf_block_kind kind, uint64_t key);
void gf_block_link(struct gf_block *b);
void gf_block_unlink(struct gf_block *b);
/* Returns a block of the kind that covers the address, or NULL. */
struct gf_block *gf_block_around(enum gf_block_kind kind, uint64_t address);

/* The following functions take the lock; the caller does not hold it. */

/* Removes from the table the blocks of the kind that lie in the range. Returns false, and removes
 * none, if a block crosses an end of the range. */
bool gf_blocks_within(enum gf_block_kind kind, uint64_t at, uint64_t size, struct gf_block **found);
/* Removes from the table the blocks created in the context and in the pool (NULL: in no pool). */
struct gf_block *gf_blocks_of(CUcontext context, struct gf_pool *pool);

/* Address and size. */
struct gf_range { CUdeviceptr at; uint64_t size; };
/* Writes up to `room` ranges of the device's managed memory, and returns the number of all ranges. */
unsigned gf_blocks_managed(struct gf_device *d, struct gf_range *into, unsigned room);
/* Sets *context to the context of a plain block. Returns false if there is no such block. */
bool gf_block_context(CUdeviceptr address, CUcontext *context);

void gf_blocks_fork_child(void);

/* Notes that a mapping of that memory was removed, and drops the memory's block after the last mapping. */
void gf_mapping_removed(struct gf_block *of);

/* ---- pools ---- */

/* A memory pool of the driver. All memory that it reserves counts, used or not, since no other process
 * can have it. The memory of graphs is such a pool too, one per device. */
struct gf_pool {
    struct gf_device *device; /* the device of its memory; NULL: not counted here */
    CUmemoryPool handle;      /* NULL: unused entry; its own address: destroyed, but blocks remain */
    bool graphs;              /* the pool of graph memory, which has no handle */
    pthread_mutex_t lock;
    uint64_t live;            /* bytes of its blocks */
    uint64_t counted;         /* bytes in the account */
    uint64_t needed;          /* bytes of all graphs that may be launched */
    uint64_t destroyed_bytes; /* the most bytes that destroyed graphs may still hold */
    uint64_t pending_bytes;   /* bytes that launches in progress may add */
    unsigned launching;       /* number of launches in progress */
    uint64_t last;            /* serial of the graph launched last; 0: none, or a trim followed */
    uint64_t counted_after_last; /* `counted` after that launch */
    bool over_limit; /* the driver reserved more than the limit allows, and the limit is still exceeded */
    struct gf_pool *next;
};

/* Returns the pool with that handle, or NULL. */
struct gf_pool *gf_pool_find(CUmemoryPool handle);
/* Returns the pool of the device's graph memory, or NULL if there is none yet. */
struct gf_pool *gf_pool_of_graphs(struct gf_device *d);
/* gf_pool_make returns the pool with the handle of `like`, or a new pool; NULL if out of memory.
 * gf_pool_made adds a pool that the driver has just created. An older pool with the same handle must have
 * been destroyed, so gf_pool_made first removes its handle. */
struct gf_pool *gf_pool_make(const struct gf_pool *like);
void gf_pool_made(const struct gf_pool *like);
/* Destroys the pool and returns the driver's answer. */
CUresult gf_pool_destroy(struct gf_pool *p);
/* Raises the pool's counted bytes to `bytes`. Returns false if that exceeds the limit. The caller holds
 * p->lock. */
bool gf_pool_cover(struct gf_pool *p, uint64_t bytes);
/* Counts the bytes that the driver reserves for the pool again. Returns false if they exceed the limit;
 * they are counted nevertheless. The caller of gf_pool_recount holds p->lock; gf_pool_lock_and_recount
 * takes it. */
bool gf_pool_recount(struct gf_pool *p);
void gf_pool_lock_and_recount(struct gf_pool *p);
/* Notes that a block of a pool was freed. Takes p->lock. */
void gf_pool_freed(struct gf_block *b);
/* Counts all pools of the device again, since they shrink when the program synchronizes. It first trims
 * the pools that are over the limit or, if trim_all is true, all pools. Takes the pools' locks. */
void gf_pools_recount(struct gf_device *d, bool trim_all);
/* Makes the helper recount the device's pools for a while. Called after a block of a pool was freed. */
void gf_mem_expect_shrink(struct gf_device *d);
/* Drops the blocks of a destroyed context. */
void gf_pools_context_destroyed(CUcontext context);
void gf_pools_fork_child(void);

/* ---- swapping ---- */

/* Reports whether plain allocations become managed memory. */
bool gf_oversubscribed(void);
/* Returns the limit of the device's account, in bytes (0: none). If an oversubscribed instance has no limit, the
 * device's memory is its limit: otherwise it could fill the memory of the host. */
uint64_t gf_swap_limit(struct gf_device *d);
/* Moves managed memory to the host once the device has been idle for a while. Returns the ms until it
 * must be called again, or -1 if there is nothing to do until the device is used. The helper calls it. */
int gf_swap_maintain(struct gf_device *d, bool idle);
void gf_swap_fork_child(void);

#pragma GCC visibility pop
