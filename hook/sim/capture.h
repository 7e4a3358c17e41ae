/* capture.h: stream capture. Work that is sent to a capturing stream becomes nodes of a graph, and some other
 * calls are refused meanwhile; see capture.c. */
#ifndef GFAAS_SIM_CAPTURE_H
#define GFAAS_SIM_CAPTURE_H

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
    bool invalid, borrowed; /* borrowed: the graph is the program's */
    struct graph *graph;
    struct stream *origin, *streams;
};
extern struct capture *g_captures;

/* An event's last recording, if it was captured. */
struct captured {
    uint64_t id; /* of the capture */
    struct deps deps;
};
void captured_free(struct captured *c);

/* Each of these adds to the capture the work of a call. */
CUresult capture_kernel(struct stream *s, const struct launch *l);
CUresult capture_copy(struct stream *s, const CUDA_MEMCPY3D *p);
CUresult capture_set(struct stream *s, const CUDA_MEMSET_NODE_PARAMS *p);
CUresult capture_alloc(struct stream *s, size_t size, CUdeviceptr *out);
CUresult capture_free(struct stream *s, CUdeviceptr p);
CUresult capture_host(struct stream *s, CUhostFn fn, void *data);
CUresult capture_record(struct stream *s, struct event *e, bool external);
CUresult capture_wait(struct stream *s, struct event *e, bool external);
CUresult capture_refuse(struct stream *s); /* for work that cannot be captured */
void capture_leave(struct stream *s); /* the stream is being destroyed */

/* Returns an error if captures forbid the calling thread a call that cannot be captured, and invalidates
 * these captures. */
CUresult capture_unsafe(void);
void capture_invalidate(uint64_t id);
CUresult capture_legacy(struct ctx *c); /* the same for use of the legacy stream */
CUresult capture_sync(struct ctx *c);   /* the same for a wait for the whole context */

#endif
