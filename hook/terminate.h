/* terminate.h: waits that end when the program has been asked to end. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* A wait for a device. It is zeroed before it begins. */
struct gf_patience {
    uint64_t began; /* ns; 0: not begun */
    bool blocks;    /* SIGTERM and SIGINT are blocked until it ends */
    uint64_t mask;  /* the thread's signal mask before */
    uint64_t outer; /* signals of `mask` that an interrupted wait has blocked, if this one is in a handler */
};

/* Begins a wait, unless it has begun. From then on the wait notices a request to end the program.
 * It blocks SIGTERM and SIGINT if the program handles them. Call it before other threads can see
 * that this one waits. */
void gf_patience_begin(struct gf_patience *p);
/* Ends a wait; does nothing if it has not begun. */
void gf_patience_end(struct gf_patience *p);
/* Sleeps as part of a wait until the word differs from `expected`, for at most 100 ms. Returns
 * false if the wait must be given up. The program's handlers run meanwhile, so the caller holds no
 * lock. */
bool gf_wait(struct gf_device *device, struct gf_patience *p, uint32_t *word, uint32_t expected);
/* Notes whether the instance already has the most processes that it can have on the device, so
 * that the daemon refuses this one. */
void gf_terminate_set_full(struct gf_device *device, bool full);
/* Notes that a gate was open: an earlier request to end no longer counts. */
void gf_terminate_clear(void);
void gf_terminate_fork_child(void);

#pragma GCC visibility pop
