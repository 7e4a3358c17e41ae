/* capture.h: stream capture. What goes into a capturing stream becomes nodes of a
 * graph instead of work, and other calls are refused meanwhile; see capture.c. */
#ifndef GFAAS_SIM_CAPTURE_H
#define GFAAS_SIM_CAPTURE_H

#include "graph.h"

/* The nodes that the next one depends on. */
struct deps {
    struct node **v;
    CUgraphEdgeData *data; /* as many */
    size_t n;
};

struct capture {
    struct capture *next, **prev;
    uint64_t id;
    const void *owner; /* the thread that began it */
    CUstreamCaptureMode mode;
    bool invalid, borrowed; /* borrowed: the graph is the program's */
    struct graph *graph;
    struct stream *origin, *streams;
};
extern struct capture *g_captures;

/* An event's last recording, when it was captured. */
struct captured {
    uint64_t id; /* of the capture */
    struct deps deps;
};
void captured_free(struct captured *c);

/* Each adds what a call would have put into a capturing stream. */
CUresult capture_kernel(struct stream *s, const struct launch *l);
CUresult capture_copy(struct stream *s, const CUDA_MEMCPY3D *p);
CUresult capture_set(struct stream *s, const CUDA_MEMSET_NODE_PARAMS *p);
CUresult capture_alloc(struct stream *s, size_t size, CUdeviceptr *out);
CUresult capture_free(struct stream *s, CUdeviceptr p);
CUresult capture_host(struct stream *s, CUhostFn fn, void *data);
CUresult capture_record(struct stream *s, struct event *e, bool external);
CUresult capture_wait(struct stream *s, struct event *e, bool external);
CUresult capture_refuse(struct stream *s); /* what cannot be captured */
void capture_leave(struct stream *s); /* the stream goes */

/* May the calling thread do what a capture cannot see? If not, the captures that
 * forbid it are invalid from now on. */
CUresult capture_unsafe(void);
void capture_invalidate(uint64_t id);
CUresult capture_legacy(struct ctx *c); /* use the legacy stream */
CUresult capture_sync(struct ctx *c);   /* wait for the whole context */

#endif
