/* capture.c: stream capture.
 *
 * Work that is sent to a capturing stream becomes nodes of a graph. The stream has the
 * set of nodes on which the next one will depend; an event recorded there has a copy
 * of that set, and a stream that waits for the event joins the capture.
 *
 * A call that cannot be captured returns an error meanwhile, and invalidates the
 * captures concerned: they yield no graph. */
#include "capture.h"

#include <stdlib.h>
#include <string.h>

/* ---- calls that are forbidden during a capture ---- */

static __thread CUstreamCaptureMode own_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* Returns the identity of the calling thread: an address of its own. */
static const void *thread_identity(void)
{
    return &own_mode;
}

CUresult sim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode old = own_mode;
    own_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

/* Reports whether a capture forbids the calling thread the calls that cannot be captured. A capture in relaxed
 * mode forbids none. Another capture forbids them the thread that began it. If it is in global mode, it also
 * forbids them all other threads that are in global mode. */
static bool forbids(const struct capture *c)
{
    if (c->owner == thread_identity())
        return c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return own_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_on_unsafe_call(void)
{
    CUresult r = CUDA_SUCCESS;
    if (own_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return r;
    for (struct capture *c = g_captures; c; c = c->next)
        if (forbids(c)) {
            c->invalid = true;
            r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return r;
}

void capture_invalidate(uint64_t id)
{
    for (struct capture *c = g_captures; c; c = c->next)
        if (c->id == id)
            c->invalid = true;
}

/* Reports whether a capturing stream belongs to the context and, with `blocking`, is a blocking stream. */
static bool concerns(const struct capture *c, const struct ctx *ctx, bool blocking)
{
    for (const struct stream *s = c->streams; s; s = s->captured_next)
        if (s->ctx == ctx && (!blocking || stream_blocking(s)))
            return true;
    return false;
}

/* Reports whether a stream for which the legacy stream waits is capturing. */
static bool capture_blocks_legacy(const struct ctx *ctx)
{
    for (const struct capture *c = g_captures; c; c = c->next)
        if (concerns(c, ctx, true))
            return true;
    return false;
}

/* Invalidates the captures of the context's streams (with `blocking`, of those for which the legacy stream
 * waits). Returns `why` if there was one. */
static CUresult invalidate_all(struct ctx *ctx, bool blocking, CUresult why)
{
    CUresult r = CUDA_SUCCESS;
    for (struct capture *c = g_captures; c; c = c->next)
        if (concerns(c, ctx, blocking)) {
            c->invalid = true;
            r = why;
        }
    return r;
}

CUresult capture_on_legacy_use(struct ctx *ctx)
{
    return invalidate_all(ctx, true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

CUresult capture_on_ctx_sync(struct ctx *ctx)
{
    return invalidate_all(ctx, false, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

/* ---- work for capturing streams ---- */

/* Returns the error of all calls on a capturing stream if its capture has become invalid. */
static CUresult invalidated_error(const struct stream *s)
{
    return s->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

/* Invalidates a capture and returns the error. */
static CUresult invalidate(struct capture *c, CUresult why)
{
    c->invalid = true;
    return why;
}

static void deps_clear(struct deps *d)
{
    free(d->v);
    free(d->data);
    *d = (struct deps){0};
}

void captured_event_free(struct captured_event *c)
{
    if (!c)
        return;
    deps_clear(&c->deps);
    free(c);
}

/* Adds a node to the dependencies of the next one, unless it is among them. */
static bool deps_add(struct deps *d, struct node *n, const CUgraphEdgeData *data)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->v[i] == n)
            return true;
    struct node **v = realloc(d->v, (d->n + 1) * sizeof *v);
    if (v)
        d->v = v;
    CUgraphEdgeData *w = v ? realloc(d->data, (d->n + 1) * sizeof *w) : NULL;
    if (!w)
        return false;
    d->data = w;
    d->v[d->n] = n;
    memset(&d->data[d->n], 0, sizeof *w);
    if (data)
        d->data[d->n] = *data;
    d->n++;
    return true;
}

/* Adds all dependencies of another set. */
static bool deps_merge(struct deps *to, const struct deps *from)
{
    for (size_t i = 0; i < from->n; i++)
        if (!deps_add(to, from->v[i], &from->data[i]))
            return false;
    return true;
}

/* Adds a stream to a capture, without dependencies. */
static bool add_stream(struct capture *c, struct stream *s)
{
    struct deps *d = calloc(1, sizeof *d);
    if (!d)
        return false;
    s->deps = d;
    s->capture = c;
    s->captured_next = c->streams;
    c->streams = s;
    return true;
}

/* Makes a stream no longer capturing. The caller removes it from the list of the capture. */
static void clear_stream_capture(struct stream *s)
{
    deps_clear(s->deps);
    free(s->deps);
    s->deps = NULL;
    s->capture = NULL;
}

/* Removes all streams from a capture, and frees it. The graph stays. */
static void capture_destroy(struct capture *c)
{
    while (c->streams) {
        struct stream *s = c->streams;
        c->streams = s->captured_next;
        clear_stream_capture(s);
    }
    if (c->graph)
        c->graph->capture = NULL;
    LIST_REMOVE(c, next, prev);
    free(c);
}

/* Invalidates the capture. If the capture began in the destroyed stream, no call can end it any more, so it is
 * freed. */
void capture_on_stream_destroy(struct stream *s)
{
    struct capture *c = s->capture;
    if (!c)
        return;
    c->invalid = true;
    if (c->origin == s) {
        struct graph *g = c->borrowed ? NULL : c->graph;
        capture_destroy(c);
        if (g)
            graph_free(g);
        return;
    }
    LIST_UNLINK(&c->streams, s, captured_next);
    clear_stream_capture(s);
}

CUresult capture_refuse(struct stream *s)
{
    TRY(invalidated_error(s));
    return invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

/* Adds a node with the work w to the capture of a stream. The node owns w; on an error, w is cleared. */
static CUresult add_node(struct stream *s, struct work *w)
{
    CUresult r = invalidated_error(s);
    struct deps *d = s->deps;
    if (r != CUDA_SUCCESS) {
        work_clear(w);
        return r;
    }
    struct node *n = node_new(s->capture->graph, w);
    bool ok = n != NULL;
    for (size_t i = 0; ok && i < d->n; i++)
        ok = edge_add(d->v[i], n, &d->data[i]);
    if (ok) {
        d->n = 0;
        ok = deps_add(d, n, NULL);
    }
    return ok ? CUDA_SUCCESS : invalidate(s->capture, CUDA_ERROR_OUT_OF_MEMORY);
}

/* Does the same, unless the call that filled w with work failed. `filled` is the result of that call: an error
 * is returned, and leaves the capture valid. */
static CUresult add_filled_node(struct stream *s, struct work *w, CUresult filled)
{
    return filled != CUDA_SUCCESS ? filled : add_node(s, w);
}

CUresult capture_kernel(struct stream *s, const struct launch *l)
{
    struct work w;
    TRY(invalidated_error(s));
    TRY(work_launch(&w, l));
    if (work_prioritise(&w, s->priority))
        return add_node(s, &w);
    work_clear(&w);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_copy(struct stream *s, const CUDA_MEMCPY3D *p)
{
    struct work w;
    TRY(invalidated_error(s));
    return add_filled_node(s, &w, work_memcpy(&w, p, s->ctx));
}

CUresult capture_set(struct stream *s, const CUDA_MEMSET_NODE_PARAMS *p)
{
    struct work w;
    TRY(invalidated_error(s));
    return add_filled_node(s, &w, work_memset(&w, p, s->ctx));
}

CUresult capture_host(struct stream *s, CUhostFn fn, void *data)
{
    struct work w;
    CUDA_HOST_NODE_PARAMS p = {fn, data};
    return add_filled_node(s, &w, work_host(&w, &p));
}

CUresult capture_alloc(struct stream *s, size_t size, CUdeviceptr *out)
{
    struct work w;
    CUDA_MEM_ALLOC_NODE_PARAMS p = {.bytesize = size};
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, s->ctx->ordinal};
    TRY(invalidated_error(s));
    TRY(add_filled_node(s, &w, work_alloc(&w, &p, s->capture->graph)));
    *out = p.dptr;
    return CUDA_SUCCESS;
}

CUresult capture_free(struct stream *s, CUdeviceptr p)
{
    struct work w;
    TRY(invalidated_error(s));
    return add_filled_node(s, &w, work_free(&w, p, s->capture->graph));
}

/* ---- events ---- */

/* Records an event in a capture: it gets the stream's current dependencies; an external event becomes a
 * node. */
CUresult capture_record(struct stream *s, struct event *e, bool external)
{
    struct work w;
    TRY(invalidated_error(s));
    if (external)
        return add_filled_node(s, &w, work_event(&w, CU_GRAPH_NODE_TYPE_EVENT_RECORD, (CUevent)e));
    struct captured_event *c = calloc(1, sizeof *c);
    if (!c || !deps_merge(&c->deps, s->deps)) {
        captured_event_free(c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->id = s->capture->id;
    captured_event_free(e->captured);
    e->captured = c;
    return CUDA_SUCCESS;
}

/* Returns the capture with that id, or NULL if it has ended. */
static struct capture *find_capture(uint64_t id)
{
    struct capture *c = g_captures;
    while (c && c->id != id)
        c = c->next;
    return c;
}

/* Makes a stream wait for an event of a capture, and adds the stream to that capture if it is in none. */
static CUresult wait_captured_event(struct stream *s, const struct captured_event *e)
{
    struct capture *c = find_capture(e->id);
    if (!c) /* it has ended, and the event will never complete */
        return s->capture ? invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_ERROR_CAPTURED_EVENT;
    if (s->capture && s->capture != c) {
        invalidate(c, CUDA_ERROR_STREAM_CAPTURE_MERGE);
        return invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (c->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (s->kind == S_LEGACY)
        return invalidate(c, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (!s->capture && !add_stream(c, s))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return deps_merge(s->deps, &e->deps) ? CUDA_SUCCESS : invalidate(c, CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult capture_wait(struct stream *s, struct event *e, bool external)
{
    struct work w;
    TRY(s->capture ? invalidated_error(s) : CUDA_SUCCESS);
    if (external)
        return add_filled_node(s, &w, work_event(&w, CU_GRAPH_NODE_TYPE_WAIT_EVENT, (CUevent)e));
    if (e->captured)
        return wait_captured_event(s, e->captured);
    return invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

/* ---- begin, end and queries of a capture ----
 *
 * In these functions of the driver, s is the stream of the handle hStream (entry.c finds it). */

struct capture *g_captures;
static uint64_t last_id;

/* Adds n nodes to the dependencies of the stream's next node. `data` may be NULL. */
static bool deps_add_all(struct stream *s, const CUgraphNode *deps, const CUgraphEdgeData *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!deps_add(s->deps, (struct node *)deps[i], data ? &data[i] : NULL))
            return false;
    return true;
}

/* Begins a capture into a graph, or into a new one if g is NULL. */
static CUresult begin_capture(struct stream *s, struct graph *g, CUstreamCaptureMode mode)
{
    struct capture *c = calloc(1, sizeof *c);
    if (c)
        c->graph = g ? g : graph_new();
    if (!c || !c->graph || !add_stream(c, s)) {
        if (c && c->graph && !g)
            graph_free(c->graph);
        free(c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->borrowed = g != NULL;
    c->graph->capture = c;
    c->id = ++last_id;
    c->owner = thread_identity();
    c->mode = mode;
    c->origin = s;
    LIST_ADD(&g_captures, c, next, prev);
    return CUDA_SUCCESS;
}

/* Returns an error if no capture can begin in a stream. */
static CUresult check_begin(const struct stream *s, CUstreamCaptureMode mode)
{
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->kind == S_LEGACY)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return s->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

CUresult sim_cuStreamBeginCapture_v2(struct stream *s, CUstream hStream, CUstreamCaptureMode mode)
{
    TRY(check_begin(s, mode));
    return begin_capture(s, NULL, mode);
}

CUresult sim_cuStreamBeginCaptureToGraph(struct stream *s, CUstream hStream, CUgraph hGraph,
                                         const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                                         size_t numDependencies, CUstreamCaptureMode mode)
{
    struct graph *g = (struct graph *)hGraph;
    if (!handle_is(g, H_GRAPH) || g->capture || !edges_valid(g, dependencies, numDependencies))
        return CUDA_ERROR_INVALID_VALUE;
    TRY(check_begin(s, mode));
    TRY(begin_capture(s, g, mode));
    if (deps_add_all(s, dependencies, dependencyData, numDependencies))
        return CUDA_SUCCESS;
    capture_destroy(s->capture);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Marks all nodes that a stream's next node would follow. */
static void mark_ancestors(const struct deps *d, struct node **stack)
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

/* Reports whether all work captured in other streams precedes the end of the stream where the capture began. */
static bool all_joined(const struct capture *c)
{
    struct graph *g = c->graph;
    struct node **stack = malloc((g->n + 1) * sizeof *stack);
    bool ok = stack != NULL;
    for (size_t i = 0; i < g->n; i++)
        g->nodes[i]->mark = 0;
    if (ok)
        mark_ancestors(c->origin->deps, stack);
    for (const struct stream *s = c->streams; ok && s; s = s->captured_next)
        for (size_t i = 0; ok && i < s->deps->n; i++)
            ok = s->deps->v[i]->mark;
    free(stack);
    return ok;
}

/* Ends the capture that began in a stream, and sets *out to its graph if the capture is valid. */
static CUresult finish_capture(struct stream *s, CUgraph *out)
{
    struct capture *c = s->capture;
    if (!c)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (c->origin != s)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->owner != thread_identity())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    CUresult r = c->invalid   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                 : !all_joined(c) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                              : CUDA_SUCCESS;
    struct graph *g = c->graph;
    bool borrowed = c->borrowed;
    capture_destroy(c);
    if (r == CUDA_SUCCESS)
        *out = (CUgraph)g;
    else if (!borrowed)
        graph_free(g);
    return r;
}

CUresult sim_cuStreamEndCapture(struct stream *s, CUstream hStream, CUgraph *phGraph)
{
    if (!phGraph)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = NULL;
    return finish_capture(s, phGraph);
}

CUresult sim_cuStreamGetCaptureInfo_v3(struct stream *s, CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                       cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                       const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out)
{
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

CUresult sim_cuStreamUpdateCaptureDependencies_v2(struct stream *s, CUstream hStream, CUgraphNode *dependencies,
                                                  const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                                  unsigned int flags)
{
    if (!s->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (s->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES ||
        !edges_valid(s->capture->graph, dependencies, numDependencies))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        s->deps->n = 0;
    return deps_add_all(s, dependencies, dependencyData, numDependencies) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
