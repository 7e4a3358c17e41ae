/* managed.c: managed memory. Its bytes are the host's, at one address for host
 * and devices; what moves is only where they count. A page counts as the device's
 * from the time it is prefetched there or a kernel's operation uses it until it
 * is prefetched elsewhere or pushed out, least recently used first, to make room.
 * A host that touches a page does not bring it back, since nothing here would
 * notice. Only memory of this process is pushed out. */
#include "managed.h"

#include <stdlib.h>
#include <sys/mman.h>

static uint64_t clock_now; /* counts uses */

CUresult managed_alloc(struct ctx *c, CUdeviceptr *out, size_t size, unsigned flags)
{
    size_t span = (size + SIM_PAGE - 1) & ~(size_t)(SIM_PAGE - 1);
    if (span < size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct stretch *st = calloc(1, sizeof *st);
    void *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct range r = {.size = size, .span = span, .kind = R_MANAGED, .dev = c->dev, .ctx = c, .flags = flags};
    r.base = (CUdeviceptr)(uintptr_t)p;
    r.view = p;
    r.stretches = st;
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

static void leave(struct stretch *st)
{
    if (st->on >= 0)
        shared_mem_give(&g_device[g_config.visible_index[st->on]], st->size);
    st->on = ON_HOST;
}

void managed_release(struct range *r)
{
    for (struct stretch *st; (st = r->stretches);) {
        r->stretches = st->next;
        leave(st);
        free(st);
    }
    munmap(r->view, r->span);
    range_del(r);
}

static bool cut_at(struct range *r, CUdeviceptr p)
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

struct stretch *managed_cut(struct range *r, CUdeviceptr p, size_t n)
{
    CUdeviceptr first = p & ~(CUdeviceptr)(SIM_PAGE - 1), end = (p + n + SIM_PAGE - 1) & ~(CUdeviceptr)(SIM_PAGE - 1);
    if (!cut_at(r, first) || !cut_at(r, end))
        return NULL;
    struct stretch *st = r->stretches;
    while (st && st->base != first)
        st = st->next;
    return st;
}

static bool alike(const struct stretch *a, const struct stretch *b)
{
    return a->on == b->on && a->used == b->used && a->preferred == b->preferred && a->prefetched == b->prefetched &&
           a->read_mostly == b->read_mostly && a->accessed == b->accessed;
}

void managed_join(struct range *r)
{
    for (struct stretch *st = r->stretches, *next; st && (next = st->next);) {
        if (!alike(st, next)) {
            st = next;
            continue;
        }
        st->size += next->size;
        st->next = next->next;
        free(next);
    }
}

/* What was used longest ago on a device, before a moment. */
static struct stretch *oldest(int where, uint64_t before, struct range **in)
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

/* Pushes out what was used before a moment, as much as is missing to make room
 * for that many bytes, or less; false when there is nothing. */
static bool evict(int where, size_t bytes, uint64_t before)
{
    struct range *r = NULL;
    struct stretch *st = oldest(where, before, &r);
    if (!st)
        return false;
    uint64_t want = shared_mem_used(&g_device[g_config.visible_index[where]]) + bytes;
    uint64_t missing = want > g_config.mem ? want - g_config.mem : SIM_PAGE;
    missing = (missing + SIM_PAGE - 1) & ~(uint64_t)(SIM_PAGE - 1);
    if (missing < st->size)
        cut_at(r, st->base + missing);
    leave(st);
    return true;
}

bool managed_evict(struct device *d, size_t bytes)
{
    return evict(d->ordinal, bytes, UINT64_MAX);
}

static void bring(struct range *r, struct stretch *st, int where)
{
    struct device *d = &g_device[g_config.visible_index[where]];
    leave(st);
    while (!shared_mem_take(d, st->size)) {
        if (evict(where, st->size, clock_now))
            continue;
        /* Nothing more can be pushed out: as much as there is room for. */
        uint64_t used = shared_mem_used(d), room = used < g_config.mem ? g_config.mem - used : 0;
        room &= ~(uint64_t)(SIM_PAGE - 1);
        if (!room || room >= st->size || !cut_at(r, st->base + room))
            return;
    }
    st->on = where;
}

void managed_place(struct range *r, CUdeviceptr p, size_t n, int where)
{
    clock_now++;
    struct stretch *first = managed_cut(r, p, n);
    for (struct stretch *st = first; st && st->base < p + n; st = st->next)
        st->used = clock_now; /* of all first, so that none pushes out another */
    for (struct stretch *st = first; st && st->base < p + n; st = st->next) {
        if (where < 0)
            leave(st);
        else if (st->on != where)
            bring(r, st, where);
    }
    managed_join(r);
}

struct range *managed_find(CUdeviceptr p, size_t n)
{
    struct range *g = range_find(p);
    return g && g->kind == R_MANAGED && n && n <= g->span && p - g->base <= g->span - n ? g : NULL;
}

CUresult managed_where(const CUmemLocation *l, int *where)
{
    bool host = l->type == CU_MEM_LOCATION_TYPE_HOST || l->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                l->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    if (!host && l->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!host && (l->id < 0 || l->id >= (int)g_config.visible))
        return CUDA_ERROR_INVALID_DEVICE;
    *where = host ? ON_HOST : l->id;
    return CUDA_SUCCESS;
}

CUmemLocation managed_location(CUdevice dev)
{
    return (CUmemLocation){dev == ON_HOST ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                           dev == ON_HOST ? 0 : dev};
}
