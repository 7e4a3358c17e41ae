/* hook.h: the types and macros that the modules of libgfaas.so share. README.md lists the
 * modules and the order in which they may use each other; each has a header of its own. */
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

#define GF_EXPORT __attribute__((visibility("default")))
#define GF_COLD __attribute__((cold, noinline))
/* Of what a sanitizer calls while it begins, before its shadow memory is there. */
#define GF_EARLY __attribute__((no_sanitize_address, no_sanitize_thread))
#define gf_likely(x) __builtin_expect(!!(x), 1)
#define gf_unlikely(x) __builtin_expect(!!(x), 0)
#define gf_load(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define gf_store(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)

#define GF_DEVICES 16 /* as many as a machine has */
#define GF_NO_LEASE 0
#define GF_NOT_SENT CUDA_ERROR_DEVICE_UNAVAILABLE /* result of a call whose work was not sent because the program is to end */

struct gf_counts { uint64_t launches, copies; };

/* What the process knows of one device. Requests and messages to the daemon are each about one
 * device. */
struct gf_device {
    /* Read before every piece of work. */
    uint32_t *gate;       /* the gate word: the slot's, or one of the library's that stays closed */
    struct gf_page *page; /* the instance page; an empty one of the library's until the daemon answers */
    struct gf_slot *slot; /* this process's slot of it */

    uint32_t waiting __attribute__((aligned(64))); /* number of threads that wait at the gate */
    struct gf_counts dead; /* work of threads that have ended; thread.c */

    pthread_mutex_t lock;      /* protects the streams, the contexts and the times: stream, meter, wait */
    struct gf_stream *streams; /* streams that work was sent to */
    struct gf_leaving *leaving; /* contexts that the driver may be destroying */
    uint64_t carried_ns;       /* GPU time of this lease in contexts that are gone */
    uint32_t holders;          /* holders of the primary context that the program has made known */

    uint64_t mem_used;     /* bytes that this process has allocated; this and the next three: limit.c's lock */
    uint64_t mem_parked;   /* bytes of them that the driver has moved to the host */
    uint64_t mem_imported; /* bytes of other processes that are mapped here, in addition */
    uint64_t mem_refused;  /* number of times the driver had too little memory for the process */
    uint32_t pools_shrink; /* remaining looks at pools after a block of one was freed */
    uint32_t swapped_out;  /* memory_swap.c: managed memory was moved to the host */
    uint64_t idle_since;   /* of the helper, in ns; 0: not idle; UINT64_MAX: memory has been moved since */
    uint32_t refused;      /* the driver has refused work since the last lease was returned */

    struct gf_link { /* link.c */
        pthread_mutex_t lock; /* protects sock, kick and asked */
        int sock;             /* the connection, or -1 */
        struct gf_inode is;   /* what sock names */
        int kick;             /* an epoll of sock alone, which wakes the helper; or -1 */
        bool deaf;            /* a thread could not wake the helper, which has to poll often */
        bool started;
        bool asked;        /* a request is with the daemon, or a lease is running */
        uint32_t let_in;   /* the daemon has answered once (futex) */
        unsigned hangups;  /* times in a row that the daemon hung up in place of a welcome */
        uint32_t returned; /* the last lease returned: the daemon's call for it may have crossed with that */
        uint64_t works;    /* works of the process on the device when that was returned */
        uint64_t pause_ns; /* pause before the next request, if the last leases were used for refused work only */
        uint64_t resume;   /* the end of that pause, in ns; 0: none */
    } link;
} __attribute__((aligned(64)));

#define GF_MARKS 8

/* An instance of a graph whose time is to be known. */
struct gf_timed {
    CUgraphExec exec;
    uint64_t serial; /* 0: none */
    void (*took)(const struct gf_timed *graph, float ms); /* receives the time of a launch; called with the device's lock */
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
    struct gf_wait *waits;   /* for something outside the GPU, oldest first */
    struct gf_wait *spare;   /* waits that are over */
    struct gf_wait *stands;  /* the wait at which the stream was last seen; NULL: at none */
    uint64_t stands_ns;      /* since when */
    struct gf_wait *held;    /* as of gf_wait_look: the wait that keeps what is sent there from running; NULL: none does */
    bool parked;             /* work of the lease is behind that wait: gf_meter_drain */
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

#endif
