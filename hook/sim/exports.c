/* exports.c: allocations that several processes have. Each counts once, as the
 * memory of one who has it; it is free when nobody has it any more, however they
 * ended. As on a GPU a descriptor is enough to have it: one that nobody has
 * imported, be it in a socket, keeps the memory, which then counts as nobody's. */
#include "shared.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

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
    for (int i = 0; i < SIM_SLOTS / 64; i++)
        if (h->bit[i])
            return 64 * i + __builtin_ctzll(h->bit[i]);
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

/* ---- descriptors ---- */

#define NAME_BYTES 64

static void export_name(char name[NAME_BYTES], int index, uint64_t id)
{
    snprintf(name, NAME_BYTES, "gpu%d.mem.x%llu", index, (unsigned long long)id);
}

/* A lock of the open file goes when nobody has a descriptor of that opening any
 * more; under its name others can open the file, and ask. */
bool export_publish(const struct device *d, uint64_t id, int fd)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char name[NAME_BYTES];
    export_name(name, d->index, id);
    if (fcntl(fd, F_OFD_SETLK, &all) < 0)
        return false;
    shared_link(fd, name); /* not every file system can: then only who has imported it is seen */
    return true;
}

/* Whether a descriptor of it is open anywhere; and how many bytes it has. */
static bool is_open(const char *name, uint64_t *bytes)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = shared_open_file(name);
    if (fd < 0)
        return false;
    bool open = fcntl(fd, F_OFD_GETLK, &all) == 0 && all.l_type != F_UNLCK;
    off_t end = lseek(fd, 0, SEEK_END);
    *bytes = end > (off_t)SIM_PAGE ? (uint64_t)end - SIM_PAGE : 0;
    close(fd);
    return open && *bytes;
}

/* Forgets an export that nobody owns, if no descriptor is open either. */
static void check(struct device *d, struct export *e)
{
    char name[NAME_BYTES];
    uint64_t bytes;
    export_name(name, d->index, e->id);
    if (is_open(name, &bytes))
        return;
    shared_remove_file(name);
    d->sh->unowned -= e->bytes;
    e->id = 0;
}

void exports_reap(struct device *d)
{
    for (int i = 0; i < SIM_EXPORTS; i++)
        if (d->sh->exports[i].id && d->sh->exports[i].owner == SIM_NOBODY)
            check(d, &d->sh->exports[i]);
}

/* One that outlived all who were on the device. */
static void found(struct device *d, const char *name, const char *rest)
{
    uint64_t bytes, id = rest[0] == 'x' ? strtoull(rest + 1, NULL, 10) : 0;
    struct export *e = id ? find(d->sh, 0) : NULL;
    if (!e || !is_open(name, &bytes)) {
        shared_remove_file(name);
        return;
    }
    *e = (struct export){.id = id, .bytes = bytes, .owner = SIM_NOBODY};
    d->sh->unowned += bytes;
}

void exports_find(struct device *d)
{
    shared_each_memory(d->index, found, d);
}

/* ---- who has them ---- */

/* Adds this process to those who have it, if somebody does. */
static bool hold_too(struct device *d, uint64_t id)
{
    if (!shared_lock(d))
        return false;
    struct export *e = find(d->sh, id);
    if (e)
        holders_add(&e->holders, (unsigned)d->slot);
    if (e && e->owner == SIM_NOBODY) {
        e->owner = (uint32_t)d->slot;
        d->sh->unowned -= e->bytes;
        d->sh->proc[d->slot].mem += e->bytes;
    }
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
static void leave(struct device *d, struct export *e, unsigned slot)
{
    struct shared *sh = d->sh;
    holders_del(&e->holders, slot);
    if (e->owner != slot)
        return;
    int heir = holders_any(&e->holders);
    sh->proc[slot].mem -= e->bytes;
    if (heir >= 0) {
        e->owner = (uint32_t)heir;
        sh->proc[heir].mem += e->bytes;
        return;
    }
    e->owner = SIM_NOBODY;
    sh->unowned += e->bytes;
    check(d, e);
}

void export_drop(struct device *d, uint64_t id)
{
    if (d->left || !shared_lock(d))
        return;
    struct export *e = find(d->sh, id);
    if (e)
        leave(d, e, (unsigned)d->slot);
    shared_unlock(d);
}

void event_leave(struct shared_event *e, unsigned slot)
{
    holders_del(&e->holders, slot);
    if (holders_any(&e->holders) < 0)
        e->id = 0;
}

void holders_forget(struct device *d, unsigned slot)
{
    struct shared *sh = d->sh;
    for (int i = 0; i < SIM_EXPORTS; i++)
        if (sh->exports[i].id && holders_has(&sh->exports[i].holders, slot))
            leave(d, &sh->exports[i], slot);
    for (int i = 0; i < SIM_EVENTS; i++)
        if (sh->events[i].id)
            event_leave(&sh->events[i], slot);
}
