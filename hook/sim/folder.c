/* folder.c: the folder in which processes share devices, and the files in it; the
 * simulated management library reads it too. */
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

/* Opens the directory; -1 with errno set. Anybody can make directories and links
 * in /dev/shm: one that we choose must be the user's own, and not writable by
 * others. What is in it is opened relative to this descriptor. */
int shared_open_dir(void)
{
    struct statx st;
    int fd = open(g_config.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (g_config.own_dir ? O_NOFOLLOW : 0));
    if (fd < 0 || !g_config.own_dir)
        return fd;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_UID | STATX_MODE, &st) == 0 && st.stx_uid == geteuid() &&
        !(st.stx_mode & (S_IWGRP | S_IWOTH)))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

/* Opens or removes a file of the directory; -1 with errno set. */
int shared_open(const char *name, int flags)
{
    int dir = shared_open_dir();
    if (dir < 0)
        return -1;
    int fd = openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC, 0600), why = errno;
    close(dir);
    errno = why;
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

/* Whether a name still means the file that was opened. */
bool shared_still_there(int fd, const char *name)
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

/* Not further: a process has a table for 64 descriptors, and to get a larger one
 * takes the kernel 12 to 16 ms where there is a second thread. */
int shared_move_up(int fd)
{
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 40);
    if (high < 0)
        return fd;
    close(fd);
    return high;
}

int shared_holder(int fd, unsigned slot)
{
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_LOCK_SLOT + slot, .l_len = 1};
    if (fcntl(fd, F_OFD_GETLK, &fl) < 0 || fl.l_type == F_UNLCK) /* asked as an open file: sees this process's locks too */
        return 0;
    return fl.l_pid > 0 ? fl.l_pid : -1;
}

void shared_state_name(char name[SIM_NAME], int index)
{
    snprintf(name, SIM_NAME, "gpu%d.state", index);
}
