/* device.c: the devices, each with a gate, a page and a connection of its own. */
#include "device.h"

#include "clock.h"
#include "query.h"
#include "real.h"

#include <string.h>
#include <sys/mman.h>

/* Until the daemon answers. Who does not wait for that finds no room in it. */
#define NO_PAGE {.mem_limit = 1, .used = 2, .slots = {[1] = {.mem_used = 1}}}
static const struct gf_page empty_page = NO_PAGE;
static struct gf_page no_page __attribute__((aligned(4096))) = NO_PAGE;
static uint32_t closed;

#define UNSERVED \
    .gate = &closed, .page = &no_page, .slot = &no_page.slots[0], .lock = PTHREAD_MUTEX_INITIALIZER, \
    .link = {.lock = PTHREAD_MUTEX_INITIALIZER, .sock = -1, .kick = -1}

/* In pages of their own: every launch looks at them. */
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
    CUcontext popped;
    if (!context || gf_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return NULL;
    struct gf_device *device = gf_device_current();
    gf_real.cuCtxPopCurrent_v2(&popped);
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
    if (gf_real.cuStreamGetDevice(stream, &ordinal) == CUDA_SUCCESS) /* of a green context */
        return gf_device_at(ordinal);
    return gf_device_current();
}

void gf_device_open(struct gf_device *device, uint32_t *gate)
{
    uint32_t *before = device->gate;
    __atomic_store_n(&device->gate, gate, __ATOMIC_SEQ_CST);
    gf_futex_wake(before);
    gf_futex_wake(&device->slot->refill);
}

/* A thread may still read the old page, though nobody enters by its gate any more:
 * the new one is mapped in its place, so that what it reads stays mapped. */
struct gf_page *gf_device_lay(struct gf_device *device, struct gf_page *page)
{
    if (device->page == &no_page)
        return page;
    void *laid = mremap(page, GF_PAGE_SIZE_MOST, GF_PAGE_SIZE_MOST, MREMAP_MAYMOVE | MREMAP_FIXED, device->page);
    return laid == MAP_FAILED ? page : laid;
}

void gf_device_close(struct gf_device *device) { gf_device_open(device, &closed); }

struct gf_leaving *gf_context_leaves(const struct gf_device *device, CUcontext context)
{
    struct gf_leaving *l = device->leaving;
    while (l && l->context != context)
        l = l->next;
    return l;
}

void gf_device_fork_child(void)
{
    memcpy(&no_page, &empty_page, offsetof(struct gf_page, slots[empty_page.used]));
    for (gf_each_device(d))
        *d = (struct gf_device){UNSERVED};
}
