/* ipcevent.c: events between processes. The processes share an entry in the device's state (shared.h) with
 * the number of the latest recording, the process that made it, and the latest completed recording. A process
 * that waits for another one's recording has its own record for it, which a thread completes when the entry
 * says so, or when the recording process has ended.
 *
 * If two processes record the same event and neither waits for the other, the end of the later recording
 * also ends the earlier one, for all processes that wait. */
#include "ipcevent.h"
#include "shared.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x45504947u
#define POLL_NS 10000000 /* poll interval for the end of a process */

struct handle {
    uint32_t magic;
    int32_t device;
    uint32_t slot, index;
    uint64_t serial, id;
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcEventHandle), "a handle is 64 bytes");

/* This process's state of an entry. */
struct local {
    unsigned refs;        /* events, own recordings in progress, foreign recordings waited for */
    struct record *own;   /* the latest recording by this process */
    struct record *other; /* the latest recording of another process that was waited for */
};
static struct local locals[SIM_MAX_DEVICES][SIM_EVENTS];

/* A recording of another process for which this process waits. */
struct foreign {
    struct foreign *next;
    struct device *dev;
    struct record *record;
};
static struct foreign *foreigns;
static bool watching;

static struct local *local_of(const struct device *d, unsigned at)
{
    return &locals[d->index][at];
}

/* Drops a reference to this process's state; the last one also leaves the entry. */
static void drop_local(struct device *d, unsigned at)
{
    struct local *l = local_of(d, at);
    if (--l->refs)
        return;
    record_unref(l->own);
    record_unref(l->other);
    *l = (struct local){0};
    if (d->left || !shared_lock(d))
        return;
    event_leave(&d->sh->events[at], (unsigned)d->slot);
    shared_unlock(d);
}

static bool reached(const struct shared_event *s, uint32_t number)
{
    return (int32_t)(atomic_load(&s->done) - number) >= 0;
}

static bool is_own(const struct device *d, const struct shared_event *s)
{
    return s->slot == (uint32_t)d->slot && s->serial == d->arena_serial;
}

/* Reports whether another process's recording has completed, or never will. */
static bool has_ended(struct device *d, const struct shared_event *s, uint32_t number)
{
    return reached(s, number) || d->sh->proc[s->slot].serial != s->serial || !shared_alive(d, s->slot);
}

/* ---- waiting for other processes ---- */

/* Completes the record of another process's recording. */
static void finish_foreign(struct foreign *f)
{
    struct record *r = f->record;
    r->done = true;
    r->at = now_ns();
    drop_local(f->dev, r->shared - 1);
    record_unref(r);
    free(f);
}

/* Completes the records whose recordings have. Returns whether there were any. */
static bool finish_ended(void)
{
    bool any = false;
    for (struct foreign **p = &foreigns, *f; (f = *p);) {
        const struct shared_event *s = &f->dev->sh->events[f->record->shared - 1];
        if (!f->dev->left && !has_ended(f->dev, s, f->record->number)) {
            p = &f->next;
            continue;
        }
        *p = f->next;
        finish_foreign(f);
        any = true;
    }
    return any;
}

/* The thread that waits for other processes; it ends when there is nothing to wait for. */
static void *watch(void *arg)
{
    (void)arg;
    threads_name("gfaas-sim-wait");
    pthread_mutex_lock(&g_lock);
    while (foreigns) {
        struct device *d = foreigns->dev;
        uint32_t seen = atomic_load(&d->sh->events_bell);
        if (finish_ended()) {
            threads_settle();
            continue;
        }
        pthread_mutex_unlock(&g_lock);
        struct timespec ts = {0, POLL_NS};
        syscall(SYS_futex, &d->sh->events_bell, FUTEX_WAIT, seen, &ts, NULL, 0);
        pthread_mutex_lock(&g_lock);
    }
    watching = false;
    pthread_mutex_unlock(&g_lock);
    return NULL;
}

/* Returns a record that completes with another process's recording; NULL if that has completed, or cannot be
 * waited for. */
static struct record *wait_for(struct device *d, unsigned at, uint32_t number)
{
    struct local *l = local_of(d, at);
    if (l->other && l->other->number == number)
        return l->other->done ? NULL : l->other;
    struct foreign *f = calloc(1, sizeof *f);
    struct record *r = f ? record_new() : NULL;
    if (!r || (!watching && !(watching = threads_start(watch, NULL)))) {
        free(f);
        free(r);
        return NULL;
    }
    r->foreign = true;
    r->shared = at + 1;
    r->number = number;
    r->refs++;
    l->refs++;
    *f = (struct foreign){foreigns, d, r};
    foreigns = f;
    record_unref(l->other);
    l->other = r;
    return r;
}

struct record *event_pending(struct event *e)
{
    if (!e->shared)
        return e->last && !e->last->done ? e->last : NULL;
    struct device *d = e->ctx->dev;
    struct shared_event *s = &d->sh->events[e->shared - 1];
    struct local *l = local_of(d, e->shared - 1);
    if (!shared_lock(d))
        return NULL;
    struct shared_event now = {.slot = s->slot, .serial = s->serial, .done = atomic_load(&s->done)};
    uint32_t number = atomic_load(&s->recorded);
    shared_unlock(d);
    if (!number || is_own(d, &now))
        return number && l->own && !l->own->done ? l->own : NULL;
    return has_ended(d, &now, number) ? NULL : wait_for(d, e->shared - 1, number);
}

/* ---- recording ---- */

void event_numbered(struct event *e, struct record *r)
{
    struct device *d = e->ctx->dev;
    if (!e->shared || !shared_lock(d))
        return;
    struct shared_event *s = &d->sh->events[e->shared - 1];
    r->shared = e->shared;
    r->number = atomic_fetch_add(&s->recorded, 1) + 1;
    s->slot = (uint32_t)d->slot;
    s->serial = d->arena_serial;
    shared_unlock(d);
    local_of(d, e->shared - 1)->refs++;
    r->dev = d;
}

/* Other processes may wait for the recording, so its end must be noticed in time. */
void event_recorded(struct event *e, struct record *r)
{
    struct local *l = local_of(e->ctx->dev, e->shared - 1);
    record_unref(l->own);
    l->own = r;
    r->refs++;
    if (!r->done)
        record_watch(r, NULL);
}

void event_passed(struct record *r)
{
    struct device *d = r->dev;
    struct shared_event *s = &d->sh->events[r->shared - 1];
    uint32_t done = atomic_load(&s->done);
    while ((int32_t)(r->number - done) > 0 && !atomic_compare_exchange_weak(&s->done, &done, r->number))
        ;
    atomic_fetch_add(&d->sh->events_bell, 1);
    syscall(SYS_futex, &d->sh->events_bell, FUTEX_WAKE, SIM_SLOTS, NULL, NULL, 0);
    unsigned at = r->shared - 1;
    r->shared = 0;
    drop_local(d, at);
}

void event_closed(struct event *e)
{
    if (e->shared)
        drop_local(e->ctx->dev, e->shared - 1);
}

/* ---- handles ---- */

/* Gives an event its entry; an existing recording becomes number 1. */
static CUresult create_entry(struct event *e)
{
    struct device *d = e->ctx->dev;
    unsigned at = 0;
    if (!shared_lock(d))
        return CUDA_ERROR_OPERATING_SYSTEM;
    while (at < SIM_EVENTS && d->sh->events[at].id)
        at++;
    if (at < SIM_EVENTS) {
        struct shared_event *s = &d->sh->events[at];
        memset(s, 0, sizeof *s);
        s->id = export_new_id(d);
        holders_add(&s->holders, (unsigned)d->slot);
    }
    shared_unlock(d);
    if (at == SIM_EVENTS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->shared = at + 1;
    local_of(d, at)->refs++;
    if (e->last && !e->last->done) {
        event_numbered(e, e->last);
        event_recorded(e, e->last);
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuIpcGetEventHandle(struct event *e, CUipcEventHandle *pHandle, CUevent event)
{
    if (!pHandle || !(e->flags & CU_EVENT_INTERPROCESS))
        return CUDA_ERROR_INVALID_VALUE;
    if (!e->shared)
        TRY(create_entry(e));
    struct device *d = e->ctx->dev;
    struct handle h = {MAGIC, d->index, (uint32_t)d->slot, e->shared - 1, d->arena_serial,
                       d->sh->events[e->shared - 1].id};
    memset(pHandle, 0, sizeof *pHandle);
    memcpy(pHandle, &h, sizeof h);
    return CUDA_SUCCESS;
}

/* Adds this process to the holders of the entry. Returns false if the entry is gone. */
static bool hold_entry(struct device *d, const struct handle *h)
{
    if (!shared_lock(d))
        return false;
    struct shared_event *s = &d->sh->events[h->index];
    bool there = s->id == h->id;
    if (there)
        holders_add(&s->holders, (unsigned)d->slot);
    shared_unlock(d);
    if (there)
        local_of(d, h->index)->refs++;
    return there;
}

CUresult sim_cuIpcOpenEventHandle(struct ctx *c, CUevent *phEvent, CUipcEventHandle handle)
{
    struct handle h;
    memcpy(&h, &handle, sizeof h);
    struct device *d = c->dev;
    if (!phEvent || h.magic != MAGIC || h.device != d->index || h.index >= SIM_EVENTS || !h.id)
        return CUDA_ERROR_INVALID_VALUE;
    if (h.slot == (uint32_t)d->slot && h.serial == d->arena_serial)
        return CUDA_ERROR_INVALID_CONTEXT; /* the process that made the handle cannot open it */
    struct event *e = event_new(c, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!hold_entry(d, &h)) {
        event_free(e);
        return CUDA_ERROR_INVALID_VALUE;
    }
    e->shared = h.index + 1;
    *phEvent = (CUevent)e;
    return CUDA_SUCCESS;
}
