/* transfer.h: copies and fills of memory, as work of a stream. transfer.c performs them; copy.c has the calls
 * of the driver. */
#pragma once

#include "sim.h"

/* Kinds of memory. MEM_READ_ONLY is device memory that was mapped without write access. */
enum mem_kind { MEM_PAGEABLE, MEM_PINNED, MEM_DEVICE, MEM_READ_ONLY };

/* Values of transfer_locate's `driver_only`. */
enum { ANY_MEMORY = false, DRIVER_MEMORY = true };

/* Locates n bytes at an address: sets *view to their address in this process, and *kind. An address outside
 * of the driver's memory is pageable host memory; it is an error if `driver_only` is true or the address is
 * reserved. */
CUresult transfer_locate(CUdeviceptr p, size_t n, bool driver_only, char **view, enum mem_kind *kind);
/* Set *c to the addresses and the layout of the bytes of a copy of a box, and of a fill (copy.c). */
CUresult copy3d_locate(const CUDA_MEMCPY3D *p, struct copy *c, enum mem_kind *src, enum mem_kind *dst);
CUresult set_locate(const CUDA_MEMSET_NODE_PARAMS *p, struct copy *c, enum mem_kind *dst);
/* Runs a task of the driver in the order of the stream: at once if the stream is idle. */
CUresult transfer_task(struct stream *s, const struct task *t);
/* Copies or fills in the order of the stream. Returns after the copy if `sync` is true and a side is host memory,
 * if the destination is pageable, or if the source is pageable and too large to be staged. The caller holds
 * g_lock, which is released meanwhile. */
CUresult transfer_submit(struct stream *s, struct copy *c, enum mem_kind src, enum mem_kind dst, bool sync);
