/* link.c: a device's connection to the daemon, and the start of its helper thread.
 *
 * Each device that the process uses has its own helper (helper.c), because a helper may wait long
 * for the work in flight on its device. The thread that starts the helper says hello first. Apart from
 * that, launching threads use the socket only to request a lease. */
#include "link.h"

#include "terminate.h"
#include "clock.h"
#include "device.h"
#include "handshake.h"
#include "say.h"
#include "visible.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static struct gf_identity identity;

/* Sets the events for which the helper's epoll watches the connection. The kernel resolves both
 * descriptors in one call. The call fails, without an effect, unless both still refer to the
 * library's files. */
static bool set_events(struct gf_link *link, uint32_t events)
{
    struct epoll_event event = {.events = events};
    return syscall(SYS_epoll_ctl, gf_load(&link->kick), EPOLL_CTL_MOD, gf_load(&link->sock), &event) == 0;
}

/* Does the same. If a sandbox forbids the call or there is no epoll, it only reports whether the
 * connection is still the library's. (EPERM can also mean that sock refers to a regular file.) */
static bool watch(struct gf_link *link, uint32_t events)
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
    gf_store(&link->polls, true);
    return true;
}

/* Wakes the helper, because the connection is writable at nearly any time. Returns false if the
 * connection is not the library's any more. */
static bool wake(struct gf_link *link) { return watch(link, EPOLLOUT | EPOLLONESHOT); }

bool gf_link_ours(struct gf_link *link) { return watch(link, 0); }

int gf_link_paused(const struct gf_link *link)
{
    uint64_t now = link->resume ? gf_now_ns() : 0;
    return now < link->resume ? (int)((link->resume - now) / 1000000) + 1 : 0;
}

void gf_link_request(struct gf_device *device)
{
    struct gf_link *link = &device->link;
    /* A handler of the program may interrupt this thread and send work that needs link.lock, so all
     * signals are blocked while the thread holds it. */
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pthread_mutex_lock(&link->lock);
    if (gf_link_paused(link)) {
        gf_link_kick(device); /* the helper requests a lease after the pause */
    } else if (link->sock >= 0 && !link->requested && !gf_load(gf_load(&device->gate))) {
        struct gf_request request = {gf_header(GF_MSG_REQUEST, sizeof request)};
        gf_store(&link->requested, true);
        if (!gf_link_ours(link) || !gf_transmit(link->sock, &request, sizeof request))
            gf_store(&link->requested, false); /* the helper reconnects */
        wake(link); /* last, so that the woken helper does not run between check and use */
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
    uint32_t *answered = &device->link.answered;
    struct gf_patience patience = {0};
    if (gf_visible_hides((CUdevice)gf_ordinal(device)))
        return;
    for (gf_link_start(device); !__atomic_load_n(answered, __ATOMIC_ACQUIRE); gf_link_start(device))
        if (!gf_wait(device, &patience, answered, 0))
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
    if (gf_link_ours(link))
        gf_transmit(link->sock, message, size);
    pthread_mutex_unlock(&link->lock);
}

void gf_link_ending(struct gf_device *device, uint32_t lease, uint64_t left_ns)
{
    struct gf_ending message = {gf_header(GF_MSG_ENDING, sizeof message), lease, 0, left_ns};
    gf_link_tell(device, GF_PAGE_ENDINGS, &message, sizeof message);
}

void gf_link_connected(struct gf_device *device, int fd)
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
    gf_store(&link->early, -1);
    gf_store(&link->kick, kick);
    gf_store(&link->polls, kick < 0);
    link->requested = false;
    link->returned = GF_NO_LEASE; /* each daemon starts its own numbering of leases */
    pthread_mutex_unlock(&link->lock);
    __atomic_store_n(&link->answered, 1, __ATOMIC_RELEASE);
    gf_futex_wake(&link->answered);
    if (__atomic_load_n(&device->waiting, __ATOMIC_SEQ_CST))
        gf_link_request(device);
}

void gf_link_hang_up(struct gf_link *link)
{
    bool both = link->sock >= 0 && link->kick >= 0 && set_events(link, EPOLLOUT | EPOLLONESHOT);
    gf_close_own(link->sock, link->is);
    if (both)
        close(link->kick);
    gf_store(&link->sock, -1);
    gf_store(&link->kick, -1);
}

void gf_link_fork_child(void)
{
    pthread_mutex_init(&starting, NULL);
    for (gf_each_device(d)) {
        gf_close_own(d->link.early, d->link.early_is);
        gf_link_hang_up(&d->link); /* this wakes the parent's helper, which ignores it */
    }
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, gf_helper.fork_child); }

const struct gf_identity *gf_link_identity(void) { return &identity; }

/* Starts the helper. Returns false if it cannot be started. The caller holds `starting`. */
static bool start(struct gf_device *device)
{
    if (!gf_identify(&identity)) {
        gf_say(GF_SAY_SETUP, "GFAAS_SOCKET, GFAAS_INSTANCE and GFAAS_SECRET are not all set: GPU work stays blocked; "
                             "start this program with gfaas run");
        return false;
    }
    gf_make_room(); /* a child's table is small again, and the helper is a second thread */
    /* The program's signals are for the program's threads. SIGBUS stays unblocked, because the
     * driver may cause it in the helper and handle it; blocked, it would end the process. */
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigprocmask(SIG_BLOCK, &all, &before);
    gf_greet(device, &identity);
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, gf_helper.run, device);
    if (!failed)
        pthread_detach(thread);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (failed)
        gf_say(GF_SAY_THREAD, "cannot start a thread (%s): GPU work waits until that succeeds", strerror(failed));
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
