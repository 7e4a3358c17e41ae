/* thread.h: the threads that send work, and what each remembers of its streams. */
#ifndef GFAAS_THREAD_H
#define GFAAS_THREAD_H

#include "hook.h"

#pragma GCC visibility push(hidden)

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

static inline unsigned gf_line_index(CUstream stream)
{
    return (unsigned)((uintptr_t)stream * 0x9e3779b97f4a7c15u >> 61); /* Fibonacci hashing */
}

/* All of these but the first take the lock of the list of threads. They take no other, and may
 * be called with device->lock. */

/* Makes a thread's lines those of no stream. Called by that thread, or locked. */
void gf_thread_forget(struct gf_thread *thread);
/* Adds the calling thread to the list; removes it, and keeps what it has counted. */
void gf_thread_add(struct gf_thread *self);
void gf_thread_remove(struct gf_thread *self);
/* Makes a line of the calling thread one of that device. */
void gf_line_set_device(struct gf_line *line, struct gf_device *device);
/* Returns how many pieces of work threads may still send to the stream before its next mark,
 * of those that they have taken. */
int64_t gf_lines_left(const struct gf_stream *entry);
/* Makes every thread forget its context's streams. */
void gf_forget_all(void);
/* Makes every thread forget the stream that has the entry. */
void gf_forget_entry(const struct gf_stream *entry);
/* Returns how many threads are inside a call that sends work to the device. */
unsigned gf_busy(struct gf_device *device);
/* Returns the kernels launched, and other pieces of work sent to streams, on a device by
 * all threads since the process began. */
struct gf_counts gf_count_all(struct gf_device *device);
static inline uint64_t gf_works(struct gf_counts c) { return c.launches + c.copies; }

/* Reports whether what has made no progress since *since, in ns, hangs; takes no lock. It may
 * need a thread that waits at a gate: a host function or a kernel that waits for what that
 * thread is about to send, here or on another device. That cannot be told from work that takes
 * long: the result is true if for ten seconds nothing has ended and all the while a
 * thread has waited. While none waits, the function sets *since to the current time. */
bool gf_stuck(uint64_t *since);
void gf_thread_fork_child(void);

#pragma GCC visibility pop
#endif
