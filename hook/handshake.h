/* handshake.h: the messages exchanged with gfaas-tokend, and the handshake. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* The daemon's socket and this process's instance, from the environment. */
struct gf_identity {
    char socket[108], instance[GF_NAME_SIZE], secret[GF_NAME_SIZE];
    char grant[GF_MAX_GRANT + 2]; /* GFAAS_GRANT: allows the instance its slice; empty: it is registered otherwise */
};
/* Reads the environment. Returns false if a variable other than GFAAS_GRANT is missing. */
bool gf_identify(struct gf_identity *who);
/* Connects and says hello, so that the daemon answers while the helper starts, which takes long on a busy
 * host. It does not wait and is not a cancellation point. If it fails, gf_handshake connects itself.
 * Called before the device's first gf_handshake, with signals blocked. */
void gf_greet(struct gf_device *device, const struct gf_identity *who);
/* Connects and says hello, unless gf_greet has, and moves the device to the page that the daemon sends.
 * Returns the connection, or -1 after a pause if there is none. The helper calls it, without a lock. */
int gf_handshake(struct gf_device *device, const struct gf_identity *who);
/* Returns the instance's page for one of its GPUs, over a short connection of its own, or NULL if
 * the daemon sends none. The caller unmaps it. */
struct gf_page *gf_peek(unsigned place, const struct gf_identity *who);

/* The following functions take no lock and no memory, so they may be called between fork and exec. */

/* Returns the header of a message of the type; `size` is the message's, in bytes. */
struct gf_header gf_header(uint16_t type, uint32_t size);
/* Sends the instance's grant, if it has one, which precedes the first message. Returns false unless it was sent. Not a
 * cancellation point. */
bool gf_transmit_grant(int fd, const struct gf_identity *who);
/* Reports whether the n received bytes are a message of the type and size. */
bool gf_is(const void *message, ssize_t n, uint16_t type, size_t size);
/* Sends a message. Returns false unless it was sent whole. Not a cancellation point. */
bool gf_transmit(int fd, const void *message, size_t size);
/* Receives one message and, if the message carries one, a descriptor. `flags` are recvmsg's. */
ssize_t gf_receive(int fd, void *buffer, size_t size, int *passed, int flags);

#pragma GCC visibility pop
