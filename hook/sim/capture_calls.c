/* capture_calls.c: the calls that begin a capture, end it and look into it. */
#include "capture.h"

#include <stdlib.h>

struct capture *g_captures;
static uint64_t last_id;

static bool join_at(struct stream *s, const CUgraphNode *deps, const CUgraphEdgeData *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!deps_add(s->deps, (struct node *)deps[i], data ? &data[i] : NULL))
            return false;
    return true;
}

/* Begins a capture into a graph, or into one of its own if g is NULL. */
static CUresult start(struct stream *s, struct graph *g, CUstreamCaptureMode mode)
{
    struct capture *c = calloc(1, sizeof *c);
    if (c)
        c->graph = g ? g : graph_new();
    if (!c || !c->graph || !capture_join(c, s)) {
        if (c && c->graph && !g)
            graph_free(c->graph);
        free(c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->borrowed = g != NULL;
    c->graph->capture = c;
    c->id = ++last_id;
    c->owner = capture_thread();
    c->mode = mode;
    c->origin = s;
    c->prev = &g_captures;
    c->next = g_captures;
    if (c->next)
        c->next->prev = &c->next;
    g_captures = c;
    return CUDA_SUCCESS;
}

static CUresult can_start(const struct stream *s, CUstreamCaptureMode mode)
{
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->kind == S_LEGACY)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return s->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

CUresult sim_cuStreamBeginCapture_v2(struct ctx *c, CUstream hStream, CUstreamCaptureMode mode)
{
    CUresult r;
    struct stream *s = stream_find(c, hStream, &r);
    if (!s)
        return r;
    r = can_start(s, mode);
    return r != CUDA_SUCCESS ? r : start(s, NULL, mode);
}

CUresult sim_cuStreamBeginCapture(struct ctx *c, CUstream hStream)
{
    return sim_cuStreamBeginCapture_v2(c, hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult sim_cuStreamBeginCaptureToGraph(struct ctx *c, CUstream hStream, CUgraph hGraph,
                                         const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                                         size_t numDependencies, CUstreamCaptureMode mode)
{
    struct graph *g = (struct graph *)hGraph;
    CUresult r;
    struct stream *s = stream_find(c, hStream, &r);
    if (!s)
        return r;
    if (!graph_is(g) || g->capture || !edges_valid(g, dependencies, numDependencies))
        return CUDA_ERROR_INVALID_VALUE;
    r = can_start(s, mode);
    if (r == CUDA_SUCCESS)
        r = start(s, g, mode);
    if (r == CUDA_SUCCESS && !join_at(s, dependencies, dependencyData, numDependencies)) {
        capture_end(s->capture);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return r;
}

/* Marks all that a stream's next node would come after. */
static void mark(const struct deps *d, struct node **stack)
{
    size_t depth = 0;
    for (size_t i = 0; i < d->n; i++)
        if (!d->v[i]->mark) {
            d->v[i]->mark = 1;
            stack[depth++] = d->v[i];
        }
    while (depth) {
        const struct node *n = stack[--depth];
        for (size_t i = 0; i < n->in.n; i++) {
            struct node *m = n->in.v[i].node;
            if (!m->mark) {
                m->mark = 1;
                stack[depth++] = m;
            }
        }
    }
}

/* Whether all that was captured in other streams leads back to the first. */
static bool joined(const struct capture *c)
{
    struct graph *g = c->graph;
    struct node **stack = malloc((g->n + 1) * sizeof *stack);
    bool ok = stack != NULL;
    for (size_t i = 0; i < g->n; i++)
        g->nodes[i]->mark = 0;
    if (ok)
        mark(c->origin->deps, stack);
    for (const struct stream *s = c->streams; ok && s; s = s->captured_next)
        for (size_t i = 0; ok && i < s->deps->n; i++)
            ok = s->deps->v[i]->mark;
    free(stack);
    return ok;
}

static CUresult finish(struct stream *s, CUgraph *out)
{
    struct capture *c = s->capture;
    if (!c)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (c->origin != s)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->owner != capture_thread())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    CUresult r = c->invalid   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                 : !joined(c) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                              : CUDA_SUCCESS;
    struct graph *g = c->graph;
    bool borrowed = c->borrowed;
    capture_end(c);
    if (r == CUDA_SUCCESS)
        *out = (CUgraph)g;
    else if (!borrowed)
        graph_free(g);
    return r;
}

CUresult sim_cuStreamEndCapture(struct ctx *c, CUstream hStream, CUgraph *phGraph)
{
    CUresult r;
    struct stream *s = stream_find(c, hStream, &r);
    if (!s)
        return r;
    if (!phGraph)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = NULL;
    return finish(s, phGraph);
}

CUresult sim_cuStreamIsCapturing(struct ctx *c, CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    return sim_cuStreamGetCaptureInfo(c, hStream, captureStatus, NULL);
}

CUresult sim_cuStreamGetCaptureInfo_v3(struct ctx *c, CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                       cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                       const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out)
{
    CUresult r;
    struct stream *s = stream_find(c, hStream, &r);
    if (!s)
        return r;
    if (!captureStatus_out)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->kind == S_LEGACY && capture_blocks_legacy(s->ctx))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    const struct capture *capture = s->capture;
    *captureStatus_out = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
                         : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                            : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!capture || capture->invalid)
        return CUDA_SUCCESS;
    if (id_out)
        *id_out = capture->id;
    if (graph_out)
        *graph_out = (CUgraph)capture->graph;
    if (dependencies_out)
        *dependencies_out = (const CUgraphNode *)(const void *)s->deps->v;
    if (edgeData_out)
        *edgeData_out = s->deps->data;
    if (numDependencies_out)
        *numDependencies_out = s->deps->n;
    return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetCaptureInfo_v2(struct ctx *c, CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                       cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                       size_t *numDependencies_out)
{
    return sim_cuStreamGetCaptureInfo_v3(c, hStream, captureStatus_out, id_out, graph_out, dependencies_out, NULL,
                                     numDependencies_out);
}

CUresult sim_cuStreamGetCaptureInfo(struct ctx *c, CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                    cuuint64_t *id_out)
{
    return sim_cuStreamGetCaptureInfo_v3(c, hStream, captureStatus_out, id_out, NULL, NULL, NULL, NULL);
}

CUresult sim_cuStreamUpdateCaptureDependencies_v2(struct ctx *c, CUstream hStream, CUgraphNode *dependencies,
                                                  const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                                  unsigned int flags)
{
    CUresult r;
    struct stream *s = stream_find(c, hStream, &r);
    if (!s)
        return r;
    if (!s->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (s->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES ||
        !edges_valid(s->capture->graph, dependencies, numDependencies))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        s->deps->n = 0;
    return join_at(s, dependencies, dependencyData, numDependencies) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuStreamUpdateCaptureDependencies(struct ctx *c, CUstream hStream, CUgraphNode *dependencies,
                                               size_t numDependencies, unsigned int flags)
{
    return sim_cuStreamUpdateCaptureDependencies_v2(c, hStream, dependencies, NULL, numDependencies, flags);
}
