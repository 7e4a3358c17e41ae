/* gate.h: lets work through while the gate word of its device is open. */
#ifndef GFAAS_GATE_H
#define GFAAS_GATE_H

#include "thread.h"
#include "wait.h"

#pragma GCC visibility push(hidden)

/* All of these are called by a thread of the program's, without a lock. */

/* Returns NULL if the program was asked to end: nothing is to be sent (GF_NOT_SENT). */
GF_COLD struct gf_line *gf_enter_slow(CUstream stream, uint64_t blocks);
/* The rest of gf_done, for work that was refused and for lines that are `late`; the
 * part of it that does not count the work. */
GF_COLD void gf_done_late(struct gf_line *line, uint64_t kernels, CUresult result, const char *call);
GF_COLD void gf_done_uncounted(struct gf_line *line, CUresult result);
GF_COLD struct gf_line *gf_enter_sync_slow(struct gf_line *line);
/* The rest of gf_left_sync, likewise. */
GF_COLD void gf_left_late(struct gf_line *line, CUresult result, const char *call);
/* Makes the last launch count for that many pieces of work. */
void gf_weigh(struct gf_line *line, int32_t pieces);
/* Has a mark recorded before the thread's next work, on that stream. */
void gf_mark_next(CUstream stream);
/* Makes this thread forget its context's streams. */
void gf_forget_thread(void);
/* Before a call that makes a stream wait for something outside the GPU; inside: that launches a
 * graph which may. gf_wait_end follows the call. */
struct gf_waiting gf_enter_wait(CUstream stream, bool inside);
/* Waits until no thread is inside a call that began under an open gate of the
 * device. Returns false if that hangs. Called by the helper. */
bool gf_quiesce(struct gf_device *device);
/* Prepares the gate, once. Whatever needs that calls it too, but in a process that has threads
 * it takes longer: cuInit calls it before the driver starts its own. */
void gf_gate_init(void);
void gf_gate_fork_child(void);

/* Called before work of that many kernel blocks goes to a stream: returns once
 * it may, with the line that gf_leave wants; NULL if it may not (gf_enter_slow). While the lease holds, the
 * stream is known and blocks are not metered this is a few loads and compares, and the blocks
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

#pragma GCC visibility pop
#endif
