/* pooltrim.c: when pools give back what they have reserved, and what becomes of
 * pools that are destroyed. */
#include "pool.h"

#include <stdlib.h>

static bool unused(const struct chunk *c)
{
    const struct range *r = range_raw(c->base);
    return r->kind == R_HIDDEN && !r->freed && r->span == c->size; /* blocks are joined where they can be */
}

static void pool_drop(struct pool *p)
{
    struct device *d = p->dev;
    for (struct pool **at = &d->pools; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    free(p);
}

/* Gives back what is unused, but keeps that much reserved; drops a pool that was
 * destroyed and has nothing left. Returns whether the pool is still there. */
static bool trim(struct pool *p, uint64_t keep, bool synced)
{
    pool_settle(p, synced);
    for (struct chunk **at = &p->chunks, *c; (c = *at);) {
        if (!unused(c) || p->reserved - c->size < keep) {
            at = &c->next;
            continue;
        }
        memory_release(range_raw(c->base));
        p->reserved -= c->size;
        *at = c->next;
        free(c);
    }
    bool gone = p->destroyed && !p->chunks;
    if (gone)
        pool_drop(p);
    return !gone;
}

void pool_trim(struct pool *p, uint64_t keep)
{
    trim(p, keep, true);
}

void pool_destroy(struct pool *p)
{
    struct device *d = p->dev;
    handle_del(p);
    if (d->current_pool == p)
        d->current_pool = NULL;
    p->destroyed = true;
    trim(p, 0, false);
}

void pool_synced(struct device *d)
{
    for (struct pool *p = d->pools, *next; p; p = next) {
        next = p->next;
        trim(p, p->destroyed ? 0 : p->threshold, true);
    }
}

void pool_release_unused(struct device *d)
{
    for (struct pool *p = d->pools, *next; p; p = next) {
        next = p->next;
        trim(p, 0, false);
    }
}

/* Forgets all allocations. */
static void forget(struct pool *p)
{
    for (struct chunk *c = p->chunks; c; c = c->next)
        for (size_t i = range_after(c->base) - 1; i < range_count() && range_at(i)->chunk == c; i++) {
            struct range *r = range_at(i);
            record_unref(r->freed);
            r->freed = NULL;
            r->kind = R_HIDDEN;
            r->size = 0;
        }
    p->used = 0;
}

void pool_reset(struct device *d)
{
    for (struct pool *p = d->pools, *next; p; p = next) {
        next = p->next;
        forget(p);
        trim(p, 0, true);
    }
}
