/* hook.h: the inside of libgfaas.so, the preload library that holds a process
 * to its slice of a GPU.
 *
 *   real.c    finds the driver and the addresses of its functions
 *   lookup.c  answers dlsym and cuGetProcAddress with wrappers; dlopen, dlmopen
 *   next.c    the program's own wrappers of the same functions
 *   wrap.c    the generated wrappers
 *   device.c  the devices, each with a gate, a page and a connection of its own
 *   multi.c   the one call that launches on several devices
 *   visible.c which of the instance's GPUs a device is
 *   gate.c    lets work through while the gate word of its device is open
 *   asked.c   waits that end when the program has been asked to end
 *   budget.c  how many blocks of kernels a process may launch
 *   stream.c  the streams that work was sent to, until they go away
 *   capture.c streams that are captured
 *   graph.c   graphs, and what launching one comes to
 *   tally.c   the kernels of a graph
 *   meter.c   measures the GPU time of a lease by events on those streams
 *   wait.c    streams that wait for what is not on the GPU
 *   memory.c  the memory limit; memory.h says which kinds are where
 *   context.c contexts and streams that go away
 *   exec.c    what a process starts is in its slice too
 *   stray.c   what it starts and the library cannot be in
 *   fault.c   the error after which a process cannot use CUDA any more
 *   link.c    a device's helper thread and what it does about leases
 *   greet.c   the connection to gfaas-tokend and its first exchange
 *   descriptor.h  descriptors whose numbers the program may close and use again
 *   nvml.c    what the management library says within a slice
 */
#ifndef GFAAS_HOOK_H
#define GFAAS_HOOK_H

#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#define GF_LABEL(name) __asm__("gf_" #name) /* of the gated functions: next.c */
#define CUDA_LABEL GF_LABEL
#define NVML_LABEL GF_LABEL
#include "cuda.h"
#include "compat.h"
#include "descriptor.h"
#include "wire.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)

#define GF_EXPORT __attribute__((visibility("default")))
#define GF_COLD __attribute__((cold, noinline))
/* Of what a sanitizer calls while it begins, before its shadow memory is there. */
#define GF_EARLY __attribute__((no_sanitize_address, no_sanitize_thread))
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

/* Opens the driver once. False: there is none, or none yet. */
bool gf_boot(void);
/* The driver's address of that symbol, or NULL. */
void *gf_real_find(const char *symbol);
/* Notes what standard error is, as the process begins. */
void gf_say_init(void);
/* Whether it is that still: else what is said there might be read as the program's. */
bool gf_own_errors(void);
/* A line on standard error, at most one of its kind (a small number) in the
 * life of the process; none where the program has put something else there, unless
 * that is a log: opened to append. */
void gf_say(unsigned kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum { GF_SAY_DRIVER, GF_SAY_SETUP, GF_SAY_REFUSED, GF_SAY_LOST, GF_SAY_THREAD, GF_SAY_DEEP, GF_SAY_NAMESPACE, GF_SAY_ASKED, GF_SAY_NEW, GF_SAY_VISIBLE, GF_SAY_DENIED, GF_SAY_MPS,
       GF_SAY_STRAY /* and as many as there are kinds of stray programs */ };

extern __thread bool gf_booting GF_TLS; /* this thread is inside the opening of the driver */

/* ---- lookup.c ---- */

/* dlsym, dlopen and dlmopen are of ours: these are the C library's. Valid after
 * gf_lookup_init. */
typedef void *gf_dlsym_function(void *handle, const char *name);
extern gf_dlsym_function *gf_real_dlsym;
typedef void *gf_dlopen_function(const char *file, int mode);
extern gf_dlopen_function *gf_real_dlopen;
void gf_lookup_init(void);

/* The wrapper of the driver's function at that address, or the address. */
void *gf_wrapper_of(void *address);

/* ---- next.c ---- */

void gf_next_init(void);
/* Reports whether the library that the address is in has an SONAME that begins so. */
bool gf_is_of(void *address, const char *soname);
/* Returns the program's own function of that name that is next after the caller's library
 * (NULL: after this one), as RTLD_NEXT finds it; NULL if the next is in a library whose
 * SONAME begins so, or there is none. */
void *gf_next(const void *caller, const char *name, const char *soname);

/* Defines the exported name of a gated function; here it is named_NAME. */
#define GF_NAME(result, name, soname, params, args) \
    static result first_##name params; \
    static result(*to_##name) params = first_##name; \
    static result named_##name params { return gf_load(&to_##name) args; } \
    extern result exported_##name params __asm__(#name) __attribute__((alias("named_" #name), visibility("default"))); \
    static result first_##name params \
    { \
        void *own = gf_next(NULL, #name, soname); \
        gf_store(&to_##name, own ? (result(*) params)own : name); \
        return named_##name args; \
    }
/* What dlsym answers for a function that is wrapped: `wrapper` where the real answer would
 * be the driver's own function (`real`, if that is known); NULL to let the real dlsym answer. */
void *gf_stand_in(void *handle, const char *name, const void *caller, const char *soname, void *real, void *wrapper);

/* ---- nvml.c ---- */

/* The wrapper of a function of the management library, where `handle` has that
 * function; NULL: it is not wrapped. */
void *gf_nvml_pick(void *handle, const char *name, const void *caller);

#define GF_UUID 64 /* room for the text of a UUID, without its GPU- or MIG- */
/* Writes down the UUIDs of n GPUs by their numbers. That of a GPU that is not there, and
 * of UINT_MAX, stays empty, and so do all without the library. */
void gf_nvml_uuids(const unsigned *numbers, unsigned n, char (*uuids)[GF_UUID]);

/* ---- device.c ---- */

#define GF_DEVICES 16 /* as many as a machine has */
#define GF_NO_LEASE 0

struct gf_counts { uint64_t launches, copies; };

/* A device as the process sees it: all that is asked of the daemon and said to
 * it is asked and said for one device. */
struct gf_device {
    /* Looked at before every piece of work. */
    uint32_t *gate;       /* the gate word: the slot's, or one of our own that stays closed */
    struct gf_page *page; /* the instance page; an empty one of our own until the daemon answers */
    struct gf_slot *slot; /* this process's slot of it */

    uint32_t waiting __attribute__((aligned(64))); /* threads that wait at the gate */
    struct gf_counts dead; /* what threads that have ended did; gate.c */

    pthread_mutex_t lock;      /* stream.c: of the streams and times */
    struct gf_stream *streams; /* that work was sent to */
    struct gf_leaving *leaving; /* contexts that the driver may be destroying */
    uint64_t carried_ns;       /* this lease's time in contexts that are gone */
    uint32_t holders;          /* of the primary context, as far as the program has said */

    uint64_t mem_used;     /* memory.c: bytes this process has allocated there */
    uint64_t mem_parked;   /* of them, what the driver has moved to the host */
    uint64_t mem_imported; /* and beside them, what others lent it */
    uint64_t mem_refused;  /* how often the driver had too little memory for the process */
    uint32_t pools_shrink; /* looks that are left at pools after something was freed in one */
    uint32_t swapped_out;  /* memory_swap.c: managed memory was moved to the host */
    uint64_t idle_since;   /* of the helper: ns; 0: it is not; UINT64_MAX: memory was moved since */
    uint32_t refused;      /* the driver has refused work since a lease was last given back */

    struct gf_link { /* link.c */
        pthread_mutex_t lock; /* of sock, kick and asked */
        int sock;             /* the connection; -1: there is none */
        struct gf_inode is;   /* what sock names */
        int kick;             /* an epoll of sock alone, by which the helper is woken; -1: there is none */
        bool deaf;            /* a thread could not wake the helper: it has to look often */
        bool started;
        bool asked;        /* a request is with the daemon, or a lease is running */
        uint32_t let_in;   /* the daemon has answered once (futex) */
        unsigned hangups;  /* of the daemon in place of a welcome, in a row */
        uint32_t returned; /* the last lease given back: the daemon's call for it may have crossed with that */
        uint64_t works;    /* of the process on the device, when that was given back */
        uint64_t pause_ns; /* before the next request, since the last leases were used for refused work only */
        uint64_t resume;   /* the end of that pause */
    } link;
} __attribute__((aligned(64)));

/* By ordinal. Devices beyond them share the last, which no daemon serves. */
extern struct gf_device gf_devices[GF_DEVICES + 1];
#define gf_each_device(d) struct gf_device *d = gf_devices; d <= &gf_devices[GF_DEVICES]; d++
static inline unsigned gf_ordinal(const struct gf_device *device) { return (unsigned)(device - gf_devices); }

/* A driver's device; never NULL. */
struct gf_device *gf_device_at(CUdevice ordinal);
/* The device of a context, of the calling thread's current context, of a
 * stream; NULL: there is none. */
struct gf_device *gf_device_of(CUcontext context);
struct gf_device *gf_device_current(void);
struct gf_device *gf_device_of_stream(CUstream stream);
/* From now on that page, just mapped, and the gate of that slot of it are the
 * device's. */
void gf_device_open(struct gf_device *device, struct gf_page *page, unsigned slot);
/* From now on the gate is closed; page and slot stay. */
void gf_device_close(struct gf_device *device);
/* Puts the page where the device's last one is, if it has had one, and returns
 * where that is. */
struct gf_page *gf_device_lay(struct gf_device *device, struct gf_page *page);
void gf_device_fork_child(void);

/* ---- visible.c ---- */

/* Reads the lists of GPUs, as the driver is about to: once it has started it keeps to
 * what it read. */
void gf_visible_read(void);
/* Finds out which of the instance's GPUs the program sees, after the driver has started
 * with that result, and returns what cuInit returns: CUDA_ERROR_NO_DEVICE if it sees none
 * of them, which is said in one line. */
CUresult gf_visible_settle(CUresult initialised);
/* The place of a device among the instance's GPUs; GF_DEVICES: it is none of
 * them. */
unsigned gf_visible_place(unsigned ordinal);
/* The place in a list of the GPU or MIG instance with that number (UINT_MAX: it has
 * none) or that UUID; GF_DEVICES: it is not there. */
unsigned gf_visible_find(const char *list, unsigned number, const char *uuid);
/* Whether a device is hidden from the program: it, or one before it in the list, is none
 * of the instance's GPUs. */
bool gf_visible_outside(CUdevice ordinal);
void gf_visible_fork_child(void);

/* ---- gate.c ---- */

#define GF_CACHED 8 /* streams a thread remembers: as gf_line_index says */

/* What a thread remembers of a stream it sends work to. What every launch looks
 * at is in one line of the processor's cache.
 *
 * A launch goes the fast way while `launches` is below `until`: other work than
 * one kernel moves `until` towards it or away, so that what lies between the two
 * is pieces of work. Where blocks are metered `until` is never above: every
 * launch goes the slow way, and `marked` counts down to the mark.
 *
 * `entry` may be followed while `busy` is set and the lease in the gate is
 * `lease`: entries are freed only after the gate was closed and no thread was
 * busy (gf_quiesce). */
struct gf_line {
    CUstream stream __attribute__((aligned(64))); /* NULL: of none */
    struct gf_device *device;
    int64_t launches; /* kernels launched from here since it is of that device */
    int64_t until;    /* the number of launches at which the next has to go the slow way */
    uint32_t lease;   /* under which it was last found tracked */
    uint32_t busy;    /* the thread is between the look at the gate and the end of the driver's call */
    bool late;        /* gf_done_late or gf_left_late has something to do even if the work was accepted */
    struct gf_counts *counts; /* of this thread on that device: what is not in `launches` */
    struct gf_stream *entry;
    uint64_t spent; /* blocks of the last launch, where they are metered */
    int32_t marked; /* where blocks are metered: launches until the next mark */
};
enum { GF_SYNC = GF_CACHED, GF_UNTRACKED, GF_LINES }; /* for calls that are over when they return; for work that will not run */

struct gf_thread {
    struct gf_line line[GF_LINES];
    struct gf_counts counts[GF_DEVICES + 1]; /* by device */
    struct gf_counts uncounted;
    bool known;          /* is in the list of threads */
    bool brief;          /* for a call only: nothing says when it ends */
    bool marks;          /* the next work is to have a mark before it */
    uint32_t everywhere; /* is inside a call that sends work to all devices */
    struct gf_thread *next;
};
extern __thread struct gf_thread gf_self GF_TLS;

/* NULL: the program was asked to end, and nothing is to be sent (GF_NOT_SENT). */
GF_COLD struct gf_line *gf_enter_slow(CUstream stream, uint64_t blocks);
/* The rest of gf_done, for work that was refused and for lines that are `late`; the
 * part of it that does not count the work. */
GF_COLD void gf_done_late(struct gf_line *line, uint64_t kernels, CUresult result, const char *call);
GF_COLD void gf_done_uncounted(struct gf_line *line, CUresult result);
GF_COLD struct gf_line *gf_enter_sync_slow(struct gf_line *line);
/* The rest of gf_left_sync, likewise. */
GF_COLD void gf_left_late(struct gf_line *line, CUresult result, const char *call);
/* How many pieces of work threads may still send to the stream before its next mark,
 * of those that they have taken. */
int64_t gf_lines_left(const struct gf_stream *entry);
/* The last launch, or the next on that stream, is worth more than one piece of
 * work: it counts for that many, or has a mark before it. */
void gf_weigh(struct gf_line *line, int32_t pieces);
void gf_mark_next(CUstream stream);
/* Forgets what this thread, or every thread, knows of its context's streams. */
void gf_forget_thread(void);
void gf_forget_all(void);
/* Every thread forgets the stream that has the entry. */
void gf_forget_entry(const struct gf_stream *entry);
/* Waits until no thread is inside a call that began under an open gate of the
 * device; gives up when it hangs. */
bool gf_quiesce(struct gf_device *device);
/* How many threads are inside a call that sends work to the device. */
unsigned gf_busy(struct gf_device *device);
/* Whether what has made no progress since then hangs. It may need a thread that
 * waits at a gate: a host function or a kernel that waits for what that is about
 * to send, here or on another device. That cannot be told from work that takes
 * long; it is said when for ten seconds nothing has ended and all the while a
 * thread has waited. If none does, it moves the time on. */
bool gf_stuck(uint64_t *since);
/* Kernels launched, and other pieces of work sent to streams, on a device by
 * all threads since the process began. */
struct gf_counts gf_count_all(struct gf_device *device);
static inline uint64_t gf_works(struct gf_counts c) { return c.launches + c.copies; }
/* Notes the calling thread, so that its end is noticed. False: it would not be. */
bool gf_thread_known(void);
void gf_gate_init(void);
void gf_gate_fork_child(void);

static inline unsigned gf_line_index(CUstream stream)
{
    return (unsigned)((uintptr_t)stream * 0x9e3779b97f4a7c15u >> 61); /* Fibonacci hashing */
}

/* Called before work of that many kernel blocks goes to a stream: returns once
 * it may, with what gf_leave wants; NULL, if it may not (gf_enter_slow). While the lease holds, the stream is known
 * and blocks are not metered this is a few loads and compares, and the blocks
 * are not even counted: they may be an expression that is costly. */
#define gf_enter(stream, blocks) \
    ({ \
        CUstream entered_stream_ = (stream); \
        struct gf_line *entered_ = gf_enter_fast(entered_stream_); \
        gf_likely(entered_) ? entered_ : gf_enter_slow(entered_stream_, (blocks)); \
    })
static inline __attribute__((always_inline)) struct gf_line *gf_enter_fast(CUstream stream)
{
    struct gf_line *line = &gf_self.line[gf_line_index(stream)];
    __asm__("" : "+r"(line)); /* computed once */
    if (!line)
        __builtin_unreachable();
    gf_store(&line->busy, 1);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* the closing side pays for the real fence: gf_quiesce */
    if (gf_unlikely(gf_load(&line->stream) != stream))
        return NULL;
    uint32_t lease = __atomic_load_n(gf_load(&line->device->gate), __ATOMIC_ACQUIRE);
    if (gf_unlikely(line->lease != lease || line->launches >= line->until))
        return NULL;
    return line;
}

/* The same for work that is over when the call returns. */
static inline struct gf_line *gf_enter_sync(void)
{
    struct gf_line *line = &gf_self.line[GF_SYNC];
    gf_store(&line->busy, 1);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (gf_unlikely(!gf_load(&line->stream) || !__atomic_load_n(gf_load(&line->device->gate), __ATOMIC_ACQUIRE)))
        return gf_enter_sync_slow(line);
    return line;
}

/* Counts a piece of work that the driver accepted: so many kernels; 0: other work. */
static inline void gf_count(struct gf_line *line, uint64_t kernels)
{
    if (kernels)
        gf_store(&line->launches, line->launches + (int64_t)kernels);
    else
        gf_store(&line->counts->copies, line->counts->copies + 1);
    line->until += (int64_t)kernels - 1; /* it is one piece of work */
}

/* Called when the driver has answered. Work is counted only now, and only if the
 * driver accepted it: an unchanged count behind a closed gate shows that nothing
 * was sent since. */
static inline void gf_done(struct gf_line *line, uint64_t kernels, CUresult result, const char *call)
{
    if (gf_likely(!((unsigned)line->late | (unsigned)result)))
        gf_count(line, kernels);
    else
        gf_done_late(line, kernels, result, call);
}

static inline void gf_leave_sync(struct gf_line *line)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&line->busy, 0, __ATOMIC_RELEASE);
}

/* Called when the driver has answered a call whose work was over then. */
static inline void gf_left_sync(struct gf_line *line, CUresult result, const char *call)
{
    if (gf_unlikely((unsigned)line->late | (unsigned)result))
        gf_left_late(line, result, call);
    gf_leave_sync(line);
}

static inline void gf_leave(struct gf_line *line, uint64_t kernels, CUresult result, const char *call)
{
    gf_done(line, kernels, result, call);
    gf_leave_sync(line);
}

/* ---- asked.c ---- */

/* What a call answers whose work was not sent because the program is to end. */
#define GF_NOT_SENT CUDA_ERROR_DEVICE_UNAVAILABLE
/* A wait for a device; zero before it begins. */
struct gf_patience {
    uint64_t began; /* ns; 0: it has not */
    bool holds;     /* SIGTERM and SIGINT are blocked meanwhile */
    uint64_t mask;  /* the thread's signals before */
    uint64_t outer; /* of them, what a wait blocks in whose midst this one is, in a handler */
};
/* Begins a wait unless it has begun: from now on it notices that the program is asked to
 * end. Call it before others can see that the thread waits. */
void gf_patience_begin(struct gf_patience *p);
/* Ends a wait, also one that has not begun. */
void gf_patience_end(struct gf_patience *p);
/* Sleeps until the word is no longer as expected, or for 100 ms at most, as part of
 * a wait. False: it is to end in vain. */
bool gf_wait(struct gf_device *device, struct gf_patience *p, uint32_t *word, uint32_t expected);
/* Notes whether the instance has as many processes on the device as it can, so that
 * this one has no place. */
void gf_full(struct gf_device *device, bool full);
/* A gate was open. */
void gf_waited(void);
void gf_asked_fork_child(void);

/* ---- budget.c ---- */

/* Whether blocks are metered on that device. */
bool gf_metered(struct gf_device *device);
/* Takes blocks from the budget; false: it is used up. */
bool gf_spend(struct gf_slot *slot, uint64_t blocks);
/* Puts blocks back that were not launched. */
void gf_unspend(struct gf_slot *slot, uint64_t blocks);

/* ---- stream.c ---- */

#define GF_MARKS 8

/* An instance of a graph whose time is to be known. */
struct gf_timed {
    CUgraphExec exec;
    uint64_t serial; /* 0: none */
};

/* A stream that work was sent to. */
struct gf_stream {
    struct gf_device *device;
    CUcontext context;
    CUstream stream;
    struct gf_thread *owner; /* of a per-thread default stream: only that thread can record on it */
    bool gone;               /* destroyed by the program: its last event is recorded */
    bool dead;               /* its context is destroyed: there are no events any more */
    uint8_t dry;             /* how often what may be in flight was doubled, since it ran out */
    uint8_t calm;            /* marks since then at which it had not */
    bool behind;             /* its marks do not come: it may wait for something the program has yet to do */
    bool blocking;           /* it and the legacy stream wait for each other */
    unsigned pinned;         /* calls that hold the entry without a lease: wait.c */
    struct gf_wait *waits;   /* for what is not on the GPU, oldest first */
    struct gf_wait *spare;   /* such that are over */
    struct gf_wait *stands;  /* the wait at which the stream was last seen; NULL: at none */
    uint64_t stands_ns;      /* since when */
    struct gf_wait *held;    /* as of gf_wait_look: the wait that keeps what is sent there from running; NULL: none does */
    bool parked;             /* and work of the lease is behind that wait: gf_meter_drain */
    uint32_t lease;          /* the lease it was last used under, until that is settled; then GF_NO_LEASE */
    uint64_t begun_ns;       /* when `begin` was recorded */
    uint64_t begun_at;       /* works of the process on the device before the lease's first on this stream */
    uint64_t ended_at;       /* works of the process when `end` was recorded, plus one; 0: not under this lease */
    CUevent begin, end;
    CUevent next_end;        /* the end is recorded here first: gf_meter_end */
    CUevent mark[GF_MARKS];  /* ring of events that bound the work in flight */
    int32_t span[GF_MARKS];  /* pieces of work before each mark in its lease; 0: none, or not recorded */
    bool fresh;              /* the next mark is the first of a lease: what was before it is over */
    struct gf_timed graph[GF_MARKS + 1]; /* the graph that is the work before each mark; last, before the next one */
    int32_t since;           /* pieces of work since the last mark, when the next is due */
    int64_t left;            /* of them, those left that no thread has taken; negative: so many more were sent */
    unsigned turn;           /* marks recorded */
    unsigned learned;        /* of them, those up to which times are known */
    unsigned passed;         /* of them, those that are known to be over */
    uint64_t passed_ns;      /* since when */
    unsigned depth;          /* marks that may be outstanding */
    int32_t stride;          /* pieces of work between two marks */
    float each;              /* GPU time of a piece, in ms; 0: unknown */
    struct gf_stream *next;
};

/* The two default streams have no handle of their own: they are one a context. */
bool gf_stream_is_default(CUstream stream);
/* Whether a capture has ever begun in this process. While it has not, and the lock
 * of a device is held, none begins that could be disturbed by looking at events. */
extern bool gf_captured;
/* Whether what is sent there is captured: it does not run. */
bool gf_capturing(CUstream stream);
/* Whether an event may be recorded there: never while the stream is captured. */
bool gf_recordable(CUstream stream);
/* Finds or makes the entry of a stream, locks its device and makes its context current,
 * until it is closed. NULL: it cannot be tracked (capture, no context). */
struct gf_stream *gf_stream_open(struct gf_device *device, CUstream stream);
void gf_stream_close(struct gf_stream *entry);
/* Finds or makes the entry of a stream and notes that the lease uses it. NULL:
 * it cannot be tracked (capture, no context). */
struct gf_stream *gf_stream_use(struct gf_device *device, CUstream stream, uint32_t lease);
/* Around a call that begins a capture: records the end of the work on all
 * streams while that is possible, and lets no event be recorded until it is
 * known which must not be. */
void gf_capture_begins(void);
void gf_capture_has_begun(void);
/* The program is about to destroy a stream, has made one; a thread has ended. */
void gf_stream_gone(CUstream stream);
void gf_stream_made(CUstream stream);
void gf_stream_thread_gone(struct gf_thread *thread);
/* A context while the driver may be destroying it. That may wait for its work, and
 * its work for what another thread does on the device: no lock is held meanwhile, but
 * nothing in the context may be touched. */
struct gf_leaving {
    struct gf_device *device; /* NULL: there is no context */
    CUcontext context;
    bool primary;
    bool over;      /* no work is left in it */
    uint64_t ns;    /* its time under the lease */
    uint64_t since; /* when its first work was sent, if that does not end; 0: it does */
    int cancel;     /* whether the thread could be cancelled before */
    struct gf_leaving *next;
};
/* Around a call that may destroy a context: before it settles its time, after it
 * says whether it is gone. No device: there is no context. */
void gf_context_leaving(struct gf_leaving *l, struct gf_device *device, CUcontext context);
void gf_context_left(struct gf_leaving *l, bool gone);
/* The same for the primary context, of which so many holders let go that were
 * counted. While others hold it nothing ends, and nothing is waited for. */
void gf_primary_leaving(struct gf_leaving *l, struct gf_device *device, CUcontext context, uint32_t holders);
void gf_primary_held(struct gf_device *device);
/* Who may be having the driver destroy the context; NULL: nobody. Locked. */
struct gf_leaving *gf_context_leaves(const struct gf_device *device, CUcontext context);
/* Frees entries of streams and contexts that are gone. No thread may be inside
 * a launch: the threads' caches lead nowhere, since their lease is over. */
void gf_stream_sweep(struct gf_device *device);

/* ---- meter.c ---- */

/* Of the pieces of work that a thread might send before the next mark so many are
 * left; negative: it has sent that many more. */
void gf_meter_left(struct gf_stream *entry, int64_t left);
/* The same, and it is about to send more. Where a mark is due, or wanted now,
 * records it and waits for an old one, so that little work is ever in flight.
 * Returns the pieces until the next mark; -1: it is dead. */
int32_t gf_meter_mark(struct gf_stream *entry, int64_t left, bool now);
/* Whether a graph that takes so long (0: unknown) is launched between marks of
 * its own; after such a launch says which it was, if its time is wanted. Returns
 * the pieces of work that it counts for. */
bool gf_meter_heavy(float ms);
int32_t gf_meter_graph(struct gf_stream *entry, float ms, struct gf_timed graph);
/* A lease begins: what may be in flight is as much as that leaves room for. */
void gf_meter_begin(struct gf_stream *entry);
/* Records the end on a per-thread stream: no other thread could. Called after work that
 * the driver accepted. */
void gf_meter_after(struct gf_stream *entry);
/* Waits for the work of a context and returns 0; when the first was sent, if that does
 * not end. Locked, but not while it sleeps; the context is current. */
uint64_t gf_meter_await(struct gf_device *device, CUcontext context);
#define GF_WORKS_UNKNOWN (UINT64_MAX - 1)
/* Records the end of what was sent to the stream so far, unless that is known to be done
 * or nothing was sent to the device since the lease's first use of the stream: work that
 * the driver refuses is not measured. False: it cannot be. Locked, the entry's context
 * is current. */
bool gf_meter_end(struct gf_stream *entry, uint64_t works);
/* Whether all work of the device's lease is over, given the count of works. */
bool gf_meter_idle(struct gf_device *device, uint64_t works);
/* Waits for all work of the lease and returns the GPU time it took, in ns. Where the
 * daemon has asked for that lease it is told shortly before the end (gf_link_ending).
 * UINT64_MAX: it hangs (gf_stuck); its time then counts under the next lease. */
uint64_t gf_meter_drain(struct gf_device *device, uint64_t works, uint32_t asked);
/* The GPU time from a context's first work under the lease to its last, in ns; held: of
 * streams that a wait holds (wait.c), to that. Locked, the context is current. */
uint64_t gf_meter_span(struct gf_device *device, CUcontext context, bool held);
/* Whether a stream of the device waits for what is not on the GPU. */
bool gf_meter_waits(struct gf_device *device);
/* From now on this thread of the library's may look at events while others capture. */
void gf_meter_relax(void);

/* ---- wait.c ---- */

/* Whether the process has ever had a stream wait for what is not on the GPU, or has an
 * event of another process's. */
extern bool gf_waits;
struct gf_waiting {
    struct gf_stream *entry; /* NULL: it is not tracked */
    struct gf_wait *wait;
};
/* Around a call that makes a stream wait; inside: that launches a graph which may. */
struct gf_waiting gf_wait_begin(CUstream stream, bool inside);
void gf_wait_end(struct gf_waiting waiting, CUresult result);
/* Whether the stream has stood at such a wait for long enough to say so. Locked, and so
 * are those that follow. */
bool gf_wait_stands(struct gf_stream *entry);
/* Finds out (`held`) for all streams at which wait they stand, and reports the time of
 * work that ran without a lease. Busy: threads may be sending work. Whether there is such
 * work still. */
bool gf_wait_look(struct gf_device *device, bool busy);
/* Whether, as of that look, what is queued on the stream does not run because of such a wait: its own, or one
 * of the legacy stream or that the legacy stream waits for. */
bool gf_wait_holds(struct gf_stream *entry);
/* The event before that wait. */
CUevent gf_wait_reached(const struct gf_stream *entry);
/* The lease ends while that wait holds the stream. */
void gf_wait_leave(struct gf_stream *entry);
/* Marks the end of the work that was queued under such a lease, if that is not done; the
 * context is current. */
void gf_wait_tail(struct gf_stream *entry);
/* Looks for the end of work that runs without a lease; takes the lock. Returns in how many ms it wants to be called
 * again; -1: when there is a lease. */
int gf_wait_tend(struct gf_device *device);
/* Frees all waits of an entry, and their events if those are there. */
void gf_wait_free(struct gf_stream *entry, bool events);

/* ---- graph.c ---- */

/* A launch of it took so long. */
void gf_graph_took(struct gf_timed graph, float ms);
void gf_graph_fork_child(void);

/* ---- memory.c ---- */

/* Bytes that an instance's processes hold together, by their page. */
uint64_t gf_mem_on_page(struct gf_page *page);
/* What counts towards the limit of one slot. */
uint64_t gf_mem_in_slot(struct gf_slot *slot);
/* Bytes this process has allocated on the device. */
uint64_t gf_mem_used(struct gf_device *device);
/* Returns the driver's answer to a request for memory, or for what takes memory, and
 * counts it if the driver had too little. NULL: the request is not known to be for a
 * device that the daemon serves. */
CUresult gf_mem_answer(struct gf_device *device, CUresult answer);
/* The same for a context on a device of the driver's. */
CUresult gf_mem_answer_on(CUdevice ordinal, CUresult answer);
/* From now on that page and slot are the ones in force. Returns the slot where
 * it is to be found. */
struct gf_slot *gf_mem_move(struct gf_device *device, struct gf_page *page, unsigned slot);
void gf_mem_context_gone(CUcontext context);
/* Counts again what pools hold on to: it shrinks without a call to say so. */
void gf_mem_look(struct gf_device *device);
/* Does what is to be done for a device without a lease; idle: and nobody waits
 * for one. Returns in how many ms it wants to be called again; -1: when that
 * changes. */
int gf_mem_tend(struct gf_device *device, bool idle);
/* Memory moves back to the device before the stream's next work. */
GF_COLD void gf_swap_in_now(struct gf_device *device, CUstream stream);
static inline void gf_swap_in(struct gf_device *device, CUstream stream)
{
    if (gf_unlikely(gf_load(&device->swapped_out)))
        gf_swap_in_now(device, stream);
}
void gf_mem_fork_child(void);

/* What the allocation nodes of an executable graph take, by device. */
struct gf_graph_memory {
    bool any;
    uint64_t bytes[GF_DEVICES + 1];
};
/* Adds what the node of a graph allocates, if it does. */
void gf_graph_memory_add(struct gf_graph_memory *m, CUgraphNode node);
/* An executable graph was made; it is destroyed. */
void gf_graph_memory_known(const struct gf_graph_memory *m, bool gone);
/* Before and after a launch or upload of a graph that needs any, which is known by
 * its serial; 0: by none yet, or it was not launched. False: there is not as much left,
 * and it must not be launched. */
GF_COLD bool gf_graph_memory_take(const struct gf_graph_memory *m, uint64_t serial);
GF_COLD void gf_graph_memory_settle(const struct gf_graph_memory *m, uint64_t serial);

/* ---- stray.c ---- */

enum { GF_STRAY_NONE = -1, GF_STRAY_UNKNOWN = -2 };
/* Why the library cannot be in that program (GF_STRAY_STATIC, ...), if so. */
int gf_stray_file(int fd, const char *name);
/* Tells the daemon of it and, if it is the first of its kind, says so. */
void gf_stray_tell(uint32_t kind, const char *program);
/* Notes who the process is, before it can change its environment. */
void gf_stray_init(void);

/* ---- fault.c ---- */

/* Notes the error of a call if it ends the process's use of CUDA, and returns when the
 * daemon has been told, or soon. Called without a lock. */
GF_COLD void gf_saw_error(CUresult result, const char *call);
static inline void gf_saw(CUresult result, const char *call)
{
    if (gf_unlikely(result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY))
        gf_saw_error(result, call);
}
/* The same for a call of the library's own, whose result it returns. It never waits. */
CUresult gf_fault_watch(CUresult result);
/* Reports the fault to the daemon if this device's helper is to do so and has not yet on
 * its connection (told). Returns after how many ms it must be called again; -1: when the
 * helper wakes for another reason. */
int gf_fault_tend(struct gf_device *device, bool *told);
void gf_fault_fork_child(void);

/* ---- link.c ---- */

/* Sends a message to the daemon if the device's page has the flag by which it says that it
 * knows messages of that type. */
void gf_link_tell(struct gf_device *device, uint32_t flag, const void *message, size_t size);
/* Starts the device's helper thread unless it runs. */
void gf_link_start(struct gf_device *device);
/* Asks for a token unless that has been done. */
void gf_link_request(struct gf_device *device);
/* A gate has opened: watch for the end of its work. */
void gf_link_kick(struct gf_device *device);
/* Tells the daemon, where it wants to know, that what is in flight of a lease that it
 * has asked for is over in so long. */
void gf_link_ending(struct gf_device *device, uint32_t lease, uint64_t left_ns);
/* Waits until the daemon has let this process in once, or the program is to end:
 * then no memory is to be had. */
void gf_link_wait_page(struct gf_device *device);

/* ---- greet.c ---- */

/* What the environment says of the daemon and of this process's instance. */
struct gf_identity {
    char socket[108], instance[GF_NAME_SIZE], secret[GF_NAME_SIZE];
};
/* Reads it. False: it is not all there. */
bool gf_identify(struct gf_identity *who);
/* Connects, says hello and moves to the page that comes back. Returns the
 * connection or -1, having waited a while. */
int gf_greet(struct gf_device *device, const struct gf_identity *who);
/* A look at the page that the instance has for one of its GPUs, by a connection of
 * its own that is over then; NULL: the daemon shows none. It has to be unmapped. */
struct gf_page *gf_peek(unsigned place, const struct gf_identity *who);
struct gf_header gf_header(uint16_t type, uint32_t size);
bool gf_is(const void *message, ssize_t n, uint16_t type, size_t size);
bool gf_transmit(int fd, const void *message, size_t size);
/* Receives one message and, if it brings one, a descriptor. The flags are recvmsg's. */
ssize_t gf_receive(int fd, void *buffer, size_t size, int *passed, int flags);

/* Shared with the daemon: not the private kind. */
void gf_futex_wait(uint32_t *word, uint32_t expected, unsigned timeout_ms);
void gf_futex_wake(uint32_t *word);
uint64_t gf_now_ns(void);
void gf_pause_ns(long ns);

#pragma GCC visibility pop
#endif
