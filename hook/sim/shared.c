/* shared.c: joining and leaving a device; the files with its processes' memory and the count of it; dead
 * processes. shared.h describes the files and the locks. */
#include "shared.h"
#include "vmm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>


/* ---- the files with device memory ---- */

/* Writes the name of the file with one process's memory. */
static void memory_name(char name[SIM_NAME], int index, unsigned slot, uint64_t serial)
{
    snprintf(name, SIM_NAME, "gpu%d.mem.%u.%llu", index, slot, (unsigned long long)serial);
}

static void arena_remove(int index, unsigned slot, uint64_t serial)
{
    char name[SIM_NAME];
    memory_name(name, index, slot, serial);
    shared_remove_file(name);
}

int shared_open_memory(int index, unsigned slot, uint64_t serial)
{
    char name[SIM_NAME];
    memory_name(name, index, slot, serial);
    return shared_open_file(name);
}

void shared_each_memory(int index, void (*fn)(struct device *d, const char *name, const char *rest), struct device *d)
{
    char prefix[SIM_NAME];
    int dir = shared_open_dir();
    DIR *dp = dir < 0 ? NULL : fdopendir(dir);
    if (!dp) {
        if (dir >= 0)
            close(dir);
        return;
    }
    snprintf(prefix, sizeof prefix, "gpu%d.mem.", index);
    for (struct dirent *e; (e = readdir(dp));)
        if (!strncmp(e->d_name, prefix, strlen(prefix)))
            fn(d, e->d_name, e->d_name + strlen(prefix));
    closedir(dp); /* also closes dir */
}

/* Removes the files of a device that has no process, except exports. */
static void remove_arena(struct device *d, const char *name, const char *rest)
{
    if (rest[0] != 'x')
        shared_remove_file(name);
}

bool shared_link(int fd, const char *name)
{
    char self[64];
    int dir = shared_open_dir();
    if (dir < 0)
        return false;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    bool linked = linkat(AT_FDCWD, self, dir, name, AT_SYMLINK_FOLLOW) == 0;
    close(dir);
    return linked;
}

/* Creates a file that is freed with its last descriptor. */
static int nameless_file(void)
{
    int dir = shared_open_dir();
    if (dir < 0)
        return -1;
    int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    close(dir);
    return fd;
}

int shared_new_file(void)
{
    char path[64];
    int fd = nameless_file(), dir;
    if (fd < 0 && (dir = shared_open_dir()) >= 0) { /* not every file system supports O_TMPFILE */
        snprintf(path, sizeof path, "/proc/self/fd/%d/new.XXXXXX", dir);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0)
            unlink(path);
        close(dir);
    }
    return shared_move_up(fd);
}

/* Creates the file of this process's device memory. It gets its name only when memory is exported to
 * another process, so that the memory of a killed process is freed at once. */
static int open_arena(struct device *d)
{
    char name[SIM_NAME];
    int fd = nameless_file();
    d->arena_named = fd < 0;
    if (fd < 0) { /* not every file system supports O_TMPFILE */
        memory_name(name, d->index, (unsigned)d->slot, d->arena_serial);
        fd = shared_open(name, O_RDWR | O_CREAT | O_EXCL);
    }
    return shared_move_up(fd);
}

bool shared_name_memory(struct device *d)
{
    char name[SIM_NAME];
    memory_name(name, d->index, (unsigned)d->slot, d->arena_serial);
    return d->arena_named || (d->arena_named = shared_link(d->arena_fd, name));
}

/* Maps the arena. Device addresses are a separate range that cannot be read or written; the bytes are mapped
 * elsewhere. So a host program that dereferences a device pointer fails, as it does with a GPU. */
static CUresult arena_map(struct device *d)
{
    d->arena_size = 2 * g_config.mem;
    d->arena_fd = open_arena(d);
    if (d->arena_fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    void *base = mmap(NULL, d->arena_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *view = MAP_FAILED;
    if (ftruncate(d->arena_fd, (off_t)d->arena_size) == 0)
        view = mmap(NULL, d->arena_size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, d->arena_fd, 0);
    if (base == MAP_FAILED || view == MAP_FAILED) {
        if (base != MAP_FAILED)
            munmap(base, d->arena_size);
        if (view != MAP_FAILED)
            munmap(view, d->arena_size);
        arena_remove(d->index, (unsigned)d->slot, d->arena_serial);
        close(d->arena_fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    madvise(base, d->arena_size, MADV_DONTDUMP);
    madvise(view, d->arena_size, MADV_DONTDUMP);
    lost_watch(view, d->arena_size);
    d->arena_open = 0;
    d->arena_base = (CUdeviceptr)(uintptr_t)base;
    d->arena_view = view;
    return CUDA_SUCCESS;
}

/* Only the used part is accessible, because a tool that scans all readable memory, such as memcheck when it
 * looks for leaks, would otherwise allocate host memory for all of the device's. */
bool shared_open_arena(struct device *d, size_t end)
{
    const size_t step = (size_t)64 << 20;
    if (end <= d->arena_open)
        return true;
    size_t upto = d->arena_size - end > step ? (end + step - 1) / step * step : d->arena_size;
    if (mprotect(d->arena_view + d->arena_open, upto - d->arena_open, PROT_READ | PROT_WRITE) != 0)
        return false;
    d->arena_open = upto;
    return true;
}

uint64_t shared_mem_used(struct device *d)
{
    uint64_t sum = atomic_load_explicit(&d->sh->unowned, memory_order_relaxed);
    for (unsigned i = 0; i < shared_top(d->sh); i++)
        if (!atomic_load_explicit(&d->sh->proc[i].away, memory_order_relaxed))
            sum += atomic_load_explicit(&d->sh->proc[i].mem, memory_order_relaxed);
    return sum;
}

/* Counts bytes for this process. Returns false if the device has too few. */
bool shared_mem_reserve(struct device *d, uint64_t bytes)
{
    for (int tries = 0; tries < 2; tries++) {
        if (tries)
            shared_reap(d, now_ns());
        if (!shared_lock(d))
            return false;
        uint64_t used = shared_mem_used(d);
        bool fits = bytes <= g_config.mem && used <= g_config.mem - bytes;
        if (fits)
            d->sh->proc[d->slot].mem += bytes;
        shared_unlock(d);
        if (fits)
            return true;
    }
    return false;
}

void shared_mem_release(struct device *d, uint64_t bytes)
{
    if (!d->left)
        d->sh->proc[d->slot].mem -= bytes;
}

void shared_fixed(struct device *d, int more)
{
    if (!d->left)
        atomic_fetch_add(&d->sh->proc[d->slot].fixed, (uint32_t)more);
}

void shared_pending(struct device *d, unsigned streams)
{
    if (!d->left)
        atomic_store_explicit(&d->sh->proc[d->slot].pending, streams, memory_order_release);
}

/* ---- joining and leaving a device ---- */

/* Sets a record lock on the state file; with F_GETLK, reports whether another process holds one in the
 * range. */
static int lock_bytes(int fd, int cmd, short type, off_t start, off_t len)
{
    struct flock fl = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    int r;
    do
        r = fcntl(fd, cmd, &fl);
    while (r < 0 && errno == EINTR && cmd == F_SETLKW);
    if (cmd == F_GETLK)
        return r == 0 && fl.l_type != F_UNLCK; /* held by another process */
    return r;
}

bool shared_alive(const struct device *d, unsigned slot)
{
    return lock_bytes(d->fd, F_GETLK, F_WRLCK, SIM_LOCK_SLOT + slot, 1);
}

/* A file that was truncated and has grown again is empty, and its magic is 0. */
bool shared_lock(struct device *d)
{
    if (d->sh->magic != SIM_MAGIC)
        atomic_store(&g_lost, true);
    if (atomic_load(&g_lost))
        return false; /* the mutex may be invalid */
    int r = pthread_mutex_lock(&d->sh->lock);
    if (r == EOWNERDEAD)
        r = pthread_mutex_consistent(&d->sh->lock);
    return r == 0;
}

void shared_unlock(struct device *d)
{
    pthread_mutex_unlock(&d->sh->lock);
}

/* Opens the state file and takes its setup lock; -1 with errno set. A leaving process may remove the file
 * between the two steps, so the name is checked again. */
static int open_state(int index)
{
    char name[SIM_NAME];
    shared_state_name(name, index);
    for (int tries = 0; tries < 1000; tries++) {
        if (mkdir(g_config.dir, 0700) < 0 && errno != EEXIST)
            return -1;
        int low = shared_open(name, O_RDWR | O_CREAT);
        if (low < 0 && errno == ENOENT)
            continue;
        if (low < 0)
            return -1;
        /* Moved away from the low numbers, which programs may expect to be free. This comes before any
         * lock, because closing a descriptor releases the process's locks. */
        int fd = shared_move_up(low);
        if (lock_bytes(fd, F_SETLKW, F_WRLCK, SIM_LOCK_SETUP, 1) == 0 && shared_is_current(fd, name))
            return fd;
        close(fd);
    }
    errno = EAGAIN;
    return -1;
}

/* Initializes the state of a device that has no process. */
static void state_init(struct shared *sh)
{
    pthread_mutexattr_t attr;
    memset(sh, 0, sizeof *sh);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&sh->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    sh->layout = SIM_LAYOUT;
    sh->proc_at = offsetof(struct shared, proc);
    sh->proc_size = sizeof sh->proc[0];
    sh->total = g_config.mem;
    sh->magic = SIM_MAGIC;
}

/* Maps the state file, and initializes it if the device has no process. */
static CUresult map_state(struct device *d)
{
    if (lseek(d->fd, 0, SEEK_END) < (off_t)sizeof(struct shared) && ftruncate(d->fd, sizeof(struct shared)) < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    d->sh = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
    if (d->sh == MAP_FAILED)
        return CUDA_ERROR_OPERATING_SYSTEM;
    lost_watch(d->sh, sizeof *d->sh);
    if (!lock_bytes(d->fd, F_GETLK, F_WRLCK, SIM_LOCK_SLOT, SIM_SLOTS)) {
        shared_each_memory(d->index, remove_arena, d);
        state_init(d->sh);
        exports_find(d);
        return CUDA_SUCCESS;
    }
    if (d->sh->magic != SIM_MAGIC || d->sh->layout != SIM_LAYOUT)
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    return CUDA_SUCCESS;
}

/* Clears the slot of a process that has ended. */
static void clear_slot(struct proc *p)
{
    p->serial = 0;
    p->mem = 0;
    p->away = p->home = p->pending = p->fixed = 0;
    p->until = 0;
    p->gate.inside = 0;
    p->gate.state = SIM_RUNNING;
}

/* Returns this process's share of the device's SMs as an MPS client, in SIM_FULLths; 0 if it takes turns. */
static uint32_t share_of_sms(void)
{
    return g_config.pct ? (uint32_t)((uint64_t)g_config.granted * SIM_FULL / g_config.sms) : 0;
}

/* Gets a slot without a live process, and clears it. */
static CUresult acquire_slot(struct device *d)
{
    for (d->slot = 0; d->slot < SIM_SLOTS; d->slot++)
        if (lock_bytes(d->fd, F_SETLK, F_WRLCK, SIM_LOCK_SLOT + d->slot, 1) == 0)
            break;
    if (d->slot == SIM_SLOTS) {
        sim_say("device %d has %d processes, which is the limit", d->index, SIM_SLOTS);
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    if (!shared_lock(d))
        return CUDA_ERROR_OPERATING_SYSTEM;
    struct shared *sh = d->sh;
    if (sh->proc[d->slot].serial)
        arena_remove(d->index, (unsigned)d->slot, sh->proc[d->slot].serial);
    struct sched *next = sched_next(sh);
    sched_remove(next, (unsigned)d->slot, now_ns());
    sched_reset_slot(next, (unsigned)d->slot, share_of_sms());
    atomic_store(&sh->gen, sh->gen + 1);
    holders_forget(d, (unsigned)d->slot);
    clear_slot(&sh->proc[d->slot]);
    sh->proc[d->slot].serial = d->arena_serial = ++sh->serial;
    shared_unlock(d);
    return CUDA_SUCCESS;
}

/* Sets the process's gate to its slot on the first device that it joins, where other processes find it. */
static void set_gate(struct device *d)
{
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        if (g_device[i].joined && &g_device[i] != d)
            return;
    gate_move(&d->sh->proc[d->slot].gate);
    atomic_store(&d->sh->proc[d->slot].home, 1);
}

/* Joins the device, unless this process has joined it. Called under g_lock. */
CUresult shared_join(struct device *d)
{
    if (d->joined)
        return CUDA_SUCCESS;
    d->fd = open_state(d->index);
    if (d->fd < 0) {
        if (g_config.default_dir && (errno == EPERM || errno == ENOTDIR)) /* ENOTDIR: a link */
            sim_say("%.200s is not a folder that you own and only you can write to: remove it, or set GFAAS_SIM_DIR", g_config.dir);
        else
            sim_say("%.200s: %s", g_config.dir, strerror(errno));
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    CUresult r = map_state(d);
    if (r == CUDA_SUCCESS)
        r = acquire_slot(d);
    if (r == CUDA_SUCCESS)
        r = arena_map(d);
    if (r != CUDA_SUCCESS) {
        if (d->sh && (void *)d->sh != MAP_FAILED) {
            lost_forget(d->sh);
            munmap(d->sh, sizeof *d->sh);
        }
        d->sh = NULL;
        close(d->fd);
        return r;
    }
    lock_bytes(d->fd, F_SETLK, F_UNLCK, SIM_LOCK_SETUP, 1);
    d->joined = true;
    d->left = false;
    d->view.valid = false;
    set_gate(d);
    return CUDA_SUCCESS;
}

/* Leaves the device; the last process removes the files. The mappings stay, because other threads may be
 * copying. */
void shared_leave(struct device *d)
{
    if (!d->joined || d->left)
        return;
    d->left = true;
    if (d->sh->proc[d->slot].home)
        gate_move(NULL);
    vmm_leave(d);
    sched_publish(d, false, 0, now_ns());
    lock_bytes(d->fd, F_SETLKW, F_WRLCK, SIM_LOCK_SETUP, 1);
    arena_remove(d->index, (unsigned)d->slot, d->arena_serial);
    if (shared_lock(d)) {
        holders_forget(d, (unsigned)d->slot);
        clear_slot(&d->sh->proc[d->slot]);
        shared_unlock(d);
    }
    if (!lock_bytes(d->fd, F_GETLK, F_WRLCK, SIM_LOCK_SLOT, SIM_SLOTS)) {
        char name[SIM_NAME];
        shared_each_memory(d->index, remove_arena, d);
        shared_state_name(name, d->index);
        shared_remove_file(name);
        if (g_config.default_dir)
            rmdir(g_config.dir);
    }
    close(d->fd); /* also releases the locks */
}

/* Removes from the turns the processes whose work should have finished and that do not report it: they are
 * stopped. Their work has run, as on a GPU; when such a process continues, it notices its removal
 * (engine.c). */
static void remove_stopped(struct device *d, uint64_t now)
{
    struct shared *sh = d->sh;
    for (unsigned i = 0; i < shared_top(sh); i++) {
        if (!sh->sched[sh->gen & 1].slot[i].busy || i == (unsigned)d->slot || !shared_lock(d))
            continue;
        const struct sched *s = &sh->sched[sh->gen & 1];
        if (s->slot[i].busy && sched_progress_of(s, i, now) > atomic_load(&sh->proc[i].until) + SIM_LATE_NS) {
            sched_remove(sched_next(sh), i, now);
            atomic_store(&sh->gen, sh->gen + 1);
        }
        shared_unlock(d);
    }
}

/* Clears the slots of dead processes. */
void shared_reap(struct device *d, uint64_t now)
{
    struct shared *sh = d->sh;
    d->next_reap = now + SIM_REAP_NS;
    for (unsigned i = 0; i < shared_top(sh); i++) {
        if (!sh->proc[i].serial || i == (unsigned)d->slot || shared_alive(d, i) || !shared_lock(d))
            continue;
        /* Checked again under the lock: a new process might have taken the slot. */
        if (sh->proc[i].serial && !shared_alive(d, i)) {
            sched_remove(sched_next(sh), i, now);
            atomic_store(&sh->gen, sh->gen + 1);
            arena_remove(d->index, i, sh->proc[i].serial);
            holders_forget(d, i);
            clear_slot(&sh->proc[i]);
        }
        shared_unlock(d);
    }
    remove_stopped(d, now);
    if (sh->unowned && shared_lock(d)) {
        exports_reap(d);
        shared_unlock(d);
    }
}

/* One check costs the number of processes squared, so the processes take turns. */
void shared_reap_due(struct device *d, uint64_t now)
{
    uint64_t last = atomic_load(&d->sh->reaped), pause = SIM_REAP_NS * (1 + shared_top(d->sh) / 128);
    d->next_reap = now + pause;
    if (now - last >= pause && atomic_compare_exchange_strong(&d->sh->reaped, &last, now))
        shared_reap(d, now);
}
