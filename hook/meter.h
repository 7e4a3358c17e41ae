/* meter.h: measures the GPU time of a lease and bounds the work in flight. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Returns to the stream's entry the pieces of work that a thread may still send before the next
 * mark (`unsent`); negative: pieces that it sent in excess. Takes device->lock. */
void gf_meter_return(struct gf_stream *entry, int64_t unsent);
/* Does the same for a thread that is about to send more. If a mark is due, or requested by
 * `now`, records it and waits for an older one, so that little work is in flight. Returns the
 * pieces of work until the next mark, or -1 if the stream is dead. Takes device->lock. */
int32_t gf_meter_mark(struct gf_stream *entry, int64_t unsent, bool now);
/* Reports whether a graph that takes `ms` (0: unknown) needs a mark before and after its launch. */
bool gf_meter_heavy(float ms);
/* Notes after a launch which graph it was (`graph.serial` 0: its time is not wanted). Returns the
 * pieces of work that it counts for. Takes device->lock. */
int32_t gf_meter_graph(struct gf_stream *entry, float ms, struct gf_timed graph);
/* Starts the stream's accounting under a new lease. The caller holds device->lock. */
void gf_meter_begin(struct gf_stream *entry);
/* Records the end event of a per-thread stream, which only its own thread can do. The caller
 * calls it after work that the driver accepted. */
void gf_meter_after(struct gf_stream *entry);
/* Waits for the work of a context and returns 0. If the work does not finish in time, returns
 * when its first piece was sent. The context is current; the caller holds device->lock, which is
 * released while the function sleeps. */
uint64_t gf_meter_await(struct gf_device *device, CUcontext context);
#define GF_WORKS_UNKNOWN (UINT64_MAX - 1)
/* Records the end of the work sent to the stream so far, unless it is recorded already or nothing
 * was sent to the device since the lease's first use of the stream (work that the driver refuses
 * is not measured). Returns false if it cannot be recorded. The entry's context is current; the
 * caller holds device->lock. */
bool gf_meter_end(struct gf_stream *entry, uint64_t works);
/* Reports whether all work of the device's lease has finished. `works` is the current count of
 * works. Takes device->lock. */
bool gf_meter_idle(struct gf_device *device, uint64_t works);
/* Waits for all work of the lease and returns its GPU time in ns. If the daemon has revoked the
 * lease `revoked`, announces the end shortly before it (gf_link_ending). Returns UINT64_MAX if the
 * work hangs (gf_stuck); its time then counts under the next lease. Takes device->lock, but not
 * while it sleeps. */
uint64_t gf_meter_drain(struct gf_device *device, uint64_t works, uint32_t revoked);
/* Returns the GPU time in ns from the context's first work under the lease to its last; with
 * `cut_at_waits`, a stream that a wait blocks (wait.h) ends at that wait. The context is current; the
 * caller holds device->lock. */
uint64_t gf_meter_span(struct gf_device *device, CUcontext context, bool cut_at_waits);
/* Reports whether a stream of the device waits for something outside the GPU. Takes
 * device->lock. */
bool gf_meter_waits(struct gf_device *device);

#pragma GCC visibility pop
