/* transfer.c: copies and fills of memory: locates their bytes, decides whether the caller waits, and performs
 * them. */
#include "capture.h"
#include "transfer.h"

#include <stdlib.h>
#include <string.h>

#define STAGE_BYTES 65536u /* a copy from pageable memory of at most this size does not wait: its source is staged */

CUresult transfer_locate(CUdeviceptr p, size_t n, bool driver_only, char **view, enum mem_kind *kind)
{
    struct range *g = range_find(p);
    if (!p || (!g && (driver_only || range_reserved(p))))
        return CUDA_ERROR_INVALID_VALUE;
    if (!g) {
        *view = (char *)(uintptr_t)p;
        *kind = MEM_PAGEABLE;
        return CUDA_SUCCESS;
    }
    bool inside = n <= range_reach(g, p, false), on_device = range_on_device(g);
    if (!inside && (on_device || g->kind == R_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    *view = g->view + (p - g->base);
    *kind = on_device ? (n <= range_reach(g, p, true) ? MEM_DEVICE : MEM_READ_ONLY) : inside ? MEM_PINNED : MEM_PAGEABLE;
    return CUDA_SUCCESS;
}

/* Fills n bytes with values of elem bytes. */
static void fill(char *dst, uint32_t value, unsigned elem, size_t n)
{
    if (elem == 1) {
        memset(dst, (int)value, n);
    } else if (elem == 2) {
        for (size_t i = 0; i < n / 2; i++)
            ((uint16_t *)(void *)dst)[i] = (uint16_t)value;
    } else {
        for (size_t i = 0; i < n / 4; i++)
            ((uint32_t *)(void *)dst)[i] = value;
    }
}

void copy_run(const struct copy *c)
{
    const bool tight = c->dst_pitch == c->width && c->src_pitch == c->width && c->depth == 1;
    if (tight && c->src) {
        memmove(c->dst, c->src, c->width * c->height);
        return;
    }
    for (size_t z = 0; z < c->depth; z++)
        for (size_t y = 0; y < c->height; y++) {
            char *dst = c->dst + z * c->dst_slice + y * c->dst_pitch;
            if (c->src)
                memmove(dst, c->src + z * c->src_slice + y * c->src_pitch, c->width);
            else
                fill(dst, c->value, c->elem, c->width);
        }
}

/* Reports whether an item that is added now could start at once. */
static bool starts_at_once(struct stream *s, uint64_t now)
{
    struct ctx *c = s->ctx;
    engine_advance(c->dev, now);
    if (s->head)
        return false;
    if (s->kind != S_LEGACY)
        return !stream_blocking(s) || !c->legacy->head;
    for (struct stream *o = c->streams; o; o = o->next)
        if (stream_blocking(o) && o->head)
            return false;
    return true;
}

CUresult transfer_task(struct stream *s, const struct task *t)
{
    uint64_t now = now_ns();
    if (s->capture)
        return capture_refuse(s);
    if (starts_at_once(s, now) && (!t->takes || !t->takes(t))) {
        t->run(t);
        s->done_at = now;
        return CUDA_SUCCESS;
    }
    struct item *it = item_new(I_TASK);
    if (!it)
        return CUDA_ERROR_OUT_OF_MEMORY;
    it->u.task = *t;
    return engine_push(s, it);
}

/* Copies the source to a buffer, because pageable memory may change as soon as the call returns. */
static bool stage(struct copy *c)
{
    char *p = malloc(c->width * c->height * c->depth);
    if (!p)
        return false;
    struct copy in = *c;
    in.dst = p;
    in.dst_pitch = c->width;
    in.dst_slice = c->width * c->height;
    copy_run(&in);
    c->src = c->staged = p;
    c->src_pitch = in.dst_pitch;
    c->src_slice = in.dst_slice;
    return true;
}

CUresult transfer_submit(struct stream *s, struct copy *c, enum mem_kind src, enum mem_kind dst, bool sync)
{
    struct ctx *ctx = s->ctx;
    size_t bytes = c->width * c->height * c->depth;
    bool wait = dst == MEM_PAGEABLE || (sync && (src < MEM_DEVICE || dst < MEM_DEVICE));
    bool small = bytes <= STAGE_BYTES;
    if (!bytes)
        return CUDA_SUCCESS;
    if (dst == MEM_READ_ONLY) /* driver 580 checks this; a kernel's stores are a fault */
        return CUDA_ERROR_INVALID_VALUE;
    if (src == MEM_PAGEABLE && !small)
        wait = true;
    if ((wait || small) && starts_at_once(s, now_ns())) {
        s->waiters++; /* keeps the stream while the lock is not held */
        pthread_mutex_unlock(&g_lock);
        copy_run(c);
        pthread_mutex_lock(&g_lock);
        s->waiters--;
        if (!s->head)
            s->done_at = now_ns();
        if (s->dying && !s->head && !s->waiters)
            stream_drop(s);
        return ctx->error;
    }
    if (src == MEM_PAGEABLE && !wait && !stage(c))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct item *it = item_new(c->src ? I_COPY : I_SET);
    if (!it) {
        free(c->staged);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    it->u.copy = *c;
    CUresult r = engine_push(s, it);
    if (r == CUDA_SUCCESS && wait) {
        wait_stream(s, s->enq);
        r = ctx->error;
    }
    return r;
}
