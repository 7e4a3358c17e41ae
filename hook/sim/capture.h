/* capture.h: stream capture. Work that is sent to a capturing stream becomes nodes of a graph, and some other
 * calls are refused meanwhile; see capture.c. */
#pragma once

#include "graph.h"

/* The nodes on which the next one depends. */
struct deps {
    struct node **v;
    CUgraphEdgeData *data; /* n of them */
    size_t n;
};

struct capture {
    struct capture *next, **prev;
    uint64_t id;
    const void *owner; /* the thread that began it */
    CUstreamCaptureMode mode;
    bool invalid;  /* it yields no graph */
    bool borrowed; /* the graph is the program's */
    struct graph *graph;
    struct stream *origin;  /* where it began */
    struct stream *streams; /* all capturing streams, origin included */
};
extern struct capture *g_captures;

/* An event's last recording, if it was captured. */
struct captured_event {
    uint64_t id; /* of the capture */
    struct deps deps;
};
void captured_event_free(struct captured_event *c);

/* Each of these adds to the capture the work of a call. */
CUresult capture_kernel(struct stream *s, const struct launch *l);
CUresult capture_copy(struct stream *s, const CUDA_MEMCPY3D *p);
CUresult capture_set(struct stream *s, const CUDA_MEMSET_NODE_PARAMS *p);
CUresult capture_alloc(struct stream *s, size_t size, CUdeviceptr *out);
CUresult capture_free(struct stream *s, CUdeviceptr p);
CUresult capture_host(struct stream *s, CUhostFn fn, void *data);
CUresult capture_record(struct stream *s, struct event *e, bool external);
CUresult capture_wait(struct stream *s, struct event *e, bool external);
/* Refuses work that cannot be captured: invalidates the stream's capture, and returns the error. */
CUresult capture_refuse(struct stream *s);

/* The effects of other calls on captures. Each function invalidates the captures that the call must not disturb,
 * and returns an error if there are any. */
CUresult capture_on_unsafe_call(void);               /* a call that cannot be captured, in the calling thread */
CUresult capture_on_legacy_use(struct ctx *c);       /* use of the legacy stream */
CUresult capture_on_ctx_sync(struct ctx *c);         /* a wait for the whole context */
void capture_on_stream_destroy(struct stream *s);    /* the destruction of a stream */
void capture_invalidate(uint64_t id);                /* the query of an event that was captured */
