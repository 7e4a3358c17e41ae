/* link.c: the helper thread and what it does about leases.
 *
 * The helper connects to the daemon, ends leases when the daemon or idleness
 * asks for it, and when the daemon is gone keeps the gate closed and comes back
 * to it. Threads that launch never touch the socket but to ask for a token. */
#include "hook.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TICK_MS 1    /* between looks at what is in flight while a lease holds */
#define IDLE_TICKS 2 /* quiet ticks after which a lease is given back */
#define ASKED_MS 20  /* between looks at the gate after asking */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the socket and `asked` */
static int sock = -1;
static bool asked; /* a request is with the daemon, or a lease is running */
static int kick = -1;
static uint32_t let_in; /* the daemon has answered once (futex) */
static uint32_t returned; /* the last lease given back: the daemon's call for it may have crossed with that */
static bool started;
static struct gf_identity identity;

void gf_link_request(void)
{
    pthread_mutex_lock(&lock);
    if (sock >= 0 && !asked && !gf_load(gf_load(&gf_gate))) {
        struct gf_request request = {gf_header(GF_MSG_REQUEST, sizeof request)};
        bool sent = gf_transmit(sock, &request, sizeof request);
        gf_store(&asked, sent);
        if (sent)
            gf_link_kick();
    }
    pthread_mutex_unlock(&lock);
}

void gf_link_kick(void)
{
    uint64_t one = 1;
    if (kick >= 0 && syscall(SYS_write, kick, &one, sizeof one) < 0)
        return; /* already awake */
}

void gf_link_wait_page(void)
{
    int saved = errno;
    for (gf_link_start(); !__atomic_load_n(&let_in, __ATOMIC_ACQUIRE); gf_link_start())
        gf_futex_wait(&let_in, 0, 1000);
    errno = saved;
}

/* Waits for what is in flight behind a closed gate; returns the GPU time that
 * the lease took. */
static uint64_t drain(void)
{
    uint64_t began = gf_now_ns();
    bool quiet = gf_quiesce(began);
    struct gf_counts counts = gf_count_all();
    uint64_t used = gf_meter_drain(counts.works, began);
    gf_store(&gf_slot->launches, counts.launches);
    if (quiet)
        gf_stream_sweep();
    return used;
}

/* Ends a lease whose gate is closed. */
static void give_back(uint32_t lease)
{
    uint64_t used = drain();
    pthread_mutex_lock(&lock);
    bool more = __atomic_load_n(&gf_waiting, __ATOMIC_SEQ_CST) > 0;
    returned = lease;
    struct gf_return message = {gf_header(GF_MSG_RETURN, sizeof message), lease, more ? GF_RETURN_WANTS_MORE : 0, used};
    gf_store(&asked, sock >= 0 && gf_transmit(sock, &message, sizeof message) && more);
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
    bool still = w->lease == lease && w->works == counts.works && gf_meter_idle(counts.works);
    *w = (struct watch){lease, counts.works, still ? w->quiet + 1 : 0};
    if (w->quiet < IDLE_TICKS)
        return;
    w->quiet = 0;
    if (__atomic_compare_exchange_n(gf_gate, &lease, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        give_back(w->lease);
}

/* Serves one connection until it breaks. */
static void serve(void)
{
    struct watch watch = {0};
    struct pollfd fds[2] = {{.fd = sock, .events = POLLIN}, {.fd = kick, .events = POLLIN}};
    for (;;) {
        uint32_t lease = __atomic_load_n(gf_gate, __ATOMIC_SEQ_CST);
        int timeout = lease ? TICK_MS : gf_load(&asked) || kick < 0 ? ASKED_MS : -1;
        if (poll(fds, 2, timeout) < 0) {
            if (errno != EINTR)
                return;
            continue;
        }
        if (fds[1].revents) {
            uint64_t kicks;
            if (read(kick, &kicks, sizeof kicks) < 0)
                continue;
        }
        if (fds[0].revents) {
            char bytes[GF_MAX_MESSAGE];
            int passed = -1;
            ssize_t n = gf_receive(sock, bytes, sizeof bytes, &passed);
            if (passed >= 0)
                close(passed);
            if (n <= 0)
                return;
            uint32_t ended;
            memcpy(&ended, bytes + offsetof(struct gf_lease_end, lease), sizeof ended);
            if (gf_is(bytes, n, GF_MSG_LEASE_END, sizeof(struct gf_lease_end)) && ended != returned)
                give_back(ended);
            continue;
        }
        if (lease)
            look(&watch, lease);
    }
}

/* Shuts the gate of a connection that broke. The daemon may have given the
 * slot, and its gate, to another process: they are not touched. */
static void shut(void)
{
    pthread_mutex_lock(&lock);
    close(sock);
    sock = -1;
    asked = false;
    pthread_mutex_unlock(&lock);
    gf_move_gate(NULL);
    drain();
    gf_forget_all(); /* the next daemon numbers its leases anew */
}

static void *helper(void *unused)
{
    (void)unused;
    /* It looks at events while other threads may capture streams. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    gf_real.cuThreadExchangeStreamCaptureMode(&mode);
    for (;;) {
        int fd = gf_greet(&identity);
        if (fd < 0)
            continue;
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
    return NULL;
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
    gf_stream_fork_child();
    gf_mem_fork_child();
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, fork_child); }

/* Starts the helper; locked. */
static bool start(void)
{
    if (!gf_identify(&identity)) {
        gf_say(GF_SAY_SETUP, "GFAAS_SOCKET, GFAAS_INSTANCE and GFAAS_SECRET are not all set: GPU work stays blocked; "
                             "start this program with gfaas run");
        return false;
    }
    if (kick < 0)
        kick = gf_clear_of_standard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    /* The host's signals are for the host's threads. */
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, helper, NULL);
    if (!failed)
        pthread_detach(thread);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (failed)
        gf_say(GF_SAY_THREAD, "no thread to be had (%s): GPU work waits for one", strerror(failed));
    return !failed;
}

void gf_link_start(void)
{
    if (gf_likely(__atomic_load_n(&started, __ATOMIC_ACQUIRE)))
        return;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    int saved = errno;
    pthread_mutex_lock(&lock);
    if (!started)
        __atomic_store_n(&started, start(), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    errno = saved;
}
