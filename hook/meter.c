/* meter.c: measures the GPU time of a lease by events on the streams used, and
 * bounds the work in flight.
 *
 * Under a lease each stream used gets an event before its first piece of work
 * and one after its last; the lease's time in a context is the span from the
 * earliest to the latest. The span has no long gaps: a process that idles
 * gives its lease back (helper.c).
 *
 * A lease cannot end before what was launched under it, so a program that
 * launches far ahead would overrun by all it has queued. Marks, events in a
 * ring, keep about IN_FLIGHT_MS of work queued on each stream, or where others
 * want the GPU a part of the lease's turn: enough to never starve the GPU. Where
 * the host does not let the program come back in time and that runs out, more is
 * queued. A graph counts for as many pieces of work as its time is worth; until
 * that is known, for all that may be in flight.
 *
 * Events are waited for by looking at them, with pauses: the work before one
 * may itself wait for something that the program only does later (a host
 * function, a value in memory), so no wait here may be endless. */
#include "meter.h"

#include "clock.h"
#include "device.h"
#include "fault.h"
#include "link.h"
#include "query.h"
#include "real.h"
#include "thread.h"
#include "wait.h"

#include <limits.h>
#include <math.h>

#define IN_FLIGHT_MS 12.0f /* GPU time queued before the program waits: 1,000 kernels of 10 us fit */
#define LEAST_MS 0.5f      /* the least of that, where turns are short */
#define OF_TURN 4          /* it is this part of a turn */
#define OF_FLIGHT 6        /* and the GPU time between marks this part of it */
#define HEAVY_MS 2.0f      /* a graph that takes as long is launched between marks of its own */
#define CALM 64            /* marks at which it had not run out, until half of it is tried again */
#define MAX_STRIDE 1024 /* pieces of work between marks, as the next may take longer */
#define MAX_AHEAD 1536 /* pieces of work queued before the program waits, likewise */
#define BEHIND_NS 1000000000u /* a mark that takes longer may wait for the program */
#define WAITS_BEHIND_NS 50000000u /* and sooner so where the stream is seen to wait: a host function may be late by less */
#define LOOK_NS 50000         /* between two looks at what is in flight: oftener, and each wake-up after them takes longer */
#define MAX_WEIGHT (1 << 20)
#define CAPTURED_NS 50000000 /* for work before a capture: several times what is ever in flight */

/* GPU time that may be queued on the stream, in ms. */
static float in_flight(const struct gf_stream *entry)
{
    uint64_t turn = gf_load(&gf_load(&entry->device->slot)->turn_ns);
    float ms = turn ? (float)turn / 1e6f / OF_TURN : IN_FLIGHT_MS;
    ms = (ms < LEAST_MS ? LEAST_MS : ms) * (float)(1u << entry->dry);
    return ms > IN_FLIGHT_MS ? IN_FLIGHT_MS : ms;
}

/* GPU time between marks, in ms. */
static float apart(const struct gf_stream *entry) { return in_flight(entry) / OF_FLIGHT; }

/* Chooses how often to mark and how many marks to leave outstanding. */
static void set_pace(struct gf_stream *entry)
{
    if (entry->each <= 0)
        return;
    float stride = apart(entry) / entry->each;
    entry->stride = stride < 1 ? 1 : stride > MAX_STRIDE ? MAX_STRIDE : (int32_t)stride;
    int32_t most = MAX_AHEAD / entry->stride < GF_MARKS - 1 ? MAX_AHEAD / entry->stride : GF_MARKS - 1;
    float depth = in_flight(entry) / (entry->each * (float)entry->stride);
    entry->depth = depth < 1 ? 1 : depth > (float)most ? (unsigned)most : (unsigned)depth;
}

void gf_meter_begin(struct gf_stream *entry) { set_pace(entry); }

/* At a mark: whether all that was queued ran out while the program was held back; and
 * whether so much is needed still. */
static void note_dry(struct gf_stream *entry, bool held_back)
{
    if (entry->each <= 0 || !(held_back || entry->dry))
        return;
    bool ran_out = gf_real.cuEventQuery(entry->mark[(entry->turn - 1) % GF_MARKS]) == CUDA_SUCCESS;
    if (ran_out && held_back && in_flight(entry) < IN_FLIGHT_MS) {
        entry->dry++;
        entry->calm = 0;
    } else if (!ran_out && entry->dry && ++entry->calm >= CALM) {
        entry->dry--;
        entry->calm = 0;
    }
}

/* Learns from the time between two marks that are over. */
static void adapt(struct gf_stream *entry, unsigned older, unsigned newer)
{
    float ms = 0;
    if (!entry->span[newer] ||
        gf_real.cuEventElapsedTime(&ms, entry->mark[older], entry->mark[newer]) != CUDA_SUCCESS || ms <= 0)
        return;
    if (entry->graph[newer].serial) {
        entry->graph[newer].took(&entry->graph[newer], ms);
        return;
    }
    entry->each = ms / (float)entry->span[newer];
    set_pace(entry);
}

/* How many marks ago the work began that may still be in flight. */
static unsigned reach(const struct gf_stream *entry)
{
    int64_t pieces = (int64_t)entry->depth * entry->stride;
    unsigned back = 1;
    while (back < GF_MARKS - 1 && (pieces -= entry->span[(entry->turn - back) % GF_MARKS]) > 0)
        back++;
    return back;
}

bool gf_meter_heavy(float ms) { return ms == 0 || ms >= HEAVY_MS; }

int32_t gf_meter_graph(struct gf_stream *entry, float ms, struct gf_timed graph)
{
    pthread_mutex_lock(&entry->device->lock);
    float pieces = (float)entry->stride * (ms > 0 ? ms / apart(entry) : (float)entry->depth);
    entry->graph[GF_MARKS] = graph;
    pthread_mutex_unlock(&entry->device->lock);
    return pieces < 1 ? 1 : pieces > MAX_WEIGHT ? MAX_WEIGHT : (int32_t)pieces;
}

/* What the calling thread's captures are like, once that was changed. */
struct mode {
    CUstreamCaptureMode before;
    bool relaxed;
};

/* Lets the thread look at events while the program captures a stream. Where no
 * capture has ever begun (gf_captured) a mark does without, which it is half of. */
static void disturb_no_capture(struct mode *m)
{
    if (m->relaxed)
        return;
    m->relaxed = true;
    m->before = CU_STREAM_CAPTURE_MODE_RELAXED;
    gf_real.cuThreadExchangeStreamCaptureMode(&m->before);
}

/* Whether there may be no events of it any more. Locked. */
static bool is_lost(const struct gf_stream *entry)
{
    return entry->dead || gf_context_leaves(entry->device, entry->context);
}

/* Waits for a mark, unless the stream is gone or that takes too long, which is sooner where
 * the stream waits for something outside the GPU. Locked, but not while it sleeps. */
static bool await(struct gf_stream *entry, CUevent event, uint64_t patience_ns)
{
    uint64_t since = gf_now_ns(), now = since;
    while (gf_real.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
        if (now - since >= patience_ns || (now - since >= WAITS_BEHIND_NS && gf_wait_stands(entry)))
            return false;
        pthread_mutex_unlock(&entry->device->lock);
        gf_pause_ns(LOOK_NS);
        pthread_mutex_lock(&entry->device->lock);
        if (is_lost(entry))
            return false;
        now = gf_now_ns();
    }
    return true;
}

/* Waits until no more is in flight than may be, and learns from what is over.
 * The lock is not held meanwhile: the entry may be dead afterwards, and others may
 * have recorded marks. When they have recorded the awaited one anew, the wait is
 * longer than it had to be, and nothing is learned from it. */
static void hold_back(struct gf_stream *entry, struct mode *m)
{
    unsigned last = entry->turn - reach(entry);
    CUevent event = entry->mark[last % GF_MARKS];
    bool behind = false, waited = false;
    if (entry->span[last % GF_MARKS] && gf_real.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
        waited = true;
        disturb_no_capture(m); /* one may begin meanwhile */
        behind = !await(entry, event, entry->behind ? 0 : BEHIND_NS);
    }
    entry->behind = behind;
    if (is_lost(entry) || behind)
        return;
    note_dry(entry, waited);
    if (entry->turn - entry->learned > GF_MARKS)
        entry->learned = entry->turn - GF_MARKS; /* older marks are recorded anew */
    for (; (int)(last - entry->learned) > 0; entry->learned++)
        adapt(entry, entry->learned % GF_MARKS, (entry->learned + 1) % GF_MARKS);
}

/* Adds what a thread leaves of the work it might have sent before the next mark. Of
 * several threads' no more than one stride counts, so that marks do not become
 * rarer. Locked. */
static void give(struct gf_stream *entry, int64_t left)
{
    left += entry->left;
    entry->left = left < entry->stride ? left : entry->stride;
}

void gf_meter_left(struct gf_stream *entry, int64_t left)
{
    pthread_mutex_lock(&entry->device->lock);
    give(entry, left);
    pthread_mutex_unlock(&entry->device->lock);
}

/* Locked. */
static void record_mark(struct gf_stream *entry)
{
    unsigned at = entry->turn++ % GF_MARKS;
    int64_t span = entry->since - entry->left;
    gf_real.cuEventRecord(entry->mark[at], entry->stream);
    entry->span[at] = entry->fresh ? 0 : span < 1 ? 1 : span > INT32_MAX ? INT32_MAX : (int32_t)span;
    entry->fresh = false;
    entry->graph[at] = entry->graph[GF_MARKS];
    entry->graph[GF_MARKS].serial = 0;
    entry->left = entry->since = entry->stride;
}

int32_t gf_meter_mark(struct gf_stream *entry, int64_t left, bool now)
{
    struct gf_device *device = entry->device;
    int32_t pieces = 0;
    struct mode m = {0};
    pthread_mutex_lock(&device->lock);
    if (gf_load(&gf_captured))
        disturb_no_capture(&m);
    give(entry, left);
    bool due = now || entry->left <= 0;
    if (due && !is_lost(entry))
        hold_back(entry, &m);
    bool lost = is_lost(entry);
    if (!lost && (!gf_load(&gf_captured) || gf_recordable(entry->stream))) {
        if (due)
            record_mark(entry);
        pieces = (int32_t)entry->left;
        entry->left = 0;
    }
    if (m.relaxed)
        gf_real.cuThreadExchangeStreamCaptureMode(&m.before);
    pthread_mutex_unlock(&device->lock);
    return lost ? -1 : pieces ? pieces - 1 : 0;
}

void gf_meter_after(struct gf_stream *entry)
{
    if (!entry->dead && gf_recordable(entry->stream) && gf_real.cuEventRecord(entry->end, entry->stream) == CUDA_SUCCESS)
        gf_store(&entry->ended_at, GF_WORKS_UNKNOWN + 1);
}

/* Records the end. False: the stream is captured, or has come to be meanwhile, as
 * another may join a capture at any moment: then the event may be part of the
 * capture, and to look at it would invalidate that. */
static bool record_end(struct gf_stream *entry)
{
    CUevent event = entry->next_end;
    if (!gf_recordable(entry->stream) || !event || gf_real.cuEventRecord(event, entry->stream) != CUDA_SUCCESS)
        return false;
    if (gf_recordable(entry->stream)) {
        entry->next_end = entry->end;
        entry->end = event;
        return true;
    }
    gf_real.cuEventDestroy_v2(event);
    if (gf_real.cuEventCreate(&entry->next_end, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
        entry->next_end = NULL;
    return false;
}

/* Whether all that was sent to the device since the entry's begin was refused. A thread
 * that is inside a call may be sending something. */
static bool nothing_sent(const struct gf_stream *entry, uint64_t works)
{
    if (works == GF_WORKS_UNKNOWN) {
        if (gf_busy(entry->device))
            return false;
        works = gf_works(gf_count_all(entry->device));
    }
    return entry->begun_at == works;
}

bool gf_meter_end(struct gf_stream *entry, uint64_t works)
{
    if (entry->owner || entry->gone || (entry->ended_at == works + 1 && works != GF_WORKS_UNKNOWN) || nothing_sent(entry, works))
        return true;
    if (!record_end(entry))
        return entry->ended_at == GF_WORKS_UNKNOWN + 1; /* done before it was captured */
    entry->ended_at = works + 1;
    return true;
}

/* Makes the stream's context current, if it has a part in the lease and is of
 * those that are looked at first or last. What is recorded on the legacy stream
 * waits for the blocking streams of its context and holds up what is sent to
 * them afterwards: it is looked at last, and only when nothing else is left. */
static bool look_at(const struct gf_stream *s, bool last)
{
    if ((s->stream == CU_STREAM_LEGACY) != last || s->lease == GF_NO_LEASE || is_lost(s) ||
        gf_real.cuCtxPushCurrent_v2(s->context) != CUDA_SUCCESS)
        return false;
    gf_relax_capture();
    return true;
}

/* How many contexts the driver may be destroying with work that may go on. Locked. */
static unsigned leaving(const struct gf_device *device)
{
    unsigned count = 0;
    for (const struct gf_leaving *l = device->leaving; l; l = l->next)
        count += l->context && !l->over;
    return count;
}

/* When the first work of the context was sent, if not all is over; 0: it is. */
static uint64_t goes_on(struct gf_device *device, CUcontext context, bool record)
{
    uint64_t begun = UINT64_MAX;
    bool leaves = gf_context_leaves(device, context), runs = leaves; /* by another thread: nobody knows */
    for (struct gf_stream *s = device->streams; s; s = s->next)
        if (s->context == context && !s->dead && s->lease != GF_NO_LEASE) {
            begun = s->begun_ns < begun ? s->begun_ns : begun;
            if (leaves)
                continue;
            if (record)
                gf_meter_end(s, GF_WORKS_UNKNOWN);
            runs |= gf_real.cuEventQuery(s->end) == CUDA_ERROR_NOT_READY;
        }
    return runs && begun != UINT64_MAX ? begun : 0;
}

uint64_t gf_meter_await(struct gf_device *device, CUcontext context)
{
    uint64_t until = gf_now_ns() + BEHIND_NS;
    uint64_t since = goes_on(device, context, true);
    while (since && gf_now_ns() < until) {
        pthread_mutex_unlock(&device->lock);
        gf_pause_ns(LOOK_NS);
        pthread_mutex_lock(&device->lock);
        since = goes_on(device, context, false);
    }
    return since;
}

uint64_t gf_meter_span(struct gf_device *device, CUcontext context, bool held)
{
    CUevent base = NULL;
    float first = 0, last = 0;
    for (struct gf_stream *s = device->streams; s; s = s->next) {
        const bool waits = held && s->parked;
        if (s->context != context || s->lease == GF_NO_LEASE || s->dead || (!waits && !gf_load(&s->ended_at)))
            continue; /* the last: nothing was sent there */
        if (waits && gf_real.cuEventQuery(s->begin) == CUDA_ERROR_NOT_READY)
            continue; /* all that was sent there waits */
        float begin = 0, end = 0;
        if (!base)
            base = s->begin;
        if (gf_real.cuEventElapsedTime(&begin, base, s->begin) != CUDA_SUCCESS ||
            gf_real.cuEventElapsedTime(&end, base, waits ? gf_wait_reached(s) : s->end) != CUDA_SUCCESS)
            continue;
        first = begin < first ? begin : first;
        last = end > last ? end : last;
    }
    return (uint64_t)((double)(last - first) * 1e6);
}

/* Adds up the contexts' spans and closes the account. Locked. */
static uint64_t settle(struct gf_device *device)
{
    bool waits = false;
    uint64_t used = device->carried_ns;
    device->carried_ns = 0;
    for (struct gf_stream *s = device->streams; s; s = s->next) {
        CUcontext popped;
        struct gf_leaving *leaving = gf_context_leaves(device, s->context);
        if (s->lease == GF_NO_LEASE || (leaving && !leaving->over)) /* that counts when it has left */
            continue;
        if (leaving) {
            used += leaving->ns;
            leaving->ns = 0;
        } else if (!s->dead && gf_real.cuCtxPushCurrent_v2(s->context) == CUDA_SUCCESS) {
            used += gf_meter_span(device, s->context, true);
            gf_real.cuCtxPopCurrent_v2(&popped);
        }
        for (struct gf_stream *t = s; t; t = t->next)
            if (t->context == s->context && t->lease != GF_NO_LEASE) {
                waits |= t->parked;
                if (t->parked)
                    gf_wait_leave(t);
                t->lease = GF_NO_LEASE;
            }
    }
    return used || !waits ? used : 1; /* 0 is what is said of work that could not be measured */
}

/* How many of the stream's marks are still to come. */
static unsigned marks_left(struct gf_stream *entry)
{
    unsigned before = entry->passed;
    if (entry->turn - entry->passed > GF_MARKS)
        entry->passed = entry->turn - GF_MARKS;
    while (entry->passed != entry->turn &&
           gf_real.cuEventQuery(entry->mark[entry->passed % GF_MARKS]) != CUDA_ERROR_NOT_READY)
        entry->passed++;
    if (entry->passed != before)
        entry->passed_ns = gf_now_ns();
    return entry->turn - entry->passed;
}

/* For how long what is in flight on the stream goes on, in ms, as far as the time of
 * its pieces tells; what is in it that is no such piece takes for ever. */
static float to_come(const struct gf_stream *entry)
{
    int64_t pieces = entry->since - entry->left - gf_lines_left(entry);
    if (entry->each <= 0 || entry->graph[GF_MARKS].serial)
        return INFINITY;
    for (unsigned at = entry->passed; at != entry->turn; at++) {
        if (entry->graph[at % GF_MARKS].serial)
            return INFINITY;
        pieces += entry->span[at % GF_MARKS];
    }
    return (float)pieces * entry->each - (float)(gf_now_ns() - entry->passed_ns) / 1e6f;
}

/* What of the lease's work is not over: a number that falls as it goes on, and for how
 * long it goes on, in ms. With patience, also what is captured, which may have work
 * before that. What waits for something that is not on the GPU does not go on. Locked. */
static unsigned pending(struct gf_device *device, uint64_t works, bool patient, float *ms, bool *waits)
{
    unsigned ordered = 0; /* streams with work that an event on the legacy stream would wait for */
    unsigned count = leaving(device);
    *ms = count ? INFINITY : 0;
    *waits = false;
    gf_wait_look(device, true);
    for (int last = 0; last < 2; last++) {
        const unsigned others = ordered;
        for (struct gf_stream *s = device->streams; s; s = s->next) {
            CUcontext popped;
            if (!look_at(s, last))
                continue;
            bool ended = !others && gf_meter_end(s, works);
            bool runs = gf_fault_watch(gf_real.cuEventQuery(s->end)) == CUDA_ERROR_NOT_READY;
            bool goes_on = runs || (!ended && (patient || others));
            s->parked = goes_on && gf_wait_holds(s);
            ordered += runs && (!s->parked || s->blocking);
            *waits |= s->parked;
            if (goes_on && !s->parked) {
                count += 1 + marks_left(s);
                float most = ended ? to_come(s) : INFINITY;
                *ms = most > *ms ? most : *ms;
            }
            gf_real.cuCtxPopCurrent_v2(&popped);
        }
    }
    return count;
}

bool gf_meter_idle(struct gf_device *device, uint64_t works)
{
    float ms;
    bool waits;
    pthread_mutex_lock(&device->lock);
    bool idle = !pending(device, works, false, &ms, &waits);
    pthread_mutex_unlock(&device->lock);
    return idle && (!waits || gf_load(&gf_load(&device->slot)->turn_ns)); /* nobody else wants the GPU: it is kept */
}

bool gf_meter_waits(struct gf_device *device)
{
    bool waits = false;
    if (gf_likely(!gf_load(&gf_waits)))
        return false;
    pthread_mutex_lock(&device->lock);
    gf_wait_look(device, true);
    for (struct gf_stream *s = device->streams; s; s = s->next)
        waits |= s->held != NULL;
    pthread_mutex_unlock(&device->lock);
    return waits;
}

uint64_t gf_meter_drain(struct gf_device *device, uint64_t works, uint32_t asked)
{
    uint64_t began = gf_now_ns(), since = began, used;
    float ms, lead = (float)gf_load(&device->slot->lead_ns) / 1e6f;
    bool waits;
    pthread_mutex_lock(&device->lock);
    for (unsigned before = UINT_MAX, left; (left = pending(device, works, gf_now_ns() - began < CAPTURED_NS, &ms, &waits)) > 0; before = left) {
        pthread_mutex_unlock(&device->lock);
        if (asked != GF_NO_LEASE && ms <= lead) {
            gf_link_ending(device, asked, ms > 0 ? (uint64_t)(ms * 1e6f) : 0);
            asked = GF_NO_LEASE;
        }
        if (left < before)
            since = gf_now_ns();
        if (gf_stuck(&since))
            return UINT64_MAX;
        gf_pause_ns(LOOK_NS);
        pthread_mutex_lock(&device->lock);
    }
    used = settle(device);
    pthread_mutex_unlock(&device->lock);
    return used;
}
