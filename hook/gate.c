/* gate.c: lets work through while the gate word is open.
 *
 * A thread that launches sets its `busy` flag and then looks at the gate; who
 * closes the gate then looks at the flags (gf_quiesce). The two stores would
 * need a fence each; since gates close some ten times a second and launches
 * happen a hundred thousand times, the closing side pays for both with
 * membarrier(2). */
#include "hook.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__thread struct gf_thread gf_self GF_TLS;

/* Until the daemon answers. */
static struct gf_page no_page __attribute__((aligned(4096)));
static uint32_t closed;
struct gf_page *gf_page = &no_page;
struct gf_slot *gf_slot = &no_page.slots[0];
uint32_t *gf_gate = &closed;
uint32_t gf_waiting;

static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gf_thread *threads;
static struct gf_counts of_the_dead;
static pthread_key_t at_thread_end;
static bool have_membarrier;

#define STUCK_NS 10000000000u /* a lease's work that takes longer may never end by itself */

uint64_t gf_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void gf_futex_wait(uint32_t *word, uint32_t expected, unsigned timeout_ms)
{
    struct timespec timeout = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
}

void gf_futex_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void gf_pause_ns(long ns)
{
    const struct timespec t = {ns / 1000000000, ns % 1000000000};
    syscall(SYS_nanosleep, &t, NULL); /* not the C library's: that is a place to be cancelled at */
}

static void forget(struct gf_thread *self)
{
    for (unsigned i = 0; i < GF_CACHED; i++)
        gf_store(&self->cache[i].stream, NULL);
}

void gf_forget_thread(void) { forget(&gf_self); }

/* A thread that is writing a cache line now may undo this: it looks at the
 * entry itself afterwards (gf_enter_slow). */
void gf_forget_all(void)
{
    pthread_mutex_lock(&threads_lock);
    for (struct gf_thread *t = threads; t; t = t->next)
        forget(t);
    pthread_mutex_unlock(&threads_lock);
}

static void thread_ends(void *arg)
{
    struct gf_thread *self = arg;
    pthread_mutex_lock(&threads_lock);
    for (struct gf_thread **at = &threads; *at; at = &(*at)->next)
        if (*at == self) {
            *at = self->next;
            break;
        }
    of_the_dead.launches += self->launches;
    of_the_dead.works += self->works;
    self->launches = self->works = 0;
    self->known = false;
    pthread_mutex_unlock(&threads_lock);
    forget(self); /* a later destructor that launches makes it known again */
    gf_stream_thread_gone(self);
}

static void know(struct gf_thread *self)
{
    forget(self);
    pthread_mutex_lock(&threads_lock);
    self->next = threads;
    threads = self;
    self->known = true;
    pthread_mutex_unlock(&threads_lock);
    pthread_setspecific(at_thread_end, self);
}

static void gate_init(void)
{
    pthread_key_create(&at_thread_end, thread_ends);
    have_membarrier = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void gf_gate_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, gate_init);
}

void gf_move_gate(uint32_t *gate)
{
    uint32_t *before = gf_gate;
    __atomic_store_n(&gf_gate, gate ? gate : &closed, __ATOMIC_SEQ_CST);
    gf_futex_wake(before);
}

GF_COLD uint32_t gf_wait_gate(struct gf_thread *self)
{
    if (!gf_boot())
        return GF_NO_LEASE; /* no driver: the call will say so */
    if (!self->known)
        know(self);
    int saved = errno;
    uint64_t began = 0;
    uint32_t lease;
    for (;;) {
        gf_link_start();
        __atomic_store_n(&self->busy, 1, __ATOMIC_SEQ_CST);
        uint32_t *gate = __atomic_load_n(&gf_gate, __ATOMIC_SEQ_CST);
        lease = __atomic_load_n(gate, __ATOMIC_SEQ_CST);
        if (lease)
            break;
        __atomic_store_n(&self->busy, 0, __ATOMIC_RELEASE);
        if (!began) {
            began = gf_now_ns();
            __atomic_add_fetch(&gf_waiting, 1, __ATOMIC_SEQ_CST);
        }
        gf_link_request();
        gf_futex_wait(gate, 0, 100);
    }
    if (began) {
        __atomic_sub_fetch(&gf_waiting, 1, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&gf_slot->blocked_ns, gf_now_ns() - began, __ATOMIC_RELAXED);
        gf_link_kick();
    }
    errno = saved;
    return lease;
}

GF_COLD void gf_enter_slow(struct gf_thread *self, CUstream stream, unsigned index)
{
    int saved = errno;
    uint32_t lease = gf_wait_gate(self);
    struct gf_cached *cached = &self->cache[index];
    /* What follows may look at events while the program captures a stream. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    if (cached->lease != lease || gf_load(&cached->stream) != stream) {
        cached->entry = gf_stream_use(stream, lease);
        cached->lease = lease;
        gf_store(&cached->stream, stream);
    }
    cached->left = cached->entry ? gf_meter_mark(cached->entry) : -1;
    if (cached->left < 0)
        gf_store(&cached->stream, NULL); /* look at it again next time */
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    errno = saved;
}

bool gf_stuck(uint64_t began)
{
    return gf_now_ns() - began > STUCK_NS && __atomic_load_n(&gf_waiting, __ATOMIC_SEQ_CST) > 0;
}

static bool any_busy(void)
{
    bool busy = false;
    pthread_mutex_lock(&threads_lock);
    for (struct gf_thread *t = threads; t; t = t->next)
        busy |= __atomic_load_n(&t->busy, __ATOMIC_ACQUIRE);
    pthread_mutex_unlock(&threads_lock);
    return busy;
}

bool gf_quiesce(uint64_t began)
{
    if (!have_membarrier || syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
        gf_pause_ns(1000000); /* store buffers empty in far less */
    while (any_busy()) {
        if (gf_stuck(began))
            return false;
        gf_pause_ns(20000);
    }
    return true;
}

struct gf_counts gf_count_all(void)
{
    pthread_mutex_lock(&threads_lock);
    struct gf_counts sum = of_the_dead;
    for (struct gf_thread *t = threads; t; t = t->next) {
        sum.launches += gf_load(&t->launches);
        sum.works += gf_load(&t->works);
    }
    pthread_mutex_unlock(&threads_lock);
    return sum;
}

void gf_gate_fork_child(void)
{
    pthread_mutex_init(&threads_lock, NULL);
    threads = NULL;
    of_the_dead = (struct gf_counts){0};
    gf_waiting = 0;
    gf_self.known = false;
    gf_self.busy = 0;
    gf_self.launches = gf_self.works = 0;
    forget(&gf_self);
    no_page = (struct gf_page){0};
    gf_page = &no_page;
    gf_slot = &no_page.slots[0];
    gf_gate = &closed;
    if (have_membarrier)
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}
