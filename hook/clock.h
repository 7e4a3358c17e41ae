/* clock.h: the time, pauses and futexes. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Returns the monotonic clock in ns. */
uint64_t gf_now_ns(void);
/* Sleeps for that many ns, or less if a signal arrives. Not a cancellation point. */
void gf_pause_ns(long ns);
/* Sleeps until the word is woken, for at most timeout_ms. Returns at once if the word differs from
 * `expected`. The futex is shared with other processes. */
void gf_futex_wait(uint32_t *word, uint32_t expected, unsigned timeout_ms);
/* Wakes all threads, of this and other processes, that sleep on the word. */
void gf_futex_wake(uint32_t *word);

#pragma GCC visibility pop
