/* query.h: queries to the driver about a stream. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Reports whether the stream is one of the two default streams, which each context has and which
 * have no handle of their own. */
bool gf_is_default_stream(CUstream stream);
/* Returns the context of a stream, which need not be the current one; NULL if there is none. */
CUcontext gf_context_of(CUstream stream);
/* Set once a capture has begun in this process. While it is false and a device's lock is held, no
 * capture can begin that a query of an event would invalidate. */
extern bool gf_captured;
/* Reports whether work sent to the stream is captured instead of run. */
bool gf_capturing(CUstream stream);
/* Reports whether an event can be recorded on the stream, which is not the case during a capture. */
bool gf_recordable(CUstream stream);
/* Lets the calling thread, one of the library's, query events while other threads capture. Called with
 * a current context. */
void gf_relax_capture(void);

#pragma GCC visibility pop
