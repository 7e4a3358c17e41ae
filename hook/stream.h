/* stream.h: the streams to which the process has sent work. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Returns the entry of a stream, creating it if needed, with its device locked and its context
 * current until gf_stream_close. Returns NULL if the stream cannot be tracked (capture, no
 * context). */
struct gf_stream *gf_stream_open(struct gf_device *device, CUstream stream);
void gf_stream_close(struct gf_stream *entry);
/* Returns the entry of a stream, creating it if needed, and notes that the lease uses it. Returns
 * NULL if the stream cannot be tracked (capture, no context). Takes device->lock. */
struct gf_stream *gf_stream_use(struct gf_device *device, CUstream stream, uint32_t lease);
/* Called before and after a call that begins a capture. The first records the end of the work on
 * all streams while that is possible, and locks all devices, so that no event is recorded until
 * the captured streams are known. The second unlocks them. */
void gf_capture_begins(void);
void gf_capture_has_begun(void);
/* Called before the program destroys a stream, after it has created one, and after a thread has
 * ended. They take device->lock. */
void gf_stream_gone(CUstream stream);
void gf_stream_made(CUstream stream);
void gf_stream_thread_gone(struct gf_thread *thread);
/* Called before and after a call that may destroy a context. The first measures the context's GPU
 * time; `gone` tells the second whether the context is destroyed. They take device->lock, and hold no
 * lock in between. device is NULL if there is no context. */
void gf_context_leaving(struct gf_leaving *l, struct gf_device *device, CUcontext context);
void gf_context_left(struct gf_leaving *l, bool gone);
/* The same for the primary context, of which the call releases `holders` counted holders. While
 * other holders remain, the context stays, and nothing is waited for. */
void gf_primary_leaving(struct gf_leaving *l, struct gf_device *device, CUcontext context, uint32_t holders);
void gf_primary_held(struct gf_device *device);
/* Frees the entries of destroyed streams and contexts. No thread may be inside a launch; the
 * threads' lines cannot refer to these entries then, since their lease has ended. Takes
 * device->lock. */
void gf_stream_sweep(struct gf_device *device);

#pragma GCC visibility pop
