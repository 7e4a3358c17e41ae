/* memory.h: the memory limit, for every kind of allocation.
 *
 *   memory.c        devices and contexts; the helper's work
 *   memory_block.c  the table of allocations (blocks)
 *   memory_info.c   free and total memory, as programs query it
 *   memory_plain.c  cuMemAlloc and its variants, managed memory
 *   memory_pool.c   pools, which count the memory that they reserve
 *   memory_async.c  stream-ordered allocation from pools
 *   memory_graph.c  memory nodes of graphs, a pool of the driver's own
 *   memory_vmm.c    physical memory that is created, mapped and released
 *   memory_array.c  arrays and mipmapped arrays
 *   memory_swap.c   oversubscription: moves an idle instance's memory to the host
 *
 * Not counted: pinned host memory; memory of other processes that is opened here (IPC, imported
 * handles and pools), because its owner counts it; and memory that the driver allocates itself for
 * contexts and for modules, including their global variables. The daemon sees that memory and may
 * add it (mem_foreign). The declarations that these files share are in memory_private.h. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* Returns `answer`, the driver's answer to a request for a context on the device with that ordinal,
 * and counts the refusal if the driver was out of memory. It may wait for the daemon, so the caller
 * holds no lock. */
CUresult gf_mem_answer_on(CUdevice ordinal, CUresult answer);
/* Removes the memory that was allocated in a destroyed context from the account. Called without a lock. */
void gf_mem_context_destroyed(CUcontext context);
/* Counts the pools again, since they shrink without a call of the program. */
void gf_mem_recount_pools(struct gf_device *device);
/* Recounts pools and moves idle memory to the host. The helper thread calls it while it has no lease of
 * the device; `idle` is true if no thread waits for one. Returns the ms until it must be called again, or
 * -1 if there is nothing to do until the device is used. */
int gf_mem_maintain(struct gf_device *device, bool idle);
/* Moves the managed memory to the host or to the device, as the daemon has ordered. Work of the program ends
 * the move. Returns false if some memory has not moved. The helper thread calls it. */
bool gf_swap_order(struct gf_device *device, bool to_host);
/* Moves memory back to the device before the stream's next work, if it was swapped out. */
GF_COLD void gf_swap_in_now(struct gf_device *device, CUstream stream);
static inline void gf_swap_in(struct gf_device *device, CUstream stream)
{
    if (gf_unlikely(gf_load(&device->swapped_out)))
        gf_swap_in_now(device, stream);
}
void gf_mem_fork_child(void);

/* The memory of an executable graph's allocation nodes, by device. */
struct gf_graph_memory {
    bool any;
    uint64_t bytes[GF_DEVICES + 1];
};
/* Adds the memory of a node of a graph, if it is an allocation node. */
void gf_graph_memory_add(struct gf_graph_memory *m, CUgraphNode node);
/* Counts the memory of an executable graph that was created or, if `destroyed` is true, destroyed. */
void gf_graph_memory_count(const struct gf_graph_memory *m, bool destroyed);
/* Called before and after a launch or upload of a graph that needs memory. `serial` identifies the graph.
 * gf_graph_memory_reserve adds the memory that the launch may need to the account; serial is 0 if the
 * graph has none yet. If that exceeds the limit, it returns false, and the graph must not be launched.
 * gf_graph_memory_correct corrects the account to the memory that the driver has reserved; serial is 0 if
 * the graph was not launched. */
GF_COLD bool gf_graph_memory_reserve(const struct gf_graph_memory *m, uint64_t serial);
GF_COLD void gf_graph_memory_correct(const struct gf_graph_memory *m, uint64_t serial);

#pragma GCC visibility pop
