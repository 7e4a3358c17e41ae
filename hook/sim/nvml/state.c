/* state.c: reads the state that the simulated driver's processes share.
 *
 * This may be one of those processes: closing a descriptor of the state would drop
 * the locks by which the others know that it lives. So one that was opened stays
 * open while there is the file, which is as long as anybody is on the device. */
#include "library.h"
#include "../shared.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TRIES 1000

static struct shared state; /* a copy; under entry.c's lock */

static uint64_t now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The state of a device that may be in use; -1: there is none. */
static int open_state(struct nvmlDevice_st *device)
{
    char name[SIM_NAME];
    shared_state_name(name, device->index);
    if (device->fd >= 0 && shared_still_there(device->fd, name))
        return device->fd;
    if (device->fd >= 0)
        close(device->fd); /* nobody is on it, this process neither */
    return device->fd = shared_open(name, O_RDONLY); /* at the number it gets: to move it would be to close one */
}

/* Copies the state at a moment when it was true. */
static nvmlReturn_t copy_state(int fd)
{
    for (int i = 0; i < TRIES; i++) {
        uint32_t gen;
        if (pread(fd, &state, sizeof state, 0) != (ssize_t)sizeof state || state.magic != SIM_MAGIC)
            return NVML_ERROR_NOT_FOUND; /* somebody is just making it */
        if (state.layout != SIM_LAYOUT)
            return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
        if (pread(fd, &gen, sizeof gen, offsetof(struct shared, gen)) == (ssize_t)sizeof gen && gen == atomic_load(&state.gen))
            return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}

/* How long anybody had had work by a moment that is not long ago. */
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

/* Device time that a process had had by a moment after the state was written. */
static uint64_t had_at(const struct sched *s, unsigned slot, uint64_t at)
{
    uint64_t had = s->slot[slot].progress;
    if (!s->slot[slot].busy || !s->n || at <= s->epoch)
        return had;
    uint64_t turns = (at - s->epoch) / s->n;
    bool slowed = s->slot[slot].share && s->sum > SIM_FULL;
    return had + (slowed ? (uint64_t)((unsigned __int128)turns * SIM_FULL / s->sum) : turns);
}

/* What a process had had at two looks, a while apart: what it has had since the one
 * before is told. */
struct looks {
    uint64_t serial;
    struct look {
        uint64_t at, had;
    } last, before; /* at 0: none yet */
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
        unsigned busy = busy_since(&looks[index][i], state.proc[i].serial, (struct look){s->at, had_at(sched, i, s->at)});
        if (pid > 0)
            users[s->n++] = (struct user){(unsigned)pid, mem, sched->slot[i].share != 0, busy};
    }
    if (alive)
        s->busy = (unsigned)((busy_at(sched, s->at) - busy_at(sched, s->at - SIM_SIGHT_NS)) * 100 / SIM_SIGHT_NS);
}

nvmlReturn_t sim_see(struct nvmlDevice_st *device, struct sight *s)
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
    s->at = now();
    see_users(fd, device->index, s);
    if (s->n || s->used)
        s->total = state.total;
    if (s->used > s->total) /* what a process has was changed meanwhile */
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
