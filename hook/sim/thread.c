/* thread.c: the state of a thread: its stack of contexts, and the streams that are its per-thread default
 * streams. */
#include "capture.h"

#include <stdlib.h>

struct thread {
    struct ctx **stack;
    size_t n, cap;
};

static __thread struct thread *self; /* state of the calling thread; NULL: not created yet */
static pthread_key_t key;            /* calls thread_end at the end of a thread */
static bool have_key;                /* if there is no key, the state of a thread is not freed at its end */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Destroys the per-thread default streams of a thread: those with work in progress when the work has finished. */
static void drop_streams(const struct thread *t)
{
    for (struct ctx *c = g_contexts; c; c = c->next)
        for (struct stream *s = c->streams, *next; s; s = next) {
            next = s->next;
            if (s->kind != S_THREAD || s->owner != t)
                continue;
            capture_on_stream_destroy(s);
            s->dying = true;
            s->owner = NULL;
            if (!s->head && !s->waiters)
                stream_drop(s);
        }
}

/* Runs when a thread ends. Unlike a call of the driver, it does not wait while the process is locked
 * (checkpoint.c): threads of a locked process can end, too. */
static void thread_end(void *arg)
{
    struct thread *t = arg;
    if (sim_ready() == CUDA_SUCCESS) {
        pthread_mutex_lock(&g_lock);
        drop_streams(t);
        pthread_mutex_unlock(&g_lock);
    }
    free(t->stack);
    free(t);
    self = NULL;
}

static void make_key(void)
{
    have_key = pthread_key_create(&key, thread_end) == 0;
}

/* Returns the calling thread's state, or NULL if out of memory. */
static struct thread *own_state(void)
{
    if (!self) {
        pthread_once(&once, make_key);
        self = calloc(1, sizeof *self);
        if (self && have_key)
            pthread_setspecific(key, self);
    }
    return self;
}

struct ctx *ctx_current(void)
{
    return self && self->n ? self->stack[self->n - 1] : NULL;
}

bool thread_push(struct ctx *c)
{
    struct thread *t = own_state();
    if (!t || !enlarge(&t->stack, &t->cap, t->n + 1, sizeof *t->stack))
        return false;
    t->stack[t->n++] = c;
    return true;
}

struct ctx *thread_pop(void)
{
    return self && self->n ? self->stack[--self->n] : NULL;
}

struct stream *thread_stream(struct ctx *c)
{
    struct thread *t = own_state();
    if (!t)
        return NULL;
    for (struct stream *s = c->streams; s; s = s->next)
        if (s->kind == S_THREAD && s->owner == t)
            return s;
    struct stream *s = stream_new(c, S_THREAD, 0, 0);
    if (s)
        s->owner = t;
    return s;
}
