/* exports.c: allocations that several processes have. Each counts once, as the
 * memory of one who has it; it is free when nobody has it any more, however they
 * ended. A descriptor that nobody has imported yet keeps the bytes but does not
 * count, once its exporter is gone; who imports it then makes it count again. */
#include "shared.h"

void holders_add(struct holders *h, unsigned slot)
{
    h->bit[slot / 64] |= 1ull << slot % 64;
}

static void holders_del(struct holders *h, unsigned slot)
{
    h->bit[slot / 64] &= ~(1ull << slot % 64);
}

static bool holders_has(const struct holders *h, unsigned slot)
{
    return h->bit[slot / 64] >> slot % 64 & 1;
}

/* One of them, -1 when there is none. */
static int holders_any(const struct holders *h)
{
    for (int i = 0; i < SIM_SLOTS; i++)
        if (holders_has(h, (unsigned)i))
            return i;
    return -1;
}

/* A slot has one owner at a moment, so no two are the same. */
uint64_t export_new_id(const struct device *d)
{
    return now_ns() * SIM_SLOTS + (unsigned)d->slot;
}

/* The entry of that id; of id 0, a free one. */
static struct export *find(struct shared *sh, uint64_t id)
{
    for (int i = 0; i < SIM_EXPORTS; i++)
        if (sh->exports[i].id == id)
            return &sh->exports[i];
    return NULL;
}

/* Adds this process to those who have it, if somebody does. */
static bool hold_too(struct device *d, uint64_t id)
{
    if (!shared_lock(d))
        return false;
    struct export *e = find(d->sh, id);
    if (e)
        holders_add(&e->holders, (unsigned)d->slot);
    shared_unlock(d);
    return e != NULL;
}

/* Makes an entry of which this process is the owner. */
static bool hold_first(struct device *d, uint64_t id, uint64_t bytes)
{
    if (!shared_lock(d))
        return false;
    struct export *e = find(d->sh, id) ? NULL : find(d->sh, 0);
    if (e) {
        *e = (struct export){.id = id, .bytes = bytes, .owner = (uint32_t)d->slot};
        holders_add(&e->holders, (unsigned)d->slot);
    }
    shared_unlock(d);
    return e != NULL;
}

bool export_hold(struct device *d, uint64_t id, uint64_t bytes, bool counted)
{
    if (hold_too(d, id))
        return true;
    if (!counted && memory_take(d, bytes) != CUDA_SUCCESS)
        return false;
    if (hold_first(d, id, bytes))
        return true;
    if (!counted)
        shared_mem_give(d, bytes);
    return hold_too(d, id); /* another importer may have been faster */
}

/* Takes a process off an export; what counted as its memory now counts as
 * another holder's. */
static void leave(struct shared *sh, struct export *e, unsigned slot)
{
    holders_del(&e->holders, slot);
    if (e->owner != slot)
        return;
    int heir = holders_any(&e->holders);
    sh->proc[slot].mem -= e->bytes;
    if (heir < 0) {
        e->id = 0;
        return;
    }
    e->owner = (uint32_t)heir;
    sh->proc[heir].mem += e->bytes;
}

void export_drop(struct device *d, uint64_t id)
{
    if (d->left || !shared_lock(d))
        return;
    struct export *e = find(d->sh, id);
    if (e)
        leave(d->sh, e, (unsigned)d->slot);
    shared_unlock(d);
}

void event_leave(struct shared_event *e, unsigned slot)
{
    holders_del(&e->holders, slot);
    if (holders_any(&e->holders) < 0)
        e->id = 0;
}

void holders_forget(struct shared *sh, unsigned slot)
{
    for (int i = 0; i < SIM_EXPORTS; i++)
        if (sh->exports[i].id && holders_has(&sh->exports[i].holders, slot))
            leave(sh, &sh->exports[i], slot);
    for (int i = 0; i < SIM_EVENTS; i++)
        if (sh->events[i].id)
            event_leave(&sh->events[i], slot);
}
