/* arena.c: the files with the device memory of processes, and how much of it
 * is in use. */
#include "shared.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void shared_file(char *buf, size_t len, int index, const char *rest)
{
    snprintf(buf, len, "%s/gpu%d.%s", g_config.dir, index, rest);
}

static void memory_name(char *buf, size_t len, int index, unsigned slot, uint64_t serial)
{
    char rest[64];
    snprintf(rest, sizeof rest, "mem.%u.%llu", slot, (unsigned long long)serial);
    shared_file(buf, len, index, rest);
}

void arena_remove(int index, unsigned slot, uint64_t serial)
{
    char path[4096];
    memory_name(path, sizeof path, index, slot, serial);
    unlink(path);
}

int shared_open_memory(int index, unsigned slot, uint64_t serial)
{
    char path[4096];
    memory_name(path, sizeof path, index, slot, serial);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Removes the memory files of a device nobody is on. */
void arena_remove_all(int index)
{
    char prefix[32], path[4096];
    DIR *dp = opendir(g_config.dir);
    if (!dp)
        return;
    snprintf(prefix, sizeof prefix, "gpu%d.mem.", index);
    for (struct dirent *e; (e = readdir(dp));)
        if (!strncmp(e->d_name, prefix, strlen(prefix))) {
            snprintf(path, sizeof path, "%s/%s", g_config.dir, e->d_name);
            unlink(path);
        }
    closedir(dp);
}

int shared_move_up(int fd)
{
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 200);
    if (high < 0)
        return fd;
    close(fd);
    return high;
}

static int nameless_file(void)
{
    return open(g_config.dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

int shared_new_file(void)
{
    char path[4096];
    int fd = nameless_file();
    if (fd < 0) { /* not every file system can do that */
        snprintf(path, sizeof path, "%s/new.XXXXXX", g_config.dir);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0)
            unlink(path);
    }
    return shared_move_up(fd);
}

/* The file of this process's device memory. It gets its name only when memory is
 * handed to another process, so that the memory of one that is killed is free
 * at once. */
static int open_arena(struct device *d)
{
    char path[4096];
    int fd = nameless_file();
    d->arena_named = fd < 0;
    if (fd < 0) { /* not every file system can do that */
        memory_name(path, sizeof path, d->index, (unsigned)d->slot, d->arena_serial);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    return shared_move_up(fd);
}

bool shared_name_memory(struct device *d)
{
    char path[4096], self[64];
    if (d->arena_named)
        return true;
    memory_name(path, sizeof path, d->index, (unsigned)d->slot, d->arena_serial);
    snprintf(self, sizeof self, "/proc/self/fd/%d", d->arena_fd);
    d->arena_named = linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
    return d->arena_named;
}

/* Device addresses are a range of their own, where nothing can be read or
 * written: the bytes are mapped elsewhere, so that a host program that follows
 * a device pointer fails here as it does on a GPU. */
CUresult arena_map(struct device *d)
{
    d->arena_size = 2 * g_config.mem;
    d->arena_fd = open_arena(d);
    if (d->arena_fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    void *base = mmap(NULL, d->arena_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *view = MAP_FAILED;
    if (ftruncate(d->arena_fd, (off_t)d->arena_size) == 0)
        view = mmap(NULL, d->arena_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, d->arena_fd, 0);
    if (base == MAP_FAILED || view == MAP_FAILED) {
        if (base != MAP_FAILED)
            munmap(base, d->arena_size);
        if (view != MAP_FAILED)
            munmap(view, d->arena_size);
        arena_remove(d->index, (unsigned)d->slot, d->arena_serial);
        close(d->arena_fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    d->arena_base = (CUdeviceptr)(uintptr_t)base;
    d->arena_view = view;
    return CUDA_SUCCESS;
}

uint64_t shared_mem_used(struct device *d)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < SIM_SLOTS; i++)
        sum += atomic_load_explicit(&d->sh->proc[i].mem, memory_order_relaxed);
    return sum;
}

/* Counts bytes to this process if the device still has them. */
bool shared_mem_take(struct device *d, uint64_t bytes)
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

void shared_mem_give(struct device *d, uint64_t bytes)
{
    if (!d->left)
        d->sh->proc[d->slot].mem -= bytes;
}
