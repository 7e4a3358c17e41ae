/* event.c: events. Each recording is an object of its own, so that recording an
 * event again leaves those alone who wait for the recording before. */
#include "capture.h"
#include "ipcevent.h"
#include "pool.h"

#include <stdlib.h>

/* NULL: no memory for it. */
struct event *event_new(struct ctx *c, unsigned flags)
{
    struct event *e = calloc(1, sizeof *e);
    if (!e || !handle_add(e, H_EVENT)) {
        free(e);
        return NULL;
    }
    e->ctx = c;
    e->flags = flags;
    e->prev = &c->events;
    e->next = c->events;
    if (e->next)
        e->next->prev = &e->next;
    c->events = e;
    return e;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    if (!phEvent || (Flags & ~7u))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    if ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING))
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    struct event *e = event_new(c, Flags);
    if (e)
        *phEvent = (CUevent)e;
    return sim_end(e ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

void event_free(struct event *e)
{
    handle_del(e);
    *e->prev = e->next;
    if (e->next)
        e->next->prev = e->prev;
    event_closed(e);
    record_unref(e->last);
    captured_free(e->captured);
    free(e);
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    if (!handle_is(hEvent, H_EVENT))
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    event_free((struct event *)hEvent);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent hEvent)
{
    return cuEventDestroy_v2(hEvent);
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    struct event *e = (struct event *)hEvent;
    struct stream *s = stream_get(c, hStream, &r);
    if (!s)
        return sim_end(r);
    if (!handle_is(e, H_EVENT) || e->ctx != s->ctx)
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    if (s->capture)
        return sim_end(capture_record(s, e, flags & CU_EVENT_RECORD_EXTERNAL));
    if (flags & CU_EVENT_RECORD_EXTERNAL) /* which says how to capture it */
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    struct item *it = item_new(I_RECORD);
    struct record *rec = record_new();
    if (!it || !rec) {
        free(rec);
        return sim_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    it->u.record = rec;
    rec->refs++;
    event_numbered(e, rec);
    r = engine_push(s, it);
    if (r != CUDA_SUCCESS) {
        if (rec->shared)
            event_passed(rec);
        record_unref(rec);
        return sim_end(r);
    }
    if (e->shared)
        event_recorded(e, rec);
    record_unref(e->last);
    e->last = rec;
    captured_free(e->captured);
    e->captured = NULL;
    return sim_end(r);
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    return cuEventRecordWithFlags(hEvent, hStream, CU_EVENT_RECORD_DEFAULT);
}

/* Whether the calling thread may ask how far an event is. */
static CUresult check(const struct event *e)
{
    if (!e->captured)
        return g_captures ? capture_unsafe() : CUDA_SUCCESS;
    capture_spoil(e->captured->id);
    return CUDA_ERROR_CAPTURED_EVENT;
}

/* Opens a call on an event, whichever context it is of: on success the lock is held. */
static CUresult begin(CUevent h, struct event **e)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    *e = (struct event *)h;
    return handle_is(h, H_EVENT) ? CUDA_SUCCESS : sim_end(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuEventQuery(CUevent hEvent)
{
    struct event *e;
    CUresult r = begin(hEvent, &e);
    if (r != CUDA_SUCCESS)
        return r;
    if ((r = check(e)) != CUDA_SUCCESS)
        return sim_end(r);
    engine_advance(e->ctx->dev, now_ns());
    if (e->ctx->error)
        return sim_end(e->ctx->error);
    return sim_end(event_latest(e) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    struct event *e;
    CUresult r = begin(hEvent, &e);
    if (r != CUDA_SUCCESS)
        return r;
    struct ctx *c = e->ctx;
    if ((r = check(e)) != CUDA_SUCCESS)
        return sim_end(r);
    struct record *last = event_latest(e);
    if (last)
        wait_record(last);
    pool_synced(c->dev);
    return sim_end(c->error);
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    struct event *a, *b = (struct event *)hEnd;
    CUresult r = begin(hStart, &a);
    if (r != CUDA_SUCCESS)
        return r;
    if (!handle_is(b, H_EVENT) || !a->last || !b->last || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING))
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    if (!pMilliseconds)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    engine_advance(a->ctx->dev, now_ns());
    if (b->ctx->dev != a->ctx->dev)
        engine_advance(b->ctx->dev, now_ns());
    if (a->ctx->error || b->ctx->error)
        return sim_end(a->ctx->error ? a->ctx->error : b->ctx->error);
    if (!a->last->done || !b->last->done)
        return sim_end(CUDA_ERROR_NOT_READY);
    *pMilliseconds = (float)((double)(int64_t)(b->last->at - a->last->at) / 1e6);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    return cuEventElapsedTime(pMilliseconds, hStart, hEnd);
}
