/* link.h: a device's connection to the daemon, and the start of its helper thread. */
#ifndef GFAAS_LINK_H
#define GFAAS_LINK_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Starts the device's helper thread unless it runs. */
void gf_link_start(struct gf_device *device);
/* Asks for a lease unless that has been done. Takes link.lock, with all signals blocked. */
void gf_link_request(struct gf_device *device);
/* Wakes the helper. Takes no lock; errno stays. */
void gf_link_kick(struct gf_device *device);
/* Waits until the daemon has answered this process once, or the program is to end:
 * then there is no memory. Called without a lock. */
void gf_link_wait_page(struct gf_device *device);
/* Sends a message to the daemon if the device's page has the flag by which it says that it
 * knows messages of that type. Takes link.lock. */
void gf_link_tell(struct gf_device *device, uint32_t flag, const void *message, size_t size);
/* Tells the daemon, if it wants to know, that what is in flight of a lease that it
 * has asked for is over in left_ns. Takes link.lock. */
void gf_link_ending(struct gf_device *device, uint32_t lease, uint64_t left_ns);

/* ---- for the helper ---- */

/* What runs above this module. It is bound when the library is linked: a constructor of
 * another library may launch before a constructor here could register it. */
struct gf_helper {
    void *(*run)(void *device); /* the body of a device's helper thread */
    void (*fork_child)(void);   /* resets every module in a forked child */
};
extern const struct gf_helper gf_helper; /* helper.c */

/* Returns what the environment said when the first helper started. */
const struct gf_identity *gf_link_identity(void);
/* Makes fd the device's connection, and wakes what waits for it. */
void gf_link_connected(struct gf_device *device, int fd);
/* Closes a connection. If only one of the two numbers names what it did, an epoll stays open:
 * it could be the program's. The caller holds link.lock, or is a forked child. */
void gf_link_hang_up(struct gf_link *link);
/* Reports whether the connection is still the library's own, and takes back a wake-up that
 * the helper has not noticed yet. */
bool gf_link_ours(struct gf_link *link);
/* Returns in how many ms the helper may ask for a lease; 0: now. The caller holds link.lock, or
 * is the helper. */
int gf_link_paused(const struct gf_link *link);
void gf_link_fork_child(void);

#pragma GCC visibility pop
#endif
