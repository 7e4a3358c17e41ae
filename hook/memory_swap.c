/* memory_swap.c: oversubscription (gfaas run --oversubscribe, gfaas serve --park=swap).
 *
 * The allocations of an oversubscribed instance are managed memory. So instances whose limits sum to more
 * than the GPU's memory can run one after another: the library moves an idle instance's memory to the host,
 * and back to the GPU before the instance's next work (MQFQ-Sticky, section 5.2, prefetch and swap; the
 * driver alone would move pages only when they are touched). With GFAAS_OVERSUBSCRIBE=1, memory moves to the
 * host when the instance has been idle for SWAP_AFTER_NS. With GFAAS_OVERSUBSCRIBE=ordered, it moves only at the
 * daemon's order, which comes from the gateway's scheduler.
 *
 * All moves are hints to the driver, which keeps the pages coherent. If a move fails, the memory stays where
 * it is, which is harmless. */
#include "memory_private.h"

#include "clock.h"

#include <stdlib.h>
#include <string.h>

#define SWAP_AFTER_NS 500000000u /* idle time before the move: longer than the pauses of a request, shorter than those between requests */
#define PIECE_BYTES (64u << 20)  /* bytes moved at a time: 3 ms over PCIe, the longest delay of a launch */
#define POLL_NS 200000           /* poll interval during a move */

enum mode { UNKNOWN, NOT_OVERSUBSCRIBED, WHEN_IDLE, WHEN_ORDERED };

static enum mode mode(void)
{
    static uint32_t cached; /* UNKNOWN until the first call */
    if (!gf_load(&cached)) {
        const char *value = getenv("GFAAS_OVERSUBSCRIBE");
        value = value ? value : "";
        gf_store(&cached, !strcmp(value, "1") ? WHEN_IDLE : !strcmp(value, "ordered") ? WHEN_ORDERED : NOT_OVERSUBSCRIBED);
    }
    return gf_load(&cached);
}

bool gf_oversubscribed(void) { return mode() != NOT_OVERSUBSCRIBED; }

uint64_t gf_swap_limit(struct gf_device *d)
{
    size_t total = 0;
    uint64_t limit = gf_mem_limit(d);
    if (!limit && gf_oversubscribed())
        gf_real.cuDeviceTotalMem_v2(&total, (CUdevice)gf_ordinal(d));
    return limit ? limit : total;
}

/* Returns the ranges of the device's managed memory and their number. The caller frees the array. */
static struct gf_range *managed_ranges(struct gf_device *d, unsigned *count)
{
    unsigned capacity = gf_blocks_managed(d, NULL, 0);
    struct gf_range *all = malloc((capacity + 1) * sizeof *all);
    *count = all ? gf_blocks_managed(d, all, capacity) : 0;
    if (*count > capacity) /* the program has allocated more meanwhile; the next move to the host includes that */
        *count = capacity;
    return all;
}

/* Starts moving a range to a device, or to the host if `to` is CU_DEVICE_CPU. */
static CUresult prefetch(struct gf_range r, CUdevice to, CUstream stream)
{
    CUresult result = gf_real.cuMemPrefetchAsync(r.at, r.size, to, stream);
    if (result != CUDA_ERROR_NOT_SUPPORTED)
        return result;
    CUmemLocation location = {to == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, to == CU_DEVICE_CPU ? 0 : to};
    return gf_real.cuMemPrefetchAsync_v2(r.at, r.size, location, 0, stream);
}

/* Held while a piece moves to the host and while gf_swap_in_now starts the moves back. */
static pthread_mutex_t move_lock = PTHREAD_MUTEX_INITIALIZER;

void gf_swap_in_now(struct gf_device *d, CUstream stream)
{
    unsigned count = 0;
    pthread_mutex_lock(&move_lock);
    bool swapped_out = d->swapped_out;
    gf_store(&d->swapped_out, false);
    gf_mem_set_parked(d, 0);
    struct gf_range *all = swapped_out ? managed_ranges(d, &count) : NULL;
    for (unsigned i = 0; i < count; i++)
        prefetch(all[i], (CUdevice)gf_ordinal(d), stream);
    pthread_mutex_unlock(&move_lock);
    free(all);
}

/* Locks the device and enters the context of the block. Returns false, and does not lock, if the block was freed or its
 * context cannot be entered (see gf_context_enter). */
static bool enter_block(struct gf_device *d, const struct gf_range *block)
{
    CUcontext context;
    pthread_mutex_lock(&d->lock);
    if (gf_block_context(block->at, &context) && gf_context_enter(d, context))
        return true;
    pthread_mutex_unlock(&d->lock);
    return false;
}

static void exit_block(struct gf_device *d)
{
    gf_context_exit();
    pthread_mutex_unlock(&d->lock);
}

/* Starts moving a piece of a block to the host or to the device, on this thread's own stream. */
static bool start_move(struct gf_device *d, const struct gf_range *block, struct gf_range piece, bool to_host)
{
    if (!enter_block(d, block))
        return false;
    CUresult result = prefetch(piece, to_host ? CU_DEVICE_CPU : (CUdevice)gf_ordinal(d), CU_STREAM_PER_THREAD);
    exit_block(d);
    return result == CUDA_SUCCESS;
}

/* Waits until a move has finished. Returns false if it failed or the block was freed. */
static bool await_move(struct gf_device *d, const struct gf_range *block)
{
    while (enter_block(d, block)) {
        CUresult result = gf_real.cuStreamQuery(CU_STREAM_PER_THREAD);
        exit_block(d);
        if (result != CUDA_ERROR_NOT_READY)
            return result == CUDA_SUCCESS;
        gf_pause_ns(POLL_NS);
    }
    return false;
}

/* Reports whether the instance has work again: a thread waits at the gate, or the gate is open. */
static bool has_work(struct gf_device *d)
{
    return __atomic_load_n(&d->waiting, __ATOMIC_SEQ_CST) || __atomic_load_n(d->gate, __ATOMIC_SEQ_CST);
}

/* Moves a block to the host or to the device in pieces, until the instance has work. Returns false if the
 * block has not moved completely. */
static bool move(struct gf_device *d, struct gf_range block, bool to_host)
{
    uint64_t done = 0;
    while (done < block.size && !has_work(d)) {
        struct gf_range piece = {block.at + done, block.size - done < PIECE_BYTES ? block.size - done : PIECE_BYTES};
        pthread_mutex_lock(&move_lock);
        if (to_host)
            gf_store(&d->swapped_out, true);
        bool started = start_move(d, &block, piece, to_host);
        bool moved = started && await_move(d, &block);
        if (moved && to_host)
            gf_mem_set_parked(d, d->mem_parked + piece.size);
        else if (moved) /* parked may be 0 already, if gf_swap_in_now has reset it */
            gf_mem_set_parked(d, d->mem_parked > piece.size ? d->mem_parked - piece.size : 0);
        pthread_mutex_unlock(&move_lock);
        if (!started)
            return false;
        done += piece.size;
    }
    return done >= block.size;
}

/* Moves the device's managed memory to the host or to the device, until the instance has work. Returns false
 * if some of it has not moved. */
static bool move_all(struct gf_device *d, bool to_host)
{
    unsigned count = 0;
    struct gf_range *all = managed_ranges(d, &count);
    bool complete = all;
    if (to_host)
        gf_mem_set_parked(d, 0); /* all pieces are counted again, including those of an earlier move */
    for (unsigned i = 0; i < count; i++)
        complete = move(d, all[i], to_host) && complete;
    free(all);
    return complete;
}

bool gf_swap_order(struct gf_device *d, bool to_host)
{
    if (!gf_oversubscribed())
        return true; /* no memory is managed */
    if (!to_host && !gf_load(&d->swapped_out))
        return true;
    if (!move_all(d, to_host))
        return false;
    pthread_mutex_lock(&move_lock);
    if (!to_host && !has_work(d)) { /* all memory is on the device, so the next work need not move it */
        gf_store(&d->swapped_out, false);
        gf_mem_set_parked(d, 0);
    }
    pthread_mutex_unlock(&move_lock);
    return true;
}

int gf_swap_maintain(struct gf_device *d, bool idle)
{
    uint64_t now = gf_now_ns();
    if (!idle || mode() != WHEN_IDLE) {
        d->idle_since = 0;
        return -1;
    }
    if (!d->idle_since)
        d->idle_since = now;
    if (d->idle_since == UINT64_MAX) /* already moved */
        return -1;
    if (now - d->idle_since < SWAP_AFTER_NS)
        return (int)((d->idle_since + SWAP_AFTER_NS - now) / 1000000) + 1;
    move_all(d, true);
    d->idle_since = UINT64_MAX;
    return -1;
}

void gf_swap_fork_child(void) { pthread_mutex_init(&move_lock, NULL); }
