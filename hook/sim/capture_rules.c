/* capture_rules.c: what may not be done while a stream captures. Whoever does it all
 * the same is told so, and the captures concerned are invalid from then on: they
 * yield no graph. */
#include "capture.h"

static __thread CUstreamCaptureMode own_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

const void *capture_thread(void)
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

/* A thread is held to the captures it began itself, and in global mode to those of
 * others in global mode. */
static bool forbids(const struct capture *c)
{
    if (c->owner == capture_thread())
        return c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return own_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_unsafe(void)
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

/* A captured event was asked how far it is. */
void capture_spoil(uint64_t id)
{
    for (struct capture *c = g_captures; c; c = c->next)
        if (c->id == id)
            c->invalid = true;
}

/* Whether one of the context's capturing streams is of a kind. */
static bool concerns(const struct capture *c, const struct ctx *ctx, bool blocking)
{
    for (const struct stream *s = c->streams; s; s = s->captured_next)
        if (s->ctx == ctx && (!blocking || stream_blocking(s)))
            return true;
    return false;
}

bool capture_blocks_legacy(const struct ctx *ctx)
{
    for (const struct capture *c = g_captures; c; c = c->next)
        if (concerns(c, ctx, true))
            return true;
    return false;
}

static CUresult spoil(struct ctx *ctx, bool blocking, CUresult why)
{
    CUresult r = CUDA_SUCCESS;
    for (struct capture *c = g_captures; c; c = c->next)
        if (concerns(c, ctx, blocking)) {
            c->invalid = true;
            r = why;
        }
    return r;
}

CUresult capture_legacy(struct ctx *ctx)
{
    return spoil(ctx, true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

CUresult capture_sync(struct ctx *ctx)
{
    return spoil(ctx, false, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}
