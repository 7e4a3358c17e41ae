/* link.c: the helper thread and the connection to gfaas-tokend.
 *
 * The helper says hello, maps the instance page, ends leases when the daemon
 * or idleness asks for it, and when the daemon is gone keeps the gate closed
 * and comes back to it. Threads that launch never touch the socket but to ask
 * for a token. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS 1       /* between looks at what is in flight while a lease holds */
#define IDLE_TICKS 2    /* quiet ticks after which a lease is given back */
#define ASKED_MS 20     /* between looks at the gate after asking */
#define RECONNECT_MS 100
#define REFUSED_MS 1000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the socket and `asked` */
static int sock = -1;
static bool asked; /* a request is with the daemon, or a lease is running */
static int kick = -1;
static uint32_t let_in; /* the daemon has answered once (futex) */
static uint32_t returned; /* the last lease given back: the daemon's call for it may have crossed with that */
static bool started;

static void pause_ms(unsigned ms)
{
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static struct gf_header header(uint16_t type, uint32_t size)
{
    return (struct gf_header){.magic = GF_MAGIC, .type = type, .version = GF_VERSION, .size = size};
}

static bool transmit(const void *message, size_t size)
{
    ssize_t n;
    do
        n = send(sock, message, size, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)size;
}

void gf_link_request(void)
{
    pthread_mutex_lock(&lock);
    if (sock >= 0 && !asked && !gf_load(&gf_slot->gate)) {
        struct gf_request request = {header(GF_MSG_REQUEST, sizeof request)};
        asked = transmit(&request, sizeof request);
        if (asked)
            gf_link_kick();
    }
    pthread_mutex_unlock(&lock);
}

void gf_link_kick(void)
{
    uint64_t one = 1;
    if (kick >= 0 && write(kick, &one, sizeof one) < 0)
        return; /* already awake */
}

void gf_link_wait_page(void)
{
    gf_link_start();
    while (!__atomic_load_n(&let_in, __ATOMIC_ACQUIRE))
        gf_futex_wait(&let_in, 0, 1000);
}

/* Opens a connection to the daemon's client socket, or returns -1. */
static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Receives one message and, if it brings one, a descriptor. */
static ssize_t receive(int fd, void *buffer, size_t size, int *passed)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {buffer, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n;
    do
        n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(passed, CMSG_DATA(c), sizeof(int));
    return n;
}

static bool is(const void *message, ssize_t n, uint16_t type, size_t size)
{
    const struct gf_header *h = message;
    return n == (ssize_t)size && h->magic == GF_MAGIC && h->version == GF_VERSION && h->type == type && h->size == size;
}

/* Says who this process is and maps the page that the daemon sends back. The
 * old page stays mapped: a thread may be looking at its gate, which is shut. */
static bool greet(int fd, const char *instance, const char *secret)
{
    struct gf_hello hello = {.h = header(GF_MSG_HELLO, sizeof hello), .pid = (uint32_t)getpid(), .mem_used = gf_mem_used()};
    strncpy(hello.instance, instance, sizeof hello.instance - 1);
    strncpy(hello.secret, secret, sizeof hello.secret - 1);
    if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello)
        return false;
    union {
        struct gf_welcome welcome;
        struct gf_refused refused;
        char bytes[GF_MAX_MESSAGE];
    } answer;
    int passed = -1;
    ssize_t n = receive(fd, &answer, sizeof answer, &passed);
    if (is(&answer, n, GF_MSG_REFUSED, sizeof answer.refused)) {
        answer.refused.reason[GF_REASON_SIZE - 1] = 0;
        gf_say(GF_SAY_REFUSED, "gfaas-tokend refuses this process: %s: its GPU work stays blocked", answer.refused.reason);
        pause_ms(REFUSED_MS);
    }
    bool welcome = passed >= 0 && is(&answer, n, GF_MSG_WELCOME, sizeof answer.welcome) && answer.welcome.slot < GF_PAGE_SLOTS;
    void *page = MAP_FAILED;
    if (welcome)
        page = mmap(NULL, GF_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, passed, 0);
    if (passed >= 0)
        close(passed);
    if (page == MAP_FAILED)
        return false;
    gf_mem_move(page, &((struct gf_page *)page)->slots[answer.welcome.slot]);
    return true;
}

/* Ends a lease whose gate is closed: waits for what is in flight, reports. */
static void give_back(uint32_t lease)
{
    gf_quiesce();
    struct gf_counts counts = gf_count_all();
    uint64_t used = gf_meter_drain(lease, counts.works);
    gf_store(&gf_slot->launches, counts.launches);
    pthread_mutex_lock(&lock);
    bool more = __atomic_load_n(&gf_waiting, __ATOMIC_SEQ_CST) > 0;
    returned = lease;
    struct gf_return message = {header(GF_MSG_RETURN, sizeof message), lease, more ? GF_RETURN_WANTS_MORE : 0, used};
    asked = sock >= 0 && transmit(&message, sizeof message) && more;
    pthread_mutex_unlock(&lock);
}

/* What the helper remembers between looks at a lease. */
struct watch {
    uint32_t lease;
    uint64_t works;
    unsigned quiet;
};

/* Looks at a running lease once: nothing launched and nothing in flight for a
 * while means that it is given back early. */
static void look(struct watch *w, uint32_t lease)
{
    struct gf_counts counts = gf_count_all();
    gf_store(&gf_slot->launches, counts.launches);
    bool still = w->lease == lease && w->works == counts.works && gf_meter_idle(lease, counts.works);
    *w = (struct watch){lease, counts.works, still ? w->quiet + 1 : 0};
    if (w->quiet < IDLE_TICKS)
        return;
    w->quiet = 0;
    if (__atomic_compare_exchange_n(&gf_slot->gate, &lease, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        give_back(w->lease);
}

/* Serves one connection until it breaks. */
static void serve(void)
{
    struct watch watch = {0};
    struct pollfd fds[2] = {{.fd = sock, .events = POLLIN}, {.fd = kick, .events = POLLIN}};
    for (;;) {
        uint32_t lease = __atomic_load_n(&gf_slot->gate, __ATOMIC_SEQ_CST);
        int timeout = lease ? TICK_MS : gf_load(&asked) ? ASKED_MS : -1;
        if (poll(fds, 2, timeout) < 0 && errno != EINTR)
            return;
        if (fds[1].revents) {
            uint64_t kicks;
            if (read(kick, &kicks, sizeof kicks) < 0)
                continue;
        }
        if (fds[0].revents) {
            char bytes[GF_MAX_MESSAGE];
            int passed = -1;
            ssize_t n = receive(sock, bytes, sizeof bytes, &passed);
            if (passed >= 0)
                close(passed);
            if (n <= 0)
                return;
            uint32_t ended;
            memcpy(&ended, bytes + offsetof(struct gf_lease_end, lease), sizeof ended);
            if (is(bytes, n, GF_MSG_LEASE_END, sizeof(struct gf_lease_end)) && ended != returned)
                give_back(ended);
            continue;
        }
        if (lease)
            look(&watch, lease);
    }
}

/* Shuts the gate of a connection that broke and forgets its lease. */
static void shut(void)
{
    pthread_mutex_lock(&lock);
    close(sock);
    sock = -1;
    asked = false;
    pthread_mutex_unlock(&lock);
    uint32_t lease = __atomic_exchange_n(&gf_slot->gate, 0, __ATOMIC_SEQ_CST);
    gf_quiesce();
    gf_meter_drain(lease, gf_count_all().works);
}

static void *helper(void *unused)
{
    (void)unused;
    const char *path = getenv("GFAAS_SOCKET"), *instance = getenv("GFAAS_INSTANCE"), *secret = getenv("GFAAS_SECRET");
    if (!path || !instance || !secret) {
        gf_say(GF_SAY_SETUP, "GFAAS_SOCKET, GFAAS_INSTANCE and GFAAS_SECRET are not all set: GPU work stays blocked; "
                             "start this program with gfaas run");
        return NULL;
    }
    for (;;) {
        int fd = connect_to(path);
        if (fd < 0) {
            gf_say(GF_SAY_LOST, "no gfaas-tokend at %s: GPU work waits until it is there", path);
            pause_ms(RECONNECT_MS);
            continue;
        }
        if (!greet(fd, instance, secret)) {
            close(fd);
            pause_ms(RECONNECT_MS);
            continue;
        }
        pthread_mutex_lock(&lock);
        sock = fd;
        asked = false;
        pthread_mutex_unlock(&lock);
        __atomic_store_n(&let_in, 1, __ATOMIC_RELEASE);
        gf_futex_wake(&let_in);
        if (__atomic_load_n(&gf_waiting, __ATOMIC_SEQ_CST))
            gf_link_request();
        serve();
        shut();
    }
}

/* After fork the child has neither helper nor GPU: it starts anew when it
 * turns to the GPU itself. */
static void fork_child(void)
{
    pthread_mutex_init(&lock, NULL);
    if (sock >= 0)
        close(sock);
    if (kick >= 0)
        close(kick);
    sock = kick = -1;
    asked = started = false;
    let_in = 0;
    gf_gate_fork_child();
    gf_meter_fork_child();
    gf_mem_fork_child();
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, fork_child); }

void gf_link_start(void)
{
    if (gf_likely(__atomic_load_n(&started, __ATOMIC_ACQUIRE)))
        return;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    if (!started) {
        kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        /* The host's signals are for the host's threads. */
        sigset_t all, before;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, &before);
        pthread_t thread;
        if (pthread_create(&thread, NULL, helper, NULL) == 0)
            pthread_detach(thread);
        sigprocmask(SIG_SETMASK, &before, NULL);
        __atomic_store_n(&started, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
}
