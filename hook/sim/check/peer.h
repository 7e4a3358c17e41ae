/* peer.h: starts a second process of the same program (the peer), and exchanges messages and file
 * descriptors with it over a socket. A program must start its peers before it initialises the driver. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct peer {
    pid_t pid;
    int sock; /* connected to the peer */
};

/* Starts the program `self` with two arguments: the role, and the number of the descriptor of a socket
 * that is connected to this process. */
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

/* Closes the socket and waits for the end of the peer. Returns its exit status, or 128 if a signal ended
 * it. */
static inline int peer_wait(struct peer p)
{
    int status = 0;
    close(p.sock);
    waitpid(p.pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* Sends a message of n bytes and, unless fd is -1, a descriptor. */
static inline bool send_message(int sock, const void *data, size_t n, int fd)
{
    char control[CMSG_SPACE(sizeof fd)];
    struct iovec v = {(void *)(uintptr_t)data, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (fd >= 0) {
        memset(control, 0, sizeof control);
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    return sendmsg(sock, &m, MSG_NOSIGNAL) == (ssize_t)n;
}

/* Receives a message of n bytes and, unless fd is NULL, a descriptor. Returns false if the message has
 * another length or no descriptor. */
static inline bool receive_message(int sock, void *data, size_t n, int *fd)
{
    char control[CMSG_SPACE(sizeof *fd)];
    struct iovec v = {data, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(sock, &m, 0) != (ssize_t)n)
        return false;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (fd && (!c || c->cmsg_type != SCM_RIGHTS))
        return false;
    if (fd)
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return true;
}

/* Tells the process at the other end of the socket to continue. */
static inline bool send_go(int sock)
{
    return send_message(sock, "g", 1, -1);
}

/* Waits until the process at the other end calls send_go. */
static inline bool receive_go(int sock)
{
    char c = 0;
    return receive_message(sock, &c, 1, NULL) && c == 'g';
}
