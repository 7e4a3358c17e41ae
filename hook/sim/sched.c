/* sched.c: how the busy processes of a device share its time.
 *
 * Those that take turns (no MPS percentage) have the whole device for a slice
 * at a time, and so have the MPS processes, all together: an MPS server is one
 * client of the device. Inside the MPS turn everybody runs. Each process has whole
 * SMs, its percentage rounded up, so three slices of 30% have 9 of 8 SMs: when
 * processes have more SMs together than there are, all are slower in proportion.
 *
 * While nobody starts or stops being busy all this is a fixed pattern, so the
 * device time a process has had at any moment, and the moment at which it will
 * have had a given amount, are arithmetic on struct sched. Rewriting it is the
 * only thing that needs the shared lock.
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

/* Turn time that entity 0 of n has had when x has passed since its slice began. */
static uint64_t turn_time(uint64_t x, uint64_t n)
{
    uint64_t period = n * SIM_SLICE_NS, rest = x % period;
    return x / period * SIM_SLICE_NS + (rest < SIM_SLICE_NS ? rest : SIM_SLICE_NS);
}

/* Of dt after the epoch, the turn time of entity k of n; phase is how much of its
 * slice entity 0 had used by then. */
static uint64_t share_of(uint64_t dt, uint64_t phase, unsigned n, unsigned k)
{
    if (n == 1)
        return dt;
    uint64_t skip = k * SIM_SLICE_NS, x = dt + phase;
    uint64_t had = k == 0 ? phase : 0;
    return x <= skip ? 0 : turn_time(x - skip, n) - had;
}

/* What an MPS process gets of its group's turn when the processes have `sum` of the SMs together. */
static uint64_t slowed(uint64_t share, uint64_t sum)
{
    return sum > SIM_FULL ? (uint64_t)((unsigned __int128)share * SIM_FULL / sum) : share;
}

/* Remembers how long anybody had had work, for who asks how busy the device was. */
static void keep_past(struct sched *s)
{
    if (s->epoch - s->past[(s->points - 1) % SIM_POINTS].at < SIM_POINT_NS)
        return;
    s->past[s->points % SIM_POINTS].at = s->epoch;
    s->past[s->points++ % SIM_POINTS].busy = s->busy;
}

/* Brings s to a later moment: credits everybody, passes the turn on. */
static void step(struct sched *s, uint64_t at)
{
    if (at <= s->epoch)
        return;
    uint64_t dt = at - s->epoch;
    keep_past(s);
    s->busy += s->n ? dt : 0;
    for (unsigned k = 0; k < s->n; k++) {
        uint64_t share = share_of(dt, s->phase, s->n, k);
        if (s->order[k] != SIM_GROUP)
            s->slot[s->order[k]].progress += share;
        for (unsigned i = 0; s->order[k] == SIM_GROUP && i < s->top; i++)
            if (s->slot[i].busy && s->slot[i].share)
                s->slot[i].progress += slowed(share, s->sum);
    }
    s->epoch = at;
    if (!s->n)
        return;
    uint64_t pos = (dt + s->phase) % (s->n * SIM_SLICE_NS);
    unsigned turns = (unsigned)(pos / SIM_SLICE_NS);
    s->phase = pos % SIM_SLICE_NS;
    uint16_t old[SIM_SLOTS + 1];
    memcpy(old, s->order, s->n * sizeof *old);
    for (unsigned k = 0; k < s->n; k++)
        s->order[k] = old[(k + turns) % s->n];
}

/* Takes an entity out of the order of turns. */
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

/* Puts a process into the pattern or takes it out. */
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

/* Takes a process out that is gone since a moment. */
void sched_remove(struct sched *s, unsigned slot, uint64_t at)
{
    if (s->slot[slot].busy) {
        step(s, at);
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

/* Whether somebody's turns come at other moments than before. */
static bool pattern_differs(const struct sched *a, const struct sched *b)
{
    uint32_t sa = a->sum > SIM_FULL ? a->sum : SIM_FULL, sb = b->sum > SIM_FULL ? b->sum : SIM_FULL;
    return a->n != b->n || sa != sb || (a->n > 1 && memcmp(a->order, b->order, a->n * sizeof *a->order));
}

/* Says from when on this process is busy or idle. A moment in the past is taken
 * as it is if nothing has changed since: a process that sees late that its work
 * has ended costs the others nothing. */
void sched_publish(struct device *d, bool busy, uint64_t at, uint64_t now)
{
    struct shared *sh = d->sh;
    bool ring[SIM_SLOTS], any = false;
    d->published = busy;
    if (!shared_lock(d))
        return;
    uint32_t gen = sh->gen;
    struct sched *cur = &sh->sched[gen & 1], *nxt = sched_next(sh);
    unsigned top = nxt->top;
    step(nxt, at > now ? now : at);
    set_busy(nxt, (unsigned)d->slot, busy);
    bool differs = nxt->n && pattern_differs(cur, nxt);
    for (unsigned i = 0; differs && i < top; i++)
        any |= ring[i] = nxt->slot[i].busy && i != (unsigned)d->slot;
    atomic_store(&sh->gen, gen + 1);
    shared_unlock(d);
    for (unsigned i = 0; any && i < top; i++)
        if (ring[i]) {
            atomic_fetch_add(&sh->proc[i].bell, 1);
            if (atomic_load(&sh->proc[i].asleep))
                futex(&sh->proc[i].bell, FUTEX_WAKE, 1, NULL);
        }
}

/* Reads this process's part of the pattern, without the lock. */
static const struct sched_view *view(struct device *d)
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

/* Device time this process has had at a moment, if it stays busy. */
uint64_t sched_progress(struct device *d, uint64_t at)
{
    const struct sched_view *v = view(d);
    if (at <= v->epoch || !v->n)
        return v->progress;
    uint64_t share = share_of(at - v->epoch, v->phase, v->n, v->k);
    return v->progress + (v->group ? slowed(share, v->sum) : share);
}

/* The moment at which this process will have had that much device time. */
uint64_t sched_when(struct device *d, uint64_t progress)
{
    const struct sched_view *v = view(d);
    if (progress <= v->progress || !v->n)
        return v->epoch;
    uint64_t need = progress - v->progress;
    if (v->group && v->sum > SIM_FULL)
        need = (uint64_t)(((unsigned __int128)need * v->sum + SIM_FULL - 1) / SIM_FULL);
    if (v->n == 1)
        return v->epoch + need;
    uint64_t y = need + (v->k == 0 ? v->phase : 0), periods = (y - 1) / SIM_SLICE_NS;
    uint64_t x = periods * v->n * SIM_SLICE_NS + (y - periods * SIM_SLICE_NS);
    return v->epoch + x + v->k * SIM_SLICE_NS - v->phase;
}

uint64_t sched_progress_of(const struct sched *s, unsigned slot, uint64_t at)
{
    unsigned k = 0, id = s->slot[slot].share ? SIM_GROUP : slot;
    while (k < s->n && s->order[k] != id)
        k++;
    if (at <= s->epoch || k == s->n)
        return s->slot[slot].progress;
    uint64_t share = share_of(at - s->epoch, s->phase, s->n, k);
    return s->slot[slot].progress + (id == SIM_GROUP ? slowed(share, s->sum) : share);
}

bool sched_out(struct device *d)
{
    return !view(d)->busy;
}

void sched_tell(struct device *d, uint64_t until)
{
    atomic_store_explicit(&d->sh->proc[d->slot].until, until, memory_order_relaxed);
}

/* Whether other processes have work on the device too. */
bool sched_contended(struct device *d)
{
    return view(d)->others;
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

/* Sleeps until the bell has rung since `seen`, or until a moment (0: for ever). */
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
