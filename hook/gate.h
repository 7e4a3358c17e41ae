/* gate.h: passes work to the driver while the gate word of its device is open. */
#pragma once

#include "thread.h"
#include "wait.h"

#pragma GCC visibility push(hidden)

/* Threads of the program call these functions, without holding a lock. */

/* The slow path of gf_enter. Returns NULL if the program was asked to end; the caller then
 * sends nothing and returns GF_NOT_SENT. */
GF_COLD struct gf_line *gf_enter_slow(CUstream stream, uint64_t blocks);
/* The slow path of gf_done: for refused work and for lines with `slow_end`. gf_done_uncounted
 * is the part of it that does not count the work. */
GF_COLD void gf_done_slow(struct gf_line *line, uint64_t kernels, CUresult result, const char *call);
GF_COLD void gf_done_uncounted(struct gf_line *line, CUresult result);
GF_COLD struct gf_line *gf_enter_sync_slow(struct gf_line *line);
/* The slow path of gf_left_sync, for the same cases. */
GF_COLD void gf_left_slow(struct gf_line *line, CUresult result, const char *call);
/* Counts the last launch as `pieces` pieces of work. */
void gf_weigh(struct gf_line *line, int32_t pieces);
/* Requests a mark on that stream before the thread's next work. */
void gf_mark_next(CUstream stream);
/* Makes the calling thread forget the streams of its context. */
void gf_forget_thread(void);
/* Announces a call that makes a stream wait for something outside the GPU; `inside`: a launch of
 * a graph that may wait. The caller ends it with gf_wait_end after the call. */
struct gf_waiting gf_enter_wait(CUstream stream, bool inside);
/* Waits until no thread is inside a call that began under an open gate of the device. Returns
 * false if such a call does not return. The helper calls it. */
bool gf_quiesce(struct gf_device *device);
/* Prepares the gate once. Each function that needs the gate calls it; cuInit calls it before
 * the driver starts threads, because it takes longer in a process with several threads. */
void gf_gate_init(void);
void gf_gate_fork_child(void);

/* Returns a line once work of `blocks` kernel blocks may be sent to the stream, or NULL if it
 * may not (gf_enter_slow). The caller passes the line to gf_leave. While the lease holds, the
 * line knows the stream and blocks are not metered, this costs a few loads and compares, and
 * `blocks`, which may be a costly expression, is not evaluated. */
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

/* Like gf_enter, for work that has finished when the call returns. */
static inline struct gf_line *gf_enter_sync(void)
{
    struct gf_line *line = &gf_self.line[GF_SYNC];
    gf_store(&line->busy, 1);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (gf_unlikely(!gf_load(&line->stream) || !__atomic_load_n(gf_load(&line->device->gate), __ATOMIC_ACQUIRE)))
        return gf_enter_sync_slow(line);
    return line;
}

/* Counts a piece of work that the driver accepted: `kernels` kernels, or other work if 0. */
static inline void gf_count(struct gf_line *line, uint64_t kernels)
{
    if (kernels)
        gf_store(&line->launches, line->launches + (int64_t)kernels);
    else
        gf_store(&line->counts->copies, line->counts->copies + 1);
    if (kernels != 1) /* they are one piece of work */
        gf_store(&line->until, line->until + (int64_t)kernels - 1);
}

/* Ends a call after the driver's answer. Work is counted only now, and only if the driver
 * accepted it, so an unchanged count behind a closed gate shows that nothing was sent since. */
static inline void gf_done(struct gf_line *line, uint64_t kernels, CUresult result, const char *call)
{
    if (gf_likely(!((unsigned)line->slow_end | (unsigned)result)))
        gf_count(line, kernels);
    else
        gf_done_slow(line, kernels, result, call);
}

static inline void gf_leave_sync(struct gf_line *line)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&line->busy, 0, __ATOMIC_RELEASE);
}

/* Ends a call whose work had finished when the driver answered. */
static inline void gf_left_sync(struct gf_line *line, CUresult result, const char *call)
{
    if (gf_unlikely((unsigned)line->slow_end | (unsigned)result))
        gf_left_slow(line, result, call);
    gf_leave_sync(line);
}

static inline void gf_leave(struct gf_line *line, uint64_t kernels, CUresult result, const char *call)
{
    gf_done(line, kernels, result, call);
    gf_leave_sync(line);
}

#pragma GCC visibility pop
