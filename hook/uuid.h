/* uuid.h: the UUIDs of GPUs. */
#ifndef GFAAS_UUID_H
#define GFAAS_UUID_H

#include "hook.h"

#pragma GCC visibility push(hidden)

#define GF_UUID 64 /* room for the text of a UUID, without its GPU- or MIG- */
/* Writes the UUIDs of n GPUs, given by their numbers. The UUID of a GPU that does not exist,
 * or of UINT_MAX, stays as it is, and so do all if there is no management library. It loads
 * that library, and so takes the loader's lock. */
void gf_uuids(const unsigned *numbers, unsigned n, char (*uuids)[GF_UUID]);

#pragma GCC visibility pop
#endif
