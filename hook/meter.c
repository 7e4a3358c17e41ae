/* meter.c: measures the GPU time of a lease by events on the streams used, and
 * bounds the work in flight.
 *
 * Under a lease each stream used gets an event before its first piece of work
 * and one after its last; the lease's time in a context is the span from the
 * earliest to the latest. The span has no long gaps: a process that idles
 * gives its lease back (link.c).
 *
 * A lease cannot end before what was launched under it, so a program that
 * launches far ahead would overrun by all it has queued. Marks, events in a
 * ring, keep about IN_FLIGHT_MS of work queued on each stream: enough to never
 * starve the GPU. */
#include "hook.h"

#include <stdlib.h>

#define MARK_MS 2.0f      /* GPU time between marks */
#define IN_FLIGHT_MS 12.0f /* GPU time queued before the program waits: 1,000 kernels of 10 us fit */
#define MAX_STRIDE 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gf_stream *streams;
static uint64_t carried_ns; /* this lease's time in contexts that are gone */

/* Whether an event may be recorded there: never while the stream is captured. */
static bool recordable(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = gf_real.cuStreamIsCapturing(stream, &status);
    return result == CUDA_ERROR_NOT_SUPPORTED || (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE);
}

static struct gf_stream *find(CUcontext context, CUstream stream)
{
    struct gf_thread *owner = stream == CU_STREAM_PER_THREAD ? &gf_self : NULL;
    for (struct gf_stream *s = streams; s; s = s->next)
        if (s->stream == stream && s->context == context && s->owner == owner && !s->dead)
            return s;
    return NULL;
}

static void destroy_events(struct gf_stream *entry)
{
    gf_real.cuEventDestroy_v2(entry->begin);
    gf_real.cuEventDestroy_v2(entry->end);
    for (unsigned i = 0; i < GF_MARKS; i++)
        gf_real.cuEventDestroy_v2(entry->mark[i]);
}

static struct gf_stream *make(CUcontext context, CUstream stream)
{
    struct gf_stream *entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    CUevent *events[2 + GF_MARKS] = {&entry->begin, &entry->end};
    for (unsigned i = 0; i < GF_MARKS; i++)
        events[2 + i] = &entry->mark[i];
    for (unsigned i = 0; i < 2 + GF_MARKS; i++)
        if (gf_real.cuEventCreate(events[i], CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS) {
            while (i-- > 0)
                gf_real.cuEventDestroy_v2(*events[i]);
            free(entry);
            return NULL;
        }
    entry->context = context;
    entry->stream = stream;
    entry->owner = stream == CU_STREAM_PER_THREAD ? &gf_self : NULL;
    entry->stride = entry->since = 1;
    entry->depth = 1;
    entry->next = streams;
    streams = entry;
    return entry;
}

struct gf_stream *gf_meter_use(CUstream stream, uint32_t lease)
{
    CUcontext context = NULL;
    if (gf_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context || !recordable(stream))
        return NULL;
    pthread_mutex_lock(&lock);
    struct gf_stream *entry = find(context, stream);
    if (!entry)
        entry = make(context, stream);
    if (entry && entry->lease != lease) {
        entry->lease = lease;
        entry->ended_at = 0;
        gf_real.cuEventRecord(entry->begin, stream);
    }
    pthread_mutex_unlock(&lock);
    return entry;
}

/* Chooses how often to mark and how many marks to leave outstanding from the
 * time between the two oldest marks. */
static void adapt(struct gf_stream *entry, unsigned older, unsigned newer)
{
    float ms = 0;
    if (!entry->span[older] || !entry->span[newer] ||
        gf_real.cuEventElapsedTime(&ms, entry->mark[older], entry->mark[newer]) != CUDA_SUCCESS || ms <= 0)
        return;
    float each = ms / (float)entry->span[newer];
    float stride = MARK_MS / each;
    entry->stride = stride < 1 ? 1 : stride > MAX_STRIDE ? MAX_STRIDE : (int32_t)stride;
    float depth = IN_FLIGHT_MS / (each * (float)entry->stride);
    entry->depth = depth < 1 ? 1 : depth > GF_MARKS - 1 ? GF_MARKS - 1 : (unsigned)depth;
}

int32_t gf_meter_mark(struct gf_stream *entry)
{
    pthread_mutex_lock(&lock);
    if (entry->dead || !recordable(entry->stream)) {
        pthread_mutex_unlock(&lock);
        return 0;
    }
    unsigned turn = entry->turn;
    unsigned behind = (turn - entry->depth) % GF_MARKS;
    CUevent old = entry->span[behind] ? entry->mark[behind] : NULL;
    pthread_mutex_unlock(&lock);
    if (old)
        gf_real.cuEventSynchronize(old);
    pthread_mutex_lock(&lock);
    int32_t stride = 0;
    if (!entry->dead) {
        adapt(entry, turn % GF_MARKS, (turn + 1) % GF_MARKS);
        unsigned at = entry->turn++ % GF_MARKS;
        stride = entry->stride;
        gf_real.cuEventRecord(entry->mark[at], entry->stream);
        entry->span[at] = entry->since;
        entry->since = stride;
    }
    pthread_mutex_unlock(&lock);
    return stride - 1;
}

void gf_meter_after(struct gf_stream *entry)
{
    if (!entry->dead && recordable(entry->stream))
        gf_real.cuEventRecord(entry->end, entry->stream);
}

/* Records the end of what was sent to the stream so far, unless that is done.
 * The entry's context is current. */
static void record_end(struct gf_stream *entry, uint64_t works)
{
    if (entry->owner || entry->gone || entry->ended_at == works + 1)
        return;
    if (recordable(entry->stream) && gf_real.cuEventRecord(entry->end, entry->stream) == CUDA_SUCCESS)
        entry->ended_at = works + 1;
}

bool gf_meter_idle(uint32_t lease, uint64_t works)
{
    bool idle = true;
    pthread_mutex_lock(&lock);
    for (struct gf_stream *s = streams; s && idle; s = s->next) {
        if (s->lease != lease || s->dead || gf_real.cuCtxPushCurrent_v2(s->context) != CUDA_SUCCESS)
            continue;
        CUcontext popped;
        record_end(s, works);
        idle = gf_real.cuEventQuery(s->end) != CUDA_ERROR_NOT_READY;
        gf_real.cuCtxPopCurrent_v2(&popped);
    }
    pthread_mutex_unlock(&lock);
    return idle;
}

/* Waits for the streams of one context that the lease used; returns the span
 * from their first work to their last, in ns. The context is current. */
static uint64_t drain_context(CUcontext context, uint32_t lease, uint64_t works)
{
    CUevent base = NULL;
    float first = 0, last = 0;
    for (struct gf_stream *s = streams; s; s = s->next)
        if (s->context == context && s->lease == lease && !s->dead)
            record_end(s, works);
    for (struct gf_stream *s = streams; s; s = s->next) {
        if (s->context != context || s->lease != lease || s->dead)
            continue;
        float begin = 0, end = 0;
        if (!base)
            base = s->begin;
        s->lease = GF_NO_LEASE;
        if (gf_real.cuEventSynchronize(s->end) != CUDA_SUCCESS ||
            gf_real.cuEventElapsedTime(&begin, base, s->begin) != CUDA_SUCCESS ||
            gf_real.cuEventElapsedTime(&end, base, s->end) != CUDA_SUCCESS)
            continue;
        first = begin < first ? begin : first;
        last = end > last ? end : last;
    }
    return (uint64_t)((double)(last - first) * 1e6);
}

/* Frees entries of streams and contexts that are gone. No thread's cache leads
 * to them: the caches hold for a lease, and it is over. */
static void sweep(void)
{
    for (struct gf_stream **at = &streams; *at;) {
        struct gf_stream *s = *at;
        if (!s->gone && !s->dead) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        if (!s->dead)
            destroy_events(s);
        free(s);
    }
}

uint64_t gf_meter_drain(uint32_t lease, uint64_t works)
{
    pthread_mutex_lock(&lock);
    uint64_t used = carried_ns;
    carried_ns = 0;
    for (struct gf_stream *s = streams; s; s = s->next) {
        if (s->lease != lease || s->dead || gf_real.cuCtxPushCurrent_v2(s->context) != CUDA_SUCCESS)
            continue;
        CUcontext popped;
        used += drain_context(s->context, lease, works);
        gf_real.cuCtxPopCurrent_v2(&popped);
    }
    sweep();
    pthread_mutex_unlock(&lock);
    return used;
}

void gf_meter_stream_gone(CUstream stream)
{
    CUcontext context = NULL;
    if (gf_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return;
    pthread_mutex_lock(&lock);
    struct gf_stream *entry = find(context, stream);
    if (entry && !entry->gone) {
        record_end(entry, UINT64_MAX - 1);
        entry->gone = true;
    }
    pthread_mutex_unlock(&lock);
}

/* A new stream may have the handle of a destroyed one, and threads may still
 * hold that one's entry for this lease: it becomes the new one's. */
void gf_meter_stream_made(CUstream stream)
{
    CUcontext context = NULL;
    if (gf_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return;
    pthread_mutex_lock(&lock);
    struct gf_stream *entry = find(context, stream);
    if (entry && entry->gone) {
        entry->gone = false;
        entry->ended_at = 0;
    }
    pthread_mutex_unlock(&lock);
}

void gf_meter_context_gone(CUcontext context)
{
    if (!context || gf_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return;
    pthread_mutex_lock(&lock);
    uint32_t lease = GF_NO_LEASE;
    for (struct gf_stream *s = streams; s; s = s->next)
        if (s->context == context && s->lease != GF_NO_LEASE)
            lease = s->lease;
    if (lease != GF_NO_LEASE)
        carried_ns += drain_context(context, lease, UINT64_MAX - 1);
    for (struct gf_stream *s = streams; s; s = s->next)
        if (s->context == context && !s->dead) {
            destroy_events(s);
            s->dead = true;
        }
    pthread_mutex_unlock(&lock);
    CUcontext popped;
    gf_real.cuCtxPopCurrent_v2(&popped);
}

void gf_meter_fork_child(void)
{
    pthread_mutex_init(&lock, NULL);
    streams = NULL; /* the parent's: no context outlives a fork */
    carried_ns = 0;
}
