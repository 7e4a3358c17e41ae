/* checkpoint.c: taking another process off its devices, and putting it back.
 *
 * Nothing runs in the process for it. All that there is to know of it is in its slots
 * of the devices' state (shared.h): its gate, which its calls pass (init.c), whether it
 * has work, what it occupies. Which slots are a process's their locks tell. Its bytes
 * stay where they are, memory of the host as ever; what moves is where they count, and
 * it takes the time that a link to the host would take.
 *
 * A process that is on no device is not found: it has nothing to be taken off. Who
 * works on a process may be killed at any moment, and another one goes on: each slot
 * says in one word whether it is off that device, and the gate says what may be done. */
#include "shared.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(CUcheckpointLockArgs) == 64 && sizeof(CUcheckpointCheckpointArgs) == 64 &&
                   sizeof(CUcheckpointRestoreArgs) == 64 && sizeof(CUcheckpointUnlockArgs) == 64, "as in NVIDIA's cuda.h");

#define GONE CUDA_ERROR_INVALID_VALUE /* there is no such process, or it has nothing to do with CUDA */
#define IN(state) (1u << (state))

/* A process's place on a device. */
struct place {
    struct device dev; /* what shared.c asks of one; joined: this process is on it too */
    unsigned slot;
    uint64_t serial;
};

struct process {
    int pid;
    unsigned n;
    struct place at[SIM_MAX_DEVICES];
    struct place *home; /* where its gate is */
};

static struct proc *slot_of(const struct place *p)
{
    return &p->dev.sh->proc[p->slot];
}

/* ---- finding it ---- */

static struct shared *map(int fd)
{
    void *p = MAP_FAILED;
    if (fd >= 0 && lseek(fd, 0, SEEK_END) >= (off_t)sizeof(struct shared))
        p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Gives the state of a device back. To close a descriptor of it would drop the locks by
 * which this process is on the device, if it has come there meanwhile: then it stays. */
static void put(struct device *d)
{
    pthread_mutex_lock(&g_lock);
    if (!d->joined && d->sh) {
        lost_forget(d->sh);
        munmap(d->sh, sizeof *d->sh);
    }
    if (!d->joined && d->fd >= 0 && !g_device[d->index].joined)
        close(d->fd);
    pthread_mutex_unlock(&g_lock);
}

/* The state of a device that somebody may be on; to be given back if it was got. */
static bool get(struct device *d, int index)
{
    char name[SIM_NAME];
    shared_state_name(name, index);
    *d = (struct device){.index = index, .fd = -1, .slot = -1};
    pthread_mutex_lock(&g_lock);
    const struct device *own = &g_device[index];
    if (own->joined && !own->left) {
        d->joined = true;
        d->fd = own->fd;
        d->sh = own->sh;
    } else if (!own->joined) {
        d->fd = shared_move_up(shared_open_file(name));
        d->sh = map(d->fd);
        if (d->sh)
            lost_watch(d->sh, sizeof *d->sh);
    }
    pthread_mutex_unlock(&g_lock);
    if (d->sh && d->sh->magic == SIM_MAGIC && d->sh->layout == SIM_LAYOUT)
        return true;
    put(d);
    return false;
}

/* Whether the process is where it was found. */
static bool there(const struct process *p, const struct place *at)
{
    return slot_of(at)->serial == at->serial && shared_holder(at->dev.fd, at->slot) == p->pid;
}

/* The process's place on a device; false where it has none. */
static bool look(const struct process *p, struct place *at, int index)
{
    if (!get(&at->dev, index))
        return false;
    for (at->slot = 0; at->slot < shared_top(at->dev.sh); at->slot++) {
        at->serial = slot_of(at)->serial;
        if (at->serial && there(p, at))
            return true;
    }
    put(&at->dev);
    return false;
}

static void drop(struct process *p)
{
    while (p->n)
        put(&p->at[--p->n].dev);
    p->home = NULL;
}

static CUresult find(struct process *p)
{
    p->n = 0;
    p->home = NULL;
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        struct place *at = &p->at[p->n];
        if (!look(p, at, i))
            continue;
        p->n++;
        if (slot_of(at)->home)
            p->home = at;
    }
    if (p->home)
        return CUDA_SUCCESS;
    drop(p);
    return GONE;
}

/* ---- what state it is in, and whether it is still ---- */

/* Everybody can write there: what is no state is the last of them. */
static uint32_t state_of(const struct process *p)
{
    uint32_t state = atomic_load(&slot_of(p->home)->gate.state);
    return state < SIM_BROKEN ? state : SIM_BROKEN;
}

/* Brings the process from one of some states to another. */
static CUresult turn(struct process *p, uint32_t from, uint32_t to)
{
    CUresult r = GONE;
    if (!shared_lock(&p->home->dev))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (there(p, p->home))
        r = IN(state_of(p)) & from ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
    if (r == CUDA_SUCCESS)
        atomic_store(&slot_of(p->home)->gate.state, to);
    shared_unlock(&p->home->dev);
    return r;
}

static CUresult release(struct process *p)
{
    CUresult r = turn(p, IN(SIM_LOCKED), SIM_RUNNING);
    if (r == CUDA_SUCCESS)
        gate_wake(&slot_of(p->home)->gate);
    return r;
}

static void sleep_until(uint64_t t)
{
    const struct timespec ts = {(time_t)(t / 1000000000u), (long)(t % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        continue;
}

/* After the state was written: a call that began meanwhile has been counted, or will see
 * the state. Its processor may have held back what it wrote; the kernel has all that run
 * threads catch up. Where it may not be asked, 10 ms are some thousand times as long as
 * a processor holds anything back. */
static void settle(void)
{
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) < 0)
        sleep_until(now_ns() + 10000000u);
}

/* Whether it is inside of no call, and where that is asked for has no work either. */
static bool still(const struct process *p, bool idle)
{
    bool busy = atomic_load(&slot_of(p->home)->gate.inside) != 0;
    for (unsigned i = 0; idle && i < p->n; i++)
        busy |= atomic_load(&slot_of(&p->at[i])->pending) != 0;
    return !busy;
}

/* Waits for that, until a moment unless it is 0. */
static CUresult wait_still(const struct process *p, bool idle, uint64_t until)
{
    const uint64_t least = 20000, most = 1000000;
    for (uint64_t pause = least; !still(p, idle); pause = pause < most ? 2 * pause : most) {
        if (!there(p, p->home))
            return GONE;
        if (until && now_ns() >= until)
            return CUDA_ERROR_NOT_READY;
        sleep_until(now_ns() + pause);
    }
    return there(p, p->home) ? CUDA_SUCCESS : GONE;
}

/* ---- its memory ---- */

/* Whether it has something that cannot leave a device. */
static bool has_fixed(const struct process *p)
{
    bool any = false;
    for (unsigned i = 0; i < p->n; i++)
        any |= atomic_load(&slot_of(&p->at[i])->fixed) != 0;
    return any;
}

static uint64_t occupied(const struct process *p)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < p->n; i++)
        bytes += atomic_load(&slot_of(&p->at[i])->mem);
    return bytes;
}

static void travel(uint64_t bytes)
{
    sleep_until(now_ns() + bytes / SIM_LINK_BYTES_PER_NS);
}

/* Takes it off a device. */
static CUresult park(const struct process *p, struct place *at)
{
    if (!shared_lock(&at->dev))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (there(p, at))
        slot_of(at)->away = 1;
    shared_unlock(&at->dev);
    return CUDA_SUCCESS;
}

/* Clears up after the dead. This process is none of them, which shared_reap knows of
 * the device that it is on. */
static void reap(const struct place *at)
{
    pthread_mutex_lock(&g_lock);
    struct device *own = &g_device[at->dev.index];
    struct device seen = at->dev;
    shared_reap(own->joined && !own->left ? own : &seen, now_ns());
    pthread_mutex_unlock(&g_lock);
}

/* Puts it back on a device if there is room; counts what had to come. */
static CUresult unpark_once(const struct process *p, struct place *at, uint64_t *bytes)
{
    CUresult r = CUDA_SUCCESS;
    if (!shared_lock(&at->dev))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (there(p, at) && slot_of(at)->away) {
        const uint64_t total = at->dev.sh->total, used = shared_mem_used(&at->dev), needs = slot_of(at)->mem;
        if (needs > total || used > total - needs)
            r = CUDA_ERROR_OUT_OF_MEMORY;
        else
            slot_of(at)->away = 0;
        *bytes += r == CUDA_SUCCESS ? needs : 0;
    }
    shared_unlock(&at->dev);
    return r;
}

static CUresult unpark(const struct process *p, struct place *at, uint64_t *bytes)
{
    CUresult r = unpark_once(p, at, bytes);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        reap(at);
        r = unpark_once(p, at, bytes);
    }
    return r;
}

/* ---- the calls ---- */

static bool may_trace(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
    return syscall(SYS_capget, &header, data) == 0 && data[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective & CAP_TO_MASK(CAP_SYS_PTRACE);
}

/* Finds the process that a call is about. */
static CUresult begin(struct process *p, int pid)
{
    CUresult r = sim_ready();
    if (r != CUDA_SUCCESS)
        return r;
    if (pid <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!may_trace())
        return CUDA_ERROR_NOT_PERMITTED;
    p->pid = pid;
    return find(p);
}

static CUresult end(struct process *p, CUresult r)
{
    drop(p);
    return r;
}

static bool zeros(const void *p, size_t n)
{
    const char *c = p;
    while (n && !c[n - 1])
        n--;
    return !n;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    static const CUprocessState told[] = {
        [SIM_RUNNING] = CU_PROCESS_STATE_RUNNING,
        [SIM_LOCKED] = CU_PROCESS_STATE_LOCKED,
        [SIM_LEAVING] = CU_PROCESS_STATE_CHECKPOINTED, /* it can be restored, and not unlocked */
        [SIM_AWAY] = CU_PROCESS_STATE_CHECKPOINTED,
        [SIM_BROKEN] = CU_PROCESS_STATE_CHECKPOINTED, /* as NVIDIA's driver says of it */
    };
    struct process p;
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = begin(&p, pid);
    if (r != CUDA_SUCCESS)
        return r;
    *state = told[state_of(&p)];
    return end(&p, CUDA_SUCCESS);
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    struct process p;
    if (args && (args->reserved0 || !zeros(args->reserved1, sizeof args->reserved1)))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t until = args && args->timeoutMs ? now_ns() + args->timeoutMs * 1000000ull : 0;
    CUresult r = begin(&p, pid);
    if (r != CUDA_SUCCESS)
        return r;
    r = turn(&p, IN(SIM_RUNNING), SIM_LOCKED);
    if (r != CUDA_SUCCESS)
        return end(&p, r);
    settle();
    r = wait_still(&p, false, until);
    if (r == CUDA_ERROR_NOT_READY)
        release(&p);
    return end(&p, r);
}

/* Moves the memory of a process that is locked. */
static CUresult leave(struct process *p)
{
    CUresult r = wait_still(p, true, 0);
    if (r != CUDA_SUCCESS)
        return r;
    travel(occupied(p));
    r = turn(p, IN(SIM_LOCKED) | IN(SIM_LEAVING), SIM_LEAVING);
    for (unsigned i = 0; i < p->n && r == CUDA_SUCCESS; i++)
        r = park(p, &p->at[i]);
    return r == CUDA_SUCCESS ? turn(p, IN(SIM_LEAVING), SIM_AWAY) : r;
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    struct process p;
    if (args && !zeros(args, sizeof *args))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = begin(&p, pid);
    if (r != CUDA_SUCCESS)
        return r;
    if (!(IN(state_of(&p)) & (IN(SIM_LOCKED) | IN(SIM_LEAVING))))
        return end(&p, CUDA_ERROR_ILLEGAL_STATE);
    /* Who locked it need not have waited to the end: a call may still be under way, and
     * bring it to one more device. */
    settle();
    r = wait_still(&p, false, 0);
    drop(&p);
    if (r != CUDA_SUCCESS || (r = find(&p)) != CUDA_SUCCESS)
        return r;
    return end(&p, has_fixed(&p) ? CUDA_ERROR_NOT_SUPPORTED : leave(&p));
}

/* Puts the process back on all its devices, or on none: then for ever, which is what
 * NVIDIA's driver makes of it. */
static CUresult come_back(struct process *p)
{
    uint64_t bytes = 0;
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < p->n && r == CUDA_SUCCESS; i++)
        r = unpark(p, &p->at[i], &bytes);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        for (unsigned i = 0; i < p->n; i++)
            park(p, &p->at[i]);
        turn(p, IN(SIM_LEAVING) | IN(SIM_AWAY), SIM_BROKEN);
    }
    if (r != CUDA_SUCCESS)
        return r;
    travel(bytes);
    return turn(p, IN(SIM_LEAVING) | IN(SIM_AWAY), SIM_LOCKED);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    struct process p;
    if (args && (!zeros(args->reserved, sizeof args->reserved) || args->reserved1))
        return CUDA_ERROR_INVALID_VALUE;
    if (args && (args->gpuPairs || args->gpuPairsCount))
        return CUDA_ERROR_NOT_SUPPORTED; /* to other devices than it was on */
    CUresult r = begin(&p, pid);
    if (r != CUDA_SUCCESS)
        return r;
    switch (state_of(&p)) {
    case SIM_LEAVING:
    case SIM_AWAY:
        return end(&p, come_back(&p));
    case SIM_BROKEN:
        return end(&p, CUDA_ERROR_OPERATING_SYSTEM);
    default:
        return end(&p, CUDA_ERROR_ILLEGAL_STATE);
    }
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    struct process p;
    if (args && !zeros(args, sizeof *args))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = begin(&p, pid);
    return r == CUDA_SUCCESS ? end(&p, release(&p)) : r;
}
