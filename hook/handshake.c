/* handshake.c: the messages exchanged with gfaas-tokend, and the handshake. */
#include "handshake.h"

#include "terminate.h"
#include "clock.h"
#include "device.h"
#include "limit.h"
#include "say.h"
#include "visible.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef F_GET_SEALS /* glibc 2.17 */
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 0x0002
#endif

#define RECONNECT_NS 100000000
#define REFUSED_NS 1000000000
#define PEEK_S 3 /* time limit of gf_peek for the daemon's answer */
#define WAITS "GPU work waits until it may"
#define HANGUPS 5 /* consecutive connections closed without an answer; an ending daemon closes one */

static bool copy(char *to, size_t size, const char *name)
{
    const char *value = getenv(name);
    if (!value)
        return false;
    strncpy(to, value, size - 1); /* the daemon does not know a truncated name */
    return true;
}

bool gf_identify(struct gf_identity *who)
{
    if (*who->secret)
        return true; /* the program may have changed its environment since then */
    copy(who->grant, sizeof who->grant, "GFAAS_GRANT"); /* the daemon refuses a grant that is too long, also a truncated one */
    return copy(who->socket, sizeof who->socket, "GFAAS_SOCKET") &&
           copy(who->instance, sizeof who->instance, "GFAAS_INSTANCE") &&
           copy(who->secret, sizeof who->secret, "GFAAS_SECRET");
}

struct gf_header gf_header(uint16_t type, uint32_t size)
{
    return (struct gf_header){.magic = GF_MAGIC, .type = type, .version = GF_VERSION, .size = size};
}

/* Reports whether an error means that the process is not allowed to make the system call, as in
 * a sandbox. */
static bool is_denial(int why) { return why == EPERM || why == EACCES || why == ENOSYS; }

/* Reports whether a system call failed for that reason, and prints it; `then` is the consequence. */
static bool denied(const char *call, const char *then)
{
    int why = errno;
    if (!is_denial(why))
        return false;
    gf_say(GF_SAY_DENIED, "this process may not call %s (%s): %s", call, strerror(why), then);
    errno = why;
    return true;
}

/* Writes a message if the process may not use send. It blocks SIGPIPE, and consumes it if it was
 * not pending before, so that the program does not receive it. */
static ssize_t write_instead(int fd, const void *message, size_t size)
{
    const struct timespec none = {0, 0};
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, &pipe, &before);
    ssize_t n = syscall(SYS_write, fd, message, size);
    int why = errno;
    if (n < 0 && why == EPIPE && !sigismember(&pending, SIGPIPE))
        syscall(SYS_rt_sigtimedwait, &pipe, NULL, &none, sizeof(uint64_t));
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return n;
}

/* Makes the system call itself: send is a cancellation point, and callers hold a lock. */
bool gf_transmit(int fd, const void *message, size_t size)
{
    ssize_t n;
    do
        n = syscall(SYS_sendto, fd, message, size, MSG_NOSIGNAL, NULL, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && denied("sendto", "the library sends to gfaas-tokend with write instead"))
        n = write_instead(fd, message, size);
    return n == (ssize_t)size;
}

bool gf_transmit_grant(int fd, const struct gf_identity *who)
{
    struct {
        struct gf_header h;
        char text[sizeof who->grant];
    } message;
    size_t size = strlen(who->grant);
    if (!size)
        return true;
    message.h = gf_header(GF_MSG_GRANT, (uint32_t)(sizeof message.h + size));
    memcpy(message.text, who->grant, size);
    return gf_transmit(fd, &message, sizeof message.h + size);
}

/* Opens a connection to the daemon's client socket and stores its identity in *is. Returns -1,
 * with errno set, if it fails. */
static int connect_to(const char *path, struct gf_inode *is)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = gf_move_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (fd < 0) {
        denied("socket", WAITS);
        return -1;
    }
    *is = gf_inode_of(fd);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int why = errno;
    if (why != EACCES) /* EACCES is about the socket's file */
        denied("connect", WAITS);
    gf_close_own(fd, *is);
    errno = why == EACCES ? ENOENT : why;
    return -1;
}

ssize_t gf_receive(int fd, void *buffer, size_t size, int *passed, int flags)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {buffer, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n;
    do
        n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | flags);
    while (n < 0 && errno == EINTR);
    if (n < 0 && denied("recvmsg", flags ? "the library receives from gfaas-tokend with read instead, and cannot reconnect" : WAITS) && flags)
        return syscall(SYS_read, fd, buffer, size); /* a welcome is useless without its descriptor */
    if (n < 0)
        return n;
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
        return n;
    for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= c->cmsg_len; at += sizeof(int)) {
        int fd;
        memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
        if (*passed < 0)
            *passed = fd;
        else
            close(fd); /* the buffer for one descriptor is padded and can hold two */
    }
    return n;
}

bool gf_is(const void *message, ssize_t n, uint16_t type, size_t size)
{
    const struct gf_header *h = message;
    return n == (ssize_t)size && h->magic == GF_MAGIC && h->version == GF_VERSION && h->type == type && h->size == size;
}

/* Maps the instance page, or returns NULL if it has no such slot. The file must have its full size
 * and be sealed against shrinking, because a read beyond its end would kill the process. A page of
 * an older daemon has GF_PAGE_SLOTS slots, and nothing is mapped after them. */
static struct gf_page *map_page(int fd, unsigned slot)
{
    int seals = fcntl(fd, F_GET_SEALS);
    off_t size = lseek(fd, 0, SEEK_END);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || size < GF_PAGE_SIZE)
        return NULL;
    struct gf_page *page = mmap(NULL, GF_PAGE_SIZE_MOST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return NULL;
    bool many = page->used != 0;
    if (page->magic == GF_MAGIC && page->nslots == GF_PAGE_SLOTS && size >= (many ? GF_PAGE_SIZE_MOST : GF_PAGE_SIZE) &&
        slot < (many ? GF_PAGE_SLOTS_MOST : GF_PAGE_SLOTS))
        return page;
    munmap(page, GF_PAGE_SIZE_MOST);
    return NULL;
}

static bool say_hello(int fd, unsigned place, uint64_t used, const struct gf_identity *who)
{
    struct gf_hello hello = {.h = gf_header(GF_MSG_HELLO, sizeof hello), .pid = (uint32_t)getpid(),
                             .device = place, .mem_used = used};
    hello.h.flags = GF_HELLO_MANY_SLOTS | GF_HELLO_MOVES;
    memcpy(hello.instance, who->instance, sizeof hello.instance);
    memcpy(hello.secret, who->secret, sizeof hello.secret);
    return gf_transmit_grant(fd, who) && gf_transmit(fd, &hello, sizeof hello);
}

struct gf_page *gf_peek(unsigned place, const struct gf_identity *who)
{
    struct timeval patience = {.tv_sec = PEEK_S};
    struct gf_page *page = NULL;
    union {
        struct gf_welcome welcome;
        char bytes[GF_MAX_MESSAGE];
    } answer;
    struct gf_inode is;
    int passed = -1, fd = connect_to(who->socket, &is);
    if (fd < 0)
        return NULL;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (say_hello(fd, place, 0, who)) {
        ssize_t n = gf_receive(fd, &answer, sizeof answer, &passed, 0);
        if (gf_is(&answer, n, GF_MSG_WELCOME, sizeof answer.welcome) && passed >= 0)
            page = map_page(passed, answer.welcome.slot);
    }
    if (passed >= 0)
        close(passed);
    gf_close_own(fd, is);
    return page;
}

void gf_greet(struct gf_device *device, const struct gf_identity *who)
{
    struct gf_link *link = &device->link;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    unsigned place = gf_visible_known() ? gf_visible_place(gf_ordinal(device)) : GF_DEVICES;
    if (gf_load(&link->early) >= 0 || place == GF_DEVICES || strlen(who->socket) >= sizeof address.sun_path)
        return;
    strcpy(address.sun_path, who->socket);
    /* A daemon that hangs accepts no connection, and this thread must not wait for it. */
    int fd = gf_move_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    struct gf_inode is = gf_inode_of(fd);
    /* Nothing is allocated before the daemon's first answer. */
    if (fd >= 0 && syscall(SYS_connect, fd, &address, sizeof address) == 0 && fcntl(fd, F_SETFL, O_RDWR) == 0 &&
        say_hello(fd, place, 0, who)) {
        link->early_is = is;
        gf_store(&link->early, fd);
    } else {
        gf_close_own(fd, is);
    }
}

/* Returns the connection of gf_greet if it is still the library's, or -1. */
static int greeted(struct gf_device *device, struct gf_inode *is)
{
    struct gf_link *link = &device->link;
    int fd = gf_load(&link->early);
    *is = link->early_is;
    if (fd >= 0 && gf_still(fd, *is))
        return fd;
    gf_store(&link->early, -1);
    return -1;
}

/* Moves the device to a mapped page and its slot. */
static void move_to(struct gf_device *device, struct gf_page *page, unsigned slot)
{
    gf_store(&page->slots[slot].blocks, 0); /* blocks since the connection */
    gf_device_set_gate(device, &gf_mem_move(device, page, slot)->gate);
}

/* Says hello unless gf_greet has, and moves the device to the page in the daemon's answer. Returns
 * false if there is none. */
static bool exchange(struct gf_device *device, unsigned place, int fd, bool said, const struct gf_identity *who)
{
    if (!said && !say_hello(fd, place, gf_mem_used(device), who))
        return false;
    union {
        struct gf_welcome welcome;
        struct gf_refused refused;
        char bytes[GF_MAX_MESSAGE];
    } answer;
    int passed = -1;
    ssize_t n = gf_receive(fd, &answer, sizeof answer, &passed, 0);
    bool denied = n < 0 && is_denial(errno);
    struct gf_page *page = NULL;
    if (gf_is(&answer, n, GF_MSG_WELCOME, sizeof answer.welcome) && passed >= 0)
        page = map_page(passed, answer.welcome.slot);
    if (passed >= 0)
        close(passed);
    if (gf_is(&answer, n, GF_MSG_REFUSED, sizeof answer.refused)) {
        bool full = answer.refused.h.flags & GF_REFUSED_FULL;
        answer.refused.reason[GF_REASON_SIZE - 1] = 0;
        gf_say(GF_SAY_REFUSED, "gfaas-tokend refuses this process on device %u (%s): its work there %s", gf_ordinal(device),
               answer.refused.reason, full ? "waits 10 s for a free place, and then fails (error 46)" : "stays blocked");
        gf_terminate_set_full(device, full);
        gf_pause_ns(REFUSED_NS);
    } else if (n <= 0 && !denied && ++device->link.hangups == HANGUPS) {
        gf_say(GF_SAY_LOST, "the daemon at %s closes the connection: GPU work waits for a gfaas-tokend with version %d of the protocol%s",
               who->socket, GF_VERSION, *who->grant ? ", which accepts grants" : "");
    } else if (n > 0 && !page) {
        gf_say(GF_SAY_LOST, "the program that answers at %s is not gfaas-tokend: GPU work waits for gfaas-tokend", who->socket);
    }
    if (page) {
        gf_terminate_set_full(device, false);
        device->link.hangups = 0;
        move_to(device, page, answer.welcome.slot);
    }
    return page;
}

int gf_handshake(struct gf_device *device, const struct gf_identity *who)
{
    unsigned place = gf_visible_place(gf_ordinal(device));
    if (place == GF_DEVICES) {
        gf_say(GF_SAY_REFUSED, "device %u is not one of this instance's GPUs: work there stays blocked",
               gf_ordinal(device));
        gf_pause_ns(REFUSED_NS);
        return -1;
    }
    struct gf_inode is;
    int fd = greeted(device, &is);
    bool said = fd >= 0;
    if (!said)
        fd = connect_to(who->socket, &is);
    if (fd < 0 && is_denial(errno))
        ; /* denied has printed it */
    else if (fd < 0)
        gf_say(GF_SAY_LOST, "no gfaas-tokend at %s: GPU work waits for it", who->socket);
    else if (exchange(device, place, fd, said, who)) {
        device->link.is = is;
        return fd;
    } else {
        gf_store(&device->link.early, -1);
        gf_close_own(fd, is);
    }
    gf_pause_ns(RECONNECT_NS);
    return -1;
}
