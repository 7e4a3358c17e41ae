/* query.h: questions to the driver about a stream. */
#ifndef GFAAS_QUERY_H
#define GFAAS_QUERY_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Reports whether the stream is one of the two default streams, which have no handle of
 * their own: they are one a context. */
bool gf_is_default_stream(CUstream stream);
/* Returns the context of a stream, which need not be the current one; NULL if there is none. */
CUcontext gf_context_of(CUstream stream);
/* Set once a capture has begun in this process. While it is not, and the lock of a device is
 * held, none begins that could be disturbed by querying events. */
extern bool gf_captured;
/* Reports whether work sent to the stream is captured, and does not run. */
bool gf_capturing(CUstream stream);
/* Reports whether an event may be recorded on the stream: not while it is captured. */
bool gf_recordable(CUstream stream);
/* Lets the calling thread, one of the library's own, query events while other threads capture.
 * Called with a current context. */
void gf_relax_capture(void);

#pragma GCC visibility pop
#endif
