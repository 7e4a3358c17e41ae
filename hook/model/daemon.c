/* daemon.c: messages exchanged with gfaas-modeld: each packet is one JSON object, and may carry descriptors. */
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST_ANSWER 65536
#define MOST_FDS 2

/* The daemon's error codes, for the values from 1. NULL: only the library has that code. */
static const char *const codes[] = {"absent", "invalid-file", "checksum", "changed", "capacity", "busy",        "gpu-memory",
                                    "denied", "usage",        "internal", NULL,      NULL,       "slice-memory"};

/* Returns the value of a variable, or NULL if it is unset or empty. */
static const char *set(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The folder of users' sessions. */
#define SESSIONS "/run/user/"

/* Reports whether a folder belongs to this user and other users cannot write to it. */
static bool own_folder(const char *path)
{
    struct stat s;
    /* lstat itself got a new version with glibc 2.33. */
    return !syscall(SYS_newfstatat, AT_FDCWD, path, &s, AT_SYMLINK_NOFOLLOW) && S_ISDIR(s.st_mode) && s.st_uid == geteuid() && !(s.st_mode & (S_IWGRP | S_IWOTH));
}

/* Writes the nth path where the socket may be. Returns its length as snprintf does, or -1 after the last one. It
 * omits folders that do not belong to the user, except the first. Without variables, these are the defaults of the
 * daemon's RunDir (pkg/command/cli), in the same order. */
static int nth_socket(int n, char *path, size_t room)
{
    const char *given = set("GFAAS_MODEL_SOCKET"), *run = set("GFAAS_RUN_DIR"), *user = set("XDG_RUNTIME_DIR");
    unsigned long uid = geteuid();
    char folder[64];
    if (given || run || (user && strncmp(user, SESSIONS, sizeof SESSIONS - 1) != 0)) {
        if (n > 0)
            return -1;
        return given ? snprintf(path, room, "%s", given)
               : run ? snprintf(path, room, "%s/model.sock", run)
                     : snprintf(path, room, "%s/gfaas/model.sock", user);
    }
    if (n > 2)
        return -1;
    if (n == 0)
        snprintf(folder, sizeof folder, SESSIONS "%lu/gfaas", uid);
    else if (n == 1)
        snprintf(folder, sizeof folder, "/run/gfaas");
    else
        snprintf(folder, sizeof folder, "/tmp/gfaas-%lu", uid);
    return n == 0 || own_folder(folder) ? snprintf(path, room, "%s/model.sock", folder) : 0;
}

int daemon_connect(int *sock, struct gf_inode *is)
{
    struct sockaddr_un at;
    const size_t room = sizeof at.sun_path;
    char first[sizeof at.sun_path];
    int r, length, why = 0;
    *sock = gf_move_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (*sock < 0)
        return model_fail(GFAAS_MODEL_INTERNAL, "cannot create a socket: %s", strerror(errno));
    *is = gf_inode_of(*sock);
    for (int n = 0;; n++) {
        at = (struct sockaddr_un){.sun_family = AF_UNIX};
        if ((length = nth_socket(n, at.sun_path, room)) < 0)
            break;
        if ((size_t)length >= room) {
            gf_close_own(*sock, *is);
            *sock = -1;
            return model_fail(GFAAS_MODEL_USAGE, "the path of gfaas-modeld's socket is longer than %zu bytes", room - 1);
        }
        if (length == 0)
            continue;
        do
            r = connect(*sock, (struct sockaddr *)&at, sizeof at);
        while (r < 0 && errno == EINTR);
        if (r == 0)
            return GFAAS_MODEL_OK;
        if (n == 0) { /* the message is about the preferred path */
            why = errno;
            strcpy(first, at.sun_path);
        }
    }
    gf_close_own(*sock, *is);
    *sock = -1;
    return model_fail(GFAAS_MODEL_NO_DAEMON, "no gfaas-modeld at %s: %s", first, strerror(why));
}

/* Sends a packet, with a descriptor unless that is -1. */
static bool transmit(int sock, const char *text, size_t n, int fd)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof fd)];
    } control = {.room = {0}};
    struct iovec v = {(void *)(uintptr_t)text, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    ssize_t r;
    do
        r = sendmsg(sock, &m, MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    return r == (ssize_t)n;
}

/* Stores the descriptors of a message; closes those beyond the first two. */
static void take_fds(struct msghdr *m, int fds[MOST_FDS])
{
    int n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (n < MOST_FDS)
                fds[n++] = fd;
            else
                close(fd);
        }
    }
}

/* Waits for a packet. Returns its length, 0 at the end of the connection, or -1 if it did not fit. */
static ssize_t receive(int sock, char *text, size_t room, int fds[MOST_FDS])
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct iovec v = {text, room};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t r;
    do
        r = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return 0;
    take_fds(&m, fds);
    return m.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -1 : r;
}

struct error {
    const char *code, *message;
};

static void read_error(struct json *j, struct error *e)
{
    bool first = true;
    const char *key;
    if (!json_enter(j, '{'))
        return;
    while (json_next(j, '}', &first) && json_key(j, &key))
        if (!strcmp(key, "code"))
            json_string(j, &e->code);
        else if (!strcmp(key, "message"))
            json_string(j, &e->message);
        else
            json_skip(j);
}

/* Copies a string, which must fit. */
static void read_text(struct json *j, char *out, size_t room)
{
    const char *text;
    if (!json_string(j, &text))
        return;
    if (strlen(text) >= room)
        json_fail(j, "the string is too long");
    else
        strcpy(out, text);
}

/* Reads an answer; sets error.code if it is an error. */
static bool read_answer(struct json *j, struct answer *a, struct error *e, bool *ok)
{
    bool first = true;
    const char *key;
    *ok = false;
    if (!json_enter(j, '{'))
        return false;
    while (json_next(j, '}', &first) && json_key(j, &key)) {
        if (!strcmp(key, "ok"))
            json_boolean(j, ok);
        else if (!strcmp(key, "error"))
            read_error(j, e);
        else if (!strcmp(key, "sha256"))
            read_text(j, a->sha256, sizeof a->sha256);
        else if (!strcmp(key, "gpu"))
            read_text(j, a->gpu, sizeof a->gpu);
        else if (!strcmp(key, "size"))
            json_integer(j, &a->size);
        else
            json_skip(j);
    }
    return json_end(j);
}

static int fail_as(const struct error *e)
{
    const char *message = e->message && *e->message ? e->message : "gfaas-modeld refused the request and gave no reason";
    for (int i = 0; e->code && i < (int)(sizeof codes / sizeof *codes); i++)
        if (codes[i] && !strcmp(e->code, codes[i]))
            return model_fail(i + 1, "%s", message);
    return model_fail(GFAAS_MODEL_INTERNAL, "%s", message);
}

/* Parses an answer. `room` has space for twice the length of the text. */
static int parse_answer(const char *text, size_t n, char *room, const char *name, struct answer *a)
{
    struct json j = {text, text + n, room, NULL, 0};
    struct error e = {NULL, NULL};
    bool ok;
    if (!read_answer(&j, a, &e, &ok))
        return model_fail(GFAAS_MODEL_INTERNAL, "cannot read gfaas-modeld's answer about %s, at byte %zu: %s", name, (size_t)(j.at - text),
                          j.why ? j.why : "unexpected end");
    return ok ? GFAAS_MODEL_OK : fail_as(&e);
}

/* Sends a request and reads the answer, whose descriptors the caller must close, also after a failure. */
static int exchange(int sock, const char *request, int n, int fd, const char *name, struct answer *a)
{
    int fds[MOST_FDS] = {-1, -1}, code;
    *a = (struct answer){.memory = -1, .manifest = -1};
    char *text = malloc(2 * MOST_ANSWER + 2);
    if (!text)
        return model_fail(GFAAS_MODEL_INTERNAL, "out of memory for an answer");
    ssize_t got = transmit(sock, request, (size_t)n, fd) ? receive(sock, text, MOST_ANSWER, fds) : 0;
    a->memory = fds[0];
    a->manifest = fds[1];
    if (got == 0)
        code = model_fail(GFAAS_MODEL_NO_DAEMON, "gfaas-modeld closed the connection before it answered about %s", name);
    else if (got < 0)
        code = model_fail(GFAAS_MODEL_INTERNAL, "gfaas-modeld's answer about %s is too long", name);
    else
        code = parse_answer(text, (size_t)got, text + MOST_ANSWER, name, a);
    free(text);
    return code;
}

/* Sends a request for memory. */
static int request_memory(int sock, const char *request, int n, int fd, const char *name, struct answer *a)
{
    int code = exchange(sock, request, n, fd, name, a);
    if (!code && (!a->size || a->memory < 0 || a->manifest < 0))
        code = model_fail(GFAAS_MODEL_INTERNAL, "gfaas-modeld's answer about %s lacks size, memory or the list of tensors", name);
    if (code)
        answer_close(a);
    return code;
}

int daemon_get(int sock, const char *name, int file, struct answer *a)
{
    char request[512];
    int n = snprintf(request, sizeof request, "{\"op\":\"get\",\"name\":\"%s\",\"timeout_ms\":0}", name);
    return request_memory(sock, request, n, file, name, a);
}

int daemon_store(int sock, const char *name, uint64_t size, int64_t timeout_ms, bool everyone, int manifest, struct answer *a)
{
    char request[512];
    int n = snprintf(request, sizeof request, "{\"op\":\"store\",\"name\":\"%s\",\"size\":%" PRIu64 ",\"timeout_ms\":%" PRId64 ",\"public\":%s}", name, size,
                     timeout_ms, everyone ? "true" : "false");
    return request_memory(sock, request, n, manifest, name, a);
}

int daemon_tell(int sock, const char *op, const char *name)
{
    char request[512];
    struct answer a;
    int n = snprintf(request, sizeof request, "{\"op\":\"%s\",\"name\":\"%s\"}", op, name);
    int code = exchange(sock, request, n, -1, name, &a);
    answer_close(&a);
    return code;
}

void answer_close(struct answer *a)
{
    if (a->memory >= 0)
        close(a->memory);
    if (a->manifest >= 0)
        close(a->manifest);
    a->memory = a->manifest = -1;
}
