/* memory_graph.c: memory that nodes of graphs allocate.
 *
 * The driver keeps it in a pool of its own, one per device. Graphs that do not run at the same time share
 * its memory. The pool grows when a graph is launched or uploaded, which cannot be undone. So the most that
 * the launch may add is put into the account before, and the bytes that the driver reserves count after it.
 * The pool shrinks only when it is trimmed.
 *
 * A launch may add what its graph allocates, but no more than the difference between the pool and the sum
 * of all graphs. That sum includes destroyed graphs that may still run, or whose allocations the program may
 * still have. A launch adds nothing if the same graph was launched last and the pool was not trimmed since:
 * the graph runs after itself, in the same memory, and while it runs a trim does not free that memory. */
#include "memory_private.h"

void gf_graph_memory_add(struct gf_graph_memory *m, CUgraphNode node)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    if (gf_real.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS)
        return;
    uint64_t *bytes = &m->bytes[gf_ordinal(gf_device_at(params.poolProps.location.id))];
    *bytes = params.bytesize > UINT64_MAX - *bytes ? UINT64_MAX : *bytes + params.bytesize;
    m->any = true;
}

/* Returns the device's graph memory, creating the entry at the first use. NULL if out of memory. */
static struct gf_pool *pool_of(struct gf_device *d)
{
    struct gf_pool *p = gf_pool_of_graphs(d);
    return p ? p : gf_pool_make(&(struct gf_pool){.device = d, .graphs = true});
}

/* Adds the most that a launch may need to the account. Returns false if that exceeds the limit. */
static bool reserve(struct gf_pool *p, uint64_t bytes, uint64_t serial)
{
    pthread_mutex_lock(&p->lock);
    bool fits = gf_pool_recount(p);
    uint64_t needed = p->needed + p->destroyed_bytes;
    uint64_t room = needed > p->counted ? needed - p->counted : 0;
    uint64_t more = bytes < room ? bytes : room;
    if (serial && serial == p->last && p->counted >= p->counted_after_last)
        more = 0;
    fits = fits && gf_pool_cover(p, p->counted + more);
    if (fits) {
        p->pending_bytes += more;
        p->launching++;
        p->last = 0;
    }
    pthread_mutex_unlock(&p->lock);
    return fits;
}

/* Adds the most that a launch may need to the account of the device. If that exceeds the limit, it trims the
 * pools and tries again. */
static bool reserve_or_trim(struct gf_device *d, uint64_t bytes, uint64_t serial)
{
    struct gf_pool *p = pool_of(d);
    if (!p || reserve(p, bytes, serial))
        return p;
    gf_pools_recount(d, true);
    return reserve(p, bytes, serial);
}

/* Corrects the account of the device after a launch. serial is 0 if the graph was not launched. */
static void correct_account(struct gf_device *d, uint64_t serial)
{
    struct gf_pool *p = gf_pool_of_graphs(d);
    pthread_mutex_lock(&p->lock);
    if (!--p->launching)
        p->pending_bytes = 0;
    gf_pool_recount(p);
    p->last = p->launching ? 0 : serial; /* a launch in progress may still use its memory */
    p->counted_after_last = p->counted;
    pthread_mutex_unlock(&p->lock);
}

GF_COLD bool gf_graph_memory_reserve(const struct gf_graph_memory *m, uint64_t serial)
{
    for (unsigned i = 0; i <= GF_DEVICES; i++) {
        if (!m->bytes[i] || reserve_or_trim(&gf_devices[i], m->bytes[i], serial))
            continue;
        while (i-- > 0)
            if (m->bytes[i])
                correct_account(&gf_devices[i], 0);
        return false;
    }
    return true;
}

GF_COLD void gf_graph_memory_correct(const struct gf_graph_memory *m, uint64_t serial)
{
    for (unsigned i = 0; i <= GF_DEVICES; i++)
        if (m->bytes[i])
            correct_account(&gf_devices[i], serial);
}

void gf_graph_memory_count(const struct gf_graph_memory *m, bool destroyed)
{
    for (unsigned i = 0; m->any && i <= GF_DEVICES; i++) {
        struct gf_pool *p = m->bytes[i] ? pool_of(&gf_devices[i]) : NULL;
        if (!p)
            continue;
        pthread_mutex_lock(&p->lock);
        p->needed += destroyed ? -m->bytes[i] : m->bytes[i];
        if (destroyed)
            p->destroyed_bytes = m->bytes[i] < p->counted - p->destroyed_bytes ? p->destroyed_bytes + m->bytes[i] : p->counted;
        gf_pool_recount(p);
        pthread_mutex_unlock(&p->lock);
    }
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result = gf_real.cuDeviceGraphMemTrim(device);
    struct gf_pool *p = gf_pool_of_graphs(gf_device_at(device));
    if (p) {
        pthread_mutex_lock(&p->lock);
        p->last = 0;
        gf_pool_recount(p);
        pthread_mutex_unlock(&p->lock);
    }
    return result;
}
