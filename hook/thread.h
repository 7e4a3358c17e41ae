/* thread.h: the threads that send work, and each one's lines for the streams it uses. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

#define GF_CACHED 8 /* lines for streams in a thread; gf_line_index chooses one */

/* A thread's cache of one stream to which it sends work. The fields that every launch reads are
 * in one cache line.
 *
 * A launch takes the fast path while `launches` is below `until`. Work other than one kernel moves
 * `until`, so that the difference is always a number of pieces of work. While blocks are metered,
 * `until` is never above `launches`: every launch takes the slow path, and `marked` counts down to
 * the next mark.
 *
 * `entry` may be dereferenced while `busy` is set and the lease in the gate is `lease`, because
 * entries are freed only after the gate was closed and no thread was busy (gf_quiesce). */
struct gf_line {
    CUstream stream __attribute__((aligned(64))); /* NULL: none */
    struct gf_device *device;
    int64_t launches; /* kernels launched through this line since it was set to the device */
    int64_t until;    /* the launch with this number takes the slow path; other threads read it */
    uint32_t lease;   /* the lease under which the stream was last used */
    uint32_t busy;    /* the thread is between reading the gate and the end of the driver's call */
    bool slow_end;    /* gf_done_slow or gf_left_slow must run even if the work was accepted */
    struct gf_counts *counts; /* the thread's other work on the device; kernels are in `launches` */
    struct gf_stream *entry;
    uint64_t spent; /* blocks of the last launch, if blocks are metered */
    int32_t marked; /* if blocks are metered: launches until the next mark */
};
enum { GF_SYNC = GF_CACHED, GF_UNTRACKED, GF_LINES }; /* the lines for synchronous calls, and for work that will not run */

struct gf_thread {
    struct gf_line line[GF_LINES];
    struct gf_counts counts[GF_DEVICES + 1]; /* by device */
    struct gf_counts uncounted;
    bool known;          /* is in the list of threads */
    bool brief;          /* registered for one call only, because the library would not notice its end */
    bool marks;          /* a mark is recorded before its next work */
    uint32_t in_multi_device_call; /* is inside a call that may send work to any device (multi.c) */
    struct gf_thread *next;
};
extern __thread struct gf_thread gf_self GF_TLS;

static inline unsigned gf_line_index(CUstream stream)
{
    return (unsigned)((uintptr_t)stream * 0x9e3779b97f4a7c15u >> 61); /* Fibonacci hashing */
}

/* All functions but gf_thread_forget take the lock of the list of threads and no other. They may
 * be called with device->lock held. */

/* Clears the streams of a thread's lines. Called by that thread, or with the list locked. */
void gf_thread_forget(struct gf_thread *thread);
/* Add the calling thread to the list, and remove it. The counts of a removed thread are kept. */
void gf_thread_add(struct gf_thread *self);
void gf_thread_remove(struct gf_thread *self);
/* Sets the device of a line of the calling thread. */
void gf_line_set_device(struct gf_line *line, struct gf_device *device);
/* Returns the pieces of work that threads hold for the stream and have not sent; they may
 * still send these before its next mark. */
int64_t gf_lines_left(const struct gf_stream *entry);
/* Makes every thread forget the streams of its context. */
void gf_forget_all(void);
/* Makes every thread forget the stream of the entry. */
void gf_forget_entry(const struct gf_stream *entry);
/* Returns the number of threads inside a call that sends work to the device. */
unsigned gf_busy(struct gf_device *device);
/* Returns the kernels launched and the other pieces of work sent to a device by all threads since
 * the process began. */
struct gf_counts gf_count_all(struct gf_device *device);
static inline uint64_t gf_works(struct gf_counts c) { return c.launches + c.copies; }

/* Reports whether work that has made no progress since *since (ns) hangs. It may depend on a
 * thread that waits at a gate: for example a host function, or a kernel that polls memory, may need
 * what that thread is about to send, here or on another device. The library cannot tell this from
 * work that takes long, so the result is true if nothing has finished for ten seconds and a thread
 * has waited all the time. While no thread waits, sets *since to the current time. Takes no lock. */
bool gf_stuck(uint64_t *since);
void gf_thread_fork_child(void);

#pragma GCC visibility pop
