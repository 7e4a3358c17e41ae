/* link.h: a device's connection to the daemon, and the start of its helper thread. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Starts the device's helper thread unless it is running. */
void gf_link_start(struct gf_device *device);
/* Requests a lease unless one was requested. Takes link.lock, with all signals blocked. */
void gf_link_request(struct gf_device *device);
/* Wakes the helper. Takes no lock and preserves errno. */
void gf_link_kick(struct gf_device *device);
/* Waits until the daemon has answered this process once, or the program was asked to end; the
 * account then has no page. Called without a lock. */
void gf_link_wait_page(struct gf_device *device);
/* Sends a message to the daemon if `flag` in the device's page says that the daemon understands
 * it. Takes link.lock. */
void gf_link_tell(struct gf_device *device, uint32_t flag, const void *message, size_t size);
/* Announces to the daemon, if it wants that, that the work in flight of a lease that it has revoked
 * will finish in left_ns. Takes link.lock. */
void gf_link_ending(struct gf_device *device, uint32_t lease, uint64_t left_ns);

/* ---- for the helper ---- */

/* The helper's entry points. They are bound when the library is linked, because a constructor of
 * another library may launch before a constructor here could register them. */
struct gf_helper {
    void *(*run)(void *device); /* the body of a device's helper thread */
    void (*fork_child)(void);   /* resets every module in a forked child */
};
extern const struct gf_helper gf_helper; /* helper.c */

/* Returns the environment's values at the time when the first helper started. */
const struct gf_identity *gf_link_identity(void);
/* Makes fd the device's connection and wakes the threads that wait for it. */
void gf_link_connected(struct gf_device *device, int fd);
/* Closes a connection. If only one of its two descriptors is still the library's, the epoll stays
 * open, because it could be the program's. The caller holds link.lock, or is a forked child. */
void gf_link_hang_up(struct gf_link *link);
/* Reports whether the connection is still the library's, and cancels a wake-up that the helper has
 * not noticed. */
bool gf_link_ours(struct gf_link *link);
/* Returns the ms until the helper may request a lease; 0: it may now. The caller holds link.lock,
 * or is the helper. */
int gf_link_paused(const struct gf_link *link);
void gf_link_fork_child(void);

#pragma GCC visibility pop
