/* link.c: a device's helper thread and what it does about leases.
 *
 * Each device that the process uses has one, since it may wait long for what is
 * in flight there. The helper connects to the daemon, ends leases when the
 * daemon or idleness asks for it or nobody renews them, and when the daemon is
 * gone keeps the gate closed and comes back to it. Threads that launch never
 * touch the socket but to ask for a token. */
#include "hook.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TICK_MS 1       /* between looks at what is in flight while a lease holds */
#define IDLE_NS 2000000 /* of quiet after which a lease is given back */
#define SHARED_IDLE_NS 900000 /* and where others may want the GPU, who would wait: the next look */
#define ASKED_MS 20     /* between looks at the gate after asking */
#define OWN_MS 250      /* between looks at whether the connection is still ours */
#define PAUSE_NS 1000000       /* between two leases that were used for refused work only; it doubles */
#define MOST_PAUSE_NS 100000000 /* up to this: on a busy host a switch can cost the others several ms */

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static struct gf_identity identity;

/* Has the helper's epoll look for these events of the connection. Both numbers are
 * looked up at once: it fails unless they name what they did, and then does nothing
 * to what they name now. */
static bool set_events(struct gf_link *link, uint32_t events)
{
    struct epoll_event event = {.events = events};
    return syscall(SYS_epoll_ctl, gf_load(&link->kick), EPOLL_CTL_MOD, gf_load(&link->sock), &event) == 0;
}

/* The same, or reports whether the connection is still ours where a sandbox forbids
 * the call or there was no epoll to be had. EPERM also says that sock names a file. */
static bool watch_for(struct gf_link *link, uint32_t events)
{
    if (gf_load(&link->sock) < 0)
        return false;
    if (gf_load(&link->kick) >= 0) {
        if (set_events(link, events))
            return true;
        if (errno != EPERM && errno != EACCES && errno != ENOSYS)
            return false;
    }
    if (!gf_still(gf_load(&link->sock), link->is))
        return false;
    gf_store(&link->deaf, true);
    return true;
}

/* Wakes the helper: the connection can be written to at nearly any time. Reports
 * whether the connection is still ours. */
static bool wake(struct gf_link *link) { return watch_for(link, EPOLLOUT | EPOLLONESHOT); }

/* Reports the same, and takes back a wake-up that the helper has not noticed yet. */
static bool ours(struct gf_link *link) { return watch_for(link, 0); }

/* In how many ms the helper may ask for a lease; 0: now. Locked. */
static int paused(const struct gf_link *link)
{
    uint64_t now = link->resume ? gf_now_ns() : 0;
    return now < link->resume ? (int)((link->resume - now) / 1000000) + 1 : 0;
}

void gf_link_request(struct gf_device *device)
{
    struct gf_link *link = &device->link;
    /* A handler of the host's may end it, with work for the GPU on the way: not while
     * this thread has the lock that such work waits for. */
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pthread_mutex_lock(&link->lock);
    if (paused(link)) {
        gf_link_kick(device); /* the helper asks when that is over */
    } else if (link->sock >= 0 && !link->asked && !gf_load(gf_load(&device->gate))) {
        struct gf_request request = {gf_header(GF_MSG_REQUEST, sizeof request)};
        gf_store(&link->asked, true);
        if (!ours(link) || !gf_transmit(link->sock, &request, sizeof request))
            gf_store(&link->asked, false); /* the helper connects anew */
        wake(link); /* last: the helper that it wakes may run at once, and not between check and use */
    }
    pthread_mutex_unlock(&link->lock);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

void gf_link_kick(struct gf_device *device)
{
    int saved = errno;
    wake(&device->link);
    errno = saved;
}

void gf_link_wait_page(struct gf_device *device)
{
    int saved = errno;
    uint32_t *let_in = &device->link.let_in;
    struct gf_patience patience = {0};
    if (gf_visible_outside((CUdevice)gf_ordinal(device)))
        return;
    for (gf_link_start(device); !__atomic_load_n(let_in, __ATOMIC_ACQUIRE); gf_link_start(device))
        if (!gf_wait(device, &patience, let_in, 0))
            break;
    gf_patience_end(&patience);
    errno = saved;
}

void gf_link_tell(struct gf_device *device, uint32_t flag, const void *message, size_t size)
{
    struct gf_link *link = &device->link;
    if (!(gf_load(&gf_load(&device->page)->flags) & flag))
        return;
    pthread_mutex_lock(&link->lock);
    if (ours(link))
        gf_transmit(link->sock, message, size);
    pthread_mutex_unlock(&link->lock);
}

void gf_link_ending(struct gf_device *device, uint32_t lease, uint64_t left_ns)
{
    struct gf_ending message = {gf_header(GF_MSG_ENDING, sizeof message), lease, 0, left_ns};
    gf_link_tell(device, GF_PAGE_ENDINGS, &message, sizeof message);
}

/* Waits for what is in flight behind a closed gate; returns the GPU time that
 * the lease took. Asked is the lease that the daemon has asked for, if it has. */
static uint64_t drain(struct gf_device *device, uint32_t asked)
{
    bool quiet = gf_quiesce(device);
    struct gf_counts counts = gf_count_all(device);
    uint64_t used = gf_meter_drain(device, gf_works(counts), asked);
    gf_store(&device->slot->launches, counts.launches);
    device->link.works = gf_works(counts);
    if (quiet)
        gf_stream_sweep(device);
    return used;
}

/* Doubles the pause before the next request if the driver has refused all that the
 * lease was used for and others may want the GPU: a program that goes on launching what
 * is refused would cost them a switch each time. Ends it when something was accepted.
 * Locked. */
static void set_pause(struct gf_device *device, bool accepted)
{
    struct gf_link *link = &device->link;
    bool refused = __atomic_exchange_n(&device->refused, 0, __ATOMIC_RELAXED);
    if (accepted || !gf_load(&device->slot->turn_ns)) {
        link->pause_ns = link->resume = 0;
    } else if (refused) {
        uint64_t pause = link->pause_ns ? 2 * link->pause_ns : PAUSE_NS;
        link->pause_ns = pause < MOST_PAUSE_NS ? pause : MOST_PAUSE_NS;
        link->resume = gf_now_ns() + link->pause_ns;
    }
}

/* Ends a lease whose gate is closed. */
static void give_back(struct gf_device *device, uint32_t lease, bool asked)
{
    struct gf_link *link = &device->link;
    uint64_t before = link->works;
    uint64_t used = drain(device, asked ? lease : GF_NO_LEASE);
    pthread_mutex_lock(&link->lock);
    set_pause(device, link->works != before);
    bool more = __atomic_load_n(&device->waiting, __ATOMIC_SEQ_CST) > 0 && !paused(link);
    link->returned = lease;
    struct gf_return message = {gf_header(GF_MSG_RETURN, sizeof message), lease, more ? GF_RETURN_WANTS_MORE : 0, used};
    gf_store(&link->asked, ours(link) && gf_transmit(link->sock, &message, sizeof message) && more);
    pthread_mutex_unlock(&link->lock);
    gf_mem_look(device);
}

/* ASKED_MS, and more the more processes the instance has: a thousand helpers that look
 * that often would leave the processors no time for what they wait for. */
static int asked_ms(struct gf_device *device)
{
    unsigned ms = ASKED_MS * (1 + gf_load(&gf_load(&device->page)->used) / 128);
    return ms < OWN_MS ? (int)ms : OWN_MS;
}

/* How long the helper may sleep, in ms. What it waits for may be closed and
 * replaced meanwhile, and then nothing wakes it. */
static int patience(struct gf_device *device, uint32_t lease)
{
    if (lease) {
        device->idle_since = 0;
        return TICK_MS;
    }
    struct gf_link *link = &device->link;
    bool asked = gf_load(&link->asked), waits = __atomic_load_n(&device->waiting, __ATOMIC_SEQ_CST) > 0;
    int again = gf_mem_tend(device, !asked), own = asked || gf_load(&link->deaf) ? asked_ms(device) : OWN_MS;
    int runs = gf_wait_tend(device);
    if (waits && !asked && link->resume) {
        own = paused(link);
        if (!own)
            gf_link_request(device);
    }
    own = runs >= 0 && runs < own ? runs : own;
    return again < 0 || own < again ? own : again;
}

/* What the helper remembers between looks at a lease. */
struct watch {
    uint32_t lease;
    uint64_t works;
    uint64_t quiet_since; /* 0: it was not */
    uint32_t renewals;    /* that the page had counted */
    uint64_t renewed;     /* when that was first seen */
};

/* Whether the lease is over because the daemon, which stands still or is not
 * there to say so, has not renewed it. */
static bool expired(struct gf_device *device, struct watch *w, bool same, uint64_t now)
{
    struct gf_page *page = gf_load(&device->page);
    uint32_t renewals = gf_load(&page->renewals);
    uint64_t length = gf_load(&page->lease_ns);
    if (!same || w->renewals != renewals) {
        w->renewals = renewals;
        w->renewed = now;
    }
    return length && now - w->renewed >= length;
}

/* Looks at a running lease once: it ends when it was not renewed in time, and
 * early when for a while nothing was launched, nothing is in flight and nobody
 * waits for a budget; at once, when all that it was used for was refused. */
static void look(struct gf_device *device, struct watch *w, uint32_t lease)
{
    struct gf_counts counts = gf_count_all(device);
    uint64_t works = gf_works(counts), now = gf_now_ns();
    gf_store(&device->slot->launches, counts.launches);
    bool same = w->lease == lease;
    bool over = expired(device, w, same, now);
    bool unused = gf_load(&device->refused) && works == device->link.works;
    bool still = same && w->works == works && !gf_load(&device->waiting) && !gf_busy(device) && gf_meter_idle(device, works);
    w->lease = lease;
    w->works = works;
    w->quiet_since = !still ? 0 : w->quiet_since ? w->quiet_since : now;
    uint64_t patience = gf_load(&device->slot->turn_ns) ? SHARED_IDLE_NS : IDLE_NS;
    if (!over && !unused && (!still || now - w->quiet_since < patience))
        return;
    w->quiet_since = 0;
    if (!__atomic_compare_exchange_n(device->gate, &lease, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    if (over)
        gf_say(GF_SAY_LOST, "gfaas-tokend at %s does not answer: GPU work waits until it does", identity.socket);
    give_back(device, w->lease, false);
}

/* Does what a message of the daemon asks for. False: the connection is over, or what
 * came is no message, as of a socket that is not ours. */
static bool heed(struct gf_device *device)
{
    char bytes[GF_MAX_MESSAGE] = {0};
    int passed = -1;
    if (!ours(&device->link))
        return false;
    ssize_t n = gf_receive(device->link.sock, bytes, sizeof bytes, &passed, MSG_DONTWAIT);
    bool none = n < 0 && errno == EAGAIN;
    if (passed >= 0)
        close(passed);
    if (none)
        return true;
    if (n <= 0 || !gf_is(bytes, n, ((struct gf_header *)bytes)->type, (size_t)n))
        return false;
    uint32_t ended;
    memcpy(&ended, bytes + offsetof(struct gf_lease_end, lease), sizeof ended);
    if (gf_is(bytes, n, GF_MSG_LEASE_END, sizeof(struct gf_lease_end)) && ended != GF_NO_LEASE &&
        ended != device->link.returned)
        give_back(device, ended, true);
    return true;
}

/* Serves one connection until it breaks. */
static void serve(struct gf_device *device)
{
    struct gf_link *link = &device->link;
    struct watch watch = {0};
    bool told = false; /* of a fault */
    struct pollfd fds[2] = {{.fd = link->sock, .events = POLLIN}, {.fd = link->kick, .events = POLLIN}};
    for (;;) {
        uint32_t lease = __atomic_load_n(device->gate, __ATOMIC_SEQ_CST);
        int again = gf_fault_tend(device, &told), wait = patience(device, lease);
        int ready = poll(fds, 2, again < 0 || wait < again ? wait : again);
        if (ready < 0) {
            if (errno != EINTR)
                return;
            continue;
        }
        if ((fds[1].revents || (!ready && !lease)) && !ours(link))
            return;
        if (gf_load(&link->deaf))
            fds[1].fd = -1; /* it cannot be told that it was heard */
        if (fds[0].revents) {
            if (!heed(device))
                return;
            continue;
        }
        if ((lease = __atomic_load_n(device->gate, __ATOMIC_SEQ_CST)))
            look(device, &watch, lease);
    }
}

static void connected(struct gf_device *device, int fd)
{
    struct gf_link *link = &device->link;
    struct epoll_event none = {0};
    int kick = gf_still(fd, link->is) ? gf_move_high(epoll_create1(EPOLL_CLOEXEC)) : -1;
    if (kick >= 0 && epoll_ctl(kick, EPOLL_CTL_ADD, fd, &none) != 0) {
        close(kick);
        kick = -1;
    }
    pthread_mutex_lock(&link->lock);
    gf_store(&link->sock, fd);
    gf_store(&link->kick, kick);
    gf_store(&link->deaf, kick < 0);
    link->asked = false;
    link->returned = GF_NO_LEASE; /* each daemon numbers its leases anew */
    pthread_mutex_unlock(&link->lock);
    __atomic_store_n(&link->let_in, 1, __ATOMIC_RELEASE);
    gf_futex_wake(&link->let_in);
    if (__atomic_load_n(&device->waiting, __ATOMIC_SEQ_CST))
        gf_link_request(device);
}

/* Closes a connection. Where only one number names what it did, an epoll stays open:
 * there is no telling whose it is. */
static void hang_up(struct gf_link *link)
{
    bool both = link->sock >= 0 && link->kick >= 0 && set_events(link, EPOLLOUT | EPOLLONESHOT);
    gf_close_own(link->sock, link->is);
    if (both)
        close(link->kick);
    gf_store(&link->sock, -1);
    gf_store(&link->kick, -1);
}

/* Shuts the gate of a connection that broke. The daemon may have given the
 * slot, and its gate, to another process: they are not touched. */
static void shut(struct gf_device *device)
{
    struct gf_link *link = &device->link;
    pthread_mutex_lock(&link->lock);
    hang_up(link);
    link->asked = false;
    pthread_mutex_unlock(&link->lock);
    gf_device_close(device);
    drain(device, GF_NO_LEASE);
    gf_forget_all(); /* as above: the numbers may come again */
}

/* The processors that the process was started on, as the kernel gives them. */
static unsigned long processors[128];
static long processors_size; /* bytes of them; 0 or less: not known */

__attribute__((constructor)) static void begin(void)
{
    int saved = errno;
    gf_make_room();
    processors_size = syscall(SYS_sched_getaffinity, 0, sizeof processors, processors);
    errno = saved;
}

/* The thread that happened to start the helper may be bound to a processor, or go
 * before all others, and compute for long: the helper is not to wait for it. */
static void be_ordinary(void)
{
    const struct sched_param none = {0};
    if (processors_size > 0)
        syscall(SYS_sched_setaffinity, 0, (size_t)processors_size, processors);
    syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &none);
}

static void *helper(void *arg)
{
    struct gf_device *device = arg;
    be_ordinary();
    prctl(PR_SET_TIMERSLACK, 1); /* every pause of its own is time at a switch in which the GPU idles */
    for (;;) {
        int fd = gf_greet(device, &identity);
        if (fd < 0)
            continue;
        connected(device, fd);
        serve(device);
        shut(device);
    }
    return NULL;
}

/* After fork the child has neither helper nor GPU: it starts anew when it
 * turns to the GPU itself. */
static void fork_child(void)
{
    pthread_mutex_init(&starting, NULL);
    for (gf_each_device(d))
        hang_up(&d->link); /* which wakes the parent's helper in vain */
    gf_visible_fork_child();
    gf_device_fork_child();
    gf_gate_fork_child();
    gf_asked_fork_child();
    gf_mem_fork_child();
    gf_graph_fork_child();
    gf_fault_fork_child();
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, fork_child); }

/* Starts the helper; locked. */
static bool start(struct gf_device *device)
{
    if (!gf_identify(&identity)) {
        gf_say(GF_SAY_SETUP, "GFAAS_SOCKET, GFAAS_INSTANCE and GFAAS_SECRET are not all set: GPU work stays blocked; "
                             "start this program with gfaas run");
        return false;
    }
    gf_make_room(); /* a child's table is small again, and the helper is a second thread */
    /* The host's signals are for the host's threads. What the driver does in this
     * one may be met by a SIGBUS that it handles, and that would end the process if
     * it were blocked. */
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigprocmask(SIG_BLOCK, &all, &before);
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, helper, device);
    if (!failed)
        pthread_detach(thread);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (failed)
        gf_say(GF_SAY_THREAD, "no thread to be had (%s): GPU work waits for one", strerror(failed));
    return !failed;
}

void gf_link_start(struct gf_device *device)
{
    if (gf_likely(__atomic_load_n(&device->link.started, __ATOMIC_ACQUIRE)))
        return;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    int saved = errno;
    pthread_mutex_lock(&starting);
    if (!device->link.started)
        __atomic_store_n(&device->link.started, start(device), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&starting);
    errno = saved;
}
