/* greet.h: the connection to gfaas-tokend: its messages and the first exchange. */
#ifndef GFAAS_GREET_H
#define GFAAS_GREET_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* What the environment says of the daemon and of this process's instance. */
struct gf_identity {
    char socket[108], instance[GF_NAME_SIZE], secret[GF_NAME_SIZE];
};
/* Reads it. Returns false if part of it is missing. */
bool gf_identify(struct gf_identity *who);
/* Connects, says hello and moves to the page that comes back. Returns the
 * connection; -1 if there is none, after a pause. Called by the helper, without a lock. */
int gf_greet(struct gf_device *device, const struct gf_identity *who);
/* Returns the page that the instance has for one of its GPUs, over a connection of
 * its own that is closed then; NULL if the daemon shows none. The caller unmaps it. */
struct gf_page *gf_peek(unsigned place, const struct gf_identity *who);

/* The four below take no lock and no memory: they may be called between fork and exec. */

/* Returns the header of a message of that type and size in bytes. */
struct gf_header gf_header(uint16_t type, uint32_t size);
/* Reports whether the n bytes received are a message of that type and size. */
bool gf_is(const void *message, ssize_t n, uint16_t type, size_t size);
/* Sends a message. Returns false if it could not be sent whole. It is no cancellation point. */
bool gf_transmit(int fd, const void *message, size_t size);
/* Receives one message and, if it brings one, a descriptor. The flags are recvmsg's. */
ssize_t gf_receive(int fd, void *buffer, size_t size, int *passed, int flags);

#pragma GCC visibility pop
#endif
