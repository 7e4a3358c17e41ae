/* wait.h: streams that wait for something outside the GPU. */
#ifndef GFAAS_WAIT_H
#define GFAAS_WAIT_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Set once the process has had a stream wait for something outside the GPU, or has an
 * event of another process. */
extern bool gf_waits;
struct gf_waiting {
    struct gf_stream *entry; /* NULL: it is not tracked */
    struct gf_wait *wait;
};

/* Around a call that makes the entry's stream wait; inside: that launches a graph which may.
 * The first is called with device->lock, the second takes it. Use gf_enter_wait (gate.h). */
struct gf_waiting gf_wait_begin(struct gf_stream *entry, bool inside);
void gf_wait_end(struct gf_waiting waiting, CUresult result);
/* Finds the end of work that runs without a lease. Takes device->lock. Returns in how many ms it
 * wants to be called again; -1: when there is a lease. */
int gf_wait_tend(struct gf_device *device);

/* The caller of those that follow holds device->lock. */

/* Reports whether the stream has been at one such wait for long enough to count as waiting. */
bool gf_wait_stands(struct gf_stream *entry);
/* Sets `held` of all streams of the device, and reports the time of work that ran without a
 * lease. busy: threads may be sending work. Returns whether there is still such work. */
bool gf_wait_look(struct gf_device *device, bool busy);
/* Reports whether, as of that look, queued work of the stream does not run because of such a wait:
 * its own, or one of the legacy stream or that the legacy stream waits for. */
bool gf_wait_holds(struct gf_stream *entry);
/* Returns the event before that wait. */
CUevent gf_wait_reached(const struct gf_stream *entry);
/* Notes that the lease ends while that wait holds the stream. */
void gf_wait_leave(struct gf_stream *entry);
/* Marks the end of the work that was queued under such a lease, if that is not done; the
 * context is current. */
void gf_wait_tail(struct gf_stream *entry);
/* Frees all waits of an entry, and with events their events. */
void gf_wait_free(struct gf_stream *entry, bool events);

#pragma GCC visibility pop
#endif
