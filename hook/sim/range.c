/* range.c: the table of address ranges that mean something to the driver:
 * device allocations, memory of other processes, pinned and registered host
 * memory. Sorted by address; called under g_lock. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static struct range **table;
static size_t count, cap;
static uint64_t last_id;

/* The place of the first range that begins after p. */
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

struct range *range_find(CUdeviceptr p)
{
    size_t i = after(p);
    if (!i || p - table[i - 1]->base >= table[i - 1]->span)
        return NULL;
    return table[i - 1];
}

struct range *range_add(const struct range *r)
{
    if (count == cap) {
        size_t n = cap ? 2 * cap : 64;
        struct range **p = realloc(table, n * sizeof *p);
        if (!p)
            return NULL;
        table = p;
        cap = n;
    }
    struct range *own = malloc(sizeof *own);
    if (!own)
        return NULL;
    *own = *r;
    own->id = ++last_id;
    size_t i = after(r->base);
    memmove(table + i + 1, table + i, (count - i) * sizeof *table);
    table[i] = own;
    count++;
    return own;
}

void range_del(struct range *r)
{
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

void *range_translate(CUdeviceptr p, size_t n)
{
    struct range *r = range_find(p);
    if (!r || n > r->size || p - r->base > r->size - n)
        return NULL;
    return r->view + (p - r->base);
}
