/* limit.c: the account of a device's memory. An instance has one limit per device for all kinds of
 * allocation (memory.h), shared by all its processes.
 *
 * Each process publishes its bytes in its slot of the instance page. It first adds the new bytes
 * and then sums all slots, so the limit is never exceeded. Two processes that race for the last
 * bytes may both be refused, but only if the two allocations do not both fit. Threads of one
 * process take turns, so one succeeds. */
#include "limit.h"

#include "device.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the devices' mem_* fields */

uint64_t gf_mem_limit(struct gf_device *d) { return gf_load(&gf_load(&d->page)->mem_limit); }

static uint64_t plus(uint64_t a, uint64_t b) { return b > UINT64_MAX - a ? UINT64_MAX : a + b; } /* saturates */

uint64_t gf_mem_used_by_all(struct gf_device *d) { return gf_mem_on_page(gf_load(&d->page)); }

uint64_t gf_mem_in_slot(struct gf_slot *slot)
{
    return plus(__atomic_load_n(&slot->mem_used, __ATOMIC_SEQ_CST), gf_load(&slot->mem_foreign));
}

uint64_t gf_mem_on_page(struct gf_page *page)
{
    uint64_t sum = 0;
    /* Loaded after this process has published its bytes, so a process that gets a later slot
     * meanwhile sees them. */
    unsigned used = __atomic_load_n(&page->used, __ATOMIC_SEQ_CST);
    used = used ? used : GF_PAGE_SLOTS;
    for (unsigned i = 0; i < used && i < GF_PAGE_SLOTS_MOST; i++)
        sum = plus(sum, gf_mem_in_slot(&page->slots[i]));
    return sum;
}

static void set_used(struct gf_device *d, uint64_t bytes)
{
    d->mem_used = bytes;
    __atomic_store_n(&d->slot->mem_used, bytes, __ATOMIC_SEQ_CST);
}

/* Adds bytes unless they exceed the limit. The caller holds `lock`. */
static bool reserve(struct gf_device *d, uint64_t bytes)
{
    uint64_t most = gf_mem_limit(d), held = most ? gf_mem_used_by_all(d) : 0;
    if (bytes > UINT64_MAX - d->mem_used)
        return false;
    if (most && (held > most || bytes > most - held))
        return false; /* publishing them for a moment would make other processes fail */
    set_used(d, d->mem_used + bytes);
    if (!most || gf_mem_used_by_all(d) <= most)
        return true;
    set_used(d, d->mem_used - bytes);
    return false;
}

bool gf_mem_charge(struct gf_device *d, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    bool reserved = !bytes || reserve(d, bytes);
    pthread_mutex_unlock(&lock);
    return reserved;
}

void gf_mem_force_charge(struct gf_device *d, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    set_used(d, plus(d->mem_used, bytes));
    pthread_mutex_unlock(&lock);
}

bool gf_mem_over_limit(struct gf_device *d)
{
    uint64_t most = gf_mem_limit(d);
    return most && gf_mem_used_by_all(d) > most;
}

void gf_mem_uncharge(struct gf_device *d, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    set_used(d, d->mem_used - bytes);
    pthread_mutex_unlock(&lock);
}

uint64_t gf_mem_used(struct gf_device *d)
{
    pthread_mutex_lock(&lock);
    uint64_t bytes = d->mem_used;
    pthread_mutex_unlock(&lock);
    return bytes;
}

void gf_mem_set_parked(struct gf_device *d, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    d->mem_parked = bytes;
    gf_store(&d->slot->mem_parked, bytes);
    pthread_mutex_unlock(&lock);
}

void gf_mem_import(struct gf_device *d, int64_t bytes)
{
    pthread_mutex_lock(&lock);
    d->mem_imported += (uint64_t)bytes;
    gf_store(&d->slot->mem_imported, d->mem_imported);
    pthread_mutex_unlock(&lock);
}

CUresult gf_mem_answer(struct gf_device *d, CUresult answer)
{
    if (answer != CUDA_ERROR_OUT_OF_MEMORY || !d)
        return answer;
    pthread_mutex_lock(&lock);
    gf_store(&d->slot->mem_refused, ++d->mem_refused);
    pthread_mutex_unlock(&lock);
    return answer;
}

struct gf_slot *gf_mem_move(struct gf_device *d, struct gf_page *page, unsigned slot)
{
    pthread_mutex_lock(&lock);
    gf_store(&d->page, gf_device_map_page(d, page));
    __atomic_store_n(&d->slot, &d->page->slots[slot], __ATOMIC_RELEASE);
    set_used(d, d->mem_used);
    gf_store(&d->slot->mem_parked, d->mem_parked);
    gf_store(&d->slot->mem_imported, d->mem_imported);
    gf_store(&d->slot->mem_refused, d->mem_refused);
    pthread_mutex_unlock(&lock);
    return d->slot;
}

void gf_limit_fork_child(void) { pthread_mutex_init(&lock, NULL); }
