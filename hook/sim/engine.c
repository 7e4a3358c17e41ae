/* engine.c: the work of a process on a device. Streams process their items in order; kernels have the granted
 * SMs one at a time. Nothing happens by itself: each thread that is concerned (the worker, a waiting thread,
 * a launching thread) calls engine_advance, which performs in order of simulated time what was due. So the
 * resulting times do not depend on which thread calls it when. */
#include "capture.h"
#include "ipcevent.h"

#include <stdlib.h>

#define POLL_NS 20000 /* poll interval for words of memory that others may write */

static struct item *spare;

struct item *item_new(enum item_kind kind)
{
    struct item *it = spare;
    if (it)
        spare = it->next;
    else if (!(it = malloc(sizeof *it)))
        return NULL;
    it->next = it->xnext = NULL;
    it->kind = kind;
    it->sent = it->computing = false;
    it->run = NULL;
    it->ns = it->began = it->computed_at = 0;
    if (kind == I_KERNEL)
        it->u.kernel.op = OP_NONE;
    return it;
}

void item_free(struct item *it)
{
    if (it->kind == I_COPY || it->kind == I_SET)
        free(it->u.copy.staged);
    if (it->kind == I_RECORD || it->kind == I_WAIT)
        record_unref(it->u.record);
    if (it->kind == I_GRAPH)
        run_unref(it->u.graph);
    it->next = spare;
    spare = it;
}

struct record *record_new(void)
{
    struct record *r = calloc(1, sizeof *r);
    if (r)
        r->refs = 1;
    return r;
}

void record_unref(struct record *r)
{
    if (r && --r->refs == 0)
        free(r);
}

/* Reports whether a thread must act on the item at its time, and not just notice it later. */
static bool prompt(const struct item *it)
{
    return it->kind == I_KERNEL  ? it->u.kernel.op != OP_NONE
           : it->kind == I_GRAPH ? it->u.graph->prompt != 0
                                 : it->kind != I_RECORD && it->kind != I_WAIT;
}

bool stream_blocking(const struct stream *s)
{
    return s->kind != S_LEGACY && !(s->flags & CU_STREAM_NON_BLOCKING);
}

static uint64_t latest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Reports whether the streams that must come before the first item of a stream have got that far, and sets
 * *since to the time. */
static bool in_order(const struct item *it, uint64_t *since)
{
    const struct stream *s = it->stream;
    uint64_t t = latest(it->enqueued, s->done_at);
    if (s->kind == S_LEGACY) {
        for (const struct stream *o = s->ctx->streams; o; o = o->next) {
            if (!stream_blocking(o))
                continue;
            if (o->head && o->head->seq < it->seq)
                return false;
            t = latest(t, o->done_at);
        }
    } else if (stream_blocking(s)) {
        const struct stream *o = s->ctx->legacy;
        if (o->head && o->head->seq < it->seq)
            return false;
        t = latest(t, o->done_at);
    }
    *since = t;
    return true;
}

/* Reports whether the first item of a stream, or a step of a graph that can run, may start, and sets *since
 * to the time. */
static bool can_start(const struct item *it, uint64_t *since)
{
    *since = it->enqueued;
    if (!it->run && !in_order(it, since))
        return false;
    if (it->kind == I_WAIT) {
        if (!it->u.record->done)
            return false;
        *since = latest(*since, it->u.record->at);
    }
    if (it->kind == I_UNTIL && !it->stream->ctx->error) {
        if (!word_matches(&it->u.word))
            return false;
        *since = latest(*since, now_ns());
    }
    if (it->kind == I_GRAPH && it->u.graph->after) {
        if (!it->u.graph->after->done)
            return false;
        *since = latest(*since, it->u.graph->after->done_at);
    }
    return true;
}

/* Completes a recording: threads and streams that wait for it, here or on another device, continue. */
void record_finish(struct record *r, struct device *d, uint64_t at)
{
    r->done = true;
    r->at = at;
    r->stream = NULL;
    if (r->inner && g_waiters)
        pthread_cond_broadcast(&g_cond);
    if (r->shared)
        event_passed(r);
    if (!r->watched)
        return;
    d->n_prompt--;
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        if (&g_device[i] != d && g_device[i].busy)
            threads_kick(&g_device[i]);
}

/* Finishes an item: removes it from its stream and wakes the threads that wait for it. */
void engine_finish(struct item *it, uint64_t at)
{
    struct stream *s = it->stream;
    struct device *d = s->ctx->dev;
    bool wake = false;
    if (it->run) {
        run_step_done(it, at);
        return;
    }
    s->head = it->next;
    if (!s->head)
        s->tail = NULL;
    s->done++;
    s->done_at = latest(s->done_at, at);
    if (s->done >= s->wake_at) {
        s->wake_at = UINT64_MAX;
        wake = true;
    }
    if (prompt(it))
        d->n_prompt--;
    if (it->kind == I_UNTIL)
        d->n_words--;
    if (it->kind == I_RECORD)
        record_finish(it->u.record, d, at);
    item_free(it);
    if (wake && g_waiters)
        pthread_cond_broadcast(&g_cond);
    if (!s->head) {
        LIST_REMOVE(s, busy_next, busy_prev);
        shared_pending(d, --d->n_busy);
        if (s->dying && !s->waiters)
            stream_drop(s);
    }
}

/* Reports whether kernel a gets the SMs before kernel b if both could. */
static bool goes_first(const struct item *a, uint64_t ra, const struct item *b, uint64_t rb, uint64_t free_at)
{
    if ((ra > free_at || rb > free_at) && ra != rb)
        return ra < rb;
    if (a->priority != b->priority)
        return a->priority < b->priority;
    return a->seq < b->seq;
}

/* Gives the SMs to a kernel, from the moment when both were free. */
static void start_kernel(struct device *d, struct item *it, uint64_t since, uint64_t now)
{
    uint64_t at = latest(d->free_at, since), begin;
    if (!d->published) {
        sched_publish(d, true, at, now);
        begin = sched_progress(d, at);
    } else if (at == d->free_at) {
        begin = d->free_progress;
    } else {
        begin = latest(d->free_progress, sched_progress(d, at));
    }
    d->run = it;
    it->began = at;
    d->run_end = begin + it->ns;
    d->pend_ns -= it->ns;
    sched_set_until(d, d->run_end + d->pend_ns);
    if (it->run)
        run_remove(it);
    if (it->u.kernel.op != OP_NONE && !it->stream->ctx->error) {
        it->computing = true;
        threads_send(it);
    }
}

/* Ends the running kernel if its time is over and its result is computed. Returns whether it did. */
static bool end_kernel(struct device *d, uint64_t now)
{
    struct item *it = d->run;
    if (!it || it->computing)
        return false;
    uint64_t end = sched_when(d, d->run_end);
    if (it->stream->ctx->error)
        end = end < now ? end : now;
    if (latest(end, it->computed_at) > now)
        return false;
    d->free_progress = d->run_end;
    if (it->computed_at > end) {
        end = it->computed_at;
        d->free_progress = latest(d->run_end, sched_progress(d, end));
    }
    d->run = NULL;
    d->free_at = end;
    engine_finish(it, end);
    return true;
}

/* Processes an item that may be able to run. Returns true if that changed the set of such items. Sets *best
 * to the kernel that should run next. */
static bool process_item(struct device *d, struct item *it, struct item **best, uint64_t *best_since)
{
    uint64_t since;
    if (it == d->run || it->sent || !can_start(it, &since))
        return false;
    if (it->kind == I_GRAPH) {
        it->sent = true;
        run_begin(it->u.graph, since);
        return true;
    }
    bool skip = it->stream->ctx->error && it->kind != I_CALLBACK;
    if (it->kind == I_RECORD || it->kind == I_WAIT || it->kind == I_UNTIL || skip) {
        if (it->kind == I_KERNEL)
            d->pend_ns -= it->ns;
        if (it->run)
            run_remove(it);
        engine_finish(it, since);
        return true;
    }
    if (it->kind != I_KERNEL) {
        it->sent = true;
        threads_send(it);
    } else if (!*best || goes_first(it, since, *best, *best_since, d->free_at)) {
        *best = it;
        *best_since = since;
    }
    return false;
}

/* Processes the steps of a graph that may begin. */
static bool process_steps(struct device *d, struct run *r, struct item **best, uint64_t *best_since)
{
    for (struct item *it = r->waits; it; it = it->next)
        if (process_item(d, it, best, best_since))
            return true;
    for (struct item *it = r->ready; it; it = run_by_priority(r) ? it->next : NULL)
        if (process_item(d, it, best, best_since))
            return true;
    return false;
}

/* Processes the first items of all streams, and the graphs among them. Returns true if one finished, so the
 * list of busy streams may have changed. */
static bool process_heads(struct device *d, struct item **best, uint64_t *best_since)
{
    *best = NULL;
    *best_since = 0;
    for (struct stream *s = d->busy; s; s = s->busy_next)
        if (process_item(d, s->head, best, best_since))
            return true;
    for (struct run *r = d->runs; r; r = r->next)
        if (process_steps(d, r, best, best_since))
            return true;
    return false;
}

/* Performs what was due on the device until now, in order of simulated time. */
void engine_advance(struct device *d, uint64_t now)
{
    if (!d->joined || d->left)
        return;
    if (d->published && sched_removed(d))
        d->published = false;
    for (;;) {
        struct item *best;
        uint64_t since;
        if (end_kernel(d, now))
            continue;
        if (process_heads(d, &best, &since))
            continue;
        if (d->run || !best)
            break;
        start_kernel(d, best, since, now);
    }
    if (d->run && !d->published)
        sched_publish(d, true, now, now); /* it continues, and has not had all of its time */
    if (!d->run && d->published)
        sched_publish(d, false, d->free_at, now);
}

/* Returns when to act on the end of the running kernel, or to check other processes; 0: unknown. */
static uint64_t kernel_deadline(struct device *d, uint64_t more, uint64_t now)
{
    if (!d->run)
        return 0;
    uint64_t at = sched_when(d, d->run_end + (d->n_prompt ? 0 : more));
    if (d->run->computing && at <= now)
        at = 0; /* only the end of the computation matters now */
    if (sched_contended(d) && (!at || at > d->next_reap))
        at = d->next_reap > now ? d->next_reap : now; /* the next check for dead processes */
    return at;
}

uint64_t engine_deadline(struct device *d, uint64_t more, uint64_t now)
{
    if (d->left)
        return 0;
    uint64_t at = kernel_deadline(d, more, now);
    return d->n_words && (!at || at > now + POLL_NS) ? now + POLL_NS : at;
}

CUresult engine_push(struct stream *s, struct item *it)
{
    struct device *d = s->ctx->dev;
    if (s->capture) { /* calls that can be captured do not get here */
        item_free(it);
        return capture_refuse(s);
    }
    if ((!d->worker_started && !threads_start_worker(d)) || !threads_start_for(it)) {
        item_free(it);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (s->enq - s->done >= SIM_QUEUE_DEPTH)
        wait_room(s);
    uint64_t now = now_ns();
    it->stream = s;
    it->priority = s->priority;
    it->seq = ++s->ctx->seq;
    it->enqueued = now;
    if (s->tail)
        s->tail->next = it;
    else
        s->head = it;
    s->tail = it;
    if (s->enq++ == s->done) {
        LIST_ADD(&d->busy, s, busy_next, busy_prev);
        shared_pending(d, ++d->n_busy);
    }
    if (it->kind == I_RECORD) {
        it->u.record->stream = s;
        it->u.record->index = s->enq;
    }
    if (it->kind == I_KERNEL)
        d->pend_ns += it->ns;
    if (it->kind == I_GRAPH)
        d->pend_ns += it->u.graph->ns;
    if (d->run)
        sched_set_until(d, d->run_end + d->pend_ns);
    bool kick = prompt(it) && d->n_prompt++ == 0 && d->run;
    if (it->kind == I_UNTIL)
        kick |= d->n_words++ == 0;
    struct item *running = d->run;
    if (!running || s->head == it)
        engine_advance(d, now);
    if (kick || (d->run && d->run != running))
        threads_kick(d);
    return CUDA_SUCCESS;
}
