/* clock.c: the time, pauses and futexes. */
#include "clock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t gf_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void gf_futex_wait(uint32_t *word, uint32_t expected, unsigned timeout_ms)
{
    struct timespec timeout = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
}

void gf_futex_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void gf_pause_ns(long ns)
{
    const struct timespec t = {ns / 1000000000, ns % 1000000000};
    syscall(SYS_nanosleep, &t, NULL); /* the C library's nanosleep is a cancellation point */
}
