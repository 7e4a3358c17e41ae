/* meter.c: measures the GPU time of a lease and bounds the work in flight.
 *
 * Measuring. Each stream used under a lease records an event before its first and
 * one after its last piece of work. The GPU time of the lease in a context is the
 * span from the earliest to the latest event. The span has no long gaps, because an
 * idle process returns its lease (helper.c).
 *
 * Bounding. A lease cannot end before the work launched under it has finished. To
 * keep it from overrunning, each stream records marks (events in a ring) and lets at
 * most IN_FLIGHT_MS of work queue up. While other clients wait for the GPU, the bound
 * starts at 1/TURN_DIVISOR of a turn. If the queue runs dry while the program is held
 * back, the bound is doubled, up to IN_FLIGHT_MS; after CALM_MARKS marks without that,
 * it is halved again. A graph counts as several pieces of work, according to its
 * measured time, or as all that may be in flight before the first measurement.
 *
 * Waiting. Events are polled, because work before an event may itself wait for
 * something that the program does later (a host function, a value in memory). So no
 * wait blocks inside the driver, and each wait has a time limit.
 *
 * Functions marked "locked" are called with device->lock held. */
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

#define IN_FLIGHT_MS 12.0f /* most GPU time queued on a stream: 1,000 kernels of 10 us fit */
#define MIN_IN_FLIGHT_MS 0.5f /* least work in flight, however short turns are */
#define TURN_DIVISOR 4     /* the bound starts at 1/4 of a turn */
#define MARK_DIVISOR 6     /* a mark is recorded every 1/6 of the work in flight */
#define HEAVY_MS 2.0f      /* a graph that takes this long gets a mark before and after it */
#define CALM_MARKS 64      /* marks without running dry before the bound is halved */
#define MAX_STRIDE 1024    /* most pieces of work between marks, since later pieces may take longer */
#define MAX_AHEAD 1536     /* most pieces of work in flight, for the same reason */
#define BEHIND_NS 1000000000u     /* a mark that takes longer may be waiting for the program */
#define WAITS_BEHIND_NS 50000000u /* the same for a stream seen at a wait; host functions are seldom later */
#define POLL_NS 50000             /* poll interval; a shorter one would slow every later wake-up */
#define MAX_WEIGHT (1 << 20)      /* most pieces of work that one graph counts for */
#define CAPTURED_NS 50000000      /* time limit for work before a capture: several times IN_FLIGHT_MS */

/* Returns the bound of the stream: the GPU time that may be queued, in ms. */
static float in_flight(const struct gf_stream *entry)
{
    uint64_t turn = gf_load(&gf_load(&entry->device->slot)->turn_ns);
    float ms = turn ? (float)turn / 1e6f / TURN_DIVISOR : IN_FLIGHT_MS;
    ms = (ms < MIN_IN_FLIGHT_MS ? MIN_IN_FLIGHT_MS : ms) * (float)(1u << entry->doublings);
    return ms > IN_FLIGHT_MS ? IN_FLIGHT_MS : ms;
}

/* Returns the GPU time between two marks, in ms. */
static float mark_interval(const struct gf_stream *entry) { return in_flight(entry) / MARK_DIVISOR; }

/* Sets the stride between marks and the number of outstanding marks from the time of a piece. Locked. */
static void set_pace(struct gf_stream *entry)
{
    if (entry->piece_ms <= 0)
        return;
    float stride = mark_interval(entry) / entry->piece_ms;
    entry->stride = stride < 1 ? 1 : stride > MAX_STRIDE ? MAX_STRIDE : (int32_t)stride;
    int32_t most = MAX_AHEAD / entry->stride < GF_MARKS - 1 ? MAX_AHEAD / entry->stride : GF_MARKS - 1;
    float depth = in_flight(entry) / (entry->piece_ms * (float)entry->stride);
    entry->depth = depth < 1 ? 1 : depth > (float)most ? (unsigned)most : (unsigned)depth;
}

void gf_meter_begin(struct gf_stream *entry) { set_pace(entry); }

/* Adjusts the bound at a mark: doubles it if the queue ran dry while the program was held back,
 * and halves it after CALM_MARKS marks without that. Locked. */
static void adjust_bound(struct gf_stream *entry, bool held_back)
{
    if (entry->piece_ms <= 0 || !(held_back || entry->doublings))
        return;
    bool ran_dry = gf_real.cuEventQuery(entry->mark[(entry->marks_recorded - 1) % GF_MARKS]) == CUDA_SUCCESS;
    if (ran_dry && held_back && in_flight(entry) < IN_FLIGHT_MS) {
        entry->doublings++;
        entry->calm = 0;
    } else if (!ran_dry && entry->doublings && ++entry->calm >= CALM_MARKS) {
        entry->doublings--;
        entry->calm = 0;
    }
}

/* Learns the time of a piece of work, or of a graph, from two completed marks. Locked. */
static void learn(struct gf_stream *entry, unsigned older, unsigned newer)
{
    float ms = 0;
    if (!entry->span[newer] ||
        gf_real.cuEventElapsedTime(&ms, entry->mark[older], entry->mark[newer]) != CUDA_SUCCESS || ms <= 0)
        return;
    if (entry->graph[newer].serial) {
        entry->graph[newer].took(&entry->graph[newer], ms);
        return;
    }
    entry->piece_ms = ms / (float)entry->span[newer];
    set_pace(entry);
}

/* Returns how many marks ago the oldest work began that may be in flight. Locked. */
static unsigned marks_in_flight(const struct gf_stream *entry)
{
    int64_t pieces = (int64_t)entry->depth * entry->stride;
    unsigned back = 1;
    while (back < GF_MARKS - 1 && (pieces -= entry->span[(entry->marks_recorded - back) % GF_MARKS]) > 0)
        back++;
    return back;
}

bool gf_meter_heavy(float ms) { return ms == 0 || ms >= HEAVY_MS; }

int32_t gf_meter_graph(struct gf_stream *entry, float ms, struct gf_timed graph)
{
    pthread_mutex_lock(&entry->device->lock);
    float pieces = (float)entry->stride * (ms > 0 ? ms / mark_interval(entry) : (float)entry->depth);
    entry->graph[GF_MARKS] = graph;
    pthread_mutex_unlock(&entry->device->lock);
    return pieces < 1 ? 1 : pieces > MAX_WEIGHT ? MAX_WEIGHT : (int32_t)pieces;
}

/* The calling thread's capture mode, once it was changed. */
struct mode {
    CUstreamCaptureMode before;
    bool relaxed;
};

/* Lets the thread query events while the program captures a stream. If no capture has ever
 * begun (gf_captured), a mark omits this call, which would double its cost. */
static void relax_mode(struct mode *m)
{
    if (m->relaxed)
        return;
    m->relaxed = true;
    m->before = CU_STREAM_CAPTURE_MODE_RELAXED;
    gf_real.cuThreadExchangeStreamCaptureMode(&m->before);
}

/* Reports whether the stream's events may be destroyed. Locked. */
static bool is_lost(const struct gf_stream *entry)
{
    return entry->dead || gf_leaving_entry(entry->device, entry->context);
}

/* Waits for a mark. Returns false if the stream is lost or the time limit passed; the limit is
 * shorter for a stream at a wait for something outside the GPU. Locked; releases the lock while
 * it sleeps. */
static bool await(struct gf_stream *entry, CUevent event, uint64_t patience_ns)
{
    uint64_t since = gf_now_ns(), now = since;
    while (gf_real.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
        if (now - since >= patience_ns || (now - since >= WAITS_BEHIND_NS && gf_wait_is_long(entry)))
            return false;
        pthread_mutex_unlock(&entry->device->lock);
        gf_pause_ns(POLL_NS);
        pthread_mutex_lock(&entry->device->lock);
        if (is_lost(entry))
            return false;
        now = gf_now_ns();
    }
    return true;
}

/* Waits until the work in flight is within the bound and learns from completed marks. Locked;
 * releases the lock while it sleeps, so the entry may be dead afterwards and other threads may
 * have recorded marks. If one of them recorded the awaited mark again, the wait takes longer
 * than needed, and nothing is learned from it. */
static void hold_back(struct gf_stream *entry, struct mode *m)
{
    unsigned last = entry->marks_recorded - marks_in_flight(entry);
    CUevent event = entry->mark[last % GF_MARKS];
    bool behind = false, waited = false;
    if (entry->span[last % GF_MARKS] && gf_real.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
        waited = true;
        relax_mode(m); /* a capture may begin during the wait */
        behind = !await(entry, event, entry->behind ? 0 : BEHIND_NS);
    }
    entry->behind = behind;
    if (is_lost(entry) || behind)
        return;
    adjust_bound(entry, waited);
    if (entry->marks_recorded - entry->marks_learned > GF_MARKS)
        entry->marks_learned = entry->marks_recorded - GF_MARKS; /* the ring has overwritten older marks */
    for (; (int)(last - entry->marks_learned) > 0; entry->marks_learned++)
        learn(entry, entry->marks_learned % GF_MARKS, (entry->marks_learned + 1) % GF_MARKS);
}

/* Adds a thread's unsent pieces of work to the entry's. The sum is at most one stride, so that
 * several threads do not make marks rarer. Locked. */
static void add_unsent(struct gf_stream *entry, int64_t unsent)
{
    unsent += entry->unassigned;
    entry->unassigned = unsent < entry->stride ? unsent : entry->stride;
}

void gf_meter_return(struct gf_stream *entry, int64_t unsent)
{
    pthread_mutex_lock(&entry->device->lock);
    add_unsent(entry, unsent);
    pthread_mutex_unlock(&entry->device->lock);
}

/* Records a mark on the stream. Locked; the context is current. */
static void record_mark(struct gf_stream *entry)
{
    unsigned at = entry->marks_recorded++ % GF_MARKS;
    int64_t span = entry->allotted - entry->unassigned;
    gf_real.cuEventRecord(entry->mark[at], entry->stream);
    entry->span[at] = entry->fresh ? 0 : span < 1 ? 1 : span > INT32_MAX ? INT32_MAX : (int32_t)span;
    entry->fresh = false;
    entry->graph[at] = entry->graph[GF_MARKS];
    entry->graph[GF_MARKS].serial = 0;
    entry->unassigned = entry->allotted = entry->stride;
}

int32_t gf_meter_mark(struct gf_stream *entry, int64_t unsent, bool now)
{
    struct gf_device *device = entry->device;
    int32_t pieces = 0;
    struct mode m = {0};
    pthread_mutex_lock(&device->lock);
    if (gf_load(&gf_captured))
        relax_mode(&m);
    add_unsent(entry, unsent);
    bool due = now || entry->unassigned <= 0;
    if (due && !is_lost(entry))
        hold_back(entry, &m);
    bool lost = is_lost(entry);
    if (!lost && (!gf_load(&gf_captured) || gf_recordable(entry->stream))) {
        if (due)
            record_mark(entry);
        pieces = (int32_t)entry->unassigned;
        entry->unassigned = 0;
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

/* Records the end of the stream's work. Returns false if the stream is being captured, or became
 * so meanwhile (a stream can join a capture at any moment): the event may then belong to the
 * capture, and querying it would invalidate the capture. */
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

/* Reports whether the driver refused all work sent to the device since the entry's begin. If a
 * thread is inside a call, it may be sending work, and the result is false. */
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
        return entry->ended_at == GF_WORKS_UNKNOWN + 1; /* recorded before the capture began */
    entry->ended_at = works + 1;
    return true;
}

/* Makes the stream's context current and returns true if the stream has work under the lease and
 * belongs to this pass. An event on the legacy stream waits for the blocking streams of its
 * context and delays their later work, so the legacy stream comes in the last pass, and gets an
 * event only if no other work remains. */
static bool visit(const struct gf_stream *s, bool last)
{
    if ((s->stream == CU_STREAM_LEGACY) != last || s->lease == GF_NO_LEASE || s->dead ||
        !gf_context_enter(s->device, s->context))
        return false;
    gf_relax_capture();
    return true;
}

/* Counts the contexts that the driver may be destroying and whose work may not have finished. Locked. */
static unsigned leaving(const struct gf_device *device)
{
    unsigned count = 0;
    for (const struct gf_leaving *l = device->leaving; l; l = l->next)
        count += l->context && !l->over;
    return count;
}

/* Returns when the context's first work under the lease was sent, or 0 if all of it has finished.
 * With `record`, records the ends first. Locked. */
static uint64_t unfinished_since(struct gf_device *device, CUcontext context, bool record)
{
    uint64_t begun = UINT64_MAX;
    bool leaves = gf_leaving_entry(device, context), runs = leaves; /* another thread destroys it: unknown */
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
    uint64_t since = unfinished_since(device, context, true);
    while (since && gf_now_ns() < until) {
        pthread_mutex_unlock(&device->lock);
        gf_pause_ns(POLL_NS);
        pthread_mutex_lock(&device->lock);
        since = unfinished_since(device, context, false);
    }
    return since;
}

uint64_t gf_meter_span(struct gf_device *device, CUcontext context, bool cut_at_waits)
{
    CUevent base = NULL;
    float first = 0, last = 0;
    for (struct gf_stream *s = device->streams; s; s = s->next) {
        const bool waits = cut_at_waits && s->lease_blocked;
        if (s->context != context || s->lease == GF_NO_LEASE || s->dead || (!waits && !gf_load(&s->ended_at)))
            continue; /* ended_at 0: nothing was sent there */
        if (waits && gf_real.cuEventQuery(s->begin) == CUDA_ERROR_NOT_READY)
            continue; /* all its work is behind the wait */
        float begin = 0, end = 0;
        if (!base)
            base = s->begin;
        if (gf_real.cuEventElapsedTime(&begin, base, s->begin) != CUDA_SUCCESS ||
            gf_real.cuEventElapsedTime(&end, base, waits ? gf_wait_event(s) : s->end) != CUDA_SUCCESS)
            continue;
        first = begin < first ? begin : first;
        last = end > last ? end : last;
    }
    return (uint64_t)((double)(last - first) * 1e6);
}

/* Returns the GPU time of the lease over all contexts and ends the lease on all streams. Locked. */
static uint64_t finish_lease(struct gf_device *device)
{
    bool waits = false;
    uint64_t used = device->carried_ns;
    device->carried_ns = 0;
    for (struct gf_stream *s = device->streams; s; s = s->next) {
        struct gf_leaving *leaving = gf_leaving_entry(device, s->context);
        if (s->lease == GF_NO_LEASE || (leaving && !leaving->over)) /* counted by gf_context_left */
            continue;
        if (leaving) {
            used += leaving->ns;
            leaving->ns = 0;
        } else if (!s->dead && gf_real.cuCtxPushCurrent_v2(s->context) == CUDA_SUCCESS) {
            used += gf_meter_span(device, s->context, true);
            gf_context_exit();
        }
        for (struct gf_stream *t = s; t; t = t->next)
            if (t->context == s->context && t->lease != GF_NO_LEASE) {
                waits |= t->lease_blocked;
                if (t->lease_blocked)
                    gf_wait_end_lease(t);
                t->lease = GF_NO_LEASE;
            }
    }
    return used || !waits ? used : 1; /* 0 would mean that the work could not be measured */
}

/* Returns the number of the stream's marks that have not completed. Locked. */
static unsigned pending_marks(struct gf_stream *entry)
{
    unsigned before = entry->marks_completed;
    if (entry->marks_recorded - entry->marks_completed > GF_MARKS)
        entry->marks_completed = entry->marks_recorded - GF_MARKS;
    while (entry->marks_completed != entry->marks_recorded &&
           gf_real.cuEventQuery(entry->mark[entry->marks_completed % GF_MARKS]) != CUDA_ERROR_NOT_READY)
        entry->marks_completed++;
    if (entry->marks_completed != before)
        entry->completed_ns = gf_now_ns();
    return entry->marks_recorded - entry->marks_completed;
}

/* Returns how long the work in flight on the stream will run, in ms, estimated from the time of a
 * piece; INFINITY if that time is unknown or a graph is in flight. Locked. */
static float remaining_ms(const struct gf_stream *entry)
{
    int64_t pieces = entry->allotted - entry->unassigned - gf_lines_left(entry);
    if (entry->piece_ms <= 0 || entry->graph[GF_MARKS].serial)
        return INFINITY;
    for (unsigned at = entry->marks_completed; at != entry->marks_recorded; at++) {
        if (entry->graph[at % GF_MARKS].serial)
            return INFINITY;
        pieces += entry->span[at % GF_MARKS];
    }
    return (float)pieces * entry->piece_ms - (float)(gf_now_ns() - entry->completed_ns) / 1e6f;
}

/* Returns a number that falls as the lease's work completes, and 0 when all has. Sets *ms to the
 * estimated remaining time. A stream held by a wait for something outside the GPU does not count;
 * *waits reports whether there is one. With `patient`, a stream that is being captured counts,
 * because it may have work from before the capture. Locked. */
static unsigned pending(struct gf_device *device, uint64_t works, bool patient, float *ms, bool *waits)
{
    unsigned ordered = 0; /* streams with work that an event on the legacy stream would wait for */
    unsigned count = leaving(device);
    *ms = count ? INFINITY : 0;
    *waits = false;
    gf_wait_update(device, true);
    for (int last = 0; last < 2; last++) {
        const unsigned others = ordered;
        for (struct gf_stream *s = device->streams; s; s = s->next) {
            if (!visit(s, last))
                continue;
            bool ended = !others && gf_meter_end(s, works);
            bool runs = gf_fault_watch(gf_real.cuEventQuery(s->end)) == CUDA_ERROR_NOT_READY;
            bool running = runs || (!ended && (patient || others));
            s->lease_blocked = running && gf_wait_blocks(s);
            ordered += runs && (!s->lease_blocked || s->blocking);
            *waits |= s->lease_blocked;
            if (running && !s->lease_blocked) {
                count += 1 + pending_marks(s);
                float most = ended ? remaining_ms(s) : INFINITY;
                *ms = most > *ms ? most : *ms;
            }
            gf_context_exit();
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
    return idle && (!waits || gf_load(&gf_load(&device->slot)->turn_ns)); /* keep the lease while no other client waits */
}

bool gf_meter_waits(struct gf_device *device)
{
    bool waits = false;
    if (gf_likely(!gf_load(&gf_waits)))
        return false;
    pthread_mutex_lock(&device->lock);
    gf_wait_update(device, true);
    for (struct gf_stream *s = device->streams; s; s = s->next)
        waits |= s->blocked_by != NULL;
    pthread_mutex_unlock(&device->lock);
    return waits;
}

uint64_t gf_meter_drain(struct gf_device *device, uint64_t works, uint32_t revoked)
{
    uint64_t began = gf_now_ns(), since = began, used;
    float ms, lead = (float)gf_load(&device->slot->lead_ns) / 1e6f;
    bool waits;
    pthread_mutex_lock(&device->lock);
    for (unsigned before = UINT_MAX, now; (now = pending(device, works, gf_now_ns() - began < CAPTURED_NS, &ms, &waits)) > 0; before = now) {
        pthread_mutex_unlock(&device->lock);
        if (revoked != GF_NO_LEASE && ms <= lead) {
            gf_link_ending(device, revoked, ms > 0 ? (uint64_t)(ms * 1e6f) : 0);
            revoked = GF_NO_LEASE;
        }
        if (now < before)
            since = gf_now_ns();
        if (gf_stuck(&since))
            return UINT64_MAX;
        gf_pause_ns(POLL_NS);
        pthread_mutex_lock(&device->lock);
    }
    used = finish_lease(device);
    pthread_mutex_unlock(&device->lock);
    return used;
}
