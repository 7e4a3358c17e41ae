/* state.c: reads the state that the simulated driver's processes share.
 *
 * The calling process may be one of them, and closing a descriptor of the state file would release the locks by which
 * the others know that it lives. So an opened descriptor stays open while the file exists, which is as long as a process
 * is on the device. */
#include "library.h"
#include "../shared.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define TRIES 1000

static struct shared state; /* a copy; under entry.c's lock */

/* Opens the state of a device that may be in use; -1 if there is none. */
static int open_state(struct nvmlDevice_st *device)
{
    char name[SIM_NAME];
    shared_state_name(name, device->index);
    if (device->fd >= 0 && shared_is_current(device->fd, name))
        return device->fd;
    if (device->fd >= 0)
        close(device->fd); /* no process is on it, not even this one */
    return device->fd = shared_open(name, O_RDONLY); /* not moved to a higher number, which would close one */
}

/* Copies the state at a moment when it was consistent. */
static nvmlReturn_t copy_state(int fd)
{
    for (int i = 0; i < TRIES; i++) {
        uint32_t gen;
        if (pread(fd, &state, sizeof state, 0) != (ssize_t)sizeof state || state.magic != SIM_MAGIC)
            return NVML_ERROR_NOT_FOUND; /* a process is creating it */
        if (state.layout != SIM_LAYOUT)
            return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
        if (pread(fd, &gen, sizeof gen, offsetof(struct shared, gen)) == (ssize_t)sizeof gen && gen == atomic_load(&state.gen))
            return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}

/* Returns for how long any process had had work at a recent moment. */
static uint64_t busy_at(const struct sched *s, uint64_t at)
{
    uint64_t later_at = s->epoch, later_busy = s->busy;
    if (at >= s->epoch)
        return s->busy + (s->n ? at - s->epoch : 0);
    for (uint32_t i = 1; i <= SIM_POINTS; i++) {
        uint64_t point = s->past[(s->points - i) % SIM_POINTS].at, busy = s->past[(s->points - i) % SIM_POINTS].busy;
        if (at >= point)
            return later_at == point ? busy : busy + (later_busy - busy) * (at - point) / (later_at - point);
        later_at = point;
        later_busy = busy;
    }
    return later_busy;
}

/* Returns the device time that a process had had at a moment after the state was written. */
static uint64_t device_time_at(const struct sched *s, unsigned slot, uint64_t at)
{
    uint64_t had = s->slot[slot].progress;
    if (!s->slot[slot].busy || !s->n || at <= s->epoch)
        return had;
    uint64_t turns = (at - s->epoch) / s->n;
    bool slowed = s->slot[slot].share && s->sum > SIM_FULL;
    return had + (slowed ? (uint64_t)((unsigned __int128)turns * SIM_FULL / s->sum) : turns);
}

/* The device time of a process at its last two queries, whose difference is its utilization. */
struct looks {
    uint64_t serial;
    struct look {
        uint64_t at, had;
    } last, before; /* at 0: no query yet */
};
static struct looks looks[SIM_MAX_DEVICES][SIM_SLOTS];

static unsigned busy_since(struct looks *l, uint64_t serial, struct look now)
{
    if (l->serial != serial)
        *l = (struct looks){.serial = serial, .last = now};
    if (now.at - l->last.at >= SIM_SIGHT_NS) {
        l->before = l->last;
        l->last = now;
    }
    if (!l->before.at || now.had <= l->before.had)
        return 0;
    uint64_t percent = (now.had - l->before.had) * 100 / (now.at - l->before.at);
    return percent < 100 ? (unsigned)percent : 100;
}

static struct user users[SIM_SLOTS]; /* under entry.c's lock */

static void see_users(int fd, int index, struct sight *s)
{
    const struct sched *sched = &state.sched[atomic_load(&state.gen) & 1];
    unsigned alive = 0;
    for (unsigned i = 0; i < sched->top; i++) {
        int pid = state.proc[i].serial && !state.proc[i].away ? shared_holder(fd, i) : 0;
        if (!pid)
            continue;
        alive++;
        uint64_t mem = atomic_load(&state.proc[i].mem);
        s->used += mem;
        struct look now = {s->at, device_time_at(sched, i, s->at)};
        unsigned busy = busy_since(&looks[index][i], state.proc[i].serial, now);
        if (pid > 0)
            users[s->n++] = (struct user){(unsigned)pid, mem, sched->slot[i].share != 0, busy};
    }
    if (alive)
        s->busy = (unsigned)((busy_at(sched, s->at) - busy_at(sched, s->at - SIM_SIGHT_NS)) * 100 / SIM_SIGHT_NS);
}

nvmlReturn_t sim_read(struct nvmlDevice_st *device, struct sight *s)
{
    int fd = open_state(device);
    *s = (struct sight){.total = g_config.mem, .user = users};
    if (fd < 0)
        return NVML_SUCCESS;
    nvmlReturn_t r = copy_state(fd);
    if (r == NVML_ERROR_NOT_FOUND)
        return NVML_SUCCESS;
    if (r != NVML_SUCCESS)
        return r;
    s->used = atomic_load(&state.unowned);
    s->at = now_ns();
    see_users(fd, device->index, s);
    if (s->n || s->used)
        s->total = state.total;
    if (s->used > s->total) /* a process's memory changed during the copy */
        s->used = s->total;
    return r;
}

unsigned sim_count(void)
{
    unsigned count = g_config.count;
    for (unsigned i = SIM_MAX_DEVICES; i > count; i--)
        if (open_state(&sim_devices[i - 1]) >= 0)
            return i;
    return count;
}
