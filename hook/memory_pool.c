/* memory_pool.c: the pools of stream-ordered allocation. A pool grows by more
 * than it is asked for and keeps what is freed, so it is the pool that counts:
 * what the driver says it reserves, read back after each change, and never less
 * than what is allocated from it.
 *
 * How much a pool grows is the driver's choice. Where it turns out to be more
 * than is left, it counts all the same, so that nobody gets more; the allocation is
 * freed again and refused, and so are all others of the pool until it has let go of
 * what is too much. That it does once the stream has come to the free: it is trimmed
 * whenever it is looked at. */
#include "memory_private.h"

#include <stdlib.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gf_pool *pools; /* only ever added to: it can be walked without the lock */

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

/* Takes a pool of the device that is out of use, or returns NULL. Whose memory a
 * pool is never changes: that is looked at without its lock. */
static struct gf_pool *reuse(const struct gf_pool *like)
{
    for (struct gf_pool *p = first(); p; p = p->next) {
        if (p->graphs || p->device != like->device || gf_load(&p->handle))
            continue;
        pthread_mutex_lock(&p->lock); /* who destroys it may yet be refused */
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

static bool is_gone(const struct gf_pool *p)
{
    return !p->graphs && (!p->handle || p->handle == (CUmemoryPool)p);
}

/* To ask for it while a stream is captured invalidates the capture, unless the
 * thread's capture mode is relaxed. */
static uint64_t reserved(struct gf_pool *p)
{
    cuuint64_t bytes = 0;
    CUresult result;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (is_gone(p))
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
    if (!gf_mem_take(p->device, bytes - p->counted))
        return false;
    p->counted = bytes;
    return true;
}

bool gf_pool_settle(struct gf_pool *p)
{
    if (!p->device)
        return true;
    uint64_t held = reserved(p);
    if (held < p->live)
        held = p->live;
    if (!gf_pool_cover(p, held + p->coming) && held > p->counted) {
        gf_mem_force(p->device, held - p->counted);
        p->counted = held;
        p->over = true;
    }
    held += p->coming;
    if (held < p->counted) {
        gf_mem_give(p->device, p->counted - held);
        p->counted = held;
    }
    if (p->past > p->counted)
        p->past = p->counted;
    p->over = p->over && gf_mem_over(p->device);
    return !p->over;
}

void gf_pool_settle_now(struct gf_pool *p)
{
    pthread_mutex_lock(&p->lock);
    gf_pool_settle(p);
    pthread_mutex_unlock(&p->lock);
}

/* It has no handle any more: it is gone but for its blocks. Locked. */
static void retire(struct gf_pool *p) { gf_store(&p->handle, p->live ? (CUmemoryPool)p : NULL); }

void gf_pool_made(const struct gf_pool *like)
{
    struct gf_pool *old = gf_pool_find(like->handle);
    if (old) {
        pthread_mutex_lock(&old->lock);
        retire(old);
        gf_pool_settle(old);
        pthread_mutex_unlock(&old->lock);
    }
    gf_pool_make(like);
}

CUresult gf_pool_destroy(struct gf_pool *p)
{
    pthread_mutex_lock(&p->lock);
    CUmemoryPool handle = p->handle;
    retire(p); /* the driver may give the handle out again at once */
    CUresult result = gf_real.cuMemPoolDestroy(handle);
    if (result != CUDA_SUCCESS)
        gf_store(&p->handle, handle);
    gf_pool_settle(p);
    pthread_mutex_unlock(&p->lock);
    return result;
}

void gf_pool_freed(struct gf_block *b)
{
    struct gf_pool *p = b->pool;
    pthread_mutex_lock(&p->lock);
    p->live -= b->size;
    bool gone = is_gone(p);
    if (gone) {
        gf_pool_settle(p);
        retire(p);
    }
    pthread_mutex_unlock(&p->lock);
    if (!gone)
        gf_mem_shrinks(p->device);
}

static void trim(struct gf_pool *p)
{
    if (p->graphs) {
        p->last = 0;
        gf_real.cuDeviceGraphMemTrim((CUdevice)gf_ordinal(p->device));
    } else if (!is_gone(p)) {
        gf_real.cuMemPoolTrimTo(p->handle, 0);
    }
}

void gf_pools_look(struct gf_device *d, bool squeeze)
{
    /* Relaxed, so that other threads' captures stay valid: nothing here is part of one. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    for (struct gf_pool *p = first(); p; p = p->next) {
        if (p->device != d)
            continue;
        pthread_mutex_lock(&p->lock);
        if ((squeeze || p->over) && p->counted > p->live)
            trim(p);
        bool done = gf_pool_settle(p) || p->counted == p->live;
        pthread_mutex_unlock(&p->lock);
        if (!done)
            gf_mem_shrinks(d);
    }
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
}

/* Pools outlive contexts. Where the driver nevertheless reserves less than was
 * allocated, what was allocated in the context went with it. */
void gf_pools_context_gone(CUcontext context)
{
    for (struct gf_pool *p = first(); p; p = p->next) {
        if (!p->device)
            continue;
        pthread_mutex_lock(&p->lock);
        struct gf_block *lost = reserved(p) < p->live && !is_gone(p) ? gf_blocks_of(context, p) : NULL;
        for (struct gf_block *next; lost; lost = next) {
            next = lost->next;
            p->live -= lost->size;
            free(lost);
        }
        gf_pool_settle(p);
        pthread_mutex_unlock(&p->lock);
    }
}

void gf_pools_fork_child(void)
{
    pthread_mutex_init(&list_lock, NULL);
    pools = NULL; /* the parent's */
}
