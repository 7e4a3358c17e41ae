/* memory_pool.c: the pools of stream-ordered allocation.
 *
 * A pool grows by more than a request and keeps freed memory. So the pool itself counts: the bytes that
 * the driver reports as reserved, read after each change, and never less than its live blocks.
 *
 * The driver chooses how much a pool grows. If that exceeds the limit, it is counted nevertheless, so
 * that no other process gets the memory. The allocation is freed again and refused, and so are all later
 * allocations from the pool until it has returned the excess. It does so when the stream has reached the
 * free, so the pool is trimmed at every count. */
#include "memory_private.h"

#include <stdlib.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gf_pool *pools; /* entries are only added, so the list can be walked without the lock */

static struct gf_pool *first(void) { return __atomic_load_n(&pools, __ATOMIC_ACQUIRE); }

struct gf_pool *gf_pool_find(CUmemoryPool handle)
{
    struct gf_pool *p = first();
    while (p && (p->graphs || gf_load(&p->handle) != handle))
        p = p->next;
    return p;
}

struct gf_pool *gf_pool_of_graphs(struct gf_device *d)
{
    struct gf_pool *p = first();
    while (p && (!p->graphs || p->device != d))
        p = p->next;
    return p;
}

/* Returns an unused pool of the device for the new handle, or NULL. A pool's device never changes, so
 * it is read without the pool's lock. */
static struct gf_pool *reuse(const struct gf_pool *like)
{
    for (struct gf_pool *p = first(); p; p = p->next) {
        if (p->graphs || p->device != like->device || gf_load(&p->handle))
            continue;
        pthread_mutex_lock(&p->lock); /* a failed gf_pool_destroy may restore the handle */
        bool free = !p->handle;
        if (free)
            gf_store(&p->handle, like->handle);
        pthread_mutex_unlock(&p->lock);
        if (free)
            return p;
    }
    return NULL;
}

static struct gf_pool *add(const struct gf_pool *like)
{
    struct gf_pool *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    pthread_mutex_init(&p->lock, NULL);
    p->device = like->device;
    p->graphs = like->graphs;
    p->handle = like->handle;
    p->next = pools;
    __atomic_store_n(&pools, p, __ATOMIC_RELEASE);
    return p;
}

struct gf_pool *gf_pool_make(const struct gf_pool *like)
{
    pthread_mutex_lock(&list_lock);
    struct gf_pool *p = like->graphs ? gf_pool_of_graphs(like->device) : gf_pool_find(like->handle);
    if (!p && !like->graphs)
        p = reuse(like);
    if (!p)
        p = add(like);
    pthread_mutex_unlock(&list_lock);
    return p;
}

/* Reports whether the pool is destroyed. */
static bool is_destroyed(const struct gf_pool *p)
{
    return !p->graphs && (!p->handle || p->handle == (CUmemoryPool)p);
}

/* Returns the bytes that the driver reserves for the pool. Querying them while a stream is captured would
 * invalidate the capture, unless the thread's capture mode is relaxed. */
static uint64_t reserved(struct gf_pool *p)
{
    cuuint64_t bytes = 0;
    CUresult result;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (is_destroyed(p))
        return 0;
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    if (p->graphs)
        result = gf_real.cuDeviceGetGraphMemAttribute((CUdevice)gf_ordinal(p->device), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes);
    else
        result = gf_real.cuMemPoolGetAttribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    return result == CUDA_SUCCESS ? bytes : 0;
}

bool gf_pool_cover(struct gf_pool *p, uint64_t bytes)
{
    if (bytes <= p->counted)
        return true;
    if (!gf_mem_charge(p->device, bytes - p->counted))
        return false;
    p->counted = bytes;
    return true;
}

bool gf_pool_recount(struct gf_pool *p)
{
    if (!p->device)
        return true;
    uint64_t held = reserved(p);
    if (held < p->live)
        held = p->live;
    if (!gf_pool_cover(p, held + p->pending_bytes) && held > p->counted) {
        gf_mem_force_charge(p->device, held - p->counted);
        p->counted = held;
        p->over_limit = true;
    }
    held += p->pending_bytes;
    if (held < p->counted) {
        gf_mem_uncharge(p->device, p->counted - held);
        p->counted = held;
    }
    if (p->destroyed_bytes > p->counted)
        p->destroyed_bytes = p->counted;
    p->over_limit = p->over_limit && gf_mem_over_limit(p->device);
    return !p->over_limit;
}

void gf_pool_lock_and_recount(struct gf_pool *p)
{
    pthread_mutex_lock(&p->lock);
    gf_pool_recount(p);
    pthread_mutex_unlock(&p->lock);
}

/* Removes the pool's handle; the entry stays in use while blocks remain. The caller holds p->lock. */
static void retire(struct gf_pool *p) { gf_store(&p->handle, p->live ? (CUmemoryPool)p : NULL); }

void gf_pool_made(const struct gf_pool *like)
{
    struct gf_pool *old = gf_pool_find(like->handle);
    if (old) {
        pthread_mutex_lock(&old->lock);
        retire(old);
        gf_pool_recount(old);
        pthread_mutex_unlock(&old->lock);
    }
    gf_pool_make(like);
}

CUresult gf_pool_destroy(struct gf_pool *p)
{
    pthread_mutex_lock(&p->lock);
    CUmemoryPool handle = p->handle;
    retire(p); /* the driver may reuse the handle at once */
    CUresult result = gf_real.cuMemPoolDestroy(handle);
    if (result != CUDA_SUCCESS)
        gf_store(&p->handle, handle);
    gf_pool_recount(p);
    pthread_mutex_unlock(&p->lock);
    return result;
}

void gf_pool_freed(struct gf_block *b)
{
    struct gf_pool *p = b->pool;
    pthread_mutex_lock(&p->lock);
    p->live -= b->size;
    bool destroyed = is_destroyed(p);
    if (destroyed) {
        gf_pool_recount(p);
        retire(p);
    }
    pthread_mutex_unlock(&p->lock);
    if (!destroyed)
        gf_mem_expect_shrink(p->device);
}

static void trim(struct gf_pool *p)
{
    if (p->graphs) {
        p->last = 0;
        gf_real.cuDeviceGraphMemTrim((CUdevice)gf_ordinal(p->device));
    } else if (!is_destroyed(p)) {
        gf_real.cuMemPoolTrimTo(p->handle, 0);
    }
}

void gf_pools_recount(struct gf_device *d, bool trim_all)
{
    /* Relaxed, so that captures of other threads stay valid. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    for (struct gf_pool *p = first(); p; p = p->next) {
        if (p->device != d)
            continue;
        pthread_mutex_lock(&p->lock);
        if ((trim_all || p->over_limit) && p->counted > p->live)
            trim(p);
        bool done = gf_pool_recount(p) || p->counted == p->live;
        pthread_mutex_unlock(&p->lock);
        if (!done)
            gf_mem_expect_shrink(d);
    }
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
}

/* Pools outlive contexts. If the driver nevertheless reserves less than the live blocks, the blocks
 * of the context were freed with it. */
void gf_pools_context_destroyed(CUcontext context)
{
    for (struct gf_pool *p = first(); p; p = p->next) {
        if (!p->device)
            continue;
        pthread_mutex_lock(&p->lock);
        struct gf_block *lost = reserved(p) < p->live && !is_destroyed(p) ? gf_blocks_of(context, p) : NULL;
        for (struct gf_block *next; lost; lost = next) {
            next = lost->next;
            p->live -= lost->size;
            free(lost);
        }
        gf_pool_recount(p);
        pthread_mutex_unlock(&p->lock);
    }
}

void gf_pools_fork_child(void)
{
    pthread_mutex_init(&list_lock, NULL);
    pools = NULL; /* these are the parent's */
}
