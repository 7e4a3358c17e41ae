/* range.c: the table of address ranges that the driver knows: device allocations, memory of other processes,
 * pinned and registered host memory, and the parts of the arena that are in use without addresses for programs.
 * Sorted by address; called under g_lock. */
#include "pool.h"
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

static struct range **table;
static size_t count, cap;
static uint64_t last_id;

/* Returns the index of the first range that begins after p. */
static size_t after(CUdeviceptr p)
{
    size_t lo = 0, hi = count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (table[mid]->base <= p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct range *range_raw(CUdeviceptr p)
{
    size_t i = after(p);
    if (!i || p - table[i - 1]->base >= table[i - 1]->span)
        return NULL;
    return table[i - 1];
}

struct range *range_find(CUdeviceptr p)
{
    struct range *r = range_raw(p);
    return r && r->kind != R_HIDDEN ? r : NULL;
}

uint64_t range_new_id(void)
{
    return ++last_id;
}

/* Reports whether the range keeps its process from leaving the device: it is managed memory, or other processes
 * hold it too. */
static bool fixed(const struct range *r)
{
    return r->kind == R_MANAGED || r->kind == R_IPC || (r->kind == R_DEVICE && r->flags);
}

struct range *range_add(const struct range *r)
{
    struct range *own = enlarge(&table, &cap, count + 1, sizeof *table) ? malloc(sizeof *own) : NULL;
    if (!own)
        return NULL;
    *own = *r;
    own->id = range_new_id();
    size_t i = after(r->base);
    memmove(table + i + 1, table + i, (count - i) * sizeof *table);
    table[i] = own;
    count++;
    if (fixed(own))
        shared_fixed(own->dev, 1);
    return own;
}

void range_del(struct range *r)
{
    if (fixed(r))
        shared_fixed(r->dev, -1);
    size_t i = after(r->base) - 1;
    memmove(table + i, table + i + 1, (count - i - 1) * sizeof *table);
    count--;
    free(r);
}

size_t range_count(void)
{
    return count;
}

struct range *range_at(size_t i)
{
    return table[i];
}

size_t range_after(CUdeviceptr p)
{
    return after(p);
}

bool range_overlaps(CUdeviceptr base, size_t size)
{
    size_t i = after(base + size - 1);
    return i && table[i - 1]->base + table[i - 1]->span > base;
}

/* Reports whether the bytes are the device's; those of managed memory are the host's. */
bool range_on_device(const struct range *r)
{
    return r->dev && r->kind != R_MANAGED;
}

size_t range_reach(const struct range *r, CUdeviceptr p, bool write)
{
    if (r->kind == R_VMM)
        return vmm_reach(r, p, write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ);
    return r->size > p - r->base ? r->size - (p - r->base) : 0;
}

bool range_reserved(CUdeviceptr p)
{
    for (unsigned i = 0; i < g_config.visible; i++) {
        const struct device *d = device_of((int)i);
        if (d->joined && p - d->arena_base < d->arena_size)
            return true;
    }
    return vmm_reservation(p) != NULL;
}

/* A kernel that was launched before its memory was freed may run when the pool has used the memory for another
 * allocation. So for kernels, a pool's chunk is one piece. */
void *range_translate(struct device *d, CUdeviceptr p, size_t n, bool write)
{
    struct range *r = range_raw(p);
    if (!r)
        return NULL;
    size_t reach = r->chunk ? r->chunk->size - (p - r->chunk->base) : range_reach(r, p, write);
    if (n > reach || (r->kind == R_HIDDEN && !r->chunk))
        return NULL;
    if (r->kind == R_MANAGED)
        managed_place(r, p, n, d->ordinal);
    return r->view + (p - r->base);
}
