/* gate.c: passes work to the driver while the gate word is open.
 *
 * A launching thread sets its `busy` flag and then reads the gate word. The thread
 * that closes the gate writes the gate word and then reads the flags (gf_quiesce).
 * Both sides need a fence between their store and their load. Gates close about ten
 * times per second, while launches happen 100,000 times, so the closing side
 * executes both fences with membarrier(2). */
#include "gate.h"

#include "terminate.h"
#include "budget.h"
#include "clock.h"
#include "device.h"
#include "fault.h"
#include "link.h"
#include "memory.h"
#include "meter.h"
#include "query.h"
#include "real.h"
#include "stream.h"
#include "thread.h"
#include "visible.h"
#include "wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_key_t at_thread_end;
static bool have_key;
static bool have_membarrier;

#define BLOCKED_NS 1000000u /* calls that only send work seldom take longer */

/* Returns the pieces of work that the line may send before its next mark is due. */
static int64_t unsent(const struct gf_line *line)
{
    return gf_metered(line->device) ? line->marked : line->until - line->launches;
}

/* Makes the thread forget the line's stream and returns the line's unused pieces of work to
 * the stream's entry, which exists while the lease holds. */
static void release_stream(struct gf_line *line)
{
    if (!gf_load(&line->stream))
        return;
    __atomic_store_n(&line->busy, 1, __ATOMIC_SEQ_CST);
    uint32_t lease = __atomic_load_n(gf_load(&line->device->gate), __ATOMIC_SEQ_CST);
    if (line->entry && line->lease == lease && gf_load(&line->stream))
        gf_meter_return(line->entry, unsent(line));
    gf_store(&line->stream, NULL);
    __atomic_store_n(&line->busy, 0, __ATOMIC_RELEASE);
}

void gf_forget_thread(void)
{
    for (unsigned i = 0; i < GF_LINES; i++)
        release_stream(&gf_self.line[i]);
}

/* Removes the calling thread from the list. */
static void unregister(struct gf_thread *self)
{
    gf_forget_thread();
    gf_thread_remove(self);
    gf_stream_thread_gone(self);
}

/* Destructor of the thread's key. Another destructor may still send work after it. It is not
 * needed again then, and this may have been the last round of destructors. */
static void thread_ends(void *arg)
{
    struct gf_thread *self = arg;
    unregister(self);
    self->brief = true;
}

static void leave_brief(void)
{
    int saved = errno;
    unregister(&gf_self);
    errno = saved;
}

static void gate_init(void)
{
    have_key = pthread_key_create(&at_thread_end, thread_ends) == 0;
    have_membarrier = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void gf_gate_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, gate_init);
}

static void register_thread(struct gf_thread *self)
{
    gf_gate_init();
    gf_thread_forget(self);
    if (!self->brief)
        self->brief = !have_key || pthread_setspecific(at_thread_end, self) != 0;
    for (unsigned i = 0; i < GF_LINES; i++)
        self->line[i].slow_end = self->brief;
    gf_thread_add(self);
}

/* Waits until the gate of the line's device is open and, if blocks are metered, `blocks` of
 * them may be launched. Marks the line busy and returns the lease. Returns 0, with the line
 * not busy, if the wait was given up. */
static uint32_t pass(struct gf_line *line, uint64_t blocks)
{
    struct gf_device *device = line->device;
    struct gf_patience patience = {0};
    bool closed = false;
    uint32_t lease;
    if (gf_visible_hides((CUdevice)gf_ordinal(device)))
        return 0;
    for (;;) {
        gf_link_start(device);
        __atomic_store_n(&line->busy, 1, __ATOMIC_SEQ_CST);
        uint32_t *word = __atomic_load_n(&device->gate, __ATOMIC_SEQ_CST), seen = 0;
        lease = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        if (lease) {
            struct gf_slot *slot = gf_load(&device->slot);
            word = &slot->refill;
            seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
            if (!blocks || !gf_metered(device) || gf_spend(slot, blocks))
                break;
        }
        __atomic_store_n(&line->busy, 0, __ATOMIC_RELEASE);
        if (!patience.began) {
            gf_patience_begin(&patience);
            __atomic_add_fetch(&device->waiting, 1, __ATOMIC_SEQ_CST);
        }
        closed |= !lease;
        if (!lease)
            gf_link_request(device);
        if (!gf_wait(device, &patience, word, seen)) {
            lease = 0;
            break;
        }
    }
    if (lease)
        gf_terminate_clear();
    if (patience.began) {
        __atomic_sub_fetch(&device->waiting, 1, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&gf_load(&device->slot)->blocked_ns, gf_now_ns() - patience.began, __ATOMIC_RELAXED);
    }
    if (closed)
        gf_link_kick(device);
    gf_patience_end(&patience);
    return lease;
}

/* Registers the calling thread, unless the library would not notice its end. */
static bool register_for_good(void)
{
    if (!gf_self.known)
        register_thread(&gf_self);
    if (gf_self.brief)
        unregister(&gf_self);
    return !gf_self.brief;
}

/* Sets the line's device. If the device is unknown, the call should fail in the driver, but it
 * still passes the gate of the first device, so that no work is ungated. */
static void set_device(struct gf_line *line, struct gf_device *device)
{
    if (!device)
        device = gf_devices;
    release_stream(line);
    if (line->device == device)
        return;
    gf_line_set_device(line, device);
}

GF_COLD struct gf_line *gf_enter_sync_slow(struct gf_line *line)
{
    int saved = errno;
    gf_store(&line->busy, 0);
    if (!gf_self.known)
        register_thread(&gf_self);
    if (!gf_load(&line->stream)) {
        struct gf_device *device = gf_device_current();
        set_device(line, device);
        if (device)
            gf_store(&line->stream, CU_STREAM_LEGACY);
    }
    bool passed = pass(line, 0);
    if (!passed && gf_self.brief)
        unregister(&gf_self);
    errno = saved;
    return passed ? line : NULL;
}

void gf_weigh(struct gf_line *line, int32_t pieces)
{
    if (gf_metered(line->device))
        line->marked -= pieces - 1;
    else
        gf_store(&line->until, line->until - (pieces - 1));
}

void gf_mark_next(CUstream stream)
{
    struct gf_line *line = &gf_self.line[gf_line_index(stream)];
    if (gf_load(&line->stream) == stream)
        release_stream(line);
    gf_self.marks = true;
}

/* Updates the line with what the thread may send under the lease. */
static void update(struct gf_line *line, CUstream stream, uint32_t lease, uint64_t blocks)
{
    struct gf_device *device = line->device;
    bool known = line->lease == lease && gf_load(&line->stream) == stream;
    bool metered = gf_metered(device);
    if (!known) {
        /* The functions below may query events while the program captures a stream. */
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        gf_real.cuThreadExchangeStreamCaptureMode(&mode);
        gf_store(&line->entry, gf_stream_use(device, stream, lease)); /* other threads read it */
        line->counts = &gf_self.counts[gf_ordinal(device)];
        gf_store(&line->lease, lease);
        gf_store(&line->stream, stream);
        gf_swap_in(device, stream);
        gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    }
    line->spent = metered ? blocks : 0;
    line->slow_end = line->spent || (line->entry && line->entry->owner) || gf_self.brief;
    int64_t rest = known ? unsent(line) : 0;
    gf_store(&line->until, line->launches);
    if (metered && rest > 0) {
        line->marked--; /* metered launches all take this path */
        return;
    }
    line->marked = line->entry ? gf_meter_mark(line->entry, rest, gf_self.marks) : -1;
    if (line->marked < 0)
        gf_store(&line->stream, NULL); /* take this path again next time */
    else if (!metered)
        gf_store(&line->until, line->until + 1 + line->marked);
}

struct gf_waiting gf_enter_wait(CUstream stream, bool inside)
{
    struct gf_waiting waiting = {0};
    struct gf_device *device = stream == CU_STREAM_PER_THREAD && !register_for_good() ? NULL : gf_device_of_stream(stream);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    gf_store(&gf_waits, true);
    if (!device)
        return waiting;
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    struct gf_stream *entry = gf_stream_open(device, stream);
    if (entry) {
        waiting = gf_wait_begin(entry, inside);
        gf_stream_close(entry);
    }
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    return waiting;
}

GF_COLD struct gf_line *gf_enter_slow(CUstream stream, uint64_t blocks)
{
    struct gf_thread *self = &gf_self;
    struct gf_line *line = &self->line[gf_line_index(stream)];
    int saved = errno;
    gf_store(&line->busy, 0);
    bool known = gf_load(&line->stream) == stream && !gf_load(&gf_captured);
    if (!self->known)
        register_thread(self);
    if (!known && gf_capturing(stream)) {
        line = &self->line[GF_UNTRACKED];
        line->counts = &self->uncounted;
    } else {
        if (gf_load(&line->stream) != stream)
            set_device(line, gf_device_of_stream(stream));
        uint32_t lease = pass(line, blocks);
        if (!lease) {
            self->marks = false;
            if (self->brief)
                unregister(self);
            errno = saved;
            return NULL;
        }
        update(line, stream, lease, blocks);
    }
    self->marks = false;
    errno = saved;
    return line;
}

/* Wakes the helper, which returns the lease if nothing was sent under it. A line without a
 * device has no lease. */
static void refused(struct gf_line *line)
{
    struct gf_device *device = line->device;
    if (device && !__atomic_exchange_n(&device->refused, 1, __ATOMIC_RELAXED)) {
        int saved = errno;
        gf_link_kick(device);
        errno = saved;
    }
}

GF_COLD void gf_done_uncounted(struct gf_line *line, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        if (line->spent)
            gf_unspend(gf_load(&line->device->slot), line->spent);
        refused(line);
    } else if (line->entry && line->entry->owner) {
        gf_meter_after(line->entry);
    }
    if (gf_self.brief)
        leave_brief();
}

GF_COLD void gf_done_slow(struct gf_line *line, uint64_t kernels, CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        gf_count(line, kernels);
    gf_done_uncounted(line, result);
    if (result != CUDA_SUCCESS) {
        gf_leave_sync(line); /* the helper may wait for the line, and gf_saw for the helper */
        gf_saw(result, call);
    }
}

GF_COLD void gf_left_slow(struct gf_line *line, CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS)
        refused(line);
    if (line->slow_end)
        leave_brief();
    if (result != CUDA_SUCCESS) {
        gf_leave_sync(line);
        gf_saw(result, call);
    }
}

bool gf_quiesce(struct gf_device *device)
{
    uint64_t since = gf_now_ns();
    gf_gate_init();
    if (!have_membarrier || syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
        gf_pause_ns(1000000); /* store buffers drain much faster */
    for (unsigned before = UINT_MAX, now; (now = gf_busy(device)) > 0; before = now) {
        if (now < before)
            since = gf_now_ns();
        if (gf_now_ns() - since >= BLOCKED_NS && gf_meter_waits(device))
            return false; /* the call may last as long as a stream waits */
        if (gf_stuck(&since))
            return false;
        gf_pause_ns(20000);
    }
    return true;
}

void gf_gate_fork_child(void)
{
    if (have_membarrier)
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}
