/* capture.c: what capturing streams do with what is put into them. A stream in
 * capture carries the set of nodes that the next one will depend on; an event
 * recorded there carries a copy of it, and a stream that waits for that event joins
 * the capture. */
#include "capture.h"

#include <stdlib.h>
#include <string.h>

static CUresult state_of(const struct stream *s)
{
    return s->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static CUresult spoil(struct capture *c, CUresult why)
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

void captured_free(struct captured *c)
{
    if (!c)
        return;
    deps_clear(&c->deps);
    free(c);
}

bool deps_add(struct deps *d, struct node *n, const CUgraphEdgeData *data)
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

static bool deps_merge(struct deps *to, const struct deps *from)
{
    for (size_t i = 0; i < from->n; i++)
        if (!deps_add(to, from->v[i], &from->data[i]))
            return false;
    return true;
}

/* Takes a stream into a capture, with nothing to depend on yet. */
bool capture_join(struct capture *c, struct stream *s)
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

static void release(struct stream *s)
{
    deps_clear(s->deps);
    free(s->deps);
    s->deps = NULL;
    s->capture = NULL;
}

/* Takes all streams out of the capture. The graph stays. */
void capture_end(struct capture *c)
{
    while (c->streams) {
        struct stream *s = c->streams;
        c->streams = s->captured_next;
        release(s);
    }
    if (c->graph)
        c->graph->capture = NULL;
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    free(c);
}

/* A stream that is destroyed in mid-capture spoils it; if the capture began there
 * nobody can end it any more. */
void capture_leave(struct stream *s)
{
    struct capture *c = s->capture;
    if (!c)
        return;
    c->invalid = true;
    if (c->origin == s) {
        struct graph *g = c->borrowed ? NULL : c->graph;
        capture_end(c);
        if (g)
            graph_free(g);
        return;
    }
    struct stream **p = &c->streams;
    while (*p != s)
        p = &(*p)->captured_next;
    *p = s->captured_next;
    release(s);
}

CUresult capture_refuse(struct stream *s)
{
    CUresult r = state_of(s);
    return r != CUDA_SUCCESS ? r : spoil(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult capture_work(struct stream *s, struct work *w)
{
    CUresult r = state_of(s);
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
    return ok ? CUDA_SUCCESS : spoil(s->capture, CUDA_ERROR_OUT_OF_MEMORY);
}

/* An error in what is to be captured is the call's own and leaves the capture as it
 * was. */
static CUresult add(struct stream *s, struct work *w, CUresult r)
{
    return r != CUDA_SUCCESS ? r : capture_work(s, w);
}

CUresult capture_kernel(struct stream *s, const struct launch *l)
{
    struct work w;
    CUresult r = state_of(s);
    if (r == CUDA_SUCCESS)
        r = work_launch(&w, l);
    if (r == CUDA_SUCCESS && !work_prioritise(&w, s->priority)) {
        work_clear(&w);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return r != CUDA_SUCCESS ? r : capture_work(s, &w);
}

CUresult capture_copy(struct stream *s, const CUDA_MEMCPY3D *p)
{
    struct work w;
    CUresult r = state_of(s);
    return r != CUDA_SUCCESS ? r : add(s, &w, work_memcpy(&w, p, s->ctx));
}

CUresult capture_set(struct stream *s, const CUDA_MEMSET_NODE_PARAMS *p)
{
    struct work w;
    CUresult r = state_of(s);
    return r != CUDA_SUCCESS ? r : add(s, &w, work_memset(&w, p, s->ctx));
}

CUresult capture_host(struct stream *s, CUhostFn fn, void *data)
{
    struct work w;
    CUDA_HOST_NODE_PARAMS p = {fn, data};
    return add(s, &w, work_host(&w, &p));
}

CUresult capture_alloc(struct stream *s, size_t size, CUdeviceptr *out)
{
    struct work w;
    CUDA_MEM_ALLOC_NODE_PARAMS p = {.bytesize = size};
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, s->ctx->ordinal};
    CUresult r = state_of(s);
    if (r == CUDA_SUCCESS)
        r = add(s, &w, work_alloc(&w, &p, s->capture->graph));
    if (r == CUDA_SUCCESS)
        *out = p.dptr;
    return r;
}

CUresult capture_free(struct stream *s, CUdeviceptr p)
{
    struct work w;
    CUresult r = state_of(s);
    return r != CUDA_SUCCESS ? r : add(s, &w, work_free(&w, p, s->capture->graph));
}

/* ---- events ---- */

CUresult capture_record(struct stream *s, struct event *e, bool external)
{
    struct work w;
    CUresult r = state_of(s);
    if (r != CUDA_SUCCESS)
        return r;
    if (external)
        return add(s, &w, work_event(&w, CU_GRAPH_NODE_TYPE_EVENT_RECORD, (CUevent)e));
    struct captured *c = calloc(1, sizeof *c);
    if (!c || !deps_merge(&c->deps, s->deps)) {
        captured_free(c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->id = s->capture->id;
    captured_free(e->captured);
    e->captured = c;
    return CUDA_SUCCESS;
}

static struct capture *find(uint64_t id)
{
    struct capture *c = g_captures;
    while (c && c->id != id)
        c = c->next;
    return c;
}

/* A stream waits for an event of a capture: it joins that, if it is in none. */
static CUresult fork_join(struct stream *s, const struct captured *e)
{
    struct capture *c = find(e->id);
    if (!c) /* it is over: nothing will ever happen to that event */
        return s->capture ? spoil(s->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_ERROR_CAPTURED_EVENT;
    if (s->capture && s->capture != c) {
        spoil(c, CUDA_ERROR_STREAM_CAPTURE_MERGE);
        return spoil(s->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (c->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (s->kind == S_LEGACY)
        return spoil(c, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (!s->capture && !capture_join(c, s))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return deps_merge(s->deps, &e->deps) ? CUDA_SUCCESS : spoil(c, CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult capture_wait(struct stream *s, struct event *e, bool external)
{
    struct work w;
    CUresult r = s->capture ? state_of(s) : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS)
        return r;
    if (external)
        return add(s, &w, work_event(&w, CU_GRAPH_NODE_TYPE_WAIT_EVENT, (CUevent)e));
    if (e->captured)
        return fork_join(s, e->captured);
    return spoil(s->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

/* ---- graphs ---- */

/* The graph that an instance would run now, as one of nodes. */
static struct graph *unfold(const struct plan *p)
{
    struct graph *g = graph_new();
    const uint32_t *in = p->in;
    for (size_t i = 0; g && i < p->n; i++) {
        const struct step *s = &p->steps[i];
        struct work w = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
        if (s->enabled && s->work.type != CU_GRAPH_NODE_TYPE_GRAPH)
            work_copy(&w, &s->work);
        struct node *n = node_new(g, &w);
        bool ok = n != NULL;
        for (uint32_t k = 0; ok && k < p->nin[i]; k++)
            ok = edge_add(g->nodes[*in++], n, NULL);
        if (!ok) {
            graph_free(g);
            return NULL;
        }
    }
    return g;
}

CUresult capture_graph(struct stream *s, const struct exec *e)
{
    struct work w = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    CUresult r = state_of(s);
    if (r != CUDA_SUCCESS)
        return r;
    if (e->plan->memory) /* not in a child graph */
        return capture_refuse(s);
    w.u.child = unfold(e->plan);
    return w.u.child ? capture_work(s, &w) : CUDA_ERROR_OUT_OF_MEMORY;
}
