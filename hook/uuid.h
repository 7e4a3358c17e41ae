/* uuid.h: the UUIDs of GPUs. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

#define GF_UUID 64 /* size of the text of a UUID without its prefix GPU- or MIG- */
/* Writes the UUIDs of n GPUs, given by their indexes. An entry stays unchanged if the GPU does not exist
 * or its index is UINT_MAX; all do if NVML is missing. It loads NVML, and so takes the loader's lock. */
void gf_uuids(const unsigned *numbers, unsigned n, char (*uuids)[GF_UUID]);

#pragma GCC visibility pop
