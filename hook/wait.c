/* wait.c: streams that wait for something outside the GPU: a value in memory, an external
 * semaphore, an event of another process, or a host function.
 *
 * What it waits for may need the GPU, so the process returns its lease once all work under the
 * lease waits (meter.c). The library records an event before each wait and one after it: while
 * only the first has completed, the stream waits. Work queued behind a wait may run without a
 * lease. Its GPU time, from the end of the wait to the next wait or to the end of the work, is
 * reported to the daemon, which charges it.
 *
 * A graph may contain a wait, and no event can be recorded inside a graph. The whole graph counts
 * as waiting if it takes long, and its whole time is charged.
 *
 * gf_wait_end and gf_wait_poll take the device's lock; the caller of every other function
 * holds it. */
#include "wait.h"

#include "clock.h"
#include "device.h"
#include "query.h"
#include "real.h"
#include "thread.h"

#include <stdlib.h>

#define WAITS_NS 1000000u        /* a stream counts as waiting after this long at one wait */
#define INSIDE_NS 20000000u      /* the same for a graph that may contain a wait; two turns, if that is longer */
#define TEND_MS 20               /* poll interval for work that runs without a lease */

struct gf_wait {
    CUevent before, after;
    CUevent tail;  /* at the end of the work that was queued behind this wait, if it is the last wait */
    bool open;     /* the call that makes the stream wait has not returned; `after` is not recorded */
    bool inside;   /* this is the launch of a graph that may contain a wait */
    bool unleased; /* the lease was returned during this wait: the work behind it is reported separately */
    bool tailed;   /* tail is recorded */
    struct gf_wait *next;
};

bool gf_waits;

static bool is_over(CUevent event) { return gf_real.cuEventQuery(event) != CUDA_ERROR_NOT_READY; }

static void destroy(struct gf_wait *list, bool events)
{
    while (list) {
        struct gf_wait *w = list;
        list = w->next;
        CUevent all[] = {w->before, w->after, w->tail};
        for (unsigned i = 0; events && i < 3; i++)
            if (all[i])
                gf_real.cuEventDestroy_v2(all[i]);
        free(w);
    }
}

void gf_wait_free(struct gf_stream *entry, bool events)
{
    destroy(entry->waits, events);
    destroy(entry->spare, events);
    entry->waits = entry->spare = NULL;
}

/* Returns a spare wait, or a new one; NULL if no event can be created. */
static struct gf_wait *new_wait(struct gf_stream *entry)
{
    struct gf_wait *w = entry->spare;
    if (w) {
        entry->spare = w->next;
        *w = (struct gf_wait){.before = w->before, .after = w->after, .tail = w->tail};
        return w;
    }
    w = calloc(1, sizeof *w);
    CUevent *all[] = {w ? &w->before : NULL, w ? &w->after : NULL, w ? &w->tail : NULL};
    for (unsigned i = 0; w && i < 3; i++)
        if (gf_real.cuEventCreate(all[i], CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
            *all[i] = NULL;
            destroy(w, true);
            w = NULL;
        }
    return w;
}

static void recycle(struct gf_stream *entry, struct gf_wait **at)
{
    struct gf_wait *w = *at;
    *at = w->next;
    if (entry->wait_seen == w)
        entry->wait_seen = NULL;
    w->next = entry->spare;
    entry->spare = w;
}

/* Returns the event at the end of the work that is queued behind a wait: the next wait's `before`,
 * the tail, or the end of the stream's work. NULL: it is not recorded yet. */
static CUevent end_of(const struct gf_stream *entry, const struct gf_wait *w)
{
    if (w->next)
        return w->next->before;
    return w->tailed ? w->tail : entry->owner ? entry->end : NULL;
}

/* Recycles the waits that have ended. If the work behind one ran without a lease, recycle_ended first adds
 * its GPU time to unleased_ns, and stops if that work is not finished. */
static void recycle_ended(struct gf_stream *entry)
{
    for (struct gf_wait *w; (w = entry->waits) && !w->open && is_over(w->after); recycle(entry, &entry->waits)) {
        if (!w->unleased)
            continue;
        CUevent end = end_of(entry, w);
        if (!end || !is_over(end))
            return;
        float ms = 0;
        if (gf_real.cuEventElapsedTime(&ms, w->inside ? w->before : w->after, end) == CUDA_SUCCESS && ms > 0)
            __atomic_add_fetch(&gf_load(&entry->device->slot)->unleased_ns, (uint64_t)((double)ms * 1e6), __ATOMIC_RELAXED);
    }
}

/* ---- calls that make a stream wait ---- */

struct gf_waiting gf_wait_begin(struct gf_stream *entry, bool inside)
{
    recycle_ended(entry);
    struct gf_wait *w = new_wait(entry);
    if (w && gf_real.cuEventRecord(w->before, entry->stream) == CUDA_SUCCESS) {
        struct gf_wait **at = &entry->waits;
        while (*at)
            at = &(*at)->next;
        w->next = NULL;
        *at = w;
        w->open = true;
        w->inside = inside;
        entry->pinned++;
        return (struct gf_waiting){entry, w};
    }
    if (w) {
        w->next = entry->spare;
        entry->spare = w;
    }
    return (struct gf_waiting){0};
}

/* Records the event after a wait. Returns false if it cannot be recorded. */
static bool record_after(struct gf_stream *entry, struct gf_wait *w)
{
    if (!gf_context_enter(entry->device, entry->context))
        return false;
    bool recorded = gf_recordable(entry->stream) && gf_real.cuEventRecord(w->after, entry->stream) == CUDA_SUCCESS;
    gf_context_exit();
    return recorded;
}

void gf_wait_end(struct gf_waiting waiting, CUresult result)
{
    struct gf_stream *entry = waiting.entry;
    if (!entry)
        return;
    pthread_mutex_lock(&entry->device->lock);
    entry->pinned--;
    waiting.wait->open = false;
    if (!entry->dead && (result != CUDA_SUCCESS || !record_after(entry, waiting.wait)))
        for (struct gf_wait **at = &entry->waits; *at; at = &(*at)->next)
            if (*at == waiting.wait) {
                recycle(entry, at);
                break;
            }
    pthread_mutex_unlock(&entry->device->lock);
}

/* The process shares an event with another process, so a later cuStreamWaitEvent (capture.c) may wait
 * for that process: gf_waits is set. */
GF_BEFORE(cuIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event), (handle, event), gf_store(&gf_waits, true))
GF_BEFORE(cuIpcOpenEventHandle, (CUevent * event, CUipcEventHandle handle), (event, handle), gf_store(&gf_waits, true))

/* ---- queries by meter.c ---- */

/* Returns the wait at which the stream is now, or NULL. */
static struct gf_wait *arrived(const struct gf_stream *entry)
{
    struct gf_wait *w = entry->waits;
    while (w && !w->open && is_over(w->after))
        w = w->next;
    return w && !w->open && is_over(w->before) ? w : NULL;
}

/* Returns the ns after which a stream at this wait counts as waiting. */
static uint64_t patience(const struct gf_stream *entry, const struct gf_wait *w)
{
    uint64_t turns = 2 * gf_load(&gf_load(&entry->device->slot)->turn_ns);
    return !w->inside ? WAITS_NS : turns > INSIDE_NS ? turns : INSIDE_NS;
}

bool gf_wait_is_long(struct gf_stream *entry)
{
    if (gf_likely(!entry->waits))
        return false;
    recycle_ended(entry);
    struct gf_wait *w = arrived(entry);
    uint64_t now = w ? gf_now_ns() : 0;
    if (w != entry->wait_seen) {
        entry->wait_seen = w;
        entry->wait_seen_ns = now;
    }
    return w && now - entry->wait_seen_ns >= patience(entry, w);
}

static struct gf_wait *last_of(const struct gf_stream *entry)
{
    struct gf_wait *w = entry->waits;
    while (w && w->next)
        w = w->next;
    return w;
}

void gf_wait_tail(struct gf_stream *entry)
{
    struct gf_wait *w = last_of(entry);
    if (w && w->unleased && !w->tailed && !w->open && !entry->owner && gf_recordable(entry->stream))
        w->tailed = gf_real.cuEventRecord(w->tail, entry->stream) == CUDA_SUCCESS;
}

/* Reports whether an event on the entry's stream would order work that the program did not order.
 * It would on the legacy stream if other blocking streams have work: the event waits for that work,
 * and later work of those streams waits for the event. */
static bool would_order(const struct gf_stream *entry)
{
    bool others = false;
    for (struct gf_stream *o = entry->device->streams; o && entry->stream == CU_STREAM_LEGACY; o = o->next)
        others |= o->context == entry->context && o->blocking && !o->dead && (o->waits || !is_over(o->end));
    return others;
}

bool gf_wait_update(struct gf_device *device, bool busy)
{
    bool unleased = false;
    for (struct gf_stream *s = device->streams; s; s = s->next) {
        s->blocked_by = NULL;
        s->lease_blocked = false;
        if (gf_likely(!s->waits) || s->dead || !gf_context_enter(device, s->context))
            continue;
        gf_relax_capture();
        s->blocked_by = gf_wait_is_long(s) ? s->wait_seen : NULL;
        if (!busy && !would_order(s))
            gf_wait_tail(s);
        unleased |= s->waits && s->waits->unleased;
        gf_context_exit();
    }
    return unleased;
}

bool gf_wait_blocks(struct gf_stream *entry)
{
    bool legacy = entry->stream == CU_STREAM_LEGACY;
    if (entry->blocked_by || (!legacy && !entry->blocking) || !gf_load(&gf_waits))
        return entry->blocked_by;
    for (struct gf_stream *o = entry->device->streams; o && !entry->blocked_by; o = o->next)
        if (o->context == entry->context && o->blocked_by && o->blocked_by == o->wait_seen && (legacy ? o->blocking : o->stream == CU_STREAM_LEGACY))
            entry->blocked_by = o->blocked_by;
    return entry->blocked_by;
}

CUevent gf_wait_event(const struct gf_stream *entry) { return entry->blocked_by->before; }

void gf_wait_end_lease(struct gf_stream *entry)
{
    struct gf_wait *w = entry->waits;
    while (w && w != entry->blocked_by)
        w = w->next;
    for (; w; w = w->next) {
        w->unleased = w->next || !would_order(entry);
        w->tailed = false;
    }
}

int gf_wait_poll(struct gf_device *device)
{
    if (gf_likely(!gf_load(&gf_waits)))
        return -1;
    bool busy = gf_busy(device);
    pthread_mutex_lock(&device->lock);
    bool unleased = gf_wait_update(device, busy);
    pthread_mutex_unlock(&device->lock);
    return unleased ? TEND_MS : -1;
}
