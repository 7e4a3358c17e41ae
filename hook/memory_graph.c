/* memory_graph.c: memory that nodes of graphs allocate. The driver keeps it in
 * a pool of its own, one a device, which graphs that do not run at once share.
 * It grows when a graph is launched or uploaded, and a launch cannot be taken
 * back: so before, the most that it may add is taken, and afterwards what the
 * driver says it reserves is what counts. It shrinks only when it is trimmed.
 *
 * The most that a launch may add is what its graph allocates, but no more than
 * what is missing to the needs of all graphs together, with those that are destroyed
 * and may run yet, or whose allocations the program may have; and nothing where the same
 * graph was the last one launched and nothing was trimmed since: it runs after
 * itself, in the memory that it has. While it runs no trim would free that. */
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

/* The device's graph memory, made known when a graph first needs some. */
static struct gf_pool *pool_of(struct gf_device *d)
{
    struct gf_pool *p = gf_pool_of_graphs(d);
    return p ? p : gf_pool_make(&(struct gf_pool){.device = d, .graphs = true});
}

/* Takes the most that a launch may add. False: there is not as much left. */
static bool try(struct gf_pool *p, uint64_t bytes, uint64_t serial)
{
    pthread_mutex_lock(&p->lock);
    bool fits = gf_pool_settle(p);
    uint64_t needed = p->needed + p->past;
    uint64_t room = needed > p->counted ? needed - p->counted : 0;
    uint64_t more = bytes < room ? bytes : room;
    if (serial && serial == p->last && p->counted >= p->had)
        more = 0;
    fits = fits && gf_pool_cover(p, p->counted + more);
    if (fits) {
        p->coming += more;
        p->launching++;
        p->last = 0;
    }
    pthread_mutex_unlock(&p->lock);
    return fits;
}

static bool enter(struct gf_device *d, uint64_t bytes, uint64_t serial)
{
    struct gf_pool *p = pool_of(d);
    if (!p || try(p, bytes, serial))
        return p;
    gf_pools_look(d, true);
    return try(p, bytes, serial);
}

static void leave(struct gf_device *d, uint64_t serial)
{
    struct gf_pool *p = gf_pool_of_graphs(d);
    pthread_mutex_lock(&p->lock);
    if (!--p->launching)
        p->coming = 0;
    gf_pool_settle(p);
    p->last = p->launching ? 0 : serial; /* another may yet take its memory */
    p->had = p->counted;
    pthread_mutex_unlock(&p->lock);
}

GF_COLD bool gf_graph_memory_take(const struct gf_graph_memory *m, uint64_t serial)
{
    for (unsigned i = 0; i <= GF_DEVICES; i++) {
        if (!m->bytes[i] || enter(&gf_devices[i], m->bytes[i], serial))
            continue;
        while (i-- > 0)
            if (m->bytes[i])
                leave(&gf_devices[i], 0);
        return false;
    }
    return true;
}

GF_COLD void gf_graph_memory_settle(const struct gf_graph_memory *m, uint64_t serial)
{
    for (unsigned i = 0; i <= GF_DEVICES; i++)
        if (m->bytes[i])
            leave(&gf_devices[i], serial);
}

void gf_graph_memory_known(const struct gf_graph_memory *m, bool gone)
{
    for (unsigned i = 0; m->any && i <= GF_DEVICES; i++) {
        struct gf_pool *p = m->bytes[i] ? pool_of(&gf_devices[i]) : NULL;
        if (!p)
            continue;
        pthread_mutex_lock(&p->lock);
        p->needed += gone ? -m->bytes[i] : m->bytes[i];
        if (gone)
            p->past = m->bytes[i] < p->counted - p->past ? p->past + m->bytes[i] : p->counted;
        gf_pool_settle(p);
        pthread_mutex_unlock(&p->lock);
    }
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuDeviceGraphMemTrim(device);
    struct gf_pool *p = gf_pool_of_graphs(gf_device_at(device));
    if (p) {
        pthread_mutex_lock(&p->lock);
        p->last = 0;
        gf_pool_settle(p);
        pthread_mutex_unlock(&p->lock);
    }
    return result;
}
