/* handle.c: which pointers are live handles, so that a wrong one is an error
 * code and not a crash. An open-addressing table; called under g_lock. */
#include "sim.h"

#include <stdlib.h>

struct entry {
    const void *p; /* NULL: never used */
    unsigned char kind; /* H_NONE: deleted */
};
static struct entry *table;
static size_t cap, used; /* used counts deleted entries too */

/* Where in the table the search for a pointer begins. */
static size_t start_of(const void *p)
{
    uint64_t x = (uint64_t)(uintptr_t)p;
    return (size_t)((x >> 4) * 0x9e3779b97f4a7c15ull >> 20) & (cap - 1);
}

static void put(const void *p, unsigned char kind)
{
    size_t i = start_of(p);
    while (table[i].p && table[i].p != p)
        i = (i + 1) & (cap - 1);
    if (!table[i].p)
        used++;
    table[i] = (struct entry){p, kind};
}

/* Makes room; what was deleted goes. */
static bool grow(void)
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
            put(old[i].p, old[i].kind);
    free(old);
    return true;
}

bool handle_add(const void *p, enum handle_kind kind)
{
    if (2 * (used + 1) > cap && !grow())
        return false;
    put(p, (unsigned char)kind);
    return true;
}

static struct entry *find(const void *p)
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
    struct entry *e = find(p);
    if (e)
        e->kind = H_NONE;
}

bool handle_is(const void *p, enum handle_kind kind)
{
    struct entry *e = find(p);
    return e && e->kind == kind;
}
