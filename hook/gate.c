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

/* Until the daemon answers, a page of our own whose gate stays closed. */
static struct gf_page closed_page __attribute__((aligned(4096)));
struct gf_page *gf_page = &closed_page;
struct gf_slot *gf_slot = &closed_page.slots[0];
uint32_t gf_waiting;

static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gf_thread *threads;
static struct gf_counts of_the_dead;
static pthread_key_t at_thread_end;
static bool have_membarrier;

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

static void forget(struct gf_thread *self)
{
    for (unsigned i = 0; i < GF_CACHED; i++)
        self->cache[i] = (struct gf_cached){.lease = GF_NO_LEASE};
}

void gf_forget_thread(void) { forget(&gf_self); }

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

void gf_gate_init(void)
{
    pthread_key_create(&at_thread_end, thread_ends);
    have_membarrier = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

GF_COLD uint32_t gf_wait_gate(struct gf_thread *self)
{
    if (!gf_boot())
        return GF_NO_LEASE; /* no driver: the call will say so */
    gf_link_start();
    if (!self->known)
        know(self);
    uint64_t began = 0;
    uint32_t lease;
    for (;;) {
        __atomic_store_n(&self->busy, 1, __ATOMIC_SEQ_CST);
        lease = __atomic_load_n(&gf_slot->gate, __ATOMIC_SEQ_CST);
        if (lease)
            break;
        __atomic_store_n(&self->busy, 0, __ATOMIC_RELEASE);
        if (!began) {
            began = gf_now_ns();
            __atomic_add_fetch(&gf_waiting, 1, __ATOMIC_SEQ_CST);
        }
        gf_link_request();
        gf_futex_wait(&gf_slot->gate, 0, 100);
    }
    if (began) {
        __atomic_sub_fetch(&gf_waiting, 1, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&gf_slot->blocked_ns, gf_now_ns() - began, __ATOMIC_RELAXED);
        gf_link_kick();
    }
    return lease;
}

GF_COLD void gf_enter_slow(struct gf_thread *self, CUstream stream, unsigned index)
{
    uint32_t lease = gf_wait_gate(self);
    struct gf_cached *cached = &self->cache[index];
    if (cached->lease != lease || cached->stream != stream)
        *cached = (struct gf_cached){stream, lease, 0, gf_meter_use(stream, lease)};
    if (cached->entry)
        cached->left = gf_meter_mark(cached->entry);
    else
        cached->lease = GF_NO_LEASE; /* look at it again next time */
}

void gf_quiesce(void)
{
    if (!have_membarrier || syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0) {
        const struct timespec drained = {0, 1000000}; /* store buffers empty in far less */
        nanosleep(&drained, NULL);
    }
    for (;;) {
        bool busy = false;
        pthread_mutex_lock(&threads_lock);
        for (struct gf_thread *t = threads; t; t = t->next)
            busy |= __atomic_load_n(&t->busy, __ATOMIC_ACQUIRE);
        pthread_mutex_unlock(&threads_lock);
        if (!busy)
            return;
        const struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
    }
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
    closed_page = (struct gf_page){0};
    gf_page = &closed_page;
    gf_slot = &closed_page.slots[0];
    if (have_membarrier)
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}
