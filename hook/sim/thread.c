/* thread.c: what belongs to a thread: its stack of contexts and the streams it
 * sees as the per-thread default stream. */
#include "capture.h"

#include <stdlib.h>

struct thread {
    struct ctx **stack;
    size_t n, cap;
};

static __thread struct thread *self;
static pthread_key_t key;
static bool have_key; /* else what belongs to a thread stays when it ends */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The per-thread streams of a thread go with it, when their work is done. */
static void drop_streams(const struct thread *t)
{
    for (struct ctx *c = g_contexts; c; c = c->next)
        for (struct stream *s = c->streams, *next; s; s = next) {
            next = s->next;
            if (s->kind != S_THREAD || s->owner != t)
                continue;
            capture_leave(s);
            s->dying = true;
            s->owner = NULL;
            if (!s->head && !s->waiters)
                stream_drop(s);
        }
}

/* Runs as a thread ends. That is no call: threads of a process that is locked end too. */
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

/* What belongs to the calling thread; NULL: no memory for it. */
static struct thread *get(void)
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
    struct thread *t = get();
    if (!t)
        return false;
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 8;
        struct ctx **p = realloc(t->stack, cap * sizeof *p);
        if (!p)
            return false;
        t->stack = p;
        t->cap = cap;
    }
    t->stack[t->n++] = c;
    return true;
}

struct ctx *thread_pop(void)
{
    return self && self->n ? self->stack[--self->n] : NULL;
}

struct stream *thread_stream(struct ctx *c)
{
    struct thread *t = get();
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
