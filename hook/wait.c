/* wait.c: streams that wait for something outside the GPU: a value in memory, an external
 * semaphore, an event of another process, or a host function.
 *
 * The other side may need the GPU, so the process returns its lease once all work under it
 * waits (meter.c). An event before and one after each wait tell waiting work from running
 * work. Work queued behind a wait may run without a lease. Its GPU time, from the end of the
 * wait to the next wait or to the end of the work, is reported to the daemon, which charges it.
 *
 * A graph may wait inside, where no event can be recorded. It counts as waiting if it takes
 * long, and its whole time is charged.
 *
 * gf_wait_end and gf_wait_tend take the device's lock; the caller of every other function
 * holds it. */
#include "wait.h"

#include "clock.h"
#include "device.h"
#include "query.h"
#include "real.h"
#include "thread.h"

#include <stdlib.h>

#define WAITS_NS 1000000u        /* a stream counts as waiting after this long at one wait */
#define INSIDE_NS 20000000u      /* for a graph: this, or two turns if longer */
#define TEND_MS 20               /* poll interval for work that runs without a lease */

struct gf_wait {
    CUevent before, after;
    CUevent tail;  /* behind the work after the last wait */
    bool open;     /* the call that makes the stream wait has not returned: `after` is not recorded */
    bool inside;   /* it is a graph that may wait */
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

/* A wait that is not in use, or a new one; NULL: no event can be created. */
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
    if (entry->stands == w)
        entry->stands = NULL;
    w->next = entry->spare;
    entry->spare = w;
}

/* The event that ends the work behind a wait; NULL: it is not recorded yet. */
static CUevent end_of(const struct gf_stream *entry, const struct gf_wait *w)
{
    if (w->next)
        return w->next->before;
    return w->tailed ? w->tail : entry->owner ? entry->end : NULL;
}

/* Recycles waits that have ended, after reporting the work behind them. */
static void pass(struct gf_stream *entry)
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
    pass(entry);
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
    CUcontext popped;
    if (gf_context_leaves(entry->device, entry->context) || gf_real.cuCtxPushCurrent_v2(entry->context) != CUDA_SUCCESS)
        return false;
    bool recorded = gf_recordable(entry->stream) && gf_real.cuEventRecord(w->after, entry->stream) == CUDA_SUCCESS;
    gf_real.cuCtxPopCurrent_v2(&popped);
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

/* Another process's events are waited for by cuStreamWaitEvent (capture.c). */
#define GF_SHARED_EVENT(symbol, params, args) \
    CUresult symbol params \
    { \
        if (!gf_boot()) \
            return CUDA_ERROR_NOT_INITIALIZED; \
        gf_store(&gf_waits, true); \
        return gf_real.symbol args; \
    }
GF_SHARED_EVENT(cuIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event), (handle, event))
GF_SHARED_EVENT(cuIpcOpenEventHandle, (CUevent * event, CUipcEventHandle handle), (event, handle))

/* ---- queries by meter.c ---- */

/* Returns the wait that the stream is blocked at, or NULL. */
static struct gf_wait *arrived(const struct gf_stream *entry)
{
    struct gf_wait *w = entry->waits;
    while (w && !w->open && is_over(w->after))
        w = w->next;
    return w && !w->open && is_over(w->before) ? w : NULL;
}

static uint64_t patience(const struct gf_stream *entry, const struct gf_wait *w)
{
    uint64_t turns = 2 * gf_load(&gf_load(&entry->device->slot)->turn_ns);
    return !w->inside ? WAITS_NS : turns > INSIDE_NS ? turns : INSIDE_NS;
}

bool gf_wait_stands(struct gf_stream *entry)
{
    if (gf_likely(!entry->waits))
        return false;
    pass(entry);
    struct gf_wait *w = arrived(entry);
    uint64_t now = w ? gf_now_ns() : 0;
    if (w != entry->stands) {
        entry->stands = w;
        entry->stands_ns = now;
    }
    return w && now - entry->stands_ns >= patience(entry, w);
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

/* Whether recording an event on the legacy stream would add an ordering that the program did
 * not ask for, because other blocking streams have work. */
static bool would_order(const struct gf_stream *entry)
{
    bool others = false;
    for (struct gf_stream *o = entry->device->streams; o && entry->stream == CU_STREAM_LEGACY; o = o->next)
        others |= o->context == entry->context && o->blocking && !o->dead && (o->waits || !is_over(o->end));
    return others;
}

bool gf_wait_look(struct gf_device *device, bool busy)
{
    bool unleased = false;
    for (struct gf_stream *s = device->streams; s; s = s->next) {
        CUcontext popped;
        s->held = NULL;
        s->parked = false;
        if (gf_likely(!s->waits) || s->dead || gf_context_leaves(device, s->context) ||
            gf_real.cuCtxPushCurrent_v2(s->context) != CUDA_SUCCESS)
            continue;
        gf_relax_capture();
        s->held = gf_wait_stands(s) ? s->stands : NULL;
        if (!busy && !would_order(s))
            gf_wait_tail(s);
        unleased |= s->waits && s->waits->unleased;
        gf_real.cuCtxPopCurrent_v2(&popped);
    }
    return unleased;
}

bool gf_wait_holds(struct gf_stream *entry)
{
    bool legacy = entry->stream == CU_STREAM_LEGACY;
    if (entry->held || (!legacy && !entry->blocking) || !gf_load(&gf_waits))
        return entry->held;
    for (struct gf_stream *o = entry->device->streams; o && !entry->held; o = o->next)
        if (o->context == entry->context && o->held && o->held == o->stands && (legacy ? o->blocking : o->stream == CU_STREAM_LEGACY))
            entry->held = o->held;
    return entry->held;
}

CUevent gf_wait_reached(const struct gf_stream *entry) { return entry->held->before; }

void gf_wait_leave(struct gf_stream *entry)
{
    struct gf_wait *w = entry->waits;
    while (w && w != entry->held)
        w = w->next;
    for (; w; w = w->next) {
        w->unleased = w->next || !would_order(entry);
        w->tailed = false;
    }
}

int gf_wait_tend(struct gf_device *device)
{
    if (gf_likely(!gf_load(&gf_waits)))
        return -1;
    bool busy = gf_busy(device);
    pthread_mutex_lock(&device->lock);
    bool unleased = gf_wait_look(device, busy);
    pthread_mutex_unlock(&device->lock);
    return unleased ? TEND_MS : -1;
}
