/* descriptors: closes descriptors of the preload library, or replaces them with files of the program, and
 * then launches more kernels.
 *
 *   descriptors WHICH KIND WHEN [LIMIT]
 *
 * WHICH selects the library's descriptors by type: socket, epoll (epolls and eventfds) or all (both).
 *
 * KIND is the replacement:
 *
 *   closed                   none: the descriptor is only closed
 *   file                     a temporary file
 *   stream, seqpacket        one end of a pair of Unix sockets of that type
 *   pipe, write              the read end or the write end of a pipe
 *   event, epoll, timer      an eventfd, an epoll or a timerfd
 *
 * WHEN is idle or busy. If it is busy, a second thread also launches kernels, before and after the
 * replacement. LIMIT is the limit on open descriptors (default: unchanged).
 *
 * The program fails if a launch fails, if a replacement does not stay open (here or in a forked child), or
 * if the library reads from a replacement or writes to it. It prints the lowest number of the selected
 * descriptors. */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { MAX_FILES = 32, LAUNCHES = 60 };
static const char text[] = "the program's own";

static CUcontext context;
static CUfunction kernel_100us;

/* The files of the program that replace the library's. */
static struct replacement {
    int fd;           /* the number, which was the library's */
    int other;        /* the other end of the socket or pipe, or the eventfd that the epoll watches; -1: none */
    struct stat stat; /* of the file, immediately after the replacement */
} replacements[MAX_FILES];
static int replaced; /* number of replacements */

static void launch_kernels(int n)
{
    for (int i = 0; i < n; i++) {
        launch_block(kernel_100us, NULL);
        if (i % 4 == 0)
            ASSERT_SUCCESS(cuCtxSynchronize());
        usleep(3000); /* long enough that the lease is returned, so that the next launch requests another */
    }
}

static bool pause_launches; /* set by the main thread: the second thread must pause */
static bool paused;         /* set by the second thread: it does not launch until pause_launches is false */

/* Launches kernels in the second thread, pauses while pause_launches is set, and launches more. */
static void *launcher(void *unused)
{
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    launch_kernels(LAUNCHES);
    __atomic_store_n(&paused, true, __ATOMIC_RELEASE);
    while (__atomic_load_n(&pause_launches, __ATOMIC_ACQUIRE))
        usleep(1000);
    launch_kernels(LAUNCHES);
    return unused;
}

/* Reports whether all threads of the process except the main thread, which calls this, sleep. */
static bool others_sleep(void)
{
    bool all_sleep = true;
    DIR *dir = opendir("/proc/self/task");
    ASSERT(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char name[300], line[512] = "";
        if (atol(e->d_name) <= 0 || atol(e->d_name) == getpid())
            continue;
        snprintf(name, sizeof name, "/proc/self/task/%s/stat", e->d_name);
        FILE *f = fopen(name, "r");
        if (f && fgets(line, sizeof line, f)) {
            const char *state = strrchr(line, ')');
            all_sleep = all_sleep && state && state[2] == 'S';
        }
        if (f)
            fclose(f);
    }
    closedir(dir);
    return all_sleep;
}

/* Waits until the library's thread sleeps, so that the library uses no descriptor during the replacement.
 * Otherwise the test could fail without a defect: before the library uses a descriptor, it checks that the
 * descriptor is still its own, but no library can prevent that the program replaces the file between the
 * check and the use. */
static void await_idle_library(void)
{
    usleep(30000);
    for (int idle = 0; idle < 5; usleep(2000))
        idle = others_sleep() ? idle + 1 : 0;
    while (!others_sleep())
        usleep(100);
}

/* Reports whether WHICH selects a descriptor whose link in /proc/self/fd is `link`. */
static bool is_chosen(const char *which, const char *link)
{
    bool is_socket = !strncmp(link, "socket:", 7), is_epoll = strstr(link, "eventpoll") || strstr(link, "eventfd");
    if (!strcmp(which, "socket"))
        return is_socket;
    return is_epoll || (is_socket && !strcmp(which, "all"));
}

/* Stores the descriptors that WHICH selects in fds and returns how many there are. All of them are the
 * library's: neither the simulated driver nor this program has opened a socket, an epoll or an eventfd. */
static int find_descriptors(const char *which, int fds[MAX_FILES])
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    ASSERT(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char link[64] = "";
        int fd = atoi(e->d_name);
        if (fd > 2 && readlinkat(dirfd(dir), e->d_name, link, sizeof link - 1) > 0 && is_chosen(which, link) && n < MAX_FILES)
            fds[n++] = fd;
    }
    closedir(dir);
    return n;
}

static void write_text(int fd) { ASSERT(write(fd, text, sizeof text) == (ssize_t)sizeof text); }

/* Opens a file of that kind and returns its descriptor. Sets *other as in struct replacement. If the kind
 * allows it, the file contains data, so that check_untouched can tell whether the library has read it. */
static int open_file(const char *kind, int *other)
{
    int fds[2] = {-1, -1};
    if (!strcmp(kind, "file"))
        fds[0] = fileno(tmpfile());
    if (!strcmp(kind, "stream") || !strcmp(kind, "seqpacket"))
        ASSERT(socketpair(AF_UNIX, !strcmp(kind, "stream") ? SOCK_STREAM : SOCK_SEQPACKET, 0, fds) == 0);
    if (!strcmp(kind, "pipe") || !strcmp(kind, "write"))
        ASSERT(pipe(fds) == 0);
    if (!strcmp(kind, "write")) {
        int read_end = fds[0];
        fds[0] = fds[1];
        fds[1] = read_end;
    }
    if (!strcmp(kind, "event"))
        fds[0] = eventfd(5, EFD_NONBLOCK);
    if (!strcmp(kind, "timer"))
        fds[0] = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (!strcmp(kind, "epoll")) {
        struct epoll_event once = {.events = EPOLLIN | EPOLLONESHOT};
        fds[0] = epoll_create1(0);
        fds[1] = eventfd(1, 0);
        ASSERT(epoll_ctl(fds[0], EPOLL_CTL_ADD, fds[1], &once) == 0);
    }
    ASSERT(fds[0] >= 0);
    if (!strcmp(kind, "stream") || !strcmp(kind, "seqpacket")) {
        write_text(fds[0]);
        write_text(fds[1]);
    }
    if (!strcmp(kind, "pipe"))
        write_text(fds[1]);
    *other = fds[1];
    return fds[0];
}

/* Closes a descriptor, or replaces it with a file of that kind. */
static void replace(int fd, const char *kind)
{
    if (!strcmp(kind, "closed")) {
        ASSERT(close(fd) == 0);
        return;
    }
    struct replacement *r = &replacements[replaced++];
    int file = open_file(kind, &r->other);
    ASSERT(dup2(file, fd) == fd);
    r->fd = fd;
    ASSERT(fstat(fd, &r->stat) == 0);
    close(file);
}

/* Reports whether `text`, and nothing else, can be read from a descriptor. */
static bool has_text(int fd)
{
    char got[64];
    ASSERT(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    return read(fd, got, sizeof got) == (ssize_t)sizeof text && !memcmp(got, text, sizeof text) &&
           read(fd, got, sizeof got) < 0 && errno == EAGAIN;
}

/* Checks that the replaced descriptors still refer to the files of the program. */
static void check_open(void)
{
    struct stat now;
    for (struct replacement *r = replacements; r < replacements + replaced; r++)
        ASSERT(fstat(r->fd, &now) == 0 && now.st_ino == r->stat.st_ino && now.st_dev == r->stat.st_dev &&
               now.st_mode == r->stat.st_mode);
}

/* Checks that the replacements are open and that the library has neither read from them nor written to
 * them. */
static void check_untouched(const char *kind)
{
    struct stat now;
    struct epoll_event event;
    struct itimerspec timer;
    uint64_t count;
    char byte;
    check_open();
    for (struct replacement *r = replacements; r < replacements + replaced; r++) {
        if (!strcmp(kind, "file"))
            ASSERT(fstat(r->fd, &now) == 0 && now.st_size == 0);
        if (!strcmp(kind, "stream") || !strcmp(kind, "seqpacket"))
            ASSERT(has_text(r->fd) && has_text(r->other));
        if (!strcmp(kind, "pipe"))
            ASSERT(has_text(r->fd));
        if (!strcmp(kind, "write"))
            ASSERT(fcntl(r->other, F_SETFL, O_NONBLOCK) == 0 && read(r->other, &byte, 1) < 0 && errno == EAGAIN);
        if (!strcmp(kind, "event"))
            ASSERT(read(r->fd, &count, sizeof count) == (ssize_t)sizeof count && count == 5);
        if (!strcmp(kind, "timer"))
            ASSERT(timerfd_gettime(r->fd, &timer) == 0 && !timer.it_value.tv_sec && !timer.it_value.tv_nsec);
        if (!strcmp(kind, "epoll"))
            ASSERT(epoll_wait(r->fd, &event, 1, 0) == 1 && epoll_wait(r->fd, &event, 1, 0) == 0);
    }
}

int main(int argc, char **argv)
{
    int fds[MAX_FILES], lowest = INT_MAX;
    if (argc != 4 && argc != 5)
        return 2;
    const char *which = argv[1], *kind = argv[2];
    bool busy = !strcmp(argv[3], "busy");
    if (argc == 5) {
        struct rlimit limit;
        ASSERT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        limit.rlim_cur = (rlim_t)atol(argv[4]) < limit.rlim_max ? (rlim_t)atol(argv[4]) : limit.rlim_max;
        ASSERT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    context = primary_context();
    kernel_100us = timed_kernel(100);
    pthread_t thread = 0;
    launch_kernels(8);
    if (busy) {
        __atomic_store_n(&pause_launches, true, __ATOMIC_RELEASE);
        thread = start_thread(launcher, NULL);
        while (!__atomic_load_n(&paused, __ATOMIC_ACQUIRE))
            usleep(1000);
    }
    int n = find_descriptors(which, fds);
    ASSERT(n > 0);
    await_idle_library();
    for (int i = 0; i < n; i++) {
        lowest = fds[i] < lowest ? fds[i] : lowest;
        replace(fds[i], kind);
    }
    __atomic_store_n(&pause_launches, false, __ATOMIC_RELEASE);
    pid_t child = fork();
    if (child == 0) {
        check_open();
        _exit(0);
    }
    ends_well(child);
    launch_kernels(LAUNCHES);
    if (busy)
        pthread_join(thread, NULL);
    check_untouched(kind);
    printf("%d\n", lowest);
    return 0;
}
