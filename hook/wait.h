/* wait.h: streams that wait for something outside the GPU. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Set once the process has made a stream wait for something outside the GPU, or shares an event
 * with another process. */
extern bool gf_waits;
struct gf_waiting {
    struct gf_stream *entry; /* NULL: the stream is not tracked */
    struct gf_wait *wait;
};

/* Called before and after a call that makes the entry's stream wait; `inside`: a launch of a graph
 * that may wait. The caller of the first holds device->lock, the second takes it. Use
 * gf_enter_wait (gate.h). */
struct gf_waiting gf_wait_begin(struct gf_stream *entry, bool inside);
void gf_wait_end(struct gf_waiting waiting, CUresult result);
/* Finds the end of work that runs without a lease. Returns the ms until it must be called again,
 * or -1 if no such work remains. Takes device->lock. */
int gf_wait_poll(struct gf_device *device);

/* The caller of the following functions holds device->lock. */

/* Reports whether the stream has been at one wait for long enough to count as waiting. */
bool gf_wait_is_long(struct gf_stream *entry);
/* Sets `blocked_by` of all streams of the device and reports the time of work that ran without a lease
 * to the daemon. busy: threads may be sending work. Returns whether such work remains. */
bool gf_wait_update(struct gf_device *device, bool busy);
/* Reports whether queued work of the stream is blocked, as of the last gf_wait_update, by a wait of
 * the stream, of the legacy stream, or of a stream that the legacy stream waits for. */
bool gf_wait_blocks(struct gf_stream *entry);
/* Returns the event before the wait that holds the stream. */
CUevent gf_wait_event(const struct gf_stream *entry);
/* Notes that the lease ends while the wait holds the stream. */
void gf_wait_end_lease(struct gf_stream *entry);
/* Records the end of the work that was queued under such a lease, unless it is recorded. The
 * context is current. */
void gf_wait_tail(struct gf_stream *entry);
/* Frees all waits of an entry; with `events`, destroys their events too. */
void gf_wait_free(struct gf_stream *entry, bool events);

#pragma GCC visibility pop
