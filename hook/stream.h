/* stream.h: the streams that work was sent to, until they go away. */
#ifndef GFAAS_STREAM_H
#define GFAAS_STREAM_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Finds or makes the entry of a stream, locks its device and makes its context current,
 * until it is closed. Returns NULL if it cannot be tracked (capture, no context). */
struct gf_stream *gf_stream_open(struct gf_device *device, CUstream stream);
void gf_stream_close(struct gf_stream *entry);
/* Finds or makes the entry of a stream and notes that the lease uses it. Returns NULL if
 * it cannot be tracked (capture, no context). Takes device->lock. */
struct gf_stream *gf_stream_use(struct gf_device *device, CUstream stream, uint32_t lease);
/* Around a call that begins a capture. The first records the end of the work on all
 * streams while that is possible, and locks all devices: no event is recorded until it is
 * known on which streams none may be. The second unlocks them. */
void gf_capture_begins(void);
void gf_capture_has_begun(void);
/* Called before the program destroys a stream, after it has made one, and when a thread has
 * ended. They take device->lock. */
void gf_stream_gone(CUstream stream);
void gf_stream_made(CUstream stream);
void gf_stream_thread_gone(struct gf_thread *thread);
/* Around a call that may destroy a context. The first settles its time, the second is given
 * whether it is gone. They take device->lock, and hold none between. device is NULL if there is
 * no context. */
void gf_context_leaving(struct gf_leaving *l, struct gf_device *device, CUcontext context);
void gf_context_left(struct gf_leaving *l, bool gone);
/* The same for the primary context, of which that many counted holders let go.
 * While others hold it nothing ends, and nothing is waited for. */
void gf_primary_leaving(struct gf_leaving *l, struct gf_device *device, CUcontext context, uint32_t holders);
void gf_primary_held(struct gf_device *device);
/* Frees entries of streams and contexts that are gone. Takes device->lock. No thread may be
 * inside a launch: the threads' lines lead nowhere then, since their lease is over. */
void gf_stream_sweep(struct gf_device *device);

#pragma GCC visibility pop
#endif
