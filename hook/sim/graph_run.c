/* graph_run.c: launches of graphs. A launch is one item of its stream. When that item begins, the steps without
 * dependencies are released, and each finished step releases others. A step that takes time is an item like those
 * in streams: kernels compete for the SMs, copies and calls go to their threads. */
#include "graph.h"
#include "ipcevent.h"

#include <stdlib.h>
#include <string.h>

/* Sets the recording that a step makes or waits for. An event that was destroyed before the launch is neither
 * recorded nor waited for. */
static bool set_record(struct run *r, size_t i, struct event *e, struct stream *s)
{
    if (!handle_is(e, H_EVENT))
        return true;
    if (r->plan->steps[i].work.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
        struct record *last = event_pending(e);
        if (!last)
            return true;
        r->step[i].record = last;
        last->refs++;
        record_watch(last, s->ctx->dev);
        return true;
    }
    struct record *rec = record_new();
    if (!rec)
        return false;
    rec->inner = true;
    rec->stream = s;
    rec->index = s->enq + 1;
    event_numbered(e, rec);
    r->step[i].record = rec;
    return true;
}

/* Returns a launch that is about to be added to a stream, or NULL if out of memory. */
struct run *run_new(struct exec *e, struct stream *s)
{
    struct plan *p = e->plan;
    const size_t n = p->n;
    struct run *r = calloc(1, sizeof *r + n * sizeof r->step[0] + n * sizeof(uint32_t));
    if (!r)
        return NULL;
    r->refs = 1;
    r->exec = e;
    e->refs++;
    r->plan = p;
    p->refs++;
    r->ns = p->ns;
    r->left = n;
    r->prompt = p->prompt;
    r->todo = (uint32_t *)(void *)&r->step[n];
    for (size_t i = 0; i < n; i++)
        r->step[i].waiting = p->nin[i];
    for (size_t i = 0; p->events && i < n; i++) {
        const struct work *w = &p->steps[i].work;
        bool event = w->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD || w->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT;
        if (event && !set_record(r, i, w->u.event, s)) {
            run_unref(r);
            return NULL;
        }
    }
    return r;
}

void run_unref(struct run *r)
{
    if (--r->refs)
        return;
    for (size_t i = 0; r->plan->events && i < r->plan->n; i++) {
        struct record *rec = r->step[i].record;
        bool own = r->plan->steps[i].work.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
        if (own && rec && rec->shared && !rec->done)
            event_passed(rec); /* it was never launched */
        record_unref(rec);
    }
    if (r->after)
        run_unref(r->after);
    plan_unref(r->plan);
    exec_unref(r->exec);
    free(r);
}

/* Returns the item of a step that takes time, with its number in the order of work. */
static struct item *step_item(struct run *r, uint32_t i, enum item_kind kind)
{
    struct item *it = item_new(kind);
    if (!it)
        return NULL;
    const struct work *w = &r->plan->steps[i].work;
    it->run = r;
    it->step = i;
    it->stream = r->item->stream;
    it->seq = r->item->seq;
    it->enqueued = r->step[i].since;
    bool own = r->exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    it->priority = own ? work_priority(w) : it->stream->priority;
    return it;
}

/* Adds a kernel or a wait to the items that can run; kernels are ordered by the time since when they can. */
static void make_ready(struct run *r, struct item *it)
{
    struct item **p = it->kind == I_WAIT ? &r->waits : &r->ready;
    if (it->kind == I_KERNEL && r->last && it->enqueued >= r->last->enqueued)
        p = &r->last->next;
    while (it->kind == I_KERNEL && *p && (*p)->enqueued <= it->enqueued)
        p = &(*p)->next;
    it->next = *p;
    *p = it;
    if (it->kind == I_KERNEL && !it->next)
        r->last = it;
}

void run_remove(struct item *it)
{
    struct run *r = it->run;
    struct item *before = NULL, **p = it->kind == I_WAIT ? &r->waits : &r->ready;
    for (; *p != it; p = &(*p)->next)
        before = *p;
    *p = it->next;
    it->next = NULL;
    if (it->kind != I_KERNEL)
        return;
    r->ns -= it->ns;
    if (r->last == it)
        r->last = before;
}

bool run_by_priority(const struct run *r)
{
    return r->exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
}

static struct item *kernel_item(struct run *r, uint32_t i)
{
    const struct work *w = &r->plan->steps[i].work;
    struct item *it = step_item(r, i, I_KERNEL);
    if (!it)
        return NULL;
    it->ns = w->u.kernel.ns;
    it->u.kernel.op = w->u.kernel.op;
    it->u.kernel.layout = w->u.kernel.f;
    const struct args *a = w->u.kernel.args;
    memcpy(it->u.kernel.params, a->bytes, a->size < SIM_OP_BYTES ? a->size : SIM_OP_BYTES);
    return it;
}

/* A copy whose memory is gone is an error of the GPU, not of a call. */
static struct item *copy_item(struct run *r, uint32_t i)
{
    const struct work *w = &r->plan->steps[i].work;
    struct copy copy;
    if (work_locate(w, &copy) != CUDA_SUCCESS) {
        ctx_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
        return NULL;
    }
    struct item *it = step_item(r, i, copy.src ? I_COPY : I_SET);
    if (it)
        it->u.copy = copy;
    return it;
}

static struct item *call_item(struct run *r, uint32_t i)
{
    struct item *it = step_item(r, i, I_HOST);
    if (!it)
        return NULL;
    it->u.host.fn = r->plan->steps[i].work.u.host.fn;
    it->u.host.data = r->plan->steps[i].work.u.host.userData;
    return it;
}

/* Returns the item of a step that waits for an event. */
static struct item *wait_item(struct run *r, uint32_t i)
{
    struct item *it = step_item(r, i, I_WAIT);
    if (!it)
        return NULL;
    it->u.record = r->step[i].record;
    it->u.record->refs++;
    return it;
}

/* Handles a step without memory for its item: the step counts as finished, and the launch as failed. */
static bool step_failed(struct run *r, const struct step *s)
{
    struct ctx *c = r->item->stream->ctx;
    if (!c->error)
        c->error = CUDA_ERROR_OUT_OF_MEMORY;
    if (s->work.type == CU_GRAPH_NODE_TYPE_KERNEL) {
        r->ns -= s->work.u.kernel.ns;
        c->dev->pend_ns -= s->work.u.kernel.ns;
    }
    return true;
}

/* Begins a step whose dependencies have finished. Returns true if it finishes at once. */
static bool begin_step(struct run *r, uint32_t i)
{
    const struct step *s = &r->plan->steps[i];
    struct ctx *c = r->item->stream->ctx;
    struct record *rec = r->step[i].record;
    const int type = s->enabled ? (int)s->work.type : CU_GRAPH_NODE_TYPE_EMPTY;
    struct item *it = NULL;
    if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD && rec) {
        record_finish(rec, c->dev, r->step[i].since);
        return true;
    }
    if (type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && rec)
        it = wait_item(r, i);
    else if (type == CU_GRAPH_NODE_TYPE_KERNEL)
        it = kernel_item(r, i);
    else if (c->error)
        return true;
    else if (type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET)
        it = copy_item(r, i);
    else if (type == CU_GRAPH_NODE_TYPE_HOST)
        it = call_item(r, i);
    else
        return true;
    if (!it)
        return step_failed(r, s);
    if (it->kind == I_KERNEL || it->kind == I_WAIT) {
        make_ready(r, it);
    } else {
        it->sent = true;
        threads_send(it);
    }
    return false;
}

/* Ends the launch, and its item in the stream. */
static void end_run(struct run *r)
{
    LIST_REMOVE(r, next, prev);
    r->done = true;
    if (r->plan->memory)
        mem_finished(r->plan);
    struct exec *e = r->exec;
    if (e->last == r) {
        e->last = NULL;
        run_unref(r);
    }
    if (r->after) {
        run_unref(r->after);
        r->after = NULL;
    }
    engine_finish(r->item, r->done_at); /* may free r */
}

/* Finishes a step, and those that finish as soon as it has. */
static void finish_steps(struct run *r, uint32_t first, uint64_t at)
{
    const struct plan *p = r->plan;
    size_t n = 0;
    r->step[first].since = at;
    r->todo[n++] = first;
    while (n) {
        uint32_t i = r->todo[--n];
        uint64_t t = r->step[i].since;
        r->left--;
        if (step_prompt(&p->steps[i]) && --r->prompt == 0)
            r->item->stream->ctx->dev->n_prompt--; /* the item has no prompt step left */
        if (t > r->done_at)
            r->done_at = t;
        for (uint32_t k = 0; k < p->nout[i]; k++) {
            uint32_t next = p->out[p->out_at[i] + k];
            if (t > r->step[next].since)
                r->step[next].since = t;
            if (--r->step[next].waiting == 0 && begin_step(r, next))
                r->todo[n++] = next;
        }
    }
    if (!r->left)
        end_run(r);
}

void run_begin(struct run *r, uint64_t since)
{
    struct device *d = r->item->stream->ctx->dev;
    LIST_ADD(&d->runs, r, next, prev);
    r->done_at = since;
    if (!r->left) {
        end_run(r);
        return;
    }
    r->refs++; /* the launch may end before all of its roots were begun */
    for (uint32_t i = 0; i < r->plan->n; i++) {
        if (r->plan->nin[i])
            continue;
        r->step[i].since = since;
        if (begin_step(r, i))
            finish_steps(r, i, since);
    }
    run_unref(r);
}

void run_step_done(struct item *it, uint64_t at)
{
    struct run *r = it->run;
    uint32_t i = it->step;
    item_free(it);
    finish_steps(r, i, at);
}
