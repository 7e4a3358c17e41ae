/* stream.c: streams, and waits for them. */
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
    LIST_ADD(&c->streams, s, next, prev);
    return s;
}

/* Frees a stream without pending work. */
void stream_drop(struct stream *s)
{
    handle_del(s);
    LIST_REMOVE(s, next, prev);
    free(s);
}

/* Returns the stream of a handle, by the rules of the default streams. */
struct stream *stream_find(struct ctx *c, CUstream h, CUresult *r)
{
    if (h == NULL && tls_per_thread)
        h = CU_STREAM_PER_THREAD;
    *r = CUDA_SUCCESS;
    if (h == NULL || h == CU_STREAM_LEGACY)
        return c->legacy;
    struct stream *s = h == CU_STREAM_PER_THREAD ? thread_stream(c) : handle_of(h, H_STREAM);
    if (!s)
        *r = h == CU_STREAM_PER_THREAD ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE;
    return s;
}

struct stream *stream_get(struct ctx *c, CUstream h, CUresult *r)
{
    struct stream *s = stream_find(c, h, r);
    if (g_captures && s && s->kind == S_LEGACY && (*r = capture_on_legacy_use(s->ctx)) != CUDA_SUCCESS)
        return NULL;
    return s;
}

CUresult sim_cuStreamCreateWithPriority(struct ctx *c, CUstream *phStream, unsigned int flags, int priority)
{
    if (!phStream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    struct stream *s = stream_new(c, S_CREATED, flags, priority);
    if (s && !handle_add(s, H_STREAM)) {
        stream_drop(s);
        s = NULL;
    }
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phStream = (CUstream)s;
    return CUDA_SUCCESS;
}

/* The handle becomes invalid at once; the stream is freed when its work has finished. */
CUresult sim_cuStreamDestroy_v2(struct stream *s, CUstream hStream)
{
    capture_on_stream_destroy(s);
    handle_del(s);
    s->dying = true;
    if (!s->head && !s->waiters)
        stream_drop(s); /* otherwise the end of its last item does it */
    return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetCtx_v2(struct stream *s, CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
    CUresult r = STORE(pCtx, (CUcontext)s->ctx);
    if (r == CUDA_SUCCESS && pGreenCtx)
        *pGreenCtx = NULL;
    return r;
}

CUresult sim_cuStreamSynchronize(struct stream *s, CUstream hStream)
{
    struct ctx *c = s->ctx;
    if (s->capture)
        return capture_refuse(s);
    if (s->kind == S_LEGACY)
        wait_context(c, true);
    else
        wait_stream(s, s->enq);
    pool_synced(c->dev);
    return c->error;
}

CUresult sim_cuStreamQuery(struct stream *s, CUstream hStream)
{
    if (s->capture)
        return capture_refuse(s);
    engine_advance(s->ctx->dev, now_ns());
    bool busy = s->head != NULL;
    for (struct stream *o = s->ctx->streams; o && s->kind == S_LEGACY; o = o->next)
        busy |= stream_blocking(o) && o->head;
    return s->ctx->error ? s->ctx->error : busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* Makes the other device's worker notice the end of a recording in time. */
void record_watch(struct record *r, const struct device *waiting)
{
    if (r->foreign || r->watched || r->stream->ctx->dev == waiting)
        return;
    struct device *d = r->stream->ctx->dev;
    r->watched = true;
    d->n_prompt++;
    threads_kick(d);
}

CUresult sim_cuStreamWaitEvent(struct stream *s, CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    struct event *e = handle_of(hEvent, H_EVENT);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if (Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    bool external = Flags & CU_EVENT_WAIT_EXTERNAL;
    if (s->capture || (e->captured && !external))
        return capture_wait(s, e, external);
    if (external) /* is a flag for captures only */
        return CUDA_ERROR_INVALID_VALUE;
    struct record *last = event_pending(e);
    if (!last)
        return CUDA_SUCCESS;
    struct item *it = item_new(I_WAIT);
    if (!it)
        return CUDA_ERROR_OUT_OF_MEMORY;
    it->u.record = last;
    it->u.record->refs++;
    record_watch(last, s->ctx->dev);
    return engine_push(s, it);
}

/* Adds a call of the program's function to a stream. */
static CUresult push_call(struct stream *s, enum item_kind kind, CUhostFn fn, CUstreamCallback callback, void *data)
{
    if (s->capture)
        return fn ? capture_host(s, fn, data) : capture_refuse(s);
    struct item *it = item_new(kind);
    if (!it)
        return CUDA_ERROR_OUT_OF_MEMORY;
    it->u.host.fn = fn;
    it->u.host.callback = callback;
    it->u.host.data = data;
    return engine_push(s, it);
}

CUresult sim_cuLaunchHostFunc(struct stream *s, CUstream hStream, CUhostFn fn, void *userData)
{
    return fn ? push_call(s, I_HOST, fn, NULL, userData) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuStreamAddCallback(struct stream *s, CUstream hStream, CUstreamCallback callback, void *userData,
                                 unsigned int flags)
{
    if (!callback || flags)
        return CUDA_ERROR_INVALID_VALUE;
    return push_call(s, I_CALLBACK, NULL, callback, userData);
}
