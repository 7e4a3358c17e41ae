/* hook.h: the inside of libgfaas.so, the preload library that holds a process
 * to its slice of a GPU.
 *
 *   real.c    finds the driver and the addresses of its functions
 *   lookup.c  answers dlsym and cuGetProcAddress with wrappers
 *   wrap.c    the generated wrappers
 *   gate.c    lets work through while the gate word is open
 *   stream.c  the streams that work was sent to, until they go away
 *   meter.c   measures the GPU time of a lease by events on those streams
 *   memory.c  the memory limit
 *   context.c contexts and streams that go away
 *   link.c    the helper thread and what it does about leases
 *   greet.c   the connection to gfaas-tokend and its first exchange
 */
#ifndef GFAAS_HOOK_H
#define GFAAS_HOOK_H

#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "cuda.h"
#include "compat.h"
#include "wire.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define GF_EXPORT __attribute__((visibility("default")))
#define GF_COLD __attribute__((cold, noinline))
#define gf_likely(x) __builtin_expect(!!(x), 1)
#define gf_unlikely(x) __builtin_expect(!!(x), 0)
#define gf_load(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define gf_store(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)

/* ---- real.c ---- */

/* The driver's own functions, by exported name; a function that the driver
 * lacks answers CUDA_ERROR_NOT_SUPPORTED. Valid after gf_boot. */
struct gf_driver {
#define GF_FIELD_NONE(name, params)
#define GF_FIELD_PTSZ(name, params) CUresult(*name##_ptsz) params;
#define GF_FIELD_PTDS(name, params) CUresult(*name##_ptds) params;
#define CU(name, since, variant, hook, sim, stream, params, args) \
    CUresult(*name) params; \
    GF_FIELD_##variant(name, params)
#include "symbols.def"
};
extern struct gf_driver gf_real;

/* Opens the driver once. False: there is none. */
bool gf_boot(void);
/* The driver's address of that symbol, or NULL. */
void *gf_real_find(const char *symbol);
/* A line on standard error, at most one of its kind (a small number) in the
 * life of the process. */
void gf_say(unsigned kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum { GF_SAY_DRIVER, GF_SAY_SETUP, GF_SAY_REFUSED, GF_SAY_LOST, GF_SAY_THREAD };

extern __thread bool gf_booting GF_TLS; /* this thread is inside the opening of the driver */

/* ---- lookup.c ---- */

/* dlsym is one of ours: this is the C library's. Valid after gf_lookup_init. */
typedef void *gf_dlsym_function(void *handle, const char *name);
extern gf_dlsym_function *gf_real_dlsym;
void gf_lookup_init(void);

/* The wrapper of the driver's function at that address, or the address. */
void *gf_wrapper_of(void *address);

/* ---- gate.c ---- */

#define GF_NO_LEASE UINT32_MAX
#define GF_CACHED 8 /* streams a thread remembers as tracked */

/* What a thread remembers of the lease it launches under. */
struct gf_thread {
    uint32_t busy; /* set while it is between the look at the gate and the end of the driver's call */
    bool known;    /* is in the list of threads */
    uint64_t launches; /* kernels */
    uint64_t works;    /* all that went to a stream */
    struct gf_cached {
        CUstream stream;
        uint32_t lease;
        int32_t left; /* launches until the next mark */
        struct gf_stream *entry;
    } cache[GF_CACHED];
    struct gf_thread *next;
};
extern __thread struct gf_thread gf_self GF_TLS;
extern struct gf_page *gf_page; /* the instance page; an empty one of our own until the daemon answers */
extern struct gf_slot *gf_slot; /* this process's slot of it, for its counters */
extern uint32_t *gf_gate;       /* the gate word: the slot's, or one of our own that stays closed */
extern uint32_t gf_waiting;     /* threads that wait at the gate */

GF_COLD void gf_enter_slow(struct gf_thread *self, CUstream stream, unsigned index);
/* Waits until the gate is open, marks the thread busy and returns the lease. */
GF_COLD uint32_t gf_wait_gate(struct gf_thread *self);
/* Forgets what this thread, or every thread, knows of its context's streams. */
void gf_forget_thread(void);
void gf_forget_all(void);
/* From now on that gate is looked at: NULL is a closed one. */
void gf_move_gate(uint32_t *gate);
/* Waits until no thread is inside a launch that began under an open gate; gives
 * up when that may wait for a thread at the gate (gf_stuck). */
bool gf_quiesce(uint64_t began);
/* Whether what began then hangs: a thread that waits at the gate may have to
 * come through before it can end. */
bool gf_stuck(uint64_t began);
/* Kernels launched, and pieces of work sent to streams, by all threads since
 * the process began. */
struct gf_counts { uint64_t launches, works; };
struct gf_counts gf_count_all(void);
void gf_gate_init(void);
void gf_gate_fork_child(void);

static inline unsigned gf_cache_index(CUstream stream)
{
    uintptr_t bits = (uintptr_t)stream;
    return (bits ^ bits >> 4 ^ bits >> 9) % GF_CACHED;
}

/* Called before work goes to a stream: returns once it may. While the lease
 * holds and the stream is known this is a load, a compare and counters. */
static inline struct gf_stream *gf_enter(CUstream stream)
{
    struct gf_thread *self = &gf_self;
    unsigned index = gf_cache_index(stream);
    struct gf_cached *cached = &self->cache[index];
    gf_store(&self->busy, 1);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* the closing side pays for the real fence: gf_quiesce */
    uint32_t lease = __atomic_load_n(gf_load(&gf_gate), __ATOMIC_ACQUIRE);
    if (gf_unlikely(cached->lease != lease || gf_load(&cached->stream) != stream || --cached->left < 0))
        gf_enter_slow(self, stream, index);
    gf_store(&self->works, self->works + 1);
    return cached->entry;
}

/* The same for work that is over when the call returns. */
static inline void gf_enter_sync(void)
{
    struct gf_thread *self = &gf_self;
    gf_store(&self->busy, 1);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (gf_unlikely(!self->known || !__atomic_load_n(gf_load(&gf_gate), __ATOMIC_ACQUIRE)))
        gf_wait_gate(self);
}

static inline void gf_leave(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&gf_self.busy, 0, __ATOMIC_RELEASE);
}

static inline void gf_count(void)
{
    gf_store(&gf_self.launches, gf_self.launches + 1);
}

/* ---- stream.c ---- */

#define GF_MARKS 8

/* A stream that work was sent to. */
struct gf_stream {
    CUcontext context;
    CUstream stream;
    struct gf_thread *owner; /* of a per-thread default stream: only that thread can record on it */
    bool gone;               /* destroyed by the program: its last event is recorded */
    bool dead;               /* its context is destroyed: there are no events any more */
    bool behind;             /* its marks do not come: it may wait for something the program has yet to do */
    uint32_t lease;          /* the lease it was last used under, until that is settled; then GF_NO_LEASE */
    uint64_t ended_at;       /* works of the process when `end` was recorded, plus one; 0: not yet */
    CUevent begin, end;
    CUevent mark[GF_MARKS];  /* ring of events that bound the work in flight */
    int32_t span[GF_MARKS];  /* pieces of work before each mark; 0: not recorded */
    int32_t since;           /* pieces of work since the last mark, when the next is recorded */
    unsigned turn;           /* marks recorded */
    unsigned depth;          /* marks that may be outstanding */
    int32_t stride;          /* pieces of work between two marks */
    struct gf_stream *next;
};
extern struct gf_stream *gf_streams; /* guarded by gf_streams_lock */
extern pthread_mutex_t gf_streams_lock;

/* Whether an event may be recorded there: never while the stream is captured. */
bool gf_recordable(CUstream stream);
/* Finds or makes the entry of a stream and notes that the lease uses it. NULL:
 * it cannot be tracked (capture, no context). */
struct gf_stream *gf_stream_use(CUstream stream, uint32_t lease);
/* The program is about to destroy a stream, has made one; a thread has ended. */
void gf_stream_gone(CUstream stream);
void gf_stream_made(CUstream stream);
void gf_stream_thread_gone(struct gf_thread *thread);
/* Around a call that may destroy a context: before it takes the lock and
 * settles its time, after it says whether it is gone and drops the lock. */
void gf_context_leaving(CUcontext context);
void gf_context_left(CUcontext context, bool gone);
/* Frees entries of streams and contexts that are gone. No thread may be inside
 * a launch: the threads' caches lead nowhere, since their lease is over. */
void gf_stream_sweep(void);
void gf_stream_fork_child(void);

/* ---- meter.c ---- */

/* Records a mark and waits for an old one, so that little work is ever in
 * flight. Returns the pieces of work until the next mark; -1: it is dead. */
int32_t gf_meter_mark(struct gf_stream *entry);
/* Waits for an event; false: it does not come. */
bool gf_meter_await(CUevent event);
/* Records the end on a per-thread stream: no other thread could. */
void gf_meter_after(struct gf_stream *entry);
/* Records the end of what was sent to the stream so far, unless that is done.
 * Locked, the entry's context is current. */
void gf_meter_end(struct gf_stream *entry, uint64_t works);
/* Whether all work of the lease is over, given the count of works. */
bool gf_meter_idle(uint64_t works);
/* Waits for all work of the lease and returns the GPU time it took, in ns;
 * UINT64_MAX: that is not known. */
uint64_t gf_meter_drain(uint64_t works, uint64_t began);
/* The GPU time from a context's first work under the lease to its last, in ns.
 * Locked, the context is current. */
uint64_t gf_meter_span(CUcontext context);
/* Adds to the lease's time that of a context that is gone. Locked. */
void gf_meter_carry(uint64_t ns);

/* ---- memory.c ---- */

/* Bytes this process has allocated. */
uint64_t gf_mem_used(void);
/* From now on that page and slot are the ones in force. */
void gf_mem_move(struct gf_page *page, struct gf_slot *slot);
void gf_mem_context_gone(CUcontext context);
void gf_mem_fork_child(void);

/* ---- link.c ---- */

/* Starts the helper thread unless it runs. */
void gf_link_start(void);
/* Asks for a token unless that has been done. */
void gf_link_request(void);
/* A gate has opened: watch for the end of its work. */
void gf_link_kick(void);
/* Waits until the daemon has let this process in once. */
void gf_link_wait_page(void);

/* ---- greet.c ---- */

/* What the environment says of the daemon and of this process's instance. */
struct gf_identity {
    char socket[108], instance[GF_NAME_SIZE], secret[GF_NAME_SIZE];
};
/* Reads it. False: it is not all there. */
bool gf_identify(struct gf_identity *who);
/* Connects, says hello and moves to the page that comes back. Returns the
 * connection or -1, having waited a while. */
int gf_greet(const struct gf_identity *who);
struct gf_header gf_header(uint16_t type, uint32_t size);
bool gf_is(const void *message, ssize_t n, uint16_t type, size_t size);
bool gf_transmit(int fd, const void *message, size_t size);
/* Receives one message and, if it brings one, a descriptor. */
ssize_t gf_receive(int fd, void *buffer, size_t size, int *passed);
/* The descriptor, or one that does not stand where a program expects its
 * standard streams. */
int gf_clear_of_standard(int fd);

/* Shared with the daemon: not the private kind. */
void gf_futex_wait(uint32_t *word, uint32_t expected, unsigned timeout_ms);
void gf_futex_wake(uint32_t *word);
uint64_t gf_now_ns(void);
void gf_pause_ns(long ns);

#endif
