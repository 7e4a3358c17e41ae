/* peer.h: a second process of the same program, and descriptors passed to it. It
 * is started before the driver is initialised, with a socket as its argument. */
#ifndef GFAAS_PEER_H
#define GFAAS_PEER_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct peer {
    pid_t pid;
    int sock;
};

static inline struct peer peer_start(const char *self, const char *role)
{
    int s[2];
    char number[16];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s))
        exit(1);
    fflush(stdout);
    struct peer p = {fork(), s[0]};
    if (p.pid == 0) {
        close(s[0]);
        snprintf(number, sizeof number, "%d", s[1]);
        execl(self, self, role, number, (char *)NULL);
        _exit(127);
    }
    close(s[1]);
    return p;
}

/* The exit status of the peer; 128 when a signal ended it. */
static inline int peer_end(struct peer p)
{
    int status = 0;
    close(p.sock);
    waitpid(p.pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* Sends bytes and, unless fd is -1, a descriptor. */
static inline bool say(int sock, const void *data, size_t n, int fd)
{
    char room[CMSG_SPACE(sizeof fd)];
    struct iovec v = {(void *)(uintptr_t)data, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (fd >= 0) {
        memset(room, 0, sizeof room);
        m.msg_control = room;
        m.msg_controllen = sizeof room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    return sendmsg(sock, &m, MSG_NOSIGNAL) == (ssize_t)n;
}

/* Hears that many bytes and, if fd is given, a descriptor. */
static inline bool hear(int sock, void *data, size_t n, int *fd)
{
    char room[CMSG_SPACE(sizeof *fd)];
    struct iovec v = {data, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(sock, &m, 0) != (ssize_t)n)
        return false;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (fd && (!c || c->cmsg_type != SCM_RIGHTS))
        return false;
    if (fd)
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return true;
}

static inline bool say_go(int sock)
{
    return say(sock, "g", 1, -1);
}

static inline bool hear_go(int sock)
{
    char c = 0;
    return hear(sock, &c, 1, NULL) && c == 'g';
}

#endif
