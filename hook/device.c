/* device.c: the devices, each with its own gate, page and connection. */
#include "device.h"

#include "clock.h"
#include "query.h"
#include "real.h"

#include <string.h>
#include <sys/mman.h>

/* The instance page of a device until the daemon sends one. Its memory limit of 1 byte is used up by
 * slot 1, so that an allocation fails if its thread does not wait for the daemon's page. */
#define NO_PAGE {.mem_limit = 1, .used = 2, .slots = {[1] = {.mem_used = 1}}}
static struct gf_page no_page __attribute__((aligned(4096))) = NO_PAGE;
static const struct gf_page initial_no_page = NO_PAGE; /* to restore no_page in a forked child */
static uint32_t closed_gate; /* stays 0 */

/* A device without a connection to a daemon. */
#define UNSERVED \
    .gate = &closed_gate, .page = &no_page, .slot = &no_page.slots[0], .lock = PTHREAD_MUTEX_INITIALIZER, \
    .link = {.lock = PTHREAD_MUTEX_INITIALIZER, .early = -1, .sock = -1, .kick = -1}

/* Every launch reads its device: without this alignment, a launch took 1 to 2 ns longer. */
struct gf_device gf_devices[GF_DEVICES + 1] __attribute__((aligned(4096))) = {[0 ... GF_DEVICES] = {UNSERVED}};

struct gf_device *gf_device_at(CUdevice ordinal)
{
    return &gf_devices[ordinal >= 0 && ordinal < GF_DEVICES ? ordinal : GF_DEVICES];
}

struct gf_device *gf_device_current(void)
{
    CUdevice ordinal;
    return gf_real.cuCtxGetDevice(&ordinal) == CUDA_SUCCESS ? gf_device_at(ordinal) : NULL;
}

struct gf_device *gf_device_of(CUcontext context)
{
    if (!context || gf_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return NULL;
    struct gf_device *device = gf_device_current();
    gf_context_exit();
    return device;
}

struct gf_device *gf_device_of_stream(CUstream stream)
{
    CUcontext context;
    CUdevice ordinal;
    if (gf_is_default_stream(stream))
        return gf_device_current();
    if (gf_real.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS)
        return gf_device_of(context);
    if (gf_real.cuStreamGetDevice(stream, &ordinal) == CUDA_SUCCESS) /* the stream belongs to a green context */
        return gf_device_at(ordinal);
    return gf_device_current();
}

void gf_device_set_gate(struct gf_device *device, uint32_t *gate)
{
    uint32_t *old = device->gate;
    __atomic_store_n(&device->gate, gate, __ATOMIC_SEQ_CST);
    gf_futex_wake(old);
    gf_futex_wake(&device->slot->refill);
}

/* The gate in the previous page is closed, but a thread may still read that page. So the new page takes the
 * address of the previous one, which therefore stays valid. If that fails, the page stays where it is. */
struct gf_page *gf_device_map_page(struct gf_device *device, struct gf_page *page)
{
    if (device->page == &no_page)
        return page;
    void *mapped = mremap(page, GF_PAGE_SIZE_MOST, GF_PAGE_SIZE_MOST, MREMAP_MAYMOVE | MREMAP_FIXED, device->page);
    return mapped == MAP_FAILED ? page : mapped;
}

void gf_device_close_gate(struct gf_device *device) { gf_device_set_gate(device, &closed_gate); }

struct gf_leaving *gf_leaving_entry(const struct gf_device *device, CUcontext context)
{
    struct gf_leaving *l = device->leaving;
    while (l && l->context != context)
        l = l->next;
    return l;
}

bool gf_context_enter(const struct gf_device *device, CUcontext context)
{
    return !gf_leaving_entry(device, context) && gf_real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

void gf_context_exit(void)
{
    CUcontext popped;
    gf_real.cuCtxPopCurrent_v2(&popped);
}

void gf_device_fork_child(void)
{
    memcpy(&no_page, &initial_no_page, offsetof(struct gf_page, slots[initial_no_page.used]));
    for (gf_each_device(d))
        *d = (struct gf_device){UNSERVED};
}
