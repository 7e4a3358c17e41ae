/* checkpoint.c: moves another process off its devices, and back.
 *
 * No code runs in that process. Its slots in the devices' state (shared.h) have all that is needed: its
 * gate, which its calls pass (init.c), its pending work, and its memory. The locks tell which slots are
 * its own. Its bytes are host memory and stay where they are; only the device's count changes, and the
 * move takes as long as a link to the host would need.
 *
 * A process that is on no device is not found, and need not be moved. The process that moves another one
 * may be killed at any moment, and a third one can continue: each slot has a word that says whether its
 * process is off that device, and the gate says which step may follow. */
#include "shared.h"

#include <linux/capability.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(CUcheckpointLockArgs) == 64 && sizeof(CUcheckpointCheckpointArgs) == 64 &&
                   sizeof(CUcheckpointRestoreArgs) == 64 && sizeof(CUcheckpointUnlockArgs) == 64, "as in NVIDIA's cuda.h");

#define GONE CUDA_ERROR_INVALID_VALUE /* there is no such process, or it does not use CUDA */
#define IN(state) (1u << (state))

/* A process's slot on a device. */
struct place {
    struct device dev; /* as shared.c needs it; joined: the calling process is on it, too */
    unsigned slot;
    uint64_t serial;
};

struct process {
    int pid;
    unsigned n;
    struct place at[SIM_MAX_DEVICES];
    struct place *home; /* the slot with its gate */
};

static struct proc *slot_of(const struct place *p)
{
    return &p->dev.sh->proc[p->slot];
}

/* ---- finding the process ---- */

static struct shared *map(int fd)
{
    void *p = MAP_FAILED;
    if (fd >= 0 && lseek(fd, 0, SEEK_END) >= (off_t)sizeof(struct shared))
        p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Releases the state of a device. If this process has joined the device meanwhile, the descriptor stays
 * open, because closing it would release the process's locks. */
static void unmap_device(struct device *d)
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

/* Maps the state of a device. Returns false if it has none. The caller releases it with put. */
static bool map_device(struct device *d, int index)
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
    unmap_device(d);
    return false;
}

/* Reports whether the process still has the slot in which it was found. */
static bool has_slot(const struct process *p, const struct place *at)
{
    return slot_of(at)->serial == at->serial && shared_holder(at->dev.fd, at->slot) == p->pid;
}

/* Finds the process's slot on a device. Returns false if there is none. */
static bool find_slot(const struct process *p, struct place *at, int index)
{
    if (!map_device(&at->dev, index))
        return false;
    for (at->slot = 0; at->slot < shared_top(at->dev.sh); at->slot++) {
        at->serial = slot_of(at)->serial;
        if (at->serial && has_slot(p, at))
            return true;
    }
    unmap_device(&at->dev);
    return false;
}

static void unmap_all(struct process *p)
{
    while (p->n)
        unmap_device(&p->at[--p->n].dev);
    p->home = NULL;
}

static CUresult find_process(struct process *p)
{
    p->n = 0;
    p->home = NULL;
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        struct place *at = &p->at[p->n];
        if (!find_slot(p, at, i))
            continue;
        p->n++;
        if (slot_of(at)->home)
            p->home = at;
    }
    if (p->home)
        return CUDA_SUCCESS;
    unmap_all(p);
    return GONE;
}

/* ---- its state, and its work in progress ---- */

/* Every process can write to the gate, so an invalid value counts as SIM_BROKEN. */
static uint32_t state_of(const struct process *p)
{
    uint32_t state = atomic_load(&slot_of(p->home)->gate.state);
    return state < SIM_BROKEN ? state : SIM_BROKEN;
}

/* Changes the process's state from one of a set of states to another. */
static CUresult change_state(struct process *p, uint32_t from, uint32_t to)
{
    CUresult r = GONE;
    if (!shared_lock(&p->home->dev))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (has_slot(p, p->home))
        r = IN(state_of(p)) & from ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
    if (r == CUDA_SUCCESS)
        atomic_store(&slot_of(p->home)->gate.state, to);
    shared_unlock(&p->home->dev);
    return r;
}

static CUresult release(struct process *p)
{
    CUresult r = change_state(p, IN(SIM_LOCKED), SIM_RUNNING);
    if (r == CUDA_SUCCESS)
        gate_wake(&slot_of(p->home)->gate);
    return r;
}

/* Called after the state was written. A call that began meanwhile either has been counted, or will see the
 * new state, once its processor has published its stores. membarrier makes the kernel ensure that. If it
 * is not permitted, 10 ms are thousands of times longer than a processor delays a store. */
static void settle(void)
{
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) < 0)
        threads_sleep(now_ns() + 10000000u);
}

/* Reports whether the process is in no call, and, with `idle`, has no pending work. */
static bool is_quiet(const struct process *p, bool idle)
{
    bool busy = atomic_load(&slot_of(p->home)->gate.inside) != 0;
    for (unsigned i = 0; idle && i < p->n; i++)
        busy |= atomic_load(&slot_of(&p->at[i])->pending) != 0;
    return !busy;
}

/* Waits for that, until a moment unless that is 0. */
static CUresult wait_quiet(const struct process *p, bool idle, uint64_t until)
{
    const uint64_t least = 20000, most = 1000000;
    for (uint64_t pause = least; !is_quiet(p, idle); pause = pause < most ? 2 * pause : most) {
        if (!has_slot(p, p->home))
            return GONE;
        if (until && now_ns() >= until)
            return CUDA_ERROR_NOT_READY;
        threads_sleep(now_ns() + pause);
    }
    return has_slot(p, p->home) ? CUDA_SUCCESS : GONE;
}

/* ---- its memory ---- */

/* Reports whether the process has an object that cannot leave a device. */
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

static void wait_for_move(uint64_t bytes)
{
    threads_sleep(now_ns() + bytes / SIM_LINK_BYTES_PER_NS);
}

/* Moves the process off a device. */
static CUresult park(const struct process *p, struct place *at)
{
    if (!shared_lock(&at->dev))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (has_slot(p, at))
        slot_of(at)->away = 1;
    shared_unlock(&at->dev);
    return CUDA_SUCCESS;
}

/* Clears the slots of dead processes. The calling process is alive, which shared_reap knows only if the
 * calling process is on the device. */
static void reap_device(const struct place *at)
{
    pthread_mutex_lock(&g_lock);
    struct device *own = &g_device[at->dev.index];
    struct device seen = at->dev;
    shared_reap(own->joined && !own->left ? own : &seen, now_ns());
    pthread_mutex_unlock(&g_lock);
}

/* Moves the process back to a device if there is room; adds the moved bytes to *bytes. */
static CUresult unpark_once(const struct process *p, struct place *at, uint64_t *bytes)
{
    CUresult r = CUDA_SUCCESS;
    if (!shared_lock(&at->dev))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (has_slot(p, at) && slot_of(at)->away) {
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
        reap_device(at);
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

/* Finds the process of a call's argument. */
static CUresult begin(struct process *p, int pid)
{
    TRY(sim_ready());
    if (pid <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!may_trace())
        return CUDA_ERROR_NOT_PERMITTED;
    p->pid = pid;
    return find_process(p);
}

static CUresult end(struct process *p, CUresult r)
{
    unmap_all(p);
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
        [SIM_LEAVING] = CU_PROCESS_STATE_CHECKPOINTED, /* it can be restored, but not unlocked */
        [SIM_AWAY] = CU_PROCESS_STATE_CHECKPOINTED,
        [SIM_BROKEN] = CU_PROCESS_STATE_CHECKPOINTED, /* as NVIDIA's driver reports it */
    };
    struct process p;
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(begin(&p, pid));
    *state = told[state_of(&p)];
    return end(&p, CUDA_SUCCESS);
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    struct process p;
    if (args && (args->reserved0 || !zeros(args->reserved1, sizeof args->reserved1)))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t until = args && args->timeoutMs ? now_ns() + args->timeoutMs * 1000000ull : 0;
    TRY(begin(&p, pid));
    CUresult r = change_state(&p, IN(SIM_RUNNING), SIM_LOCKED);
    if (r != CUDA_SUCCESS)
        return end(&p, r);
    settle();
    r = wait_quiet(&p, false, until);
    if (r == CUDA_ERROR_NOT_READY)
        release(&p);
    return end(&p, r);
}

/* Moves the memory of a locked process to the host. */
static CUresult park_all(struct process *p)
{
    TRY(wait_quiet(p, true, 0));
    wait_for_move(occupied(p));
    CUresult r = change_state(p, IN(SIM_LOCKED) | IN(SIM_LEAVING), SIM_LEAVING);
    for (unsigned i = 0; i < p->n && r == CUDA_SUCCESS; i++)
        r = park(p, &p->at[i]);
    return r == CUDA_SUCCESS ? change_state(p, IN(SIM_LEAVING), SIM_AWAY) : r;
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    struct process p;
    if (args && !zeros(args, sizeof *args))
        return CUDA_ERROR_INVALID_VALUE;
    TRY(begin(&p, pid));
    if (!(IN(state_of(&p)) & (IN(SIM_LOCKED) | IN(SIM_LEAVING))))
        return end(&p, CUDA_ERROR_ILLEGAL_STATE);
    /* The call that locked it may have ended before the process was quiet: a call of the process may still
     * be running, and join another device. */
    settle();
    CUresult r = wait_quiet(&p, false, 0);
    unmap_all(&p);
    TRY(r);
    TRY(find_process(&p));
    return end(&p, has_fixed(&p) ? CUDA_ERROR_NOT_SUPPORTED : park_all(&p));
}

/* Moves the process back to all its devices, or to none. In that case it can never come back, as with
 * NVIDIA's driver. */
static CUresult unpark_all(struct process *p)
{
    uint64_t bytes = 0;
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < p->n && r == CUDA_SUCCESS; i++)
        r = unpark(p, &p->at[i], &bytes);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        for (unsigned i = 0; i < p->n; i++)
            park(p, &p->at[i]);
        change_state(p, IN(SIM_LEAVING) | IN(SIM_AWAY), SIM_BROKEN);
    }
    TRY(r);
    wait_for_move(bytes);
    return change_state(p, IN(SIM_LEAVING) | IN(SIM_AWAY), SIM_LOCKED);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    struct process p;
    if (args && (!zeros(args->reserved, sizeof args->reserved) || args->reserved1))
        return CUDA_ERROR_INVALID_VALUE;
    if (args && (args->gpuPairs || args->gpuPairsCount))
        return CUDA_ERROR_NOT_SUPPORTED; /* to other devices */
    TRY(begin(&p, pid));
    switch (state_of(&p)) {
    case SIM_LEAVING:
    case SIM_AWAY:
        return end(&p, unpark_all(&p));
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
    TRY(begin(&p, pid));
    return end(&p, release(&p));
}
