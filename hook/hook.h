/* hook.h: the types and macros that the modules of libgfaas.so share. README.md lists the
 * modules and the order in which they may use each other; each has a header of its own. */
#pragma once

#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#define GF_LABEL(name) __asm__("gf_" #name) /* assembler name of a gated function: next.c */
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
/* For functions that a sanitizer calls during its own start, before its shadow memory exists. */
#define GF_EARLY __attribute__((no_sanitize_address, no_sanitize_thread))
#define gf_likely(x) __builtin_expect(!!(x), 1)
#define gf_unlikely(x) __builtin_expect(!!(x), 0)
#define gf_load(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define gf_store(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)

#define GF_DEVICES 16 /* the most devices that a process can use */
#define GF_NO_LEASE 0
#define GF_NOT_SENT CUDA_ERROR_DEVICE_UNAVAILABLE /* result of a call that was not passed to the driver because the program is to end */

struct gf_counts { uint64_t launches, copies; };

/* The state of one device in this process. Each request and message to the daemon concerns one
 * device. */
struct gf_device {
    /* Read before every piece of work. */
    uint32_t *gate;       /* the gate word: in the slot, or a word of the library that stays 0 (closed) */
    struct gf_page *page; /* the instance page; an empty page of the library until the daemon answers */
    struct gf_slot *slot; /* this process's slot in the page */

    uint32_t waiting __attribute__((aligned(64))); /* number of threads that wait at the gate */
    struct gf_counts dead; /* work of threads that have ended: thread.c */

    pthread_mutex_t lock;      /* protects streams, contexts and times: stream, meter, wait */
    struct gf_stream *streams; /* streams that work was sent to */
    struct gf_leaving *leaving; /* contexts that the driver may be destroying */
    uint64_t carried_ns;       /* GPU time of this lease in destroyed contexts */
    uint32_t holders;          /* holders of the primary context that the program has made known */

    uint64_t mem_used;     /* allocated bytes of this process; limit.c's lock protects this and the next three */
    uint64_t mem_parked;   /* of these, bytes that the driver has moved to the host */
    uint64_t mem_imported; /* bytes of other processes that are mapped here, in addition */
    uint64_t mem_refused;  /* number of times the driver had too little memory for the process */
    uint32_t pool_recounts; /* remaining recounts of the pools by the helper, after a block of one was freed */
    uint32_t swapped_out;  /* memory_swap.c: managed memory was moved to the host */
    uint64_t idle_since;   /* when the device became idle, in ns; 0: not idle; UINT64_MAX: idle, and its memory was moved */
    uint32_t refused;      /* the driver has refused work since the last lease was returned */

    struct gf_link { /* link.c */
        pthread_mutex_t lock; /* protects sock, kick and requested */
        int early;            /* a connection on which the thread that starts the helper has said hello, or -1 */
        struct gf_inode early_is; /* identity of the file behind early */
        int sock;             /* the connection, or -1 */
        struct gf_inode is;   /* identity of the file behind sock */
        int kick;             /* an epoll of sock alone, which wakes the helper; or -1 */
        bool polls;           /* a thread could not wake the helper, so the helper polls often */
        bool started;
        bool requested;    /* the daemon has a request, or a lease is running */
        uint32_t answered; /* the daemon has answered once (futex) */
        unsigned hangups;  /* consecutive connections that the daemon closed without a welcome */
        uint32_t returned; /* the last lease returned; the daemon's call for it may still arrive */
        uint64_t works;    /* works of the process on the device at that time */
        uint64_t pause_ns; /* pause before the next request, if the last leases served refused work only */
        uint64_t resume;   /* end of that pause, in ns; 0: no pause */
    } link;
} __attribute__((aligned(64)));

#define GF_MARKS 8

/* An executable graph whose GPU time is measured. */
struct gf_timed {
    CUgraphExec exec;
    uint64_t serial; /* 0: none */
    void (*took)(const struct gf_timed *graph, float ms); /* receives the time of one launch; called with the device's lock held */
};

/* A stream to which the process has sent work. */
struct gf_stream {
    struct gf_device *device;
    CUcontext context;
    CUstream stream;
    struct gf_thread *owner; /* for a per-thread default stream: the only thread that can record on it */
    bool gone;               /* the program destroyed it; its last event is recorded */
    bool dead;               /* its context is destroyed, and its events with it */
    uint8_t doublings;       /* of the bound on the work in flight, because the queue ran dry */
    uint8_t calm;            /* marks since the last doubling or halving at which the queue had not run dry */
    bool behind;             /* its marks do not complete: it may wait for something the program has yet to do */
    bool blocking;           /* it synchronizes with the legacy stream */
    unsigned pinned;         /* calls that hold the entry without a lease: wait.c */
    struct gf_wait *waits;   /* its waits for something outside the GPU, oldest first */
    struct gf_wait *spare;   /* finished waits, for reuse */
    struct gf_wait *wait_seen;  /* the wait at which the stream was last seen; NULL: none */
    uint64_t wait_seen_ns;      /* when it was first seen there */
    struct gf_wait *blocked_by; /* set by gf_wait_update: the wait that blocks new work of the stream; NULL: none */
    bool lease_blocked;      /* work of the lease is behind that wait: gf_meter_drain */
    uint32_t lease;          /* the lease it was last used under, until its GPU time was counted; then GF_NO_LEASE */
    uint64_t begun_ns;       /* when `begin` was recorded */
    uint64_t begun_at;       /* works of the process on the device before the lease's first on this stream */
    uint64_t ended_at;       /* works of the process when `end` was recorded, plus one; 0: not under this lease */
    CUevent begin, end;
    CUevent next_end;        /* gf_meter_end records the end here, then swaps it with `end` */
    CUevent mark[GF_MARKS];  /* ring of events that bound the work in flight */
    int32_t span[GF_MARKS];  /* pieces of work before each mark in its lease; 0: none, or not recorded */
    bool fresh;              /* the next mark is the first of a lease: all work before it has finished */
    struct gf_timed graph[GF_MARKS + 1]; /* the graph launched before each mark; last: before the next mark */
    int32_t allotted;        /* pieces of work that may be sent from the last mark until the next is due */
    int64_t unassigned;      /* of these, pieces that no thread has taken; negative: pieces sent in excess */
    unsigned marks_recorded; /* number of marks recorded; mark N is at index N % GF_MARKS of the rings */
    unsigned marks_learned;  /* number of marks from whose times piece_ms was learned */
    unsigned marks_completed; /* number of marks known to have completed */
    uint64_t completed_ns;   /* when `marks_completed` last changed */
    unsigned depth;          /* the most marks that may be outstanding */
    int32_t stride;          /* pieces of work between two marks */
    float piece_ms;          /* GPU time of one piece, in ms; 0: unknown */
    struct gf_stream *next;
};

/* A context that the driver may be destroying. The driver may wait for the context's work,
 * and that work for what another thread does on the device. So no lock is held meanwhile, but
 * nothing in the context may be used. */
struct gf_leaving {
    struct gf_device *device; /* NULL: there is no context */
    CUcontext context;
    bool primary;
    bool over;      /* all its work has finished */
    uint64_t ns;    /* its GPU time under the lease */
    uint64_t since; /* when its first work was sent, if the work does not finish; 0: it does */
    int cancel;     /* the thread's cancel state before */
    struct gf_leaving *next;
};
