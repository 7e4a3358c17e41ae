/* wait.c: threads that wait for work. A thread that waits for simulated time sleeps until that time and then
 * advances the device itself, without the worker. */
#include "graph.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#define SPIN_NS 4000

pthread_cond_t g_cond;
unsigned g_waiters;

bool wait_init(void)
{
    pthread_condattr_t attr;
    return pthread_condattr_init(&attr) == 0 && pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
           pthread_cond_init(&g_cond, &attr) == 0;
}

/* Tells the CPU that this is a spin loop. */
static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Spins until t, for times that are too short for a sleep. */
static void spin_until(uint64_t t)
{
    pthread_mutex_unlock(&g_lock);
    while (now_ns() < t)
        relax();
    pthread_mutex_lock(&g_lock);
}

/* Sleeps on g_cond, until t unless it is 0. The kernel may delay timers of an ordinary thread by 50 us to
 * save power; this sleep sets a smaller timer slack. */
static void sleep_until(uint64_t t)
{
    g_waiters++;
    if (!t) {
        pthread_cond_wait(&g_cond, &g_lock);
    } else {
        struct timespec ts = {(time_t)(t / 1000000000u), (long)(t % 1000000000u)};
        int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
        prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
        pthread_cond_timedwait(&g_cond, &g_lock, &ts);
        if (slack > 0)
            prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
    }
    g_waiters--;
}

/* Returns the device time of the kernels before item number `until` of a stream, without the running one. */
static uint64_t time_ahead(const struct stream *s, uint64_t until)
{
    uint64_t ns = 0, n = s->done;
    for (const struct item *it = s->head; it && n < until; it = it->next, n++)
        if (it->kind == I_KERNEL && it != s->ctx->dev->run)
            ns += it->ns;
        else if (it->kind == I_GRAPH)
            ns += it->u.graph->ns;
    return ns;
}

/* Waits until the device may have made progress with a stream. */
static void pause_for(const struct stream *s, uint64_t until)
{
    struct device *d = s->ctx->dev;
    uint64_t now = now_ns();
    if (d->joined && !d->left && d->run && sched_contended(d) && now >= d->next_reap)
        shared_reap_due(d, now);
    uint64_t t = engine_deadline(d, time_ahead(s, until), now);
    if (t && t <= now)
        return;
    if (t && t - now <= SPIN_NS)
        spin_until(t);
    else
        sleep_until(t ? t - SPIN_NS / 2 : 0);
}

void wait_stream(struct stream *s, uint64_t until)
{
    struct device *d = s->ctx->dev;
    s->waiters++;
    while (s->done < until) {
        engine_advance(d, now_ns());
        if (s->done >= until)
            break;
        if (until < s->wake_at)
            s->wake_at = until;
        pause_for(s, until);
    }
    s->waiters--;
    if (s->dying && !s->head && !s->waiters)
        stream_drop(s);
}

/* Waits until the stream has room for another item. */
void wait_room(struct stream *s)
{
    while (s->enq - s->done >= SIM_QUEUE_DEPTH)
        wait_stream(s, s->enq - SIM_QUEUE_DEPTH + 1);
}

/* Waits until all current items of the context's streams have finished; with blocking_only, only of the
 * streams for which the legacy stream waits. */
void wait_context(struct ctx *c, bool blocking_only)
{
    uint64_t seq = c->seq;
    for (;;) {
        engine_advance(c->dev, now_ns()); /* may drop destroyed streams */
        struct stream *s = c->streams;
        while (s && (!s->head || s->head->seq > seq || (blocking_only && s->kind != S_LEGACY && !stream_blocking(s))))
            s = s->next;
        if (!s)
            return;
        uint64_t n = s->done;
        for (struct item *it = s->head; it && it->seq <= seq; it = it->next)
            n++;
        wait_stream(s, n);
    }
}

/* Waits for the recording of a node of a graph, which happens between the begin and the end of the graph's
 * item. */
static void wait_inside(struct record *r)
{
    struct stream *s = r->stream;
    r->refs++;
    s->waiters++;
    while (!r->done) {
        engine_advance(s->ctx->dev, now_ns());
        if (!r->done)
            pause_for(s, r->index - 1);
    }
    s->waiters--;
    if (s->dying && !s->head && !s->waiters)
        stream_drop(s);
    record_unref(r);
}

/* Waits for another process's recording; the thread in ipcevent.c completes it. */
static void wait_foreign(struct record *r)
{
    r->refs++;
    while (!r->done)
        sleep_until(0);
    record_unref(r);
}

void wait_record(struct record *r)
{
    if (r->foreign)
        wait_foreign(r);
    else if (!r->done && r->inner)
        wait_inside(r);
    else if (!r->done)
        wait_stream(r->stream, r->index);
}
