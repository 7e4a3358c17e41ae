/* stream.c: streams, and waiting for them. */
#include "capture.h"
#include "ipcevent.h"
#include "pool.h"

#include <stdlib.h>

static uint64_t last_id;

struct stream *stream_new(struct ctx *c, enum stream_kind kind, unsigned flags, int priority)
{
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->ctx = c;
    s->kind = kind;
    s->flags = flags;
    s->priority = priority;
    s->id = ++last_id;
    s->wake_at = UINT64_MAX;
    s->next = c->streams;
    s->prev = &c->streams;
    if (s->next)
        s->next->prev = &s->next;
    c->streams = s;
    return s;
}

/* Frees a stream in which nothing is left to do. */
void stream_drop(struct stream *s)
{
    handle_del(s);
    *s->prev = s->next;
    if (s->next)
        s->next->prev = s->prev;
    free(s);
}

static inline struct stream *find(struct ctx *c, CUstream h, CUresult *r)
{
    if (h == NULL && tls_per_thread)
        h = CU_STREAM_PER_THREAD;
    *r = CUDA_SUCCESS;
    if (h == NULL || h == CU_STREAM_LEGACY)
        return c->legacy;
    if (h == CU_STREAM_PER_THREAD) {
        struct stream *s = thread_stream(c);
        if (!s)
            *r = CUDA_ERROR_OUT_OF_MEMORY;
        return s;
    }
    if (handle_is(h, H_STREAM))
        return (struct stream *)h;
    *r = CUDA_ERROR_INVALID_HANDLE;
    return NULL;
}

struct stream *stream_find(struct ctx *c, CUstream h, CUresult *r)
{
    return find(c, h, r);
}

struct stream *stream_get(struct ctx *c, CUstream h, CUresult *r)
{
    struct stream *s = find(c, h, r);
    if (g_captures && s && s->kind == S_LEGACY && (*r = capture_legacy(s->ctx)) != CUDA_SUCCESS)
        return NULL;
    return s;
}

/* Opens a call on a stream: on success the lock is held. */
static CUresult begin(CUstream h, struct ctx **c, struct stream **s)
{
    *s = NULL;
    CUresult r = sim_begin(c);
    if (r != CUDA_SUCCESS)
        return r;
    *s = stream_get(*c, h, &r);
    return r == CUDA_SUCCESS ? r : sim_end(r);
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!phStream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    struct stream *s = stream_new(c, S_CREATED, flags, priority);
    if (s && !handle_add(s, H_STREAM)) {
        stream_drop(s);
        s = NULL;
    }
    if (!s)
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    *phStream = (CUstream)s;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    return cuStreamCreateWithPriority(phStream, Flags, 0);
}

/* The handle is gone at once, the stream when its work is done. */
CUresult cuStreamDestroy_v2(CUstream hStream)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    struct stream *s = (struct stream *)hStream;
    if (!handle_is(s, H_STREAM))
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    capture_leave(s);
    handle_del(s);
    s->dying = true;
    if (!s->head && !s->waiters)
        stream_drop(s); /* else whoever finishes its last item does */
    return sim_end(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream hStream)
{
    return cuStreamDestroy_v2(hStream);
}

CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
    struct ctx *c;
    struct stream *s;
    CUresult r = begin(hStream, &c, &s);
    if (r != CUDA_SUCCESS)
        return r;
    if (priority)
        *priority = s->priority;
    return sim_end(priority ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
    struct ctx *c;
    struct stream *s;
    CUresult r = begin(hStream, &c, &s);
    if (r != CUDA_SUCCESS)
        return r;
    if (flags)
        *flags = s->flags;
    return sim_end(flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    struct ctx *c;
    struct stream *s;
    CUresult r = begin(hStream, &c, &s);
    if (r != CUDA_SUCCESS)
        return r;
    if (streamId)
        *streamId = s->id;
    return sim_end(streamId ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    struct ctx *c;
    struct stream *s;
    CUresult r = begin(hStream, &c, &s);
    if (r != CUDA_SUCCESS)
        return r;
    if (pctx)
        *pctx = (CUcontext)s->ctx;
    return sim_end(pctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
    CUresult r = cuStreamGetCtx(hStream, pCtx);
    if (r == CUDA_SUCCESS && pGreenCtx)
        *pGreenCtx = NULL;
    return r;
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
    struct ctx *c;
    struct stream *s;
    CUresult r = begin(hStream, &c, &s);
    if (r != CUDA_SUCCESS)
        return r;
    if (device)
        *device = s->ctx->ordinal;
    return sim_end(device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuStreamSynchronize(CUstream hStream)
{
    struct ctx *c;
    struct stream *s;
    CUresult r = begin(hStream, &c, &s);
    if (r != CUDA_SUCCESS)
        return r;
    c = s->ctx;
    if (s->capture)
        return sim_end(capture_refuse(s));
    if (s->kind == S_LEGACY)
        wait_context(c, true);
    else
        wait_stream(s, s->enq);
    pool_synced(c->dev);
    return sim_end(c->error);
}

CUresult cuStreamQuery(CUstream hStream)
{
    struct ctx *c;
    struct stream *s;
    CUresult r = begin(hStream, &c, &s);
    if (r != CUDA_SUCCESS)
        return r;
    if (s->capture)
        return sim_end(capture_refuse(s));
    engine_advance(s->ctx->dev, now_ns());
    bool busy = s->head != NULL;
    for (struct stream *o = s->ctx->streams; o && s->kind == S_LEGACY; o = o->next)
        busy |= stream_blocking(o) && o->head;
    return sim_end(s->ctx->error ? s->ctx->error : busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

/* Has the other device's worker see the end of a recording in time. */
void record_watch(struct record *r, const struct device *waiting)
{
    if (r->foreign || r->watched || r->stream->ctx->dev == waiting)
        return;
    struct device *d = r->stream->ctx->dev;
    r->watched = true;
    d->n_prompt++;
    threads_kick(d);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    struct ctx *c;
    struct stream *s;
    CUresult r = begin(hStream, &c, &s);
    if (r != CUDA_SUCCESS)
        return r;
    struct event *e = (struct event *)hEvent;
    if (!handle_is(e, H_EVENT))
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    if (Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    bool external = Flags & CU_EVENT_WAIT_EXTERNAL;
    if (s->capture || (e->captured && !external))
        return sim_end(capture_wait(s, e, external));
    if (external) /* which says how to capture it */
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    struct record *last = event_latest(e);
    if (!last)
        return sim_end(CUDA_SUCCESS);
    struct item *it = item_new(I_WAIT);
    if (!it)
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    it->u.record = last;
    it->u.record->refs++;
    record_watch(last, s->ctx->dev);
    return sim_end(engine_push(s, it));
}

static CUresult push_call(CUstream hStream, enum item_kind kind, CUhostFn fn, CUstreamCallback callback, void *data)
{
    struct ctx *c;
    struct stream *s;
    CUresult r = begin(hStream, &c, &s);
    if (r != CUDA_SUCCESS)
        return r;
    if (s->capture)
        return sim_end(fn ? capture_host(s, fn, data) : capture_refuse(s));
    struct item *it = item_new(kind);
    if (!it)
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    it->u.host.fn = fn;
    it->u.host.callback = callback;
    it->u.host.data = data;
    return sim_end(engine_push(s, it));
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    return fn ? push_call(hStream, I_HOST, fn, NULL, userData) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags)
{
    if (!callback || flags)
        return CUDA_ERROR_INVALID_VALUE;
    return push_call(hStream, I_CALLBACK, NULL, callback, userData);
}
