/* asked.h: waits that end when the program has been asked to end. */
#ifndef GFAAS_ASKED_H
#define GFAAS_ASKED_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* A wait for a device; zero before it begins. */
struct gf_patience {
    uint64_t began; /* ns; 0: it has not */
    bool holds;     /* SIGTERM and SIGINT are blocked meanwhile */
    uint64_t mask;  /* the thread's signals before */
    uint64_t outer; /* of them, what a wait blocks in whose midst this one is, in a handler */
};

/* Begins a wait unless it has begun: from now on it notices that the program is asked to
 * end. Call it before other threads can see that this one waits. It blocks SIGTERM and SIGINT
 * if the program handles them. */
void gf_patience_begin(struct gf_patience *p);
/* Ends a wait, also one that has not begun. */
void gf_patience_end(struct gf_patience *p);
/* Sleeps until the word is no longer as expected, or for 100 ms at most, as part of
 * a wait. Returns false if the wait is to end in vain. Called without a lock: handlers of the
 * program's run meanwhile. */
bool gf_wait(struct gf_device *device, struct gf_patience *p, uint32_t *word, uint32_t expected);
/* Notes whether the instance has as many processes on the device as it can, so that
 * there is no place for this one. */
void gf_full(struct gf_device *device, bool full);
/* Notes that a gate was open: the request to end no longer counts. */
void gf_waited(void);
void gf_asked_fork_child(void);

#pragma GCC visibility pop
#endif
