/* stream.c: the streams that work was sent to, until they go away. */
#include "hook.h"

#include <stdlib.h>

pthread_mutex_t gf_streams_lock = PTHREAD_MUTEX_INITIALIZER;
struct gf_stream *gf_streams;

static uint64_t leaving_ns; /* time under the lease of the context that is leaving */

/* The two default streams have no handle of their own: they are one a context. */
static bool is_default(CUstream stream)
{
    return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* The context of a stream, which need not be the current one. */
static CUcontext context_of(CUstream stream)
{
    CUcontext context = NULL;
    if (is_default(stream) || gf_real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
        gf_real.cuCtxGetCurrent(&context);
    return context;
}

bool gf_recordable(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = gf_real.cuStreamIsCapturing(stream, &status);
    return result == CUDA_ERROR_NOT_SUPPORTED || (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE);
}

static struct gf_stream *find(CUcontext context, CUstream stream)
{
    struct gf_thread *owner = stream == CU_STREAM_PER_THREAD ? &gf_self : NULL;
    for (struct gf_stream *s = gf_streams; s; s = s->next)
        if (s->stream == stream && s->context == context && s->owner == owner && !s->gone && !s->dead)
            return s;
    return NULL;
}

static void destroy_events(struct gf_stream *entry)
{
    CUcontext popped;
    if (gf_real.cuCtxPushCurrent_v2(entry->context) != CUDA_SUCCESS)
        return;
    gf_real.cuEventDestroy_v2(entry->begin);
    gf_real.cuEventDestroy_v2(entry->end);
    for (unsigned i = 0; i < GF_MARKS; i++)
        gf_real.cuEventDestroy_v2(entry->mark[i]);
    gf_real.cuCtxPopCurrent_v2(&popped);
}

/* Makes an entry; its context is current. */
static struct gf_stream *make(CUcontext context, CUstream stream)
{
    struct gf_stream *entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    CUevent *events[2 + GF_MARKS] = {&entry->begin, &entry->end};
    for (unsigned i = 0; i < GF_MARKS; i++)
        events[2 + i] = &entry->mark[i];
    for (unsigned i = 0; i < 2 + GF_MARKS; i++)
        if (gf_real.cuEventCreate(events[i], CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
            while (i-- > 0)
                gf_real.cuEventDestroy_v2(*events[i]);
            free(entry);
            return NULL;
        }
    entry->context = context;
    entry->stream = stream;
    entry->owner = stream == CU_STREAM_PER_THREAD ? &gf_self : NULL;
    entry->lease = GF_NO_LEASE;
    entry->stride = entry->since = 1;
    entry->depth = 1;
    entry->next = gf_streams;
    gf_streams = entry;
    return entry;
}

struct gf_stream *gf_stream_use(CUstream stream, uint32_t lease)
{
    CUcontext popped, context = gf_recordable(stream) ? context_of(stream) : NULL;
    if (!context || gf_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return NULL;
    pthread_mutex_lock(&gf_streams_lock);
    struct gf_stream *entry = find(context, stream);
    if (!entry)
        entry = make(context, stream);
    if (entry && entry->lease != lease) {
        entry->lease = lease;
        entry->ended_at = 0;
        gf_real.cuEventRecord(entry->begin, stream);
    }
    pthread_mutex_unlock(&gf_streams_lock);
    gf_real.cuCtxPopCurrent_v2(&popped);
    return entry;
}

void gf_stream_gone(CUstream stream)
{
    if (is_default(stream))
        return;
    pthread_mutex_lock(&gf_streams_lock);
    for (struct gf_stream *s = gf_streams; s; s = s->next) {
        CUcontext popped;
        if (s->stream != stream || s->gone || s->dead)
            continue;
        if (s->lease != GF_NO_LEASE && gf_real.cuCtxPushCurrent_v2(s->context) == CUDA_SUCCESS) {
            gf_meter_end(s, UINT64_MAX - 1);
            gf_real.cuCtxPopCurrent_v2(&popped);
        }
        s->gone = true;
    }
    pthread_mutex_unlock(&gf_streams_lock);
}

/* A new stream may have the handle of a destroyed one, and threads may still
 * hold that one's entry for this lease: it becomes the new one's if it can. */
void gf_stream_made(CUstream stream)
{
    bool other = false;
    CUcontext context = context_of(stream);
    pthread_mutex_lock(&gf_streams_lock);
    for (struct gf_stream *s = gf_streams; s; s = s->next) {
        if (s->stream != stream || !s->gone || s->dead)
            continue;
        s->gone = s->context != context;
        s->ended_at = 0;
        other |= s->gone;
    }
    pthread_mutex_unlock(&gf_streams_lock);
    if (other)
        gf_forget_all();
}

/* The next thread may stand where this one stood, but has a stream of its own. */
void gf_stream_thread_gone(struct gf_thread *thread)
{
    pthread_mutex_lock(&gf_streams_lock);
    for (struct gf_stream *s = gf_streams; s; s = s->next)
        s->gone |= s->owner == thread;
    pthread_mutex_unlock(&gf_streams_lock);
}

void gf_context_leaving(CUcontext context)
{
    CUcontext popped;
    pthread_mutex_lock(&gf_streams_lock);
    leaving_ns = 0;
    if (!context || gf_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return;
    for (struct gf_stream *s = gf_streams; s; s = s->next)
        if (s->context == context && !s->dead && s->lease != GF_NO_LEASE) {
            gf_meter_end(s, UINT64_MAX - 1);
            gf_meter_await(s->end);
        }
    leaving_ns = gf_meter_span(context);
    gf_real.cuCtxPopCurrent_v2(&popped);
}

void gf_context_left(CUcontext context, bool gone)
{
    if (gone && context) {
        gf_meter_carry(leaving_ns);
        for (struct gf_stream *s = gf_streams; s; s = s->next)
            if (s->context == context) {
                s->dead = true; /* its events went with it */
                s->lease = GF_NO_LEASE;
            }
    }
    pthread_mutex_unlock(&gf_streams_lock);
    if (gone)
        gf_forget_all();
}

void gf_stream_sweep(void)
{
    pthread_mutex_lock(&gf_streams_lock);
    for (struct gf_stream **at = &gf_streams; *at;) {
        struct gf_stream *s = *at;
        if (!s->gone && !s->dead) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        if (!s->dead)
            destroy_events(s);
        free(s);
    }
    pthread_mutex_unlock(&gf_streams_lock);
}

void gf_stream_fork_child(void)
{
    pthread_mutex_init(&gf_streams_lock, NULL);
    gf_streams = NULL; /* the parent's: no context outlives a fork */
}
