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
 * starve the GPU.
 *
 * Events are waited for by looking at them, with pauses: the work before one
 * may itself wait for something that the program only does later (a host
 * function, a value in memory), so no wait here may be endless. */
#include "hook.h"

#define MARK_MS 2.0f       /* GPU time between marks */
#define IN_FLIGHT_MS 12.0f /* GPU time queued before the program waits: 1,000 kernels of 10 us fit */
#define MAX_STRIDE 256
#define BEHIND_NS 1000000000u /* a mark that takes longer may wait for the program */
#define LOOK_NS 50000         /* between two looks at what is in flight */

static uint64_t carried_ns; /* this lease's time in contexts that are gone; guarded by gf_streams_lock */

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

static bool await(CUevent event, uint64_t patience_ns)
{
    uint64_t until = gf_now_ns() + patience_ns;
    while (gf_real.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
        if (gf_now_ns() >= until)
            return false;
        gf_pause_ns(LOOK_NS);
    }
    return true;
}

bool gf_meter_await(CUevent event) { return await(event, BEHIND_NS); }

int32_t gf_meter_mark(struct gf_stream *entry)
{
    pthread_mutex_lock(&gf_streams_lock);
    bool dead = entry->dead;
    if (dead || !gf_recordable(entry->stream)) {
        pthread_mutex_unlock(&gf_streams_lock);
        return dead ? -1 : 0;
    }
    unsigned turn = entry->turn;
    unsigned oldest = (turn - entry->depth) % GF_MARKS;
    CUevent old = entry->span[oldest] ? entry->mark[oldest] : NULL;
    uint64_t patience = entry->behind ? 0 : BEHIND_NS;
    pthread_mutex_unlock(&gf_streams_lock);
    bool behind = old && !await(old, patience);
    pthread_mutex_lock(&gf_streams_lock);
    int32_t stride = 0;
    if (!entry->dead) {
        entry->behind = behind;
        adapt(entry, turn % GF_MARKS, (turn + 1) % GF_MARKS);
        unsigned at = entry->turn++ % GF_MARKS;
        stride = entry->stride;
        gf_real.cuEventRecord(entry->mark[at], entry->stream);
        entry->span[at] = entry->since;
        entry->since = stride;
    }
    pthread_mutex_unlock(&gf_streams_lock);
    return stride - 1;
}

void gf_meter_after(struct gf_stream *entry)
{
    if (!entry->dead && gf_recordable(entry->stream))
        gf_real.cuEventRecord(entry->end, entry->stream);
}

void gf_meter_end(struct gf_stream *entry, uint64_t works)
{
    if (entry->owner || entry->gone || entry->ended_at == works + 1)
        return;
    if (gf_recordable(entry->stream) && gf_real.cuEventRecord(entry->end, entry->stream) == CUDA_SUCCESS)
        entry->ended_at = works + 1;
}

bool gf_meter_idle(uint64_t works)
{
    bool idle = true;
    pthread_mutex_lock(&gf_streams_lock);
    for (struct gf_stream *s = gf_streams; s && idle; s = s->next) {
        if (s->lease == GF_NO_LEASE || s->dead || gf_real.cuCtxPushCurrent_v2(s->context) != CUDA_SUCCESS)
            continue;
        CUcontext popped;
        gf_meter_end(s, works);
        idle = gf_real.cuEventQuery(s->end) != CUDA_ERROR_NOT_READY;
        gf_real.cuCtxPopCurrent_v2(&popped);
    }
    pthread_mutex_unlock(&gf_streams_lock);
    return idle;
}

uint64_t gf_meter_span(CUcontext context)
{
    CUevent base = NULL;
    float first = 0, last = 0;
    for (struct gf_stream *s = gf_streams; s; s = s->next) {
        if (s->context != context || s->lease == GF_NO_LEASE || s->dead)
            continue;
        float begin = 0, end = 0;
        if (!base)
            base = s->begin;
        if (gf_real.cuEventElapsedTime(&begin, base, s->begin) != CUDA_SUCCESS ||
            gf_real.cuEventElapsedTime(&end, base, s->end) != CUDA_SUCCESS)
            continue;
        first = begin < first ? begin : first;
        last = end > last ? end : last;
    }
    return (uint64_t)((double)(last - first) * 1e6);
}

void gf_meter_carry(uint64_t ns) { carried_ns += ns; }

/* Adds up the contexts' spans and closes the account. */
static uint64_t settle(void)
{
    pthread_mutex_lock(&gf_streams_lock);
    uint64_t used = carried_ns;
    carried_ns = 0;
    for (struct gf_stream *s = gf_streams; s; s = s->next) {
        CUcontext popped;
        if (s->lease == GF_NO_LEASE)
            continue;
        if (!s->dead && gf_real.cuCtxPushCurrent_v2(s->context) == CUDA_SUCCESS) {
            used += gf_meter_span(s->context);
            gf_real.cuCtxPopCurrent_v2(&popped);
        }
        for (struct gf_stream *t = s; t; t = t->next)
            if (t->context == s->context)
                t->lease = GF_NO_LEASE;
    }
    pthread_mutex_unlock(&gf_streams_lock);
    return used;
}

uint64_t gf_meter_drain(uint64_t works, uint64_t began)
{
    while (!gf_meter_idle(works)) {
        if (gf_stuck(began)) {
            settle();
            return UINT64_MAX;
        }
        gf_pause_ns(LOOK_NS);
    }
    return settle();
}
