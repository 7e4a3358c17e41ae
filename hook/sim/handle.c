/* handle.c: the live handles, so that an invalid one is an error code and not a crash. An open-addressing
 * hash table; called under g_lock. Also arrays that grow. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    const void *p; /* NULL: never used */
    unsigned char kind; /* H_NONE: deleted */
};
static struct entry *table;
static size_t cap, used; /* used includes deleted entries */

/* Returns the index at which the search for a pointer begins. */
static size_t start_of(const void *p)
{
    uint64_t x = (uint64_t)(uintptr_t)p;
    return (size_t)((x >> 4) * 0x9e3779b97f4a7c15ull >> 20) & (cap - 1);
}

static void insert(const void *p, unsigned char kind)
{
    size_t i = start_of(p);
    while (table[i].p && table[i].p != p)
        i = (i + 1) & (cap - 1);
    if (!table[i].p)
        used++;
    table[i] = (struct entry){p, kind};
}

/* Enlarges the table and drops deleted entries. */
static bool enlarge_table(void)
{
    struct entry *old = table;
    size_t n = cap, live = 0;
    for (size_t i = 0; i < n; i++)
        live += old[i].kind != H_NONE;
    size_t want = 256;
    while (want < 4 * (live + 1))
        want *= 2;
    struct entry *fresh = calloc(want, sizeof *fresh);
    if (!fresh)
        return false;
    table = fresh;
    cap = want;
    used = 0;
    for (size_t i = 0; i < n; i++)
        if (old[i].kind != H_NONE)
            insert(old[i].p, old[i].kind);
    free(old);
    return true;
}

bool handle_add(const void *p, enum handle_kind kind)
{
    if (2 * (used + 1) > cap && !enlarge_table())
        return false;
    insert(p, (unsigned char)kind);
    return true;
}

void *handle_new(size_t size, enum handle_kind kind)
{
    void *p = calloc(1, size);
    if (p && handle_add(p, kind))
        return p;
    free(p);
    return NULL;
}

static struct entry *find_entry(const void *p)
{
    if (!p || !cap)
        return NULL;
    for (size_t i = start_of(p); table[i].p; i = (i + 1) & (cap - 1))
        if (table[i].p == p)
            return &table[i];
    return NULL;
}

void handle_del(const void *p)
{
    struct entry *e = find_entry(p);
    if (e)
        e->kind = H_NONE;
}

bool handle_is(const void *p, enum handle_kind kind)
{
    struct entry *e = find_entry(p);
    return e && e->kind == kind;
}

bool enlarge(void *array, size_t *cap, size_t need, size_t size)
{
    void *old, *larger;
    if (need <= *cap)
        return true;
    memcpy(&old, array, sizeof old);
    if (!(larger = realloc(old, 2 * need * size)))
        return false;
    memcpy(array, &larger, sizeof larger);
    *cap = 2 * need;
    return true;
}
