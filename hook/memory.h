/* memory.h: the memory limit: every kind of allocation.
 *
 *   memory.c        devices and contexts, what the helper does
 *   memory_block.c  the table of what was allocated
 *   memory_info.c   free and total memory, as programs ask for it
 *   memory_plain.c  cuMemAlloc and its kin, managed memory
 *   memory_pool.c   pools, which count what they reserve
 *   memory_async.c  stream-ordered allocation from pools
 *   memory_graph.c  memory nodes of graphs, a pool of the driver's own
 *   memory_vmm.c    physical memory that is created, mapped and released
 *   memory_array.c  arrays and mipmapped arrays
 *   memory_swap.c   oversubscription: what idles goes to the host
 *
 * Not counted: pinned host memory, memory of other processes that is opened
 * here (IPC, imported handles and pools: its maker counts it), and what the
 * driver allocates itself for contexts and modules, their global variables
 * with them, which the daemon sees and may add (mem_foreign). What these files
 * share among themselves is in memory_private.h. */
#ifndef GFAAS_MEMORY_H
#define GFAAS_MEMORY_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Returns the driver's answer to a request for a context on a device of the driver's, and counts
 * it if the driver had too little memory. It may wait for the daemon: called without a lock. */
CUresult gf_mem_answer_on(CUdevice ordinal, CUresult answer);
/* Gives back what was allocated in a context that is gone. Called without a lock. */
void gf_mem_context_gone(CUcontext context);
/* Counts again what pools hold: it shrinks without a call to say so. */
void gf_mem_look(struct gf_device *device);
/* Does what is due on a device without a lease; idle: and no thread waits
 * for one. Returns in how many ms it wants to be called again; -1: when that
 * changes. */
int gf_mem_tend(struct gf_device *device, bool idle);
/* Moves memory back to the device before the stream's next work. */
GF_COLD void gf_swap_in_now(struct gf_device *device, CUstream stream);
static inline void gf_swap_in(struct gf_device *device, CUstream stream)
{
    if (gf_unlikely(gf_load(&device->swapped_out)))
        gf_swap_in_now(device, stream);
}
void gf_mem_fork_child(void);

/* What the allocation nodes of an executable graph take, by device. */
struct gf_graph_memory {
    bool any;
    uint64_t bytes[GF_DEVICES + 1];
};
/* Adds what the node of a graph allocates, if it does. */
void gf_graph_memory_add(struct gf_graph_memory *m, CUgraphNode node);
/* Notes that an executable graph was made, or with gone that it is destroyed. */
void gf_graph_memory_known(const struct gf_graph_memory *m, bool gone);
/* Before and after a launch or upload of a graph that needs memory, which is known by
 * its serial; 0: by none yet, or it was not launched. The first returns false if there is not as
 * much left: the graph must not be launched. */
GF_COLD bool gf_graph_memory_take(const struct gf_graph_memory *m, uint64_t serial);
GF_COLD void gf_graph_memory_settle(const struct gf_graph_memory *m, uint64_t serial);

#pragma GCC visibility pop
#endif
