/* meter.h: measures the GPU time of a lease and bounds the work in flight. */
#ifndef GFAAS_METER_H
#define GFAAS_METER_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Takes note that of the pieces of work that a thread might send before the next mark, `left` are
 * unsent; negative: it has sent that many more. Takes device->lock. */
void gf_meter_left(struct gf_stream *entry, int64_t left);
/* The same for a thread that is about to send more. Where a mark is due, or wanted now,
 * records it and waits for an old one, so that little work is ever in flight.
 * Returns the pieces until the next mark; -1: the stream is dead. Takes device->lock. */
int32_t gf_meter_mark(struct gf_stream *entry, int64_t left, bool now);
/* Reports whether a graph that takes that many ms (0: unknown) is launched between marks of
 * its own. */
bool gf_meter_heavy(float ms);
/* Notes after a launch which graph it was, if its time is wanted. Returns
 * the pieces of work that it counts for. Takes device->lock. */
int32_t gf_meter_graph(struct gf_stream *entry, float ms, struct gf_timed graph);
/* Notes that a lease begins: bounds the work in flight by its length. Locked. */
void gf_meter_begin(struct gf_stream *entry);
/* Records the end on a per-thread stream: no other thread could. Called after work that
 * the driver accepted. */
void gf_meter_after(struct gf_stream *entry);
/* Waits for the work of a context and returns 0; if that does not end, returns when the first
 * of it was sent. Locked, but not while it sleeps; the context is current. */
uint64_t gf_meter_await(struct gf_device *device, CUcontext context);
#define GF_WORKS_UNKNOWN (UINT64_MAX - 1)
/* Records the end of what was sent to the stream so far, unless that is known to be done
 * or nothing was sent to the device since the lease's first use of the stream: work that
 * the driver refuses is not measured. Returns false if it cannot be recorded. Locked, the
 * entry's context is current. */
bool gf_meter_end(struct gf_stream *entry, uint64_t works);
/* Reports whether all work of the device's lease is over, given the count of works. Takes
 * device->lock. */
bool gf_meter_idle(struct gf_device *device, uint64_t works);
/* Waits for all work of the lease and returns the GPU time it took, in ns. Where the
 * daemon has asked for that lease it is told shortly before the end (gf_link_ending).
 * Returns UINT64_MAX if the work hangs (gf_stuck); its time then counts under the next lease.
 * Takes device->lock, but not while it sleeps. */
uint64_t gf_meter_drain(struct gf_device *device, uint64_t works, uint32_t asked);
/* Returns the GPU time from a context's first work under the lease to its last, in ns; held: of
 * streams that a wait holds (wait.h), to that. Locked, the context is current. */
uint64_t gf_meter_span(struct gf_device *device, CUcontext context, bool held);
/* Reports whether a stream of the device waits for something outside the GPU. Takes
 * device->lock. */
bool gf_meter_waits(struct gf_device *device);

#pragma GCC visibility pop
#endif
