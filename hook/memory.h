/* memory.h: what the files of the memory limit share.
 *
 *   memory.c        what is held of each limit
 *   memory_block.c  the table of what was allocated
 *   memory_info.c   what programs are told of free and total memory
 *   memory_plain.c  cuMemAlloc and its kin, managed memory
 *   memory_pool.c   pools, which count what they reserve
 *   memory_async.c  stream-ordered allocation from pools
 *   memory_graph.c  memory nodes of graphs, a pool of the driver's own
 *   memory_vmm.c    physical memory that is created, mapped and released
 *   memory_array.c  arrays and mipmapped arrays
 *   memory_swap.c   oversubscription: what idles goes to the host
 *
 * Not counted: pinned host memory, memory of other processes that is opened
 * here (IPC, imported handles and pools: its maker counts it), and what the
 * driver allocates itself for contexts and modules, their global variables
 * with them, which the daemon sees and may add (mem_foreign). */
#ifndef GFAAS_MEMORY_H
#define GFAAS_MEMORY_H

#include "hook.h"

/* A device, and that of the current context, once the daemon has said what its
 * limit is. NULL: there is none, and the driver will say so. */
struct gf_device *gf_mem_of(CUdevice ordinal);
struct gf_device *gf_mem_here(void);

/* Its limit, 0 when there is none, and what all processes together hold. */
uint64_t gf_mem_limit(struct gf_device *d);
uint64_t gf_mem_used_by_all(struct gf_device *d);

/* Takes bytes from the limit, or says that they are too many. */
bool gf_mem_take(struct gf_device *d, uint64_t bytes);
void gf_mem_give(struct gf_device *d, uint64_t bytes);
/* Takes what the driver has reserved already, be it too much: then nothing more is to be had. */
void gf_mem_force(struct gf_device *d, uint64_t bytes);
/* Whether more is held than the limit. */
bool gf_mem_over(struct gf_device *d);
/* Says how much of what is held is on the host. */
void gf_mem_park(struct gf_device *d, uint64_t bytes);
/* Says that so much more, or less, of others' memory is mapped here. */
void gf_mem_import(struct gf_device *d, int64_t bytes);
/* Takes, but first has the pools let go what they keep unused, if need be. */
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

/* A block whose bytes are taken from the limit, or NULL. */
struct gf_block *gf_block_reserve(enum gf_block_kind kind, struct gf_device *d, uint64_t bytes);
/* Takes what it misses to that many bytes, or gives back what it has more. */
bool gf_block_resize(struct gf_block *b, uint64_t bytes);
/* A block whose bytes are somebody else's to count, or NULL. */
struct gf_block *gf_block_new(enum gf_block_kind kind, uint64_t bytes);
/* Puts it into the table. A block of that kind and key that is there is stale:
 * it goes. */
void gf_block_put(struct gf_block *b, uint64_t key);
/* Takes it out of the table, before the driver's free: after it the address may
 * be given out again at once. NULL: there is none. A free that fails puts it
 * back. */
struct gf_block *gf_block_claim(enum gf_block_kind kind, uint64_t key);
struct gf_block *gf_block_claim_address(CUdeviceptr address); /* plain or of a pool */
/* Gives its bytes back and frees it; NULL is nothing. */
void gf_block_drop(struct gf_block *b);
/* The end of a free that was claimed. */
void gf_block_freed(struct gf_block *b, CUresult result);

/* For the kinds that need more than that: the table, and its lock. */
extern pthread_mutex_t gf_blocks_lock;
struct gf_block *gf_block_find(enum gf_block_kind kind, uint64_t key);
void gf_block_link(struct gf_block *b);
void gf_block_unlink(struct gf_block *b);
/* Some block of the kind that covers the address. */
struct gf_block *gf_block_around(enum gf_block_kind kind, uint64_t address);
/* Takes the blocks of the kind out of the table that lie in the range. False: one
 * lies across an end of it, and all stay. */
bool gf_blocks_within(enum gf_block_kind kind, uint64_t at, uint64_t size, struct gf_block **found);
/* Takes the blocks out of the table that were made in the context, and in the
 * pool, or in none. */
struct gf_block *gf_blocks_of(CUcontext context, struct gf_pool *pool);

/* Address and size. */
struct gf_range { CUdeviceptr at; uint64_t size; };
/* What of the device is managed memory: writes as many as there is room for and
 * returns how many there are. */
unsigned gf_blocks_managed(struct gf_device *d, struct gf_range *into, unsigned room);
/* The context of a plain block; false: there is no such block. */
bool gf_block_context(CUdeviceptr address, CUcontext *context);

void gf_blocks_fork_child(void);

/* A mapping of that memory is gone. */
void gf_mapping_gone(struct gf_block *of);

/* ---- pools ---- */

/* What a pool of the driver's reserves counts, used or not: it is memory that
 * nobody else can have. Memory of graphs is such a pool too, one a device. */
struct gf_pool {
    struct gf_device *device; /* whose memory it is; NULL: not counted here */
    CUmemoryPool handle;      /* NULL: out of use; its own address: destroyed, but blocks are left */
    bool graphs;              /* has no handle */
    pthread_mutex_t lock;
    uint64_t live;    /* bytes of its blocks */
    uint64_t counted; /* bytes taken from the limit */
    uint64_t needed;  /* bytes of all graphs that may be launched */
    uint64_t past;    /* the most that destroyed ones may have still: allocated by them, or as they run */
    uint64_t coming;  /* bytes that launches now under way may add */
    unsigned launching;
    uint64_t last;    /* which graph was launched last; 0: none, or something was trimmed since */
    uint64_t had;     /* what was counted when it was */
    bool over;        /* the driver reserved more than was left, and there is less than nothing left still */
    struct gf_pool *next;
};

/* The pool of that handle; NULL: it is not known. */
struct gf_pool *gf_pool_find(CUmemoryPool handle);
/* Graph memory of the device. */
struct gf_pool *gf_pool_of_graphs(struct gf_device *d);
/* Makes a pool known like this one. NULL: no memory. The second is for one that
 * the driver has just made: a pool that had its handle is gone. */
struct gf_pool *gf_pool_make(const struct gf_pool *like);
void gf_pool_made(const struct gf_pool *like);
CUresult gf_pool_destroy(struct gf_pool *p);
/* Takes what is missing until that much of the pool is counted. Locked. */
bool gf_pool_cover(struct gf_pool *p, uint64_t bytes);
/* Counts what the driver says it reserves. False: it is more than there is, which
 * counts too. The first is for who holds the lock. */
bool gf_pool_settle(struct gf_pool *p);
void gf_pool_settle_now(struct gf_pool *p);
/* A block of a pool is gone. */
void gf_pool_freed(struct gf_block *b);
/* Settles all pools of the device: they shrink when the program synchronises.
 * With squeeze they are first made to let go what they do not use, as is one that
 * is over. */
void gf_pools_look(struct gf_device *d, bool squeeze);
/* Something was freed in a pool of the device: look at it for a while. */
void gf_mem_shrinks(struct gf_device *d);
void gf_pools_context_gone(CUcontext context);
void gf_pools_fork_child(void);

/* ---- swapping ---- */

/* Whether plain memory is to be managed memory. */
bool gf_oversubscribed(void);
/* Moves what is managed out once the device has been idle for a while. Returns
 * in how many ms it wants to be asked again; -1: when that changes. */
int gf_swap_tend(struct gf_device *d, bool idle);
void gf_swap_fork_child(void);

#endif
