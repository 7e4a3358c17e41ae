/* sched.c: how the busy processes of a device share its time.
 *
 * A process without an MPS percentage takes turns: it gets the whole device for one time
 * slice at a time. All MPS processes together take turns like one such process, because
 * an MPS server is one client of the device; within their turn, all of them run. What
 * takes turns, a process or the group of MPS processes, is called an entity.
 *
 * Each MPS process has whole SMs, its percentage rounded up. So on a device of 8 SMs,
 * three processes of 30% have 3 SMs each, 9 in total. If the processes have more SMs in
 * total than the device, all of them are slower in proportion.
 *
 * While no process starts or stops being busy, the turns are a fixed pattern. So two
 * values follow from struct sched by arithmetic: the device time that a process has had
 * at any time, and the time at which it will have had a given amount. Only changes of
 * struct sched need the shared lock.
 */
#include "shared.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long futex(_Atomic uint32_t *w, int op, uint32_t val, const struct timespec *ts)
{
    return syscall(SYS_futex, w, op, val, ts, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* Returns the device time that an entity gets in the ns after one of its time slices began, if n entities take
 * turns. */
static uint64_t turn_time(uint64_t ns, uint64_t n)
{
    uint64_t period = n * SIM_TIMESLICE_NS, rest = ns % period;
    return ns / period * SIM_TIMESLICE_NS + (rest < SIM_TIMESLICE_NS ? rest : SIM_TIMESLICE_NS);
}

/* Returns the device time that entity k of n gets in the dt ns after the epoch. phase is the part of its time
 * slice that entity 0 had used at the epoch. */
static uint64_t share_of(uint64_t dt, uint64_t phase, unsigned n, unsigned k)
{
    if (n == 1)
        return dt;
    uint64_t first_turn = k * SIM_TIMESLICE_NS, ns = dt + phase; /* both since the time slice of entity 0 began */
    uint64_t used_before = k == 0 ? phase : 0;
    return ns <= first_turn ? 0 : turn_time(ns - first_turn, n) - used_before;
}

/* Returns the device time of an MPS process, given that of its group: less if the MPS processes have more SMs
 * than the device (`sum`, in SIM_FULLths). */
static uint64_t scaled_share(uint64_t share, uint64_t sum)
{
    return sum > SIM_FULL ? (uint64_t)((unsigned __int128)share * SIM_FULL / sum) : share;
}

/* Stores the value of `busy` at the epoch, unless the last stored one is recent. The utilization in NVML is computed
 * from these values. */
static void record_past(struct sched *s)
{
    if (s->epoch - s->past[(s->points - 1) % SIM_POINTS].at < SIM_POINT_NS)
        return;
    s->past[s->points % SIM_POINTS].at = s->epoch;
    s->past[s->points++ % SIM_POINTS].busy = s->busy;
}

/* Moves the epoch to a later time: adds the device time that all processes have had until then, and rotates the
 * order of turns. */
static void advance(struct sched *s, uint64_t at)
{
    if (at <= s->epoch)
        return;
    uint64_t dt = at - s->epoch;
    record_past(s);
    s->busy += s->n ? dt : 0;
    for (unsigned k = 0; k < s->n; k++) {
        uint64_t share = share_of(dt, s->phase, s->n, k);
        if (s->order[k] != SIM_GROUP)
            s->slot[s->order[k]].progress += share;
        for (unsigned i = 0; s->order[k] == SIM_GROUP && i < s->top; i++)
            if (s->slot[i].busy && s->slot[i].share)
                s->slot[i].progress += scaled_share(share, s->sum);
    }
    s->epoch = at;
    if (!s->n)
        return;
    uint64_t pos = (dt + s->phase) % (s->n * SIM_TIMESLICE_NS);
    unsigned turns = (unsigned)(pos / SIM_TIMESLICE_NS);
    s->phase = pos % SIM_TIMESLICE_NS;
    uint16_t old[SIM_SLOTS + 1];
    memcpy(old, s->order, s->n * sizeof *old);
    for (unsigned k = 0; k < s->n; k++)
        s->order[k] = old[(k + turns) % s->n];
}

/* Removes an entity from the order of turns. */
static void leave_order(struct sched *s, unsigned id)
{
    for (unsigned k = 0; k < s->n; k++) {
        if (s->order[k] != id)
            continue;
        memmove(s->order + k, s->order + k + 1, (s->n - k - 1) * sizeof *s->order);
        s->n--;
        if (k == 0)
            s->phase = 0;
        return;
    }
}

/* Adds a process to the pattern, or removes it. */
static void set_busy(struct sched *s, unsigned slot, bool busy)
{
    uint32_t share = s->slot[slot].share;
    if (s->slot[slot].busy == busy)
        return;
    s->slot[slot].busy = busy;
    uint32_t before = s->sum;
    if (share)
        s->sum = busy ? before + share : before - share;
    unsigned id = share ? SIM_GROUP : slot;
    if (busy && (!share || before == 0))
        s->order[s->n++] = (uint16_t)id;
    if (busy && s->n == 1)
        s->phase = 0;
    if (!busy && (!share || s->sum == 0))
        leave_order(s, id);
}

struct sched *sched_next(struct shared *sh)
{
    const struct sched *now = &sh->sched[sh->gen & 1];
    struct sched *next = &sh->sched[(sh->gen + 1) & 1];
    memcpy(next, now, offsetof(struct sched, order[now->n]));
    memcpy(next->slot, now->slot, now->top * sizeof *now->slot);
    return next;
}

/* Removes a process that ended at that time. */
void sched_remove(struct sched *s, unsigned slot, uint64_t at)
{
    if (s->slot[slot].busy) {
        advance(s, at);
        set_busy(s, slot, false);
    }
}

void sched_reset_slot(struct sched *s, unsigned slot, uint32_t share)
{
    if (slot >= s->top) {
        s->slot[slot].busy = 0;
        s->top = slot + 1;
    }
    s->slot[slot].progress = 0;
    s->slot[slot].share = share;
}

/* Reports whether the turns of the two patterns differ. */
static bool pattern_differs(const struct sched *a, const struct sched *b)
{
    uint32_t sa = a->sum > SIM_FULL ? a->sum : SIM_FULL, sb = b->sum > SIM_FULL ? b->sum : SIM_FULL;
    return a->n != b->n || sa != sb || (a->n > 1 && memcmp(a->order, b->order, a->n * sizeof *a->order));
}

/* Publishes that this process is busy, or idle, from the time `at` on. If nothing has changed since, that may be in
 * the past: then a process that notices the end of its work late takes no device time from the others. Wakes the
 * busy processes whose turns change. */
void sched_publish(struct device *d, bool busy, uint64_t at, uint64_t now)
{
    struct shared *sh = d->sh;
    bool wake[SIM_SLOTS], any_to_wake = false;
    d->published = busy;
    if (!shared_lock(d))
        return;
    uint32_t gen = sh->gen;
    struct sched *current = &sh->sched[gen & 1], *next = sched_next(sh);
    unsigned top = next->top;
    advance(next, at > now ? now : at);
    set_busy(next, (unsigned)d->slot, busy);
    bool differs = next->n && pattern_differs(current, next);
    for (unsigned i = 0; differs && i < top; i++)
        any_to_wake |= wake[i] = next->slot[i].busy && i != (unsigned)d->slot;
    atomic_store(&sh->gen, gen + 1);
    shared_unlock(d);
    for (unsigned i = 0; any_to_wake && i < top; i++)
        if (wake[i]) {
            atomic_fetch_add(&sh->proc[i].bell, 1);
            if (atomic_load(&sh->proc[i].asleep))
                futex(&sh->proc[i].bell, FUTEX_WAKE, 1, NULL);
        }
}

/* Returns this process's view of the pattern of turns, read without the lock. */
static const struct sched_view *current_view(struct device *d)
{
    struct sched_view *v = &d->view;
    uint32_t gen = atomic_load_explicit(&d->sh->gen, memory_order_acquire);
    while (!v->valid || v->gen != gen) {
        const volatile struct sched *s = &d->sh->sched[gen & 1];
        unsigned slot = (unsigned)d->slot, id = s->slot[slot].share ? SIM_GROUP : slot;
        v->group = id == SIM_GROUP;
        v->busy = s->slot[slot].busy;
        v->n = s->n;
        v->sum = s->sum;
        v->epoch = s->epoch;
        v->phase = s->phase;
        v->progress = s->slot[slot].progress;
        v->others = v->n > 1 || (v->group && v->sum > s->slot[slot].share);
        for (v->k = 0; v->k < v->n && v->k < SIM_SLOTS && s->order[v->k] != id;)
            v->k++;
        v->gen = gen;
        atomic_thread_fence(memory_order_acquire);
        gen = atomic_load_explicit(&d->sh->gen, memory_order_acquire);
        v->valid = v->gen == gen;
    }
    return v;
}

/* Returns the device time that this process will have had at a time, if it stays busy. */
uint64_t sched_progress(struct device *d, uint64_t at)
{
    const struct sched_view *v = current_view(d);
    if (at <= v->epoch || !v->n)
        return v->progress;
    uint64_t share = share_of(at - v->epoch, v->phase, v->n, v->k);
    return v->progress + (v->group ? scaled_share(share, v->sum) : share);
}

/* Returns the time at which this process will have had that much device time. */
uint64_t sched_when(struct device *d, uint64_t progress)
{
    const struct sched_view *v = current_view(d);
    if (progress <= v->progress || !v->n)
        return v->epoch;
    uint64_t need = progress - v->progress;
    if (v->group && v->sum > SIM_FULL)
        need = (uint64_t)(((unsigned __int128)need * v->sum + SIM_FULL - 1) / SIM_FULL);
    if (v->n == 1)
        return v->epoch + need;
    uint64_t y = need + (v->k == 0 ? v->phase : 0), periods = (y - 1) / SIM_TIMESLICE_NS;
    uint64_t x = periods * v->n * SIM_TIMESLICE_NS + (y - periods * SIM_TIMESLICE_NS);
    return v->epoch + x + v->k * SIM_TIMESLICE_NS - v->phase;
}

uint64_t sched_progress_of(const struct sched *s, unsigned slot, uint64_t at)
{
    unsigned k = 0, id = s->slot[slot].share ? SIM_GROUP : slot;
    while (k < s->n && s->order[k] != id)
        k++;
    if (at <= s->epoch || k == s->n)
        return s->slot[slot].progress;
    uint64_t share = share_of(at - s->epoch, s->phase, s->n, k);
    return s->slot[slot].progress + (id == SIM_GROUP ? scaled_share(share, s->sum) : share);
}

bool sched_removed(struct device *d)
{
    return !current_view(d)->busy;
}

void sched_set_until(struct device *d, uint64_t until)
{
    atomic_store_explicit(&d->sh->proc[d->slot].until, until, memory_order_relaxed);
}

/* Reports whether other processes have work on the device. */
bool sched_contended(struct device *d)
{
    return current_view(d)->others;
}

void gate_sleep(struct gate *g, uint32_t seen)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_sec++;
    futex(&g->state, FUTEX_WAIT_BITSET, seen, &ts);
}

void gate_wake(struct gate *g)
{
    futex(&g->state, FUTEX_WAKE, INT_MAX, NULL);
}

uint32_t shared_bell(struct device *d)
{
    return atomic_load(&d->sh->proc[d->slot].bell);
}

/* Sleeps until the process's bell differs from `seen`, or until that time (0: no limit). */
void shared_bell_wait(struct device *d, uint32_t seen, uint64_t until)
{
    struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    atomic_store(&d->sh->proc[d->slot].asleep, 1);
    futex(&d->sh->proc[d->slot].bell, FUTEX_WAIT_BITSET, seen, until ? &ts : NULL);
    atomic_store(&d->sh->proc[d->slot].asleep, 0);
}

void shared_bell_ring(struct device *d)
{
    atomic_fetch_add(&d->sh->proc[d->slot].bell, 1);
    if (atomic_load(&d->sh->proc[d->slot].asleep))
        futex(&d->sh->proc[d->slot].bell, FUTEX_WAKE, 1, NULL);
}
