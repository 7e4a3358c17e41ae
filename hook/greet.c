/* greet.c: the connection to gfaas-tokend and its first exchange. */
#include "greet.h"

#include "asked.h"
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
#define PEEK_S 3 /* for the daemon to answer who only looks */
#define WAITS "GPU work waits until it may"
#define HANGUPS 5 /* in a row and without an answer; a daemon that is ending hangs up once */

static bool copy(char *to, size_t size, const char *name)
{
    const char *value = getenv(name);
    if (!value)
        return false;
    strncpy(to, value, size - 1); /* a name cut short is none that the daemon knows */
    return true;
}

bool gf_identify(struct gf_identity *who)
{
    if (*who->secret)
        return true; /* the program may have changed its environment since */
    return copy(who->socket, sizeof who->socket, "GFAAS_SOCKET") &&
           copy(who->instance, sizeof who->instance, "GFAAS_INSTANCE") &&
           copy(who->secret, sizeof who->secret, "GFAAS_SECRET");
}

struct gf_header gf_header(uint16_t type, uint32_t size)
{
    return (struct gf_header){.magic = GF_MAGIC, .type = type, .version = GF_VERSION, .size = size};
}

/* Reports whether an error says that the process may not make a system call: a sandbox
 * that a program puts itself in gives these. */
static bool is_denial(int why) { return why == EPERM || why == EACCES || why == ENOSYS; }

/* Reports whether a system call failed for that, and says so. */
static bool denied(const char *call, const char *then)
{
    int why = errno;
    if (!is_denial(why))
        return false;
    gf_say(GF_SAY_DENIED, "this process may not call %s (%s): %s", call, strerror(why), then);
    errno = why;
    return true;
}

/* Writes a message where it cannot be sent. SIGPIPE is not for the program: it is
 * blocked, and taken back if it was not pending before. */
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

/* A system call of our own: send is a place where a thread may be cancelled,
 * and callers hold a lock. */
bool gf_transmit(int fd, const void *message, size_t size)
{
    ssize_t n;
    do
        n = syscall(SYS_sendto, fd, message, size, MSG_NOSIGNAL, NULL, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && denied("sendto", "the library writes to gfaas-tokend by write"))
        n = write_instead(fd, message, size);
    return n == (ssize_t)size;
}

/* Opens a connection to the daemon's client socket and notes what it is, or returns
 * -1. */
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
    if (why != EACCES) /* that is of the socket's file */
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
    if (n < 0 && denied("recvmsg", flags ? "the library hears gfaas-tokend by read, and cannot connect anew" : WAITS) && flags)
        return syscall(SYS_read, fd, buffer, size); /* a welcome is of no use without its descriptor */
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
            close(fd); /* the room for one is padded, and takes two */
    }
    return n;
}

bool gf_is(const void *message, ssize_t n, uint16_t type, size_t size)
{
    const struct gf_header *h = message;
    return n == (ssize_t)size && h->magic == GF_MAGIC && h->version == GF_VERSION && h->type == type && h->size == size;
}

/* Maps an instance page that has the slot, or returns NULL: it must be as long as it
 * should and stay so, or a look at it could kill the process. One of an older daemon
 * has GF_PAGE_SLOTS, and nothing is mapped behind them. */
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
    hello.h.flags = GF_HELLO_MANY_SLOTS;
    memcpy(hello.instance, who->instance, sizeof hello.instance);
    memcpy(hello.secret, who->secret, sizeof hello.secret);
    return gf_transmit(fd, &hello, sizeof hello);
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

/* Makes the page, just mapped, and the slot the device's. */
static void move_to(struct gf_device *device, struct gf_page *page, unsigned slot)
{
    gf_store(&page->slots[slot].blocks, 0); /* since it connected */
    gf_device_open(device, &gf_mem_move(device, page, slot)->gate);
}

/* Says who this process is and moves to the page that the daemon sends back. */
static bool greet(struct gf_device *device, unsigned place, int fd, const struct gf_identity *who)
{
    if (!say_hello(fd, place, gf_mem_used(device), who))
        return false;
    union {
        struct gf_welcome welcome;
        struct gf_refused refused;
        char bytes[GF_MAX_MESSAGE];
    } answer;
    int passed = -1;
    ssize_t n = gf_receive(fd, &answer, sizeof answer, &passed, 0);
    bool deaf = n < 0 && is_denial(errno);
    struct gf_page *page = NULL;
    if (gf_is(&answer, n, GF_MSG_WELCOME, sizeof answer.welcome) && passed >= 0)
        page = map_page(passed, answer.welcome.slot);
    if (passed >= 0)
        close(passed);
    if (gf_is(&answer, n, GF_MSG_REFUSED, sizeof answer.refused)) {
        bool full = answer.refused.h.flags & GF_REFUSED_FULL;
        answer.refused.reason[GF_REASON_SIZE - 1] = 0;
        gf_say(GF_SAY_REFUSED, "gfaas-tokend refuses this process on device %u: %s: its work there %s", gf_ordinal(device),
               answer.refused.reason, full ? "waits 10 s for a place, and then fails (error 46)" : "stays blocked");
        gf_full(device, full);
        gf_pause_ns(REFUSED_NS);
    } else if (n <= 0 && !deaf && ++device->link.hangups == HANGUPS) {
        gf_say(GF_SAY_LOST, "what answers at %s hangs up: GPU work waits for a gfaas-tokend that speaks version %d of the protocol",
               who->socket, GF_VERSION);
    } else if (n > 0 && !page) {
        gf_say(GF_SAY_LOST, "what answers at %s is not gfaas-tokend: GPU work waits until it is there", who->socket);
    }
    if (page) {
        gf_full(device, false);
        device->link.hangups = 0;
        move_to(device, page, answer.welcome.slot);
    }
    return page;
}

int gf_greet(struct gf_device *device, const struct gf_identity *who)
{
    unsigned place = gf_visible_place(gf_ordinal(device));
    if (place == GF_DEVICES) {
        gf_say(GF_SAY_REFUSED, "device %u is none of the GPUs that this instance was given: work there stays blocked",
               gf_ordinal(device));
        gf_pause_ns(REFUSED_NS);
        return -1;
    }
    struct gf_inode is;
    int fd = connect_to(who->socket, &is);
    if (fd < 0 && is_denial(errno))
        ; /* that was said */
    else if (fd < 0)
        gf_say(GF_SAY_LOST, "no gfaas-tokend at %s: GPU work waits until it is there", who->socket);
    else if (greet(device, place, fd, who)) {
        device->link.is = is;
        return fd;
    } else
        gf_close_own(fd, is);
    gf_pause_ns(RECONNECT_NS);
    return -1;
}
