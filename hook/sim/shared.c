/* shared.c: joining and leaving a device, and telling who is still on it. The
 * files and the locks are described in shared.h. */
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int lock_bytes(int fd, int cmd, short type, off_t start, off_t len)
{
    struct flock fl = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    int r;
    do
        r = fcntl(fd, cmd, &fl);
    while (r < 0 && errno == EINTR && cmd == F_SETLKW);
    if (cmd == F_GETLK)
        return r == 0 && fl.l_type != F_UNLCK; /* somebody else holds one of them */
    return r;
}

bool shared_alive(const struct device *d, unsigned slot)
{
    return lock_bytes(d->fd, F_GETLK, F_WRLCK, SIM_LOCK_SLOT + slot, 1);
}

bool shared_lock(struct device *d)
{
    int r = pthread_mutex_lock(&d->sh->lock);
    if (r == EOWNERDEAD)
        r = pthread_mutex_consistent(&d->sh->lock);
    return r == 0;
}

void shared_unlock(struct device *d)
{
    pthread_mutex_unlock(&d->sh->lock);
}

/* Makes the directory. One that we choose must be the user's own: anybody can
 * make directories in /dev/shm. */
static bool make_dir(void)
{
    struct statx st;
    if (mkdir(g_config.dir, 0700) < 0 && errno != EEXIST)
        return false;
    if (!g_config.own_dir)
        return true;
    if (statx(AT_FDCWD, g_config.dir, AT_SYMLINK_NOFOLLOW, STATX_UID | STATX_TYPE, &st) < 0)
        return errno == ENOENT; /* removed again just now: opening will tell */
    if (!S_ISDIR(st.stx_mode) || st.stx_uid != geteuid()) {
        errno = EPERM;
        return false;
    }
    return true;
}

static bool still_there(int fd, const char *path)
{
    struct statx a, b;
    return statx(fd, "", AT_EMPTY_PATH, STATX_INO, &a) == 0 && statx(AT_FDCWD, path, 0, STATX_INO, &b) == 0 &&
           a.stx_ino == b.stx_ino && a.stx_dev_major == b.stx_dev_major && a.stx_dev_minor == b.stx_dev_minor;
}

/* Opens the state file and takes its setup lock; -1 with errno set. The file may
 * be removed by a leaving process between the two, hence the second look. */
static int open_state(int index)
{
    char path[4096];
    shared_file(path, sizeof path, index, "state");
    for (int tries = 0; tries < 1000; tries++) {
        if (!make_dir())
            return -1;
        int low = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (low < 0 && errno == ENOENT)
            continue;
        if (low < 0)
            return -1;
        /* Out of the way of programs that count on low numbers being free; before
         * any lock is taken, for closing a descriptor drops the process's locks. */
        int fd = shared_move_up(low);
        if (lock_bytes(fd, F_SETLKW, F_WRLCK, SIM_LOCK_SETUP, 1) == 0 && still_there(fd, path))
            return fd;
        close(fd);
    }
    errno = EAGAIN;
    return -1;
}

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
    sh->magic = SIM_MAGIC;
}

static CUresult map_state(struct device *d)
{
    if (lseek(d->fd, 0, SEEK_END) < (off_t)sizeof(struct shared) && ftruncate(d->fd, sizeof(struct shared)) < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    d->sh = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
    if (d->sh == MAP_FAILED)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (!lock_bytes(d->fd, F_GETLK, F_WRLCK, SIM_LOCK_SLOT, SIM_SLOTS)) {
        arena_remove_all(d->index); /* what is there belonged to the dead */
        state_init(d->sh);
        return CUDA_SUCCESS;
    }
    if (d->sh->magic != SIM_MAGIC || d->sh->layout != SIM_LAYOUT)
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    return CUDA_SUCCESS;
}

static CUresult take_slot(struct device *d)
{
    for (d->slot = 0; d->slot < SIM_SLOTS; d->slot++)
        if (lock_bytes(d->fd, F_SETLK, F_WRLCK, SIM_LOCK_SLOT + d->slot, 1) == 0)
            break;
    if (d->slot == SIM_SLOTS)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!shared_lock(d))
        return CUDA_ERROR_OPERATING_SYSTEM;
    struct shared *sh = d->sh;
    uint32_t gen = sh->gen;
    if (sh->proc[d->slot].serial)
        arena_remove(d->index, (unsigned)d->slot, sh->proc[d->slot].serial);
    sh->sched[(gen + 1) & 1] = sh->sched[gen & 1];
    sched_remove(&sh->sched[(gen + 1) & 1], (unsigned)d->slot, now_ns());
    sched_reset_slot(&sh->sched[(gen + 1) & 1], (unsigned)d->slot, g_config.pct);
    atomic_store(&sh->gen, gen + 1);
    holders_forget(sh, (unsigned)d->slot);
    sh->proc[d->slot].mem = 0;
    sh->proc[d->slot].serial = d->arena_serial = ++sh->serial;
    shared_unlock(d);
    return CUDA_SUCCESS;
}

/* Puts this process on the device, once. Called under g_lock. */
CUresult shared_join(struct device *d)
{
    if (d->joined)
        return CUDA_SUCCESS;
    d->fd = open_state(d->index);
    if (d->fd < 0) {
        sim_say("%.200s: %s", g_config.dir, strerror(errno));
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    CUresult r = map_state(d);
    if (r == CUDA_SUCCESS)
        r = take_slot(d);
    if (r == CUDA_SUCCESS)
        r = arena_map(d);
    if (r != CUDA_SUCCESS) {
        if (d->sh && (void *)d->sh != MAP_FAILED)
            munmap(d->sh, sizeof *d->sh);
        d->sh = NULL;
        close(d->fd);
        return r;
    }
    lock_bytes(d->fd, F_SETLK, F_UNLCK, SIM_LOCK_SETUP, 1);
    d->joined = true;
    d->left = false;
    d->view.valid = false;
    sim_atexit_register();
    return CUDA_SUCCESS;
}

/* Takes this process off the device; the last one removes the files. The
 * mappings stay: other threads may be in the middle of a copy. */
void shared_leave(struct device *d)
{
    if (!d->joined || d->left)
        return;
    d->left = true;
    sched_publish(d, false, 0, now_ns());
    lock_bytes(d->fd, F_SETLKW, F_WRLCK, SIM_LOCK_SETUP, 1);
    arena_remove(d->index, (unsigned)d->slot, d->arena_serial);
    if (shared_lock(d)) {
        holders_forget(d->sh, (unsigned)d->slot);
        d->sh->proc[d->slot].mem = 0;
        d->sh->proc[d->slot].serial = 0;
        shared_unlock(d);
    }
    if (!lock_bytes(d->fd, F_GETLK, F_WRLCK, SIM_LOCK_SLOT, SIM_SLOTS)) {
        char path[4096];
        arena_remove_all(d->index);
        shared_file(path, sizeof path, d->index, "state");
        unlink(path);
        if (g_config.own_dir)
            rmdir(g_config.dir);
    }
    close(d->fd); /* and with it the locks */
}

/* Clears what processes left that are no more. */
void shared_reap(struct device *d, uint64_t now)
{
    struct shared *sh = d->sh;
    d->next_reap = now + SIM_REAP_NS;
    for (unsigned i = 0; i < SIM_SLOTS; i++) {
        if (!sh->proc[i].serial || i == (unsigned)d->slot || shared_alive(d, i) || !shared_lock(d))
            continue;
        /* Again, now that no newcomer can be half-way into the slot. */
        if (sh->proc[i].serial && !shared_alive(d, i)) {
            uint32_t gen = sh->gen;
            sh->sched[(gen + 1) & 1] = sh->sched[gen & 1];
            sched_remove(&sh->sched[(gen + 1) & 1], i, now);
            atomic_store(&sh->gen, gen + 1);
            arena_remove(d->index, i, sh->proc[i].serial);
            holders_forget(sh, i);
            sh->proc[i].mem = 0;
            sh->proc[i].serial = 0;
        }
        shared_unlock(d);
    }
}
