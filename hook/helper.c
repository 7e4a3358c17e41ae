/* helper.c: a device's helper thread and what it does about leases.
 *
 * The helper connects to the daemon, ends leases when the daemon or idleness asks for it or
 * no daemon renews them, and when the daemon is gone keeps the gate closed and comes back to
 * it. It runs above all that it waits for and looks after; link.c starts it. */
#include "asked.h"
#include "clock.h"
#include "device.h"
#include "fault.h"
#include "gate.h"
#include "graph.h"
#include "greet.h"
#include "limit.h"
#include "link.h"
#include "memory.h"
#include "meter.h"
#include "say.h"
#include "stream.h"
#include "tally.h"
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

#define TICK_MS 1       /* between looks at what is in flight while a lease holds */
#define IDLE_NS 2000000 /* of quiet after which a lease is given back */
#define SHARED_IDLE_NS 900000 /* the same where other clients may want the GPU: the next look */
#define ASKED_MS 20     /* between looks at the gate after asking */
#define OWN_MS 250      /* between looks at whether the connection is still ours */
#define PAUSE_NS 1000000       /* between two leases that were used for refused work only; it doubles */
#define MOST_PAUSE_NS 100000000 /* up to this: on a busy host a switch can cost the others several ms */

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
    bool more = __atomic_load_n(&device->waiting, __ATOMIC_SEQ_CST) > 0 && !gf_link_paused(link);
    link->returned = lease;
    struct gf_return message = {gf_header(GF_MSG_RETURN, sizeof message), lease, more ? GF_RETURN_WANTS_MORE : 0, used};
    gf_store(&link->asked, gf_link_ours(link) && gf_transmit(link->sock, &message, sizeof message) && more);
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
        own = gf_link_paused(link);
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
 * early when for a while nothing was launched, nothing is in flight and no thread
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
        gf_say(GF_SAY_LOST, "gfaas-tokend at %s does not answer: GPU work waits until it does", gf_link_identity()->socket);
    give_back(device, w->lease, false);
}

/* Does what a message of the daemon asks for. False: the connection is over, or what
 * came is no message, as of a socket that is not ours. */
static bool heed(struct gf_device *device)
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
        if ((fds[1].revents || (!ready && !lease)) && !gf_link_ours(link))
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

/* Shuts the gate of a connection that broke. The daemon may have given the
 * slot, and its gate, to another process: they are not touched. */
static void shut(struct gf_device *device)
{
    struct gf_link *link = &device->link;
    pthread_mutex_lock(&link->lock);
    gf_link_hang_up(link);
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
        int fd = gf_greet(device, gf_link_identity());
        if (fd < 0)
            continue;
        gf_link_connected(device, fd);
        serve(device);
        shut(device);
    }
    return NULL;
}

/* Resets the modules in a forked child, which has neither helper nor GPU: it starts anew when
 * it turns to the GPU itself. */
static void fork_child(void)
{
    gf_link_fork_child();
    gf_visible_fork_child();
    gf_device_fork_child();
    gf_thread_fork_child();
    gf_gate_fork_child();
    gf_asked_fork_child();
    gf_limit_fork_child();
    gf_mem_fork_child();
    gf_graph_fork_child();
    gf_bodies_fork_child();
    gf_fault_fork_child();
}

const struct gf_helper gf_helper = {helper, fork_child};
