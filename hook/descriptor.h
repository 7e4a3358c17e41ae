/* descriptor.h: descriptors that a library keeps open in another program's process.
 *
 * The program may close any descriptor, for example in a loop over all of them, and then open a file that
 * gets the same number. So the library's descriptors have high numbers, and before the library uses one
 * it compares the file behind it with the file that it opened. Only sockets and files can be compared:
 * all epolls and eventfds have the same inode. */
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GF_HIGHEST 1024 /* the usual limit, and select's; a table for more descriptors takes memory */
#define GF_HIGH 64      /* how many numbers are used below it */

/* The file behind a descriptor when it was opened. */
struct gf_inode {
    dev_t device;
    ino_t inode; /* 0: not known */
};

/* Returns the lowest number to which descriptors are moved, within the process's limit. */
static inline int gf_high(void)
{
    struct rlimit limit;
    long most = GF_HIGHEST;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < GF_HIGHEST)
        most = (long)limit.rlim_cur;
    long from = most >= 2 * GF_HIGH ? most - GF_HIGH : most / 2;
    return (int)(from > STDERR_FILENO ? from : STDERR_FILENO + 1);
}

/* Makes the kernel extend the table for high numbers, which takes 1 us in a process with one thread and
 * 12 to 16 ms with several. */
static inline void gf_make_room(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        int high = fcntl(fd, F_DUPFD_CLOEXEC, gf_high());
        if (high >= 0) {
            syscall(SYS_close, high);
            return;
        }
    }
}

/* Closes a descriptor by a system call, because the program may define its own close, which need not
 * expect descriptors that it did not open. ThreadSanitizer must see the close, as it saw the open. */
static inline void gf_close(int fd)
{
#ifdef __SANITIZE_THREAD__
    close(fd);
#else
    syscall(SYS_close, fd);
#endif
}

/* Moves a descriptor to a high number and returns that number; if none is free, to any number above the
 * standard streams'. If there is no such number, it closes the descriptor and returns -1. */
static inline int gf_move_high(int fd)
{
    if (fd < 0)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, gf_high());
    if (moved < 0 && fd > STDERR_FILENO)
        return fd;
    if (moved < 0)
        moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    gf_close(fd);
    return moved;
}

/* Returns the identity of the file behind a descriptor. */
static inline struct gf_inode gf_inode_of(int fd)
{
    struct stat now; /* fstat itself got a new version with glibc 2.33 */
    if (fd < 0 || syscall(SYS_fstat, fd, &now) != 0)
        return (struct gf_inode){0, 0};
    return (struct gf_inode){now.st_dev, now.st_ino};
}

/* Reports whether a descriptor still refers to the file. */
static inline bool gf_still(int fd, struct gf_inode was)
{
    struct gf_inode now = gf_inode_of(fd);
    return now.inode && now.inode == was.inode && now.device == was.device;
}

/* Closes a descriptor if it still refers to the file. */
static inline void gf_close_own(int fd, struct gf_inode was)
{
    if (gf_still(fd, was))
        gf_close(fd);
}
