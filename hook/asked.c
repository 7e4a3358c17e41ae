/* asked.c: waits for the GPU that end when the program has been asked to end.
 *
 * A program that handles SIGTERM or SIGINT usually notes it and ends when its call
 * into the driver is over. If that waits for a gate which stays closed, because the
 * daemon is gone or refuses the process, it would never be. So once such a handler
 * has run in a thread that waits, or runs there still, no call waits for more than
 * a second: it fails, and nothing was sent. A gate that opens ends that.
 *
 * Nobody's handler is touched. That one has run is told by the sleep's end, and
 * that it was one of the two by having the others that the program handles, faults
 * apart, wait for the end of the sleep. A signal of the moment before a sleep is
 * not seen; the next one is, also where it has to wait for the handler of the first,
 * which waits here. */
#include "hook.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLEEP_MS 100  /* between two looks at a gate */
#define DELAY_MS 20   /* the same, while it delays other signals */
#define YIELD_NS 1000000000u
#define FULL_NS 10000000000u /* after which work fails for which there is no place */
#define SIGNALS 64    /* of the kernel: the C library keeps some to itself */

static uint64_t asked_at;            /* gf_now_ns; 0: not since a gate last opened */
static uint64_t full_since[GF_DEVICES + 1]; /* by device: since when there has been no place for the process; 0: there is */
static __thread bool asleep GF_TLS;  /* and what runs in this thread is a handler of the two */

static uint64_t bit(int signal) { return (uint64_t)1 << (signal - 1); }

/* Of the signals of a set, those for which there are handlers. The kernel is asked,
 * since the C library does not speak of its own. */
static uint64_t handled(uint64_t of)
{
    uint64_t set = 0;
    for (int s = 1; s <= SIGNALS; s++) {
        struct { uintptr_t handler; unsigned long rest[16]; } action;
        if (of & bit(s) && syscall(SYS_rt_sigaction, s, NULL, &action, sizeof set) == 0 &&
            action.handler > 1) /* SIG_DFL, SIG_IGN */
            set |= bit(s);
    }
    return set;
}

/* Sleeps until the word is no longer as expected, or a while. True: a handler has
 * run that asks the program to end. */
static bool sleep_on(uint32_t *word, uint32_t expected)
{
    const uint64_t ends = bit(SIGTERM) | bit(SIGINT);
    const uint64_t faults = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGSYS) | bit(SIGABRT);
    uint64_t set = handled(ends), before, pending = 0;
    if (!set) {
        gf_futex_wait(word, expected, SLEEP_MS);
        return false;
    }
    uint64_t others = handled(~(ends | faults));
    if (others)
        syscall(SYS_rt_sigprocmask, SIG_BLOCK, &others, &before, sizeof others);
    const struct timespec most = {0, (others ? DELAY_MS : SLEEP_MS) * 1000000};
    gf_store(&asleep, true);
    bool asked = syscall(SYS_futex, word, FUTEX_WAIT, expected, &most, NULL, 0) != 0 && errno == EINTR;
    gf_store(&asleep, false);
    if (others)
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    syscall(SYS_rt_sigpending, &pending, sizeof pending);
    return asked || (pending & set);
}

static void note(void)
{
    uint64_t never = 0; /* who is asked again is asked since the first time */
    __atomic_compare_exchange_n(&asked_at, &never, gf_now_ns(), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void gf_full(struct gf_device *device, bool full)
{
    uint64_t *since = &full_since[gf_ordinal(device)];
    if (!full || !gf_load(since))
        gf_store(since, full ? gf_now_ns() : 0);
}

bool gf_wait(struct gf_device *device, uint64_t began, uint32_t *word, uint32_t expected)
{
    uint64_t full = gf_load(&full_since[gf_ordinal(device)]);
    if (full && gf_now_ns() - full >= FULL_NS)
        return false; /* that was said */
    if (gf_load(&asleep)) { /* in a handler, in the midst of a wait */
        gf_store(&asleep, false);
        note();
    }
    uint64_t asked = gf_load(&asked_at);
    if (asked && gf_now_ns() - (asked > began ? asked : began) >= YIELD_NS) {
        gf_say(GF_SAY_ASKED, "this program was asked to end while its GPU work waits: that fails (error %d)", GF_NOT_SENT);
        return false;
    }
    if (sleep_on(word, expected))
        note();
    return true;
}

void gf_waited(void)
{
    if (gf_load(&asked_at))
        gf_store(&asked_at, 0);
}

void gf_asked_fork_child(void)
{
    gf_waited();
    for (gf_each_device(d))
        gf_full(d, false);
    gf_store(&asleep, false); /* a handler may have forked */
}
