/* hook.h: the inside of libgfaas.so, the preload library that holds a process
 * to its slice of a GPU.
 *
 *   real.c    finds the driver and the addresses of its functions
 *   lookup.c  answers dlsym and cuGetProcAddress with wrappers
 *   wrap.c    the generated wrappers
 *   gate.c    lets work through while the gate word is open
 *   meter.c   measures the GPU time of a lease by events on the streams used
 *   memory.c  the memory limit
 *   context.c contexts and streams that go away
 *   link.c    the helper thread and the connection to gfaas-tokend
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
enum { GF_SAY_DRIVER, GF_SAY_SETUP, GF_SAY_REFUSED, GF_SAY_LOST, GF_SAY_VERSION };

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
extern struct gf_slot *gf_slot; /* this process's slot of the instance page */

GF_COLD void gf_enter_slow(struct gf_thread *self, CUstream stream, unsigned index);
/* Waits until the gate is open, marks the thread busy and returns the lease. */
GF_COLD uint32_t gf_wait_gate(struct gf_thread *self);
/* Forgets what this thread knows of its context's streams. */
void gf_forget_thread(void);
/* Waits until no thread is inside a launch that began under an open gate. */
void gf_quiesce(void);
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
    uint32_t lease = __atomic_load_n(&gf_slot->gate, __ATOMIC_ACQUIRE);
    if (gf_unlikely(cached->lease != lease || cached->stream != stream || --cached->left < 0))
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
    if (gf_unlikely(!self->known || !__atomic_load_n(&gf_slot->gate, __ATOMIC_ACQUIRE)))
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

/* ---- meter.c ---- */

#define GF_MARKS 8

/* A stream that work was sent to. */
struct gf_stream {
    CUcontext context;
    CUstream stream;
    struct gf_thread *owner; /* of a per-thread default stream: only that thread can record on it */
    bool gone;               /* destroyed by the program: its last event is recorded */
    bool dead;               /* its context is destroyed: there are no events any more */
    uint32_t lease;          /* the lease it was last used under */
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

/* Finds or makes the entry of a stream of the current context and notes that
 * the lease uses it. NULL: it cannot be tracked (capture, no context). */
struct gf_stream *gf_meter_use(CUstream stream, uint32_t lease);
/* Records a mark and waits for an old one, so that little work is ever in
 * flight. Returns the pieces of work until the next mark. */
int32_t gf_meter_mark(struct gf_stream *entry);
/* Records the end on a per-thread stream: no other thread could. */
void gf_meter_after(struct gf_stream *entry);
/* Whether all work of the lease is over, given the count of works. */
bool gf_meter_idle(uint32_t lease, uint64_t works);
/* Waits for all work of the lease and returns the GPU time it took, in ns. */
uint64_t gf_meter_drain(uint32_t lease, uint64_t works);
/* The program is about to destroy a stream of the current context; has made
 * one; is about to destroy a context. */
void gf_meter_stream_gone(CUstream stream);
void gf_meter_stream_made(CUstream stream);
void gf_meter_context_gone(CUcontext context);
void gf_meter_fork_child(void);

/* ---- memory.c ---- */

/* Bytes this process has allocated. */
uint64_t gf_mem_used(void);
/* From now on that page and slot are the ones in force. */
void gf_mem_move(struct gf_page *page, struct gf_slot *slot);
void gf_mem_context_gone(CUcontext context);
void gf_mem_fork_child(void);

/* ---- link.c ---- */

/* Starts the helper thread, once. */
void gf_link_start(void);
/* Asks for a token unless that has been done. */
void gf_link_request(void);
/* A gate has opened: watch for the end of its work. */
void gf_link_kick(void);
/* Waits until the daemon has let this process in once. */
void gf_link_wait_page(void);
extern struct gf_page *gf_page; /* the instance page; a closed one of our own until the daemon answers */
extern uint32_t gf_waiting;     /* threads that wait at the gate */

/* Shared with the daemon: not the private kind. */
void gf_futex_wait(uint32_t *word, uint32_t expected, unsigned timeout_ms);
void gf_futex_wake(uint32_t *word);
uint64_t gf_now_ns(void);

#endif
