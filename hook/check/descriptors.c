/* descriptors: has descriptors of the preload library closed, or replaced by files of
 * the program, and goes on launching.
 *
 *   descriptors WHICH KIND WHEN [LIMIT]
 *
 * WHICH is socket, epoll or all (every descriptor from 3 on that is one of the two);
 * KIND is what gets the number: closed (nothing), file, stream, seqpacket, pipe, write
 * (the end of a pipe that is written to), event, epoll or timer; WHEN is idle or busy
 * (another thread launches before and after); LIMIT is the most descriptors it may have.
 * Fails unless all launches succeed, in this process and none of its files is read,
 * written to or closed, here and in a forked child.
 * Prints the lowest number that the library had. */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 32, LAUNCHES = 60 };
static const char text[] = "the program's own";

static CUcontext context;
static CUfunction nop;

/* What has a number of the library's now. */
static struct own {
    int fd, other; /* the other end, or what an epoll watches */
    struct stat was;
} own[MOST];
static int owned;

static void launches(int n)
{
    for (int i = 0; i < n; i++) {
        MUST(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        if (i % 4 == 0)
            MUST(cuCtxSynchronize());
        usleep(3000); /* the lease is given back meanwhile, and the next launch asks */
    }
}

static bool stop, stopped; /* the other thread is to launch nothing, and does not */

static void *launcher(void *unused)
{
    MUST(cuCtxSetCurrent(context));
    launches(LAUNCHES);
    __atomic_store_n(&stopped, true, __ATOMIC_RELEASE);
    while (__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
        usleep(1000);
    launches(LAUNCHES);
    return unused;
}

/* Reports whether all other threads of the process sleep. */
static bool others_sleep(void)
{
    bool all = true;
    DIR *dir = opendir("/proc/self/task");
    ENSURE(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char name[300], line[512] = "";
        if (atol(e->d_name) <= 0 || atol(e->d_name) == getpid())
            continue;
        snprintf(name, sizeof name, "/proc/self/task/%s/stat", e->d_name);
        FILE *f = fopen(name, "r");
        if (f && fgets(line, sizeof line, f)) {
            const char *state = strrchr(line, ')');
            all = all && state && state[2] == 'S';
        }
        if (f)
            fclose(f);
    }
    closedir(dir);
    return all;
}

/* Waits until the library is between two of its looks. It checks a number before it uses
 * it, and nobody can keep a program from using the number for something else between the
 * two: such a program could lose data to any library. */
static void settle(void)
{
    usleep(30000);
    for (int calm = 0; calm < 5; usleep(2000))
        calm = others_sleep() ? calm + 1 : 0;
    while (!others_sleep())
        usleep(100);
}

static bool chosen(const char *which, const char *link)
{
    bool socket = !strncmp(link, "socket:", 7), epoll = strstr(link, "eventpoll") || strstr(link, "eventfd");
    return (socket && strcmp(which, "epoll")) || (epoll && strcmp(which, "socket"));
}

/* Writes down the library's descriptors; returns how many there are. */
static int find(const char *which, int fds[MOST])
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    ENSURE(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char link[64] = "";
        int fd = atoi(e->d_name);
        if (fd > 2 && readlinkat(dirfd(dir), e->d_name, link, sizeof link - 1) > 0 && chosen(which, link) && n < MOST)
            fds[n++] = fd;
    }
    closedir(dir);
    return n;
}

static void fill(int fd) { ENSURE(write(fd, text, sizeof text) == (ssize_t)sizeof text); }

/* Makes a file of that kind, with what the library must leave alone. */
static int make(const char *kind, int *other)
{
    int two[2] = {-1, -1};
    if (!strcmp(kind, "file"))
        two[0] = fileno(tmpfile());
    if (!strcmp(kind, "stream") || !strcmp(kind, "seqpacket"))
        ENSURE(socketpair(AF_UNIX, kind[1] == 't' ? SOCK_STREAM : SOCK_SEQPACKET, 0, two) == 0);
    if (!strcmp(kind, "pipe") || !strcmp(kind, "write"))
        ENSURE(pipe(two) == 0);
    if (!strcmp(kind, "write")) {
        int reads = two[0];
        two[0] = two[1];
        two[1] = reads;
    }
    if (!strcmp(kind, "event"))
        two[0] = eventfd(5, EFD_NONBLOCK);
    if (!strcmp(kind, "timer"))
        two[0] = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (!strcmp(kind, "epoll")) {
        struct epoll_event once = {.events = EPOLLIN | EPOLLONESHOT};
        two[0] = epoll_create1(0);
        two[1] = eventfd(1, 0);
        ENSURE(epoll_ctl(two[0], EPOLL_CTL_ADD, two[1], &once) == 0);
    }
    ENSURE(two[0] >= 0);
    if (!strcmp(kind, "stream") || !strcmp(kind, "seqpacket")) {
        fill(two[0]);
        fill(two[1]);
    }
    if (!strcmp(kind, "pipe"))
        fill(two[1]);
    *other = two[1];
    return two[0];
}

static void replace(int fd, const char *kind)
{
    if (!strcmp(kind, "closed")) {
        ENSURE(close(fd) == 0);
        return;
    }
    struct own *o = &own[owned++];
    int made = make(kind, &o->other);
    ENSURE(dup2(made, fd) == fd);
    o->fd = fd;
    ENSURE(fstat(fd, &o->was) == 0);
    close(made);
}

/* Whether that is all there is to read. */
static bool has_text(int fd)
{
    char got[64];
    ENSURE(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    return read(fd, got, sizeof got) == (ssize_t)sizeof text && !memcmp(got, text, sizeof text) &&
           read(fd, got, sizeof got) < 0 && errno == EAGAIN;
}

static void still_open(void)
{
    struct stat now;
    for (struct own *o = own; o < own + owned; o++)
        ENSURE(fstat(o->fd, &now) == 0 && now.st_ino == o->was.st_ino && now.st_dev == o->was.st_dev && now.st_mode == o->was.st_mode);
}

static void untouched(const char *kind)
{
    struct stat now;
    struct epoll_event event;
    struct itimerspec timer;
    uint64_t count;
    char byte;
    still_open();
    for (struct own *o = own; o < own + owned; o++) {
        if (!strcmp(kind, "file"))
            ENSURE(fstat(o->fd, &now) == 0 && now.st_size == 0);
        if (!strcmp(kind, "stream") || !strcmp(kind, "seqpacket"))
            ENSURE(has_text(o->fd) && has_text(o->other));
        if (!strcmp(kind, "pipe"))
            ENSURE(has_text(o->fd));
        if (!strcmp(kind, "write"))
            ENSURE(fcntl(o->other, F_SETFL, O_NONBLOCK) == 0 && read(o->other, &byte, 1) < 0 && errno == EAGAIN);
        if (!strcmp(kind, "event"))
            ENSURE(read(o->fd, &count, sizeof count) == (ssize_t)sizeof count && count == 5);
        if (!strcmp(kind, "timer"))
            ENSURE(timerfd_gettime(o->fd, &timer) == 0 && !timer.it_value.tv_sec && !timer.it_value.tv_nsec);
        if (!strcmp(kind, "epoll"))
            ENSURE(epoll_wait(o->fd, &event, 1, 0) == 1 && epoll_wait(o->fd, &event, 1, 0) == 0);
    }
}

int main(int argc, char **argv)
{
    int fds[MOST], lowest = 1 << 30, status;
    if (argc != 4 && argc != 5)
        return 2;
    if (argc == 5) {
        struct rlimit limit;
        ENSURE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        limit.rlim_cur = (rlim_t)atol(argv[4]) < limit.rlim_max ? (rlim_t)atol(argv[4]) : limit.rlim_max;
        ENSURE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    context = primary_context();
    nop = timed_kernel(100);
    bool busy = !strcmp(argv[3], "busy");
    pthread_t thread;
    launches(8);
    if (busy) {
        __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
        ENSURE(pthread_create(&thread, NULL, launcher, NULL) == 0);
        while (!__atomic_load_n(&stopped, __ATOMIC_ACQUIRE))
            usleep(1000);
    }
    int n = find(argv[1], fds);
    ENSURE(n > 0);
    settle();
    for (int i = 0; i < n; i++) {
        lowest = fds[i] < lowest ? fds[i] : lowest;
        replace(fds[i], argv[2]);
    }
    __atomic_store_n(&stop, false, __ATOMIC_RELEASE);
    pid_t child = fork();
    if (child == 0) {
        still_open();
        _exit(0);
    }
    ENSURE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    launches(LAUNCHES);
    if (busy)
        pthread_join(thread, NULL);
    untouched(argv[2]);
    printf("%d\n", lowest);
    return 0;
}
