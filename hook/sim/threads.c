/* threads.c: the threads of the simulated driver. The worker of a device keeps its time while no thread waits
 * for it; one thread copies and computes; one waits for tasks that only take time; one calls the program's
 * callbacks. Each is started at its first use, with all signals but SIGBUS blocked, and never ends. */
#include "graph.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

struct executor { /* a thread and its queue of items */
    const char *name;
    void (*perform)(struct item *it); /* called with g_lock, which it may release meanwhile */
    bool started;
    struct item *head, *tail;
    pthread_cond_t cond;
};

/* Starts a detached thread that receives no signals. */
bool threads_start(void *(*fn)(void *), void *arg)
{
    sigset_t all, old;
    pthread_t t;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* lost.c: a blocked SIGBUS that the thread causes would end the process */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&t, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r == 0)
        pthread_detach(t);
    return r == 0;
}

void threads_name(const char *name)
{
    prctl(PR_SET_NAME, name);
}

/* Keeps a device's time: sleeps until something is due, and performs it. */
static void *worker(void *arg)
{
    struct device *d = arg;
    uint32_t gen = 0;
    threads_name("gfaas-sim-time");
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    pthread_mutex_lock(&g_lock);
    while (!d->left) {
        uint32_t seen = shared_bell(d);
        uint64_t now = now_ns();
        if (d->run && sched_contended(d) && now >= d->next_reap)
            shared_reap_due(d, now);
        engine_advance(d, now);
        uint64_t until = engine_deadline(d, d->pend_ns, now);
        if (d->view.gen != gen && g_waiters)
            pthread_cond_broadcast(&g_cond); /* the pattern changed, so they sleep until the wrong moment */
        gen = d->view.gen;
        pthread_mutex_unlock(&g_lock);
        if (!until || until > now)
            shared_bell_wait(d, seen, until);
        pthread_mutex_lock(&g_lock);
    }
    pthread_mutex_unlock(&g_lock);
    return NULL;
}

bool threads_start_worker(struct device *d)
{
    return d->worker_started = threads_start(worker, d);
}

void threads_kick(struct device *d)
{
    if (d->joined && !d->left)
        shared_bell_ring(d);
}

/* Waits for the next item of the queue and removes it. */
static struct item *next_item(struct executor *l)
{
    while (!l->head)
        pthread_cond_wait(&l->cond, &g_lock);
    struct item *it = l->head;
    l->head = it->xnext;
    it->xnext = NULL;
    return it;
}

/* Called after an item: starts the items that may begin now, and wakes waiting threads. */
static void resume_device(struct device *d)
{
    engine_advance(d, now_ns());
    threads_kick(d);
    if (g_waiters)
        pthread_cond_broadcast(&g_cond);
}

void threads_settle(void)
{
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        if (g_device[i].busy)
            resume_device(&g_device[i]);
    if (g_waiters)
        pthread_cond_broadcast(&g_cond);
}

static uint64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Computes a kernel's result. The kernel takes at least that long. If this thread is late, on a busy host or
 * after a copy, that is no device time: the next kernel starts when this one should have ended. */
static void compute(struct item *it)
{
    pthread_mutex_unlock(&g_lock);
    uint64_t began = cpu_ns();
    CUresult r = ops_run(it->u.kernel.op, it->u.kernel.params, it->u.kernel.layout);
    uint64_t took = cpu_ns() - began;
    pthread_mutex_lock(&g_lock);
    it->computing = false;
    it->computed_at = it->began + took;
    if (r != CUDA_SUCCESS)
        ctx_fault(r);
}

/* Copies, fills, or computes the result of a kernel. */
static void copy(struct item *it)
{
    if (it->kind == I_KERNEL) {
        compute(it);
        return;
    }
    if (it->kind == I_TASK) {
        it->u.task.run(&it->u.task);
    } else if (it->u.copy.fault) {
        ctx_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
    } else {
        pthread_mutex_unlock(&g_lock);
        copy_run(&it->u.copy);
        pthread_mutex_lock(&g_lock);
    }
    engine_finish(it, now_ns());
}

void threads_sleep(uint64_t t)
{
    const struct timespec ts = {(time_t)(t / 1000000000u), (long)(t % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        continue;
}

/* Performs a task that only takes time. */
static void move(struct item *it)
{
    uint64_t until = now_ns() + it->u.task.takes(&it->u.task);
    pthread_mutex_unlock(&g_lock);
    threads_sleep(until);
    pthread_mutex_lock(&g_lock);
    it->u.task.run(&it->u.task);
    engine_finish(it, now_ns());
}

/* Calls a function of the program, which may not call the driver. The destructor of a user object has no stream. */
static void call(struct item *it)
{
    struct stream *s = it->kind == I_DESTROY ? NULL : it->stream;
    CUresult status = s ? s->ctx->error : CUDA_SUCCESS;
    CUstream handle = s && s->kind != S_LEGACY ? (CUstream)s : NULL;
    tls_in_callback = true;
    pthread_mutex_unlock(&g_lock);
    if (it->kind == I_CALLBACK)
        it->u.host.callback(handle, status, it->u.host.data);
    else
        it->u.host.fn(it->u.host.data);
    pthread_mutex_lock(&g_lock);
    if (s)
        engine_finish(it, now_ns());
    else
        item_free(it);
}

static struct executor copier = {"gfaas-sim-copy", copy, .cond = PTHREAD_COND_INITIALIZER};
static struct executor mover = {"gfaas-sim-move", move, .cond = PTHREAD_COND_INITIALIZER};
static struct executor caller = {"gfaas-sim-call", call, .cond = PTHREAD_COND_INITIALIZER};

/* Performs the items of a queue, one after another. */
static void *execute(void *arg)
{
    struct executor *x = arg;
    threads_name(x->name);
    if (x == &mover)
        prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    pthread_mutex_lock(&g_lock);
    for (;;) {
        struct item *it = next_item(x);
        struct device *d = it->kind == I_DESTROY ? NULL : it->stream->ctx->dev;
        x->perform(it);
        if (d)
            resume_device(d);
    }
    return NULL;
}

/* Starts the thread unless it is running. */
static bool ensure(struct executor *x)
{
    return x->started || (x->started = threads_start(execute, x));
}

static bool is_move(const struct item *it)
{
    return it->kind == I_TASK && it->u.task.takes;
}

static bool is_call(const struct item *it)
{
    return it->kind == I_HOST || it->kind == I_CALLBACK || it->kind == I_DESTROY;
}

bool threads_start_for(const struct item *it)
{
    if (it->kind == I_GRAPH) {
        const struct plan *p = it->u.graph->plan;
        return (!p->copies || ensure(&copier)) && (!p->calls || ensure(&caller));
    }
    if (is_call(it))
        return ensure(&caller);
    if (is_move(it))
        return ensure(&mover);
    if (it->kind == I_COPY || it->kind == I_SET || it->kind == I_TASK ||
        (it->kind == I_KERNEL && it->u.kernel.op != OP_NONE))
        return ensure(&copier);
    return true;
}

void threads_send(struct item *it)
{
    struct executor *l = is_call(it) ? &caller : is_move(it) ? &mover : &copier;
    if (l->head)
        l->tail->xnext = it;
    else
        l->head = it;
    l->tail = it;
    pthread_cond_signal(&l->cond);
}
