/* stream.c: the streams to which the process has sent work. */
#include "stream.h"

#include "clock.h"
#include "device.h"
#include "meter.h"
#include "query.h"
#include "real.h"
#include "thread.h"
#include "wait.h"

#include <stdlib.h>
#include <string.h>

#define LEAVES_NS 1000000000u /* longest wait for the driver to destroy a context or release a holder */
#define LEAVES_POLL_NS 50000

/* Returns the entry of a live stream, or NULL. The caller holds device->lock. */
static struct gf_stream *find(struct gf_device *device, CUcontext context, CUstream stream)
{
    struct gf_thread *owner = stream == CU_STREAM_PER_THREAD ? &gf_self : NULL;
    for (struct gf_stream *s = device->streams; s; s = s->next)
        if (s->stream == stream && s->context == context && s->owner == owner && !s->gone && !s->dead)
            return s;
    return NULL;
}

static void destroy_events(struct gf_stream *entry)
{
    if (gf_real.cuCtxPushCurrent_v2(entry->context) != CUDA_SUCCESS)
        return;
    gf_real.cuEventDestroy_v2(entry->begin);
    gf_real.cuEventDestroy_v2(entry->end);
    gf_real.cuEventDestroy_v2(entry->next_end);
    for (unsigned i = 0; i < GF_MARKS; i++)
        gf_real.cuEventDestroy_v2(entry->mark[i]);
    gf_wait_free(entry, true);
    gf_context_exit();
}

/* Initializes the entry for a stream without history. */
static void reset(struct gf_stream *entry, CUstream stream)
{
    entry->stream = stream;
    entry->owner = stream == CU_STREAM_PER_THREAD ? &gf_self : NULL;
    unsigned flags = 0;
    entry->blocking = stream != CU_STREAM_LEGACY && gf_real.cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS && !(flags & CU_STREAM_NON_BLOCKING);
    entry->gone = entry->behind = false;
    entry->doublings = entry->calm = 0;
    entry->ended_at = 0;
    memset(entry->span, 0, sizeof entry->span);
    memset(entry->graph, 0, sizeof entry->graph);
    entry->fresh = true;
    entry->unassigned = 0;
    entry->marks_recorded = entry->marks_learned = entry->marks_completed = 0;
    entry->stride = entry->allotted = 1;
    entry->depth = 1;
    entry->piece_ms = 0;
}

/* Reports whether the work of a destroyed stream is known to have finished. */
static bool finished(const struct gf_stream *entry)
{
    bool ended = entry->owner || entry->ended_at == GF_WORKS_UNKNOWN + 1;
    return entry->lease == GF_NO_LEASE || (ended && gf_real.cuEventQuery(entry->end) != CUDA_ERROR_NOT_READY);
}

/* Reuses the entry of a destroyed stream, so that entries do not accumulate during a lease. The
 * measured time stays right, because it is the span from the context's first work to its last.
 * Returns NULL if there is no such entry. The context is current; the caller holds device->lock. */
static struct gf_stream *reuse(struct gf_device *device, CUcontext context, CUstream stream)
{
    struct gf_stream *s = device->streams;
    while (s && (s->context != context || !s->gone || s->dead || s->waits || s->pinned || !finished(s)))
        s = s->next;
    if (s) {
        gf_forget_entry(s); /* a later stream may have its handle */
        reset(s, stream);
    }
    return s;
}

/* Creates an entry. The context is current; the caller holds device->lock. */
static struct gf_stream *make(struct gf_device *device, CUcontext context, CUstream stream)
{
    struct gf_stream *entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    CUevent *events[3 + GF_MARKS] = {&entry->begin, &entry->end, &entry->next_end};
    for (unsigned i = 0; i < GF_MARKS; i++)
        events[3 + i] = &entry->mark[i];
    for (unsigned i = 0; i < 3 + GF_MARKS; i++)
        if (gf_real.cuEventCreate(events[i], CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
            while (i-- > 0)
                gf_real.cuEventDestroy_v2(*events[i]);
            free(entry);
            return NULL;
        }
    entry->device = device;
    entry->context = context;
    entry->lease = GF_NO_LEASE;
    reset(entry, stream);
    entry->next = device->streams;
    device->streams = entry;
    return entry;
}

/* Waits while another thread may be destroying the context, and returns true if the context
 * stays, as a primary context does when one of several holders releases it. Returns false if that
 * takes too long; the other thread may need what this one is about to send. The caller holds
 * device->lock, which is released while the function sleeps. */
static bool stays(struct gf_device *device, CUcontext context)
{
    for (uint64_t until = gf_now_ns() + LEAVES_NS; gf_leaving_entry(device, context);) {
        if (gf_now_ns() >= until)
            return false;
        pthread_mutex_unlock(&device->lock);
        gf_pause_ns(LEAVES_POLL_NS);
        pthread_mutex_lock(&device->lock);
    }
    return true;
}

void gf_stream_close(struct gf_stream *entry)
{
    pthread_mutex_unlock(&entry->device->lock);
    gf_context_exit();
}

struct gf_stream *gf_stream_open(struct gf_device *device, CUstream stream)
{
    struct gf_stream *entry = NULL;
    CUcontext context = gf_context_of(stream);
    if (!context || gf_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return NULL;
    pthread_mutex_lock(&device->lock);
    if (stays(device, context) && gf_recordable(stream) && !(entry = find(device, context, stream)) &&
        !(entry = reuse(device, context, stream)))
        entry = make(device, context, stream);
    if (entry)
        return entry;
    pthread_mutex_unlock(&device->lock);
    gf_context_exit();
    return NULL;
}

struct gf_stream *gf_stream_use(struct gf_device *device, CUstream stream, uint32_t lease)
{
    struct gf_stream *entry = gf_stream_open(device, stream);
    if (!entry)
        return NULL;
    if (entry->lease != lease) {
        if (entry->lease == GF_NO_LEASE) { /* otherwise work of the previous lease is in flight and counts now */
            gf_wait_tail(entry);
            gf_real.cuEventRecord(entry->begin, stream);
            entry->begun_ns = gf_now_ns();
            entry->begun_at = gf_works(gf_count_all(device));
            entry->fresh = true;
        }
        entry->lease = lease;
        entry->ended_at = 0;
        gf_meter_begin(entry);
        if (entry->unassigned > 0)
            entry->unassigned = 0; /* the lease starts with a mark, because the GPU was idle before it */
    }
    gf_stream_close(entry);
    return entry;
}

/* Records the end of the work on all streams of a device. The legacy stream comes last, and only
 * if no other stream is running (visit in meter.c gives the reason). If its end cannot be recorded
 * now, it is recorded when the lease ends, provided that the capture has ended. */
static void end_all(struct gf_device *device)
{
    bool runs = false;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* other threads may capture */
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    for (int last = 0; last < 2; last++)
        for (struct gf_stream *s = device->streams; s && !(last && runs); s = s->next) {
            if ((s->stream == CU_STREAM_LEGACY) != last || s->lease == GF_NO_LEASE || s->dead ||
                !gf_context_enter(device, s->context))
                continue;
            gf_meter_end(s, GF_WORKS_UNKNOWN);
            runs |= gf_real.cuEventQuery(s->end) == CUDA_ERROR_NOT_READY;
            gf_context_exit();
        }
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
}

void gf_capture_begins(void)
{
    __atomic_store_n(&gf_captured, true, __ATOMIC_SEQ_CST);
    for (gf_each_device(d)) {
        pthread_mutex_lock(&d->lock);
        end_all(d);
    }
}

void gf_capture_has_begun(void)
{
    for (gf_each_device(d))
        pthread_mutex_unlock(&d->lock);
}

static void stream_gone(struct gf_device *device, CUstream stream)
{
    pthread_mutex_lock(&device->lock);
    for (struct gf_stream *s = device->streams; s; s = s->next) {
        if (s->stream != stream || s->gone || s->dead)
            continue;
        if ((s->lease != GF_NO_LEASE || s->waits) && gf_context_enter(device, s->context)) {
            gf_wait_tail(s);
            if (s->lease != GF_NO_LEASE)
                gf_meter_end(s, GF_WORKS_UNKNOWN);
            gf_context_exit();
        }
        s->gone = true;
    }
    pthread_mutex_unlock(&device->lock);
}

void gf_stream_gone(CUstream stream)
{
    if (!gf_is_default_stream(stream))
        for (gf_each_device(d))
            stream_gone(d, stream);
}

/* Gives the entry of a destroyed stream to a new stream with the same handle and context. Returns
 * true if there is such an entry of another context. */
static bool inherit(struct gf_device *device, CUcontext context, CUstream stream)
{
    bool other = false;
    pthread_mutex_lock(&device->lock);
    for (struct gf_stream *s = device->streams; s; s = s->next) {
        if (s->stream != stream || !s->gone || s->dead)
            continue;
        s->gone = s->context != context;
        s->ended_at = 0;
        other |= s->gone;
    }
    pthread_mutex_unlock(&device->lock);
    return other;
}

/* A new stream may have the handle of a destroyed one, while threads still hold the entry of
 * that one for this lease. */
void gf_stream_made(CUstream stream)
{
    bool other = false;
    CUcontext context = gf_context_of(stream);
    for (gf_each_device(d))
        other |= inherit(d, context, stream);
    if (other)
        gf_forget_all();
}

/* A later thread may have its gf_thread at the same address, but has another per-thread stream. */
void gf_stream_thread_gone(struct gf_thread *thread)
{
    for (gf_each_device(d)) {
        pthread_mutex_lock(&d->lock);
        for (struct gf_stream *s = d->streams; s; s = s->next)
            s->gone |= s->owner == thread;
        pthread_mutex_unlock(&d->lock);
    }
}

/* Waits for the work of a context and notes its time. If the work does not finish, the driver may
 * wait for it, and the time until the context is destroyed counts. The caller holds device->lock. */
static void measure_leaving(struct gf_leaving *l)
{
    if (!l->context || !stays(l->device, l->context) || gf_real.cuCtxPushCurrent_v2(l->context) != CUDA_SUCCESS)
        return;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* other threads may capture */
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    l->since = gf_meter_await(l->device, l->context);
    l->over = !l->since;
    if (l->over)
        l->ns = gf_meter_span(l->device, l->context, false);
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    gf_context_exit();
}

/* Locks the device and disables cancellation of the thread until gf_context_left. */
static void begin_leaving(struct gf_leaving *l, struct gf_device *device, CUcontext context)
{
    *l = (struct gf_leaving){.device = device, .context = context};
    if (!device)
        return;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &l->cancel);
    pthread_mutex_lock(&device->lock);
}

static void leave(struct gf_leaving *l)
{
    l->next = l->device->leaving;
    l->device->leaving = l;
    pthread_mutex_unlock(&l->device->lock);
}

void gf_context_leaving(struct gf_leaving *l, struct gf_device *device, CUcontext context)
{
    begin_leaving(l, device, context);
    if (!device)
        return;
    measure_leaving(l);
    leave(l);
}

void gf_primary_held(struct gf_device *device)
{
    pthread_mutex_lock(&device->lock);
    device->holders++;
    pthread_mutex_unlock(&device->lock);
}

void gf_primary_leaving(struct gf_leaving *l, struct gf_device *device, CUcontext context, uint32_t holders)
{
    begin_leaving(l, device, context);
    if (!device)
        return;
    l->primary = true;
    device->holders -= holders < device->holders ? holders : device->holders;
    if (!device->holders)
        measure_leaving(l);
    leave(l);
}

/* Marks the streams of a destroyed context as dead, since their events are destroyed too. Returns
 * false if none was used under the lease, or if another thread has marked them already. */
static bool bury(struct gf_device *device, CUcontext context)
{
    bool any = false;
    for (struct gf_stream *s = device->streams; s; s = s->next)
        if (s->context == context) {
            any |= s->lease != GF_NO_LEASE;
            s->dead = true;
            s->lease = GF_NO_LEASE;
        }
    return any;
}

void gf_context_left(struct gf_leaving *l, bool gone)
{
    struct gf_device *device = l->device;
    if (!device)
        return;
    pthread_mutex_lock(&device->lock);
    for (struct gf_leaving **at = &device->leaving; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            break;
        }
    if (gone && l->context && bury(device, l->context))
        device->carried_ns += l->since ? gf_now_ns() - l->since : l->ns;
    if (gone && l->primary)
        device->holders = 0;
    pthread_mutex_unlock(&device->lock);
    if (gone)
        gf_forget_all();
    pthread_setcancelstate(l->cancel, NULL);
}

void gf_stream_sweep(struct gf_device *device)
{
    pthread_mutex_lock(&device->lock);
    for (struct gf_stream **at = &device->streams; *at;) {
        struct gf_stream *s = *at;
        if ((!s->gone && !s->dead) || s->pinned || s->lease != GF_NO_LEASE || (!s->dead && s->waits) || (!s->dead && gf_leaving_entry(device, s->context))) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        if (!s->dead)
            destroy_events(s);
        gf_wait_free(s, false); /* of a destroyed context */
        free(s);
    }
    pthread_mutex_unlock(&device->lock);
}
