/* folder.c: the folder in which processes share devices, and the files in it. The simulated NVML reads it
 * too. */
#include "folder.h"
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#endif

#define MIN_FD 40 /* lowest number of a descriptor that stays open */

/* Any user can create folders and links in /dev/shm. So the default folder must belong to this user and must not
 * be writable by others, and its files are opened relative to the checked descriptor. */
int shared_open_dir(void)
{
    struct statx st;
    int fd = open(g_config.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (g_config.default_dir ? O_NOFOLLOW : 0));
    if (fd < 0 || !g_config.default_dir)
        return fd;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_UID | STATX_MODE, &st) == 0 && st.stx_uid == geteuid() &&
        !(st.stx_mode & (S_IWGRP | S_IWOTH)))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

int shared_open(const char *name, int flags)
{
    int dir = shared_open_dir();
    if (dir < 0)
        return -1;
    int fd = openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC, 0600), error = errno;
    close(dir);
    errno = error;
    return fd;
}

int shared_open_file(const char *name)
{
    return shared_open(name, O_RDWR);
}

void shared_remove_file(const char *name)
{
    int dir = shared_open_dir();
    if (dir < 0)
        return;
    unlinkat(dir, name, 0);
    close(dir);
}

bool shared_is_current(int fd, const char *name)
{
    struct statx a, b;
    int dir = shared_open_dir();
    if (dir < 0)
        return false;
    int r = statx(dir, name, AT_SYMLINK_NOFOLLOW, STATX_INO, &b);
    close(dir);
    return r == 0 && statx(fd, "", AT_EMPTY_PATH, STATX_INO, &a) == 0 && a.stx_ino == b.stx_ino &&
           a.stx_dev_major == b.stx_dev_major && a.stx_dev_minor == b.stx_dev_minor;
}

/* Low numbers are left to the program, which may expect them to be free. The number is below 64, because a process
 * starts with a table for 64 descriptors, and the kernel needs 12 to 16 ms to enlarge it if there is a second
 * thread. */
int shared_move_up(int fd)
{
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, MIN_FD);
    if (high < 0)
        return fd;
    close(fd);
    return high;
}

int shared_holder(int fd, unsigned slot)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_LOCK_SLOT + slot, .l_len = 1};
    /* F_OFD_GETLK, unlike F_GETLK, also finds locks that this process holds. */
    if (fcntl(fd, F_OFD_GETLK, &fl) < 0 || fl.l_type == F_UNLCK)
        return 0;
    return fl.l_pid > 0 ? fl.l_pid : -1;
}

void shared_state_name(char name[SIM_NAME], int index)
{
    snprintf(name, SIM_NAME, "gpu%d.state", index);
}
