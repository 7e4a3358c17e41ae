/* managed.c: managed memory. Its bytes are host memory, at the same address for host and devices; only the device
 * that they count for changes. A page counts for a device from the time when it is prefetched there, or used by a
 * kernel, until it is prefetched elsewhere or evicted, least recently used first, to make room. An access by the
 * host does not move a page back, since it would not be noticed. Only memory of this process is evicted.
 *
 * Advice is stored and returned, and has no effect, because the simulated memory has one speed. A prefetch takes
 * the time of a link of 16 GB/s to the host, whatever else moves and computes meanwhile. Pages that kernels move,
 * and evicted pages, take no time. */
#include "transfer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ON_HOST (-1) /* CU_DEVICE_CPU */
#define NOWHERE (-2) /* CU_DEVICE_INVALID */

/* A part of a managed allocation with the same properties. */
struct stretch {
    struct stretch *next;
    CUdeviceptr base;
    size_t size;
    int on;          /* its device, by the process's ordinal, or ON_HOST */
    uint64_t used;   /* clock_now at its last use there */
    int preferred, prefetched; /* a device, ON_HOST or NOWHERE */
    bool read_mostly;
    uint32_t accessed; /* bit N: accessed by device N; HOST_BIT: by the host */
};
#define HOST_BIT (1u << 31)

static uint64_t clock_now; /* counts uses */

/* Allocates managed memory, which is on the host first. */
static CUresult allocate(struct ctx *c, CUdeviceptr *out, size_t size, unsigned flags)
{
    size_t span = page_up(size);
    if (span < size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct stretch *st = calloc(1, sizeof *st);
    void *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct range r = {.size = size, .span = span, .kind = R_MANAGED, .dev = c->dev, .ctx = c, .flags = flags,
                      .base = (CUdeviceptr)(uintptr_t)p, .view = p, .stretches = st};
    if (!st || p == MAP_FAILED || !range_add(&r)) {
        if (p != MAP_FAILED)
            munmap(p, span);
        free(st);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *st = (struct stretch){.base = r.base, .size = span, .on = ON_HOST, .preferred = NOWHERE, .prefetched = NOWHERE};
    *out = r.base;
    return CUDA_SUCCESS;
}

/* Moves a stretch to the host. */
static void move_to_host(struct stretch *st)
{
    if (st->on >= 0)
        shared_mem_release(device_of(st->on), st->size);
    st->on = ON_HOST;
}

void managed_release(struct range *r)
{
    for (struct stretch *st; (st = r->stretches);) {
        r->stretches = st->next;
        move_to_host(st);
        free(st);
    }
    munmap(r->view, r->span);
    range_del(r);
}

/* Splits stretches so that one begins at p. */
static bool split_at(struct range *r, CUdeviceptr p)
{
    struct stretch *st = r->stretches;
    while (st && p >= st->base + st->size)
        st = st->next;
    if (!st || p == st->base)
        return true;
    struct stretch *rest = malloc(sizeof *rest);
    if (!rest)
        return false;
    *rest = *st;
    st->size = p - st->base;
    st->next = rest;
    rest->base = p;
    rest->size -= st->size;
    return true;
}

/* Returns the first stretch of [p, p+n), after splitting stretches so that one begins and one ends there, at
 * page boundaries; NULL if out of memory. */
static struct stretch *split(struct range *r, CUdeviceptr p, size_t n)
{
    CUdeviceptr first = p & ~(CUdeviceptr)(SIM_PAGE - 1), end = page_up(p + n);
    if (!split_at(r, first) || !split_at(r, end))
        return NULL;
    struct stretch *st = r->stretches;
    while (st && st->base != first)
        st = st->next;
    return st;
}

static bool same_properties(const struct stretch *a, const struct stretch *b)
{
    return a->on == b->on && a->used == b->used && a->preferred == b->preferred && a->prefetched == b->prefetched &&
           a->read_mostly == b->read_mostly && a->accessed == b->accessed;
}

/* Joins neighbouring stretches with the same properties. */
static void join(struct range *r)
{
    for (struct stretch *st = r->stretches, *next; st && (next = st->next);) {
        if (!same_properties(st, next)) {
            st = next;
            continue;
        }
        st->size += next->size;
        st->next = next->next;
        free(next);
    }
}

/* Returns the least recently used stretch on a device that was used before a moment. */
static struct stretch *least_recently_used(int where, uint64_t before, struct range **in)
{
    struct stretch *best = NULL;
    for (size_t i = 0; i < range_count(); i++) {
        struct range *r = range_at(i);
        for (struct stretch *st = r->stretches; st; st = st->next)
            if (st->on == where && st->used < before && (!best || st->used < best->used)) {
                best = st;
                *in = r;
            }
    }
    return best;
}

/* Evicts the least recently used memory from before a moment, up to what is missing for that many bytes. Returns
 * false if there is none. */
static bool evict(int where, size_t bytes, uint64_t before)
{
    struct range *r = NULL;
    struct stretch *st = least_recently_used(where, before, &r);
    if (!st)
        return false;
    uint64_t want = shared_mem_used(device_of(where)) + bytes;
    uint64_t missing = want > g_config.mem ? want - g_config.mem : SIM_PAGE;
    missing = page_up(missing);
    if (missing < st->size)
        split_at(r, st->base + missing);
    move_to_host(st);
    return true;
}

bool managed_evict(struct device *d, size_t bytes)
{
    return evict(d->ordinal, bytes, UINT64_MAX);
}

/* Moves a stretch to a device, or as much of it as there is room for. */
static void move_to_device(struct range *r, struct stretch *st, int where)
{
    struct device *d = device_of(where);
    move_to_host(st);
    while (!shared_mem_reserve(d, st->size)) {
        if (evict(where, st->size, clock_now))
            continue;
        /* Nothing more can be evicted: move as much as there is room for. */
        uint64_t used = shared_mem_used(d), room = used < g_config.mem ? g_config.mem - used : 0;
        room &= ~(uint64_t)(SIM_PAGE - 1);
        if (!room || room >= st->size || !split_at(r, st->base + room))
            return;
    }
    st->on = where;
}

void managed_place(struct range *r, CUdeviceptr p, size_t n, int where)
{
    clock_now++;
    struct stretch *first = split(r, p, n);
    for (struct stretch *st = first; st && st->base < p + n; st = st->next)
        st->used = clock_now; /* of all first, so that none evicts another */
    for (struct stretch *st = first; st && st->base < p + n; st = st->next) {
        if (where < 0)
            move_to_host(st);
        else if (st->on != where)
            move_to_device(r, st, where);
    }
    join(r);
}

/* Returns the managed range that contains all of [p, p+n), or NULL. */
static struct range *find_range(CUdeviceptr p, size_t n)
{
    struct range *g = range_find(p);
    return g && g->kind == R_MANAGED && n && n <= g->span && p - g->base <= g->span - n ? g : NULL;
}

/* Sets *where to the device of a location, or ON_HOST. */
static CUresult device_of_location(const CUmemLocation *l, int *where)
{
    bool host = l->type == CU_MEM_LOCATION_TYPE_HOST || l->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                l->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    if (!host && l->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!host && !device_of(l->id))
        return CUDA_ERROR_INVALID_DEVICE;
    *where = host ? ON_HOST : l->id;
    return CUDA_SUCCESS;
}

CUmemLocation managed_location(CUdevice dev)
{
    return (CUmemLocation){dev == ON_HOST ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                           dev == ON_HOST ? 0 : dev};
}

/* ---- allocation and advice ---- */

CUresult sim_cuMemAllocManaged(struct ctx *c, CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    if (!dptr || !bytesize || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(c, dptr, bytesize, flags);
}

/* Stores one piece of advice for a stretch. */
static void advise(struct stretch *st, CUmem_advise advice, int where)
{
    uint32_t bit = where < 0 ? HOST_BIT : 1u << where;
    switch ((int)advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        st->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        st->preferred = where;
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        st->preferred = NOWHERE;
        break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        st->accessed |= bit;
        break;
    default:
        st->accessed &= ~bit;
    }
}

static bool needs_location(CUmem_advise advice)
{
    return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
           advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

CUresult sim_cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location)
{
    struct range *g = find_range(devPtr, count);
    int where = NOWHERE;
    if (!g || advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return CUDA_ERROR_INVALID_VALUE;
    if (needs_location(advice))
        TRY(device_of_location(&location, &where));
    struct stretch *st = split(g, devPtr, count);
    if (!st)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (; st && st->base < devPtr + count; st = st->next)
        advise(st, advice, where);
    join(g);
    return CUDA_SUCCESS;
}

/* ---- queries about a range ---- */

/* Returns the location that is common to the range, or NOWHERE. */
static int common_location(const struct stretch *st, CUdeviceptr end, bool prefetched)
{
    int where = prefetched ? st->prefetched : st->preferred;
    for (; st && st->base < end; st = st->next)
        if ((prefetched ? st->prefetched : st->preferred) != where)
            return NOWHERE;
    return where;
}

static int location_type(int where)
{
    return where == NOWHERE   ? CU_MEM_LOCATION_TYPE_INVALID
           : where == ON_HOST ? CU_MEM_LOCATION_TYPE_HOST
                              : CU_MEM_LOCATION_TYPE_DEVICE;
}

static void list_accessed(int *out, size_t n, uint32_t mask)
{
    size_t k = 0;
    for (int i = 0; i < (int)g_config.visible && k < n; i++)
        if (mask & 1u << i)
            out[k++] = i;
    if ((mask & HOST_BIT) && k < n)
        out[k++] = ON_HOST;
    while (k < n)
        out[k++] = NOWHERE;
}

/* Writes one attribute of [p, p+n). */
static CUresult store_attribute(void *data, size_t size, CUmem_range_attribute attribute, struct range *g, CUdeviceptr p,
                                size_t n)
{
    bool several = attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    if (!data || !size || (several ? size % sizeof(int) : size != sizeof(int)))
        return CUDA_ERROR_INVALID_VALUE;
    struct stretch *first = split(g, p, n);
    if (!first)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t accessed = UINT32_MAX;
    bool read_mostly = true;
    for (struct stretch *st = first; st && st->base < p + n; st = st->next) {
        accessed &= st->accessed;
        read_mostly &= st->read_mostly;
    }
    const int preferred = common_location(first, p + n, false), prefetched = common_location(first, p + n, true);
    switch ((int)attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        list_accessed(data, size / sizeof(int), accessed);
        return CUDA_SUCCESS;
#define VALUE(name, value)                  \
    case CU_MEM_RANGE_ATTRIBUTE_##name:     \
        *(int *)data = (value);             \
        return CUDA_SUCCESS;
        VALUE(READ_MOSTLY, read_mostly)
        VALUE(PREFERRED_LOCATION, preferred)
        VALUE(PREFERRED_LOCATION_TYPE, location_type(preferred))
        VALUE(PREFERRED_LOCATION_ID, preferred < 0 ? 0 : preferred)
        VALUE(LAST_PREFETCH_LOCATION, prefetched)
        VALUE(LAST_PREFETCH_LOCATION_TYPE, location_type(prefetched))
        VALUE(LAST_PREFETCH_LOCATION_ID, prefetched < 0 ? 0 : prefetched)
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_cuMemRangeGetAttributes(void **data, size_t *dataSizes, CUmem_range_attribute *attributes,
                                     size_t numAttributes, CUdeviceptr devPtr, size_t count)
{
    struct range *g = find_range(devPtr, count);
    if (!g || !data || !dataSizes || !attributes || !numAttributes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < numAttributes && r == CUDA_SUCCESS; i++)
        r = store_attribute(data[i], dataSizes[i], attributes[i], g, devPtr, count);
    join(g);
    return r;
}

CUresult sim_cuStreamAttachMemAsync(struct stream *s, CUstream hStream, CUdeviceptr dptr, size_t length,
                                    unsigned int flags)
{
    struct range *g = range_find(dptr);
    if (!g || g->kind != R_MANAGED || g->base != dptr || (length && length != g->size))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_MEM_ATTACH_SINGLE && s->kind == S_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* all may access it at any time: concurrentManagedAccess */
}

/* ---- prefetching ---- */

/* Ends a prefetch. */
static void end_prefetch(const struct task *t)
{
    struct range *g = find_range(t->addr, t->bytes);
    if (g)
        managed_place(g, t->addr, t->bytes, t->where);
}

/* Returns how long the move takes, in ns. */
static uint64_t move_time(const struct task *t)
{
    uint64_t bytes = 0;
    struct range *g = find_range(t->addr, t->bytes);
    for (struct stretch *st = g ? split(g, t->addr, t->bytes) : NULL; st && st->base < t->addr + t->bytes; st = st->next)
        bytes += st->on != t->where ? st->size : 0;
    return bytes / SIM_LINK_BYTES_PER_NS;
}

/* Moves memory in stream order. */
static CUresult prefetch(struct stream *s, CUdeviceptr p, size_t n, const CUmemLocation *l)
{
    struct range *g = find_range(p, n);
    struct task t = {.run = end_prefetch, .takes = move_time, .addr = p, .bytes = n};
    if (!g)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(device_of_location(l, &t.where));
    if (t.where >= 0)
        TRY(shared_join(device_of(t.where)));
    for (struct stretch *st = split(g, p, n); st && st->base < p + n; st = st->next)
        st->prefetched = t.where;
    return transfer_task(s, &t);
}

CUresult sim_cuMemPrefetchAsync_v2(struct stream *s, CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                   unsigned int flags, CUstream hStream)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(s, devPtr, count, &location);
}

/* Overwrites discarded memory, whose contents are undefined, so that a program that relies on them fails. */
static void discard_task(const struct task *t)
{
    if (find_range(t->addr, t->bytes))
        memset((void *)(uintptr_t)t->addr, 0xdd, t->bytes);
}

/* Discards and prefetches several pieces; location k of `to` applies from piece first[k] on. */
static CUresult batch(struct stream *s, bool discard, CUdeviceptr *dptrs, size_t *sizes, size_t count,
                      const CUmemLocation *to, const size_t *first, size_t places, unsigned long long flags)
{
    CUresult r = CUDA_SUCCESS;
    if (!dptrs || !sizes || !count || flags || (to && (!first || !places || places > count || first[0])))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, k = 0; i < count && r == CUDA_SUCCESS; i++) {
        if (to && k + 1 < places && first[k + 1] <= i)
            k++;
        struct task t = {.run = discard_task, .addr = dptrs[i], .bytes = sizes[i]};
        if (!find_range(dptrs[i], sizes[i]))
            r = CUDA_ERROR_INVALID_VALUE;
        else if (discard)
            r = transfer_task(s, &t);
        if (r == CUDA_SUCCESS && to)
            r = prefetch(s, dptrs[i], sizes[i], &to[k]);
    }
    return r;
}

CUresult sim_cuMemPrefetchBatchAsync(struct stream *s, CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                     CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs, size_t numPrefetchLocs,
                                     unsigned long long flags, CUstream hStream)
{
    if (!prefetchLocs)
        return CUDA_ERROR_INVALID_VALUE;
    return batch(s, false, dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags);
}

CUresult sim_cuMemDiscardBatchAsync(struct stream *s, CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                    unsigned long long flags, CUstream hStream)
{
    return batch(s, true, dptrs, sizes, count, NULL, NULL, 0, flags);
}

CUresult sim_cuMemDiscardAndPrefetchBatchAsync(struct stream *s, CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                               CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs,
                                               size_t numPrefetchLocs, unsigned long long flags, CUstream hStream)
{
    if (!prefetchLocs)
        return CUDA_ERROR_INVALID_VALUE;
    return batch(s, true, dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags);
}
