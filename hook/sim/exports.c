/* exports.c: allocations that several processes hold. Each counts once, as the memory of one holder. It is
 * freed when no process holds it any more, however the processes ended. As on a GPU, an open descriptor
 * holds it too: a descriptor that no process has imported, even in a socket, keeps the memory, which then
 * counts as unowned. */
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

/* Returns one holder, or -1 if there is none. */
static int holders_any(const struct holders *h)
{
    for (int i = 0; i < SIM_SLOTS / 64; i++)
        if (h->bit[i])
            return 64 * i + __builtin_ctzll(h->bit[i]);
    return -1;
}

/* Returns a unique id: a slot has one process at a time. */
uint64_t export_new_id(const struct device *d)
{
    return now_ns() * SIM_SLOTS + (unsigned)d->slot;
}

/* Returns the entry with that id; for id 0, an unused one. NULL: there is none. */
static struct export *find_export(struct shared *sh, uint64_t id)
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

/* A lock of the open file is released with the last descriptor of that opening. Under its name, other
 * processes can open the file and query the lock. */
bool export_publish(const struct device *d, uint64_t id, int fd)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char name[NAME_BYTES];
    export_name(name, d->index, id);
    if (fcntl(fd, F_OFD_SETLK, &all) < 0)
        return false;
    shared_link(fd, name); /* not every file system supports that; then only importing processes count */
    return true;
}

/* Reports whether a descriptor of it is open in any process; sets *bytes to its size. */
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

/* Removes an export without an owner, unless a descriptor is open. */
static void drop_if_closed(struct device *d, struct export *e)
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
            drop_if_closed(d, &d->sh->exports[i]);
}

/* Adds an export that outlived all processes on the device. */
static void add_found(struct device *d, const char *name, const char *rest)
{
    uint64_t bytes, id = rest[0] == 'x' ? strtoull(rest + 1, NULL, 10) : 0;
    struct export *e = id ? find_export(d->sh, 0) : NULL;
    if (!e || !is_open(name, &bytes)) {
        shared_remove_file(name);
        return;
    }
    *e = (struct export){.id = id, .bytes = bytes, .owner = SIM_NOBODY};
    d->sh->unowned += bytes;
}

void exports_find(struct device *d)
{
    shared_each_memory(d->index, add_found, d);
}

/* ---- holders ---- */

/* Adds this process to the holders, if there are any. */
static bool hold_existing(struct device *d, uint64_t id)
{
    if (!shared_lock(d))
        return false;
    struct export *e = find_export(d->sh, id);
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

/* Creates an entry owned by this process. */
static bool hold_new(struct device *d, uint64_t id, uint64_t bytes)
{
    if (!shared_lock(d))
        return false;
    struct export *e = find_export(d->sh, id) ? NULL : find_export(d->sh, 0);
    if (e) {
        *e = (struct export){.id = id, .bytes = bytes, .owner = (uint32_t)d->slot};
        holders_add(&e->holders, (unsigned)d->slot);
    }
    shared_unlock(d);
    return e != NULL;
}

bool export_hold(struct device *d, uint64_t id, uint64_t bytes, bool counted)
{
    if (hold_existing(d, id))
        return true;
    if (!counted && memory_reserve(d, bytes) != CUDA_SUCCESS)
        return false;
    if (hold_new(d, id, bytes))
        return true;
    if (!counted)
        shared_mem_release(d, bytes);
    return hold_existing(d, id); /* another process may have imported it first */
}

/* Removes a process from an export's holders; if it was the owner, another holder becomes the owner. */
static void drop_holder(struct device *d, struct export *e, unsigned slot)
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
    drop_if_closed(d, e);
}

void export_drop(struct device *d, uint64_t id)
{
    if (d->left || !shared_lock(d))
        return;
    struct export *e = find_export(d->sh, id);
    if (e)
        drop_holder(d, e, (unsigned)d->slot);
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
            drop_holder(d, &sh->exports[i], slot);
    for (int i = 0; i < SIM_EVENTS; i++)
        if (sh->events[i].id)
            event_leave(&sh->events[i], slot);
}
