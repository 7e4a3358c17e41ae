/* helper.c: a device's helper thread.
 *
 * The helper connects to the daemon. It ends a lease when the daemon asks for it, when the program
 * is idle, or when the daemon does not renew it. While the daemon is gone, it keeps the gate closed
 * and reconnects. It may use every other module; link.c starts it.
 *
 * The gate is a word of memory that holds the number of the lease. It is 0, and the gate closed, while the
 * device has no lease: the program's threads then wait before they send work (gate.h). */
#include "terminate.h"
#include "clock.h"
#include "device.h"
#include "fault.h"
#include "gate.h"
#include "graph.h"
#include "handshake.h"
#include "limit.h"
#include "link.h"
#include "memory.h"
#include "meter.h"
#include "say.h"
#include "stream.h"
#include "graph_stats.h"
#include "thread.h"
#include "visible.h"
#include "wait.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TICK_MS 1       /* poll interval while a lease holds */
#define IDLE_NS 2000000 /* idle time after which a lease is returned */
/* The same while other clients may want the GPU. It is less than a tick, so that it ends at the tick after the
 * one that finds the program idle. */
#define SHARED_IDLE_NS 900000
/* How much too early an idle time of hold_ns may end, so that it does not last a tick too long. */
#define TICK_SLACK_NS 100000
#define ASKED_MS 20     /* poll interval between a request for a lease and the lease */
#define OWN_MS 250      /* interval of checks that the connection is still the library's */
#define PAUSE_NS 1000000        /* pause between two leases whose work the driver refused; it doubles */
#define MOST_PAUSE_NS 100000000 /* up to this; on a busy host a switch can cost other clients several ms */

/* Waits for the work in flight behind a closed gate and returns the GPU time of the lease. `revoked` is
 * the lease that the daemon has revoked, or GF_NO_LEASE. */
static uint64_t drain(struct gf_device *device, uint32_t revoked)
{
    bool quiet = gf_quiesce(device);
    struct gf_counts counts = gf_count_all(device);
    uint64_t used = gf_meter_drain(device, gf_works(counts), revoked);
    gf_store(&device->slot->launches, counts.launches);
    device->link.works = gf_works(counts); /* number of kernels and other pieces of work sent so far */
    if (quiet)
        gf_stream_sweep(device);
    return used;
}

/* Doubles the pause before the next request if the driver refused all work of the lease and other
 * clients may want the GPU: a program that keeps launching refused work would cost them a switch
 * each time. Ends the pause if work was accepted. The caller holds link.lock. */
static void set_pause(struct gf_device *device, bool accepted)
{
    struct gf_link *link = &device->link;
    bool refused = __atomic_exchange_n(&device->refused, 0, __ATOMIC_RELAXED);
    if (accepted || !gf_load(&device->slot->turn_ns)) { /* turn_ns is 0 if no other client may want the GPU */
        link->pause_ns = link->resume = 0;
    } else if (refused) {
        uint64_t pause = link->pause_ns ? 2 * link->pause_ns : PAUSE_NS;
        link->pause_ns = pause < MOST_PAUSE_NS ? pause : MOST_PAUSE_NS;
        link->resume = gf_now_ns() + link->pause_ns;
    }
}

/* Waits for the work in flight of a lease whose gate is already closed, and returns the lease to the daemon.
 * `revoked`: the daemon has revoked it. */
static void return_lease(struct gf_device *device, uint32_t lease, bool revoked)
{
    struct gf_link *link = &device->link;
    uint64_t before = link->works;
    uint64_t used = drain(device, revoked ? lease : GF_NO_LEASE);
    pthread_mutex_lock(&link->lock);
    set_pause(device, link->works != before);
    bool more = __atomic_load_n(&device->waiting, __ATOMIC_SEQ_CST) > 0 && !gf_link_paused(link);
    link->returned = lease;
    struct gf_return message = {gf_header(GF_MSG_RETURN, sizeof message), lease, more ? GF_RETURN_WANTS_MORE : 0, used};
    gf_store(&link->requested, gf_link_ours(link) && gf_transmit(link->sock, &message, sizeof message) && more);
    pthread_mutex_unlock(&link->lock);
    gf_mem_recount_pools(device);
}

/* Returns the poll interval after a request, in ms: ASKED_MS, and more with many processes in the
 * instance, because a thousand helpers would otherwise occupy the processors. page->used is the number
 * of leading slots that may be in use; each process has a slot. */
static int poll_ms(struct gf_device *device)
{
    unsigned ms = ASKED_MS * (1 + gf_load(&gf_load(&device->page)->used) / 128);
    return ms < OWN_MS ? (int)ms : OWN_MS;
}

/* Returns how long the helper may sleep, in ms: the least of `again`, until gf_mem_maintain, `runs`, until
 * gf_wait_poll (both -1: not needed), and `own`, until the helper's next check or request. It must not
 * sleep for ever: if the program closes and replaces the library's descriptors, nothing wakes it. */
static int patience(struct gf_device *device, uint32_t lease)
{
    if (lease) {
        device->idle_since = 0;
        return TICK_MS;
    }
    struct gf_link *link = &device->link;
    bool requested = gf_load(&link->requested), waits = __atomic_load_n(&device->waiting, __ATOMIC_SEQ_CST) > 0;
    int again = gf_mem_maintain(device, !requested), own = requested || gf_load(&link->polls) ? poll_ms(device) : OWN_MS;
    int runs = gf_wait_poll(device);
    if (waits && !requested && link->resume) {
        own = gf_link_paused(link);
        if (!own)
            gf_link_request(device);
    }
    own = runs >= 0 && runs < own ? runs : own;
    return again < 0 || own < again ? own : again;
}

/* The helper's state between two checks of a lease. */
struct watch {
    uint32_t lease;
    uint64_t works;       /* number of kernels and other pieces of work sent so far */
    uint64_t quiet_since; /* since when the program has been idle, in ns; 0: it is not */
    uint32_t renewals;    /* the page's count of renewals */
    uint64_t renewed;     /* when that count was first seen */
};

/* Reports whether the lease has expired because the daemon, which hangs or is gone, has not
 * renewed it. */
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

/* Returns how long the program may be idle before its lease is returned, in ns. The daemon allows more
 * than usual if the program usually launches again soon. */
static uint64_t longest_idle(const struct gf_slot *slot)
{
    uint64_t hold = gf_load(&slot->hold_ns);
    if (!gf_load(&slot->turn_ns))
        return IDLE_NS;
    return hold > SHARED_IDLE_NS + TICK_SLACK_NS ? hold - TICK_SLACK_NS : SHARED_IDLE_NS;
}

/* Checks a running lease. Ends it if it has expired; if for a while nothing was launched, nothing is
 * in flight and no thread waits at the gate, which may also be for a budget of kernel blocks; or, at
 * once, if the driver refused all its work. */
static void check_lease(struct gf_device *device, struct watch *w, uint32_t lease)
{
    struct gf_counts counts = gf_count_all(device);
    uint64_t works = gf_works(counts), now = gf_now_ns();
    gf_store(&device->slot->launches, counts.launches);
    bool same = w->lease == lease;
    bool is_expired = expired(device, w, same, now);
    bool unused = gf_load(&device->refused) && works == device->link.works;
    bool quiet = same && w->works == works && !gf_load(&device->waiting) && !gf_busy(device) && gf_meter_idle(device, works);
    w->lease = lease;
    w->works = works;
    w->quiet_since = !quiet ? 0 : w->quiet_since ? w->quiet_since : now;
    if (!is_expired && !unused && (!quiet || now - w->quiet_since < longest_idle(device->slot)))
        return;
    w->quiet_since = 0;
    if (!__atomic_compare_exchange_n(device->gate, &lease, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    if (is_expired)
        gf_say(GF_SAY_LOST, "gfaas-tokend at %s does not answer: GPU work waits until it does", gf_link_identity()->socket);
    return_lease(device, w->lease, false);
}

/* Moves memory at the daemon's order, and reports the end. Returns false if the connection has ended. */
static bool obey(struct gf_device *device, struct gf_move order)
{
    struct gf_link *link = &device->link;
    struct gf_moved message = {gf_header(GF_MSG_MOVED, sizeof message), order.number, gf_swap_order(device, order.to_host)};
    pthread_mutex_lock(&link->lock);
    bool sent = gf_link_ours(link) && gf_transmit(link->sock, &message, sizeof message);
    pthread_mutex_unlock(&link->lock);
    return sent;
}

/* Handles one message of the daemon. Returns false if the connection has ended, or if the bytes are
 * not a message, as from a socket that is not the library's. */
static bool handle_message(struct gf_device *device)
{
    char bytes[GF_MAX_MESSAGE] = {0};
    int passed = -1;
    if (!gf_link_ours(&device->link))
        return false;
    ssize_t n = gf_receive(device->link.sock, bytes, sizeof bytes, &passed, MSG_DONTWAIT);
    bool none = n < 0 && errno == EAGAIN;
    if (passed >= 0)
        close(passed);
    if (none)
        return true;
    /* A message of any type: gf_is checks the rest of the header. */
    if (n <= 0 || !gf_is(bytes, n, ((struct gf_header *)bytes)->type, (size_t)n))
        return false;
    struct gf_move order;
    if (gf_is(bytes, n, GF_MSG_MOVE, sizeof order)) {
        memcpy(&order, bytes, sizeof order);
        return obey(device, order);
    }
    uint32_t ended;
    memcpy(&ended, bytes + offsetof(struct gf_lease_end, lease), sizeof ended);
    if (gf_is(bytes, n, GF_MSG_LEASE_END, sizeof(struct gf_lease_end)) && ended != GF_NO_LEASE &&
        ended != device->link.returned)
        return_lease(device, ended, true);
    return true;
}

/* Serves one connection until it breaks. */
static void serve(struct gf_device *device)
{
    struct gf_link *link = &device->link;
    struct watch watch = {0};
    bool told = false; /* the daemon knows of a fault */
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
        if ((fds[1].revents || (!ready && !lease)) && !gf_link_ours(link))
            return;
        if (gf_load(&link->polls))
            fds[1].fd = -1; /* its event cannot be set or cleared, so the helper polls (poll_ms) */
        if (fds[0].revents) {
            if (!handle_message(device))
                return;
            continue;
        }
        if ((lease = __atomic_load_n(device->gate, __ATOMIC_SEQ_CST)))
            check_lease(device, &watch, lease);
    }
}

/* Closes the gate of a broken connection, without touching the slot: the daemon may have given the
 * slot and its gate to another process. */
static void shut(struct gf_device *device)
{
    struct gf_link *link = &device->link;
    pthread_mutex_lock(&link->lock);
    gf_link_hang_up(link);
    link->requested = false;
    pthread_mutex_unlock(&link->lock);
    gf_device_close_gate(device);
    drain(device, GF_NO_LEASE);
    /* The threads forget their streams, which are cached with the number of the lease: the next daemon may
     * use the same numbers. */
    gf_forget_all();
}

/* The processors on which the process was started, as the kernel returns them. */
static unsigned long processors[128];
static long processors_size; /* in bytes; 0 or less: unknown */

__attribute__((constructor)) static void begin(void)
{
    int saved = errno;
    gf_make_room(); /* in the table of descriptors, which takes much longer once there are several threads */
    processors_size = syscall(SYS_sched_getaffinity, 0, sizeof processors, processors);
    errno = saved;
}

/* Resets the helper's affinity and priority. The thread that happened to start it may be bound to
 * one processor, or have a real-time priority and compute for long. */
static void reset_scheduling(void)
{
    const struct sched_param none = {0};
    if (processors_size > 0)
        syscall(SYS_sched_setaffinity, 0, (size_t)processors_size, processors);
    syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &none);
}

static void *helper(void *arg)
{
    struct gf_device *device = arg;
    reset_scheduling();
    prctl(PR_SET_TIMERSLACK, 1); /* a late wake-up lets the GPU idle at a switch */
    for (;;) {
        int fd = gf_handshake(device, gf_link_identity());
        if (fd < 0)
            continue;
        gf_link_connected(device, fd);
        serve(device);
        shut(device);
    }
    return NULL;
}

/* Resets the modules in a forked child, which has neither helper nor GPU state. It starts anew at
 * its own first use of the GPU. */
static void fork_child(void)
{
    gf_link_fork_child();
    gf_visible_fork_child();
    gf_device_fork_child();
    gf_thread_fork_child();
    gf_gate_fork_child();
    gf_terminate_fork_child();
    gf_limit_fork_child();
    gf_mem_fork_child();
    gf_graph_fork_child();
    gf_bodies_fork_child(); /* graph_stats.c */
    gf_fault_fork_child();
}

const struct gf_helper gf_helper = {helper, fork_child};
