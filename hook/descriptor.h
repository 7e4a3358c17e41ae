/* descriptor.h: descriptors that a library keeps in a process of others.
 *
 * The program may close any number, by a loop over all of them or by one close too
 * many, and open a file of its own that then has the number. So those that are kept
 * have high numbers, and what a number names is compared with what it named before
 * the library reads, writes or closes it. Only sockets and files can be compared:
 * all epolls and eventfds have the same inode. */
#ifndef GFAAS_DESCRIPTOR_H
#define GFAAS_DESCRIPTOR_H

#include <fcntl.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GF_HIGHEST 1024 /* the usual limit, and select's: a table of descriptors with more takes memory */
#define GF_HIGH 64      /* numbers below that */

/* What a descriptor named when it was opened. */
struct gf_inode {
    dev_t device;
    ino_t inode; /* 0: not known */
};

/* Returns the lowest number to move descriptors to, within the process's limit. */
static inline int gf_high(void)
{
    struct rlimit limit;
    long most = GF_HIGHEST;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < GF_HIGHEST)
        most = (long)limit.rlim_cur;
    long from = most >= 2 * GF_HIGH ? most - GF_HIGH : most / 2;
    return (int)(from > STDERR_FILENO ? from : STDERR_FILENO + 1);
}

/* Has the kernel make room for high numbers: that takes it a microsecond in a process
 * of one thread and 12 to 16 ms in one of several. */
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

/* Closes a descriptor. A program may have a close of its own, which need not be ready for
 * numbers that it did not open; ThreadSanitizer's is told, as it was of the number. */
static inline void gf_close(int fd)
{
#ifdef __SANITIZE_THREAD__
    close(fd);
#else
    syscall(SYS_close, fd);
#endif
}

/* Moves a descriptor to a high number and returns that; where none is free, to any
 * that does not stand for a standard stream. Returns -1 if there is no such number;
 * the descriptor is closed then. */
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

/* Returns what a descriptor names. */
static inline struct gf_inode gf_inode_of(int fd)
{
    struct stat now; /* fstat itself got a new version with glibc 2.33 */
    if (fd < 0 || syscall(SYS_fstat, fd, &now) != 0)
        return (struct gf_inode){0, 0};
    return (struct gf_inode){now.st_dev, now.st_ino};
}

/* Reports whether a number still names what it did. */
static inline bool gf_still(int fd, struct gf_inode was)
{
    struct gf_inode now = gf_inode_of(fd);
    return now.inode && now.inode == was.inode && now.device == was.device;
}

/* Closes a descriptor unless the number names something else now. */
static inline void gf_close_own(int fd, struct gf_inode was)
{
    if (gf_still(fd, was))
        gf_close(fd);
}

#endif
