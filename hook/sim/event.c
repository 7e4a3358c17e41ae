/* event.c: events. Each recording is an object of its own, so recording an event again does not affect waits
 * for its previous recording. */
#include "capture.h"
#include "ipcevent.h"
#include "pool.h"

#include <stdlib.h>

/* Returns a new event, or NULL if out of memory. */
struct event *event_new(struct ctx *c, unsigned flags)
{
    struct event *e = handle_new(sizeof *e, H_EVENT);
    if (!e)
        return NULL;
    e->ctx = c;
    e->flags = flags;
    LIST_ADD(&c->events, e, next, prev);
    return e;
}

CUresult sim_cuEventCreate(struct ctx *c, CUevent *phEvent, unsigned int Flags)
{
    if (!phEvent || (Flags & ~7u))
        return CUDA_ERROR_INVALID_VALUE;
    if ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *e = event_new(c, Flags);
    if (e)
        *phEvent = (CUevent)e;
    return e ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void event_free(struct event *e)
{
    handle_del(e);
    LIST_REMOVE(e, next, prev);
    event_closed(e);
    record_unref(e->last);
    captured_event_free(e->captured);
    free(e);
}

CUresult sim_cuEventDestroy_v2(struct event *e, CUevent hEvent)
{
    event_free(e);
    return CUDA_SUCCESS;
}

CUresult sim_cuEventRecordWithFlags(struct stream *s, CUevent hEvent, CUstream hStream, unsigned int flags)
{
    struct event *e = handle_of(hEvent, H_EVENT);
    if (!e || e->ctx != s->ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture)
        return capture_record(s, e, flags & CU_EVENT_RECORD_EXTERNAL);
    if (flags & CU_EVENT_RECORD_EXTERNAL) /* is a flag for captures only */
        return CUDA_ERROR_INVALID_VALUE;
    struct item *it = item_new(I_RECORD);
    struct record *rec = record_new();
    if (!it || !rec) {
        free(rec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    it->u.record = rec;
    rec->refs++;
    event_numbered(e, rec);
    CUresult r = engine_push(s, it);
    if (r != CUDA_SUCCESS) {
        if (rec->shared)
            event_passed(rec);
        record_unref(rec);
        return r;
    }
    if (e->shared)
        event_recorded(e, rec);
    record_unref(e->last);
    e->last = rec;
    captured_event_free(e->captured);
    e->captured = NULL;
    return r;
}

/* Returns an error if the calling thread may not query the event. */
static CUresult check_query(const struct event *e)
{
    if (!e->captured)
        return g_captures ? capture_on_unsafe_call() : CUDA_SUCCESS;
    capture_invalidate(e->captured->id);
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult sim_cuEventQuery(struct event *e, CUevent hEvent)
{
    TRY(check_query(e));
    engine_advance(e->ctx->dev, now_ns());
    if (e->ctx->error)
        return e->ctx->error;
    return event_pending(e) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult sim_cuEventSynchronize(struct event *e, CUevent hEvent)
{
    struct ctx *c = e->ctx;
    TRY(check_query(e));
    struct record *last = event_pending(e);
    if (last)
        wait_record(last);
    pool_synced(c->dev);
    return c->error;
}

CUresult sim_cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    struct event *a = handle_of(hStart, H_EVENT), *b = handle_of(hEnd, H_EVENT);
    if (!a || !b || !a->last || !b->last || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pMilliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    engine_advance(a->ctx->dev, now_ns());
    if (b->ctx->dev != a->ctx->dev)
        engine_advance(b->ctx->dev, now_ns());
    if (a->ctx->error || b->ctx->error)
        return a->ctx->error ? a->ctx->error : b->ctx->error;
    if (!a->last->done || !b->last->done)
        return CUDA_ERROR_NOT_READY;
    *pMilliseconds = (float)((double)(int64_t)(b->last->at - a->last->at) / 1e6);
    return CUDA_SUCCESS;
}
