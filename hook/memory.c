/* memory.c: the memory limit of an instance, over the plain kinds of
 * allocation, shared by all its processes.
 *
 * Each process adds up what it holds in its slot of the instance page, adds
 * first and then sums all slots: two processes that race for the last bytes
 * may both be refused, but the limit is never exceeded. */
#include "hook.h"

#include <stdlib.h>

#define BUCKETS 4096

struct block {
    CUdeviceptr address;
    uint64_t size;
    CUcontext context;
    struct block *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks[BUCKETS];
static uint64_t used;

static struct block **bucket(CUdeviceptr address)
{
    return &blocks[(address >> 8 ^ address >> 20) % BUCKETS];
}

static uint64_t limit(void) { return gf_load(&gf_page->mem_limit); }

/* What all processes of the instance hold. */
static uint64_t used_by_all(void)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < GF_PAGE_SLOTS; i++)
        sum += __atomic_load_n(&gf_page->slots[i].mem_used, __ATOMIC_SEQ_CST);
    return sum;
}

static void set_used(uint64_t bytes)
{
    used = bytes;
    __atomic_store_n(&gf_slot->mem_used, bytes, __ATOMIC_SEQ_CST);
}

/* Takes bytes from the limit, or says that they are too many. Locked. */
static bool take(uint64_t bytes)
{
    if (bytes > UINT64_MAX - used || (limit() && bytes > limit()))
        return false; /* not even for a moment: that would refuse its siblings */
    set_used(used + bytes);
    if (!limit() || used_by_all() <= limit())
        return true;
    set_used(used - bytes);
    return false;
}

uint64_t gf_mem_used(void)
{
    pthread_mutex_lock(&lock);
    uint64_t bytes = used;
    pthread_mutex_unlock(&lock);
    return bytes;
}

void gf_mem_move(struct gf_page *page, struct gf_slot *slot)
{
    pthread_mutex_lock(&lock);
    gf_page = page;
    __atomic_store_n(&gf_slot, slot, __ATOMIC_RELEASE);
    set_used(used);
    pthread_mutex_unlock(&lock);
}

/* Notes an allocation whose bytes are taken. Locked. */
static bool note(CUdeviceptr address, uint64_t size)
{
    struct block *b = malloc(sizeof *b);
    if (!b)
        return false;
    *b = (struct block){.address = address, .size = size, .next = *bucket(address)};
    gf_real.cuCtxGetCurrent(&b->context);
    *bucket(address) = b;
    return true;
}

/* Forgets an allocation and gives its bytes back. Locked. */
static void forget(struct block **at)
{
    struct block *b = *at;
    *at = b->next;
    set_used(used - b->size);
    free(b);
}

GF_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!dptr || !bytesize)
        return gf_real.cuMemAlloc_v2(dptr, bytesize);
    gf_link_wait_page();
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (take(bytesize)) {
        result = gf_real.cuMemAlloc_v2(dptr, bytesize);
        if (result == CUDA_SUCCESS && !note(*dptr, bytesize)) {
            gf_real.cuMemFree_v2(*dptr);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (result != CUDA_SUCCESS)
            set_used(used - bytesize);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

GF_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!dptr || !pitch || !width || !height || width > SIZE_MAX / height)
        return gf_real.cuMemAllocPitch_v2(dptr, pitch, width, height, element);
    gf_link_wait_page();
    pthread_mutex_lock(&lock);
    /* The pitch is the driver's choice: known only afterwards. */
    CUresult result = gf_real.cuMemAllocPitch_v2(dptr, pitch, width, height, element);
    if (result == CUDA_SUCCESS) {
        uint64_t bytes = (uint64_t)*pitch * height;
        bool fits = take(bytes);
        if (!fits || !note(*dptr, bytes)) {
            if (fits)
                set_used(used - bytes);
            gf_real.cuMemFree_v2(*dptr);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

GF_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    /* Held across the driver's call: the address may be given out again at once. */
    pthread_mutex_lock(&lock);
    CUresult result = gf_real.cuMemFree_v2(dptr);
    if (result == CUDA_SUCCESS)
        for (struct block **at = bucket(dptr); *at; at = &(*at)->next)
            if ((*at)->address == dptr) {
                forget(at);
                break;
            }
    pthread_mutex_unlock(&lock);
    return result;
}

GF_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    size_t device_free = 0, device_total = 0;
    CUresult result = gf_real.cuMemGetInfo_v2(&device_free, &device_total);
    if (result != CUDA_SUCCESS)
        return result;
    gf_link_wait_page();
    uint64_t most = limit(), held = used_by_all();
    if (most && most < device_total)
        device_total = most;
    if (most) {
        uint64_t left = held < most ? most - held : 0;
        device_free = left < device_free ? left : device_free;
    }
    if (free_bytes)
        *free_bytes = device_free;
    if (total)
        *total = device_total;
    return CUDA_SUCCESS;
}

GF_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuDeviceTotalMem_v2(bytes, dev);
    if (result != CUDA_SUCCESS || !bytes)
        return result;
    gf_link_wait_page();
    if (limit() && limit() < *bytes)
        *bytes = limit();
    return CUDA_SUCCESS;
}

void gf_mem_context_gone(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct block **at = &blocks[i]; *at;) {
            if ((*at)->context == context)
                forget(at);
            else
                at = &(*at)->next;
        }
    pthread_mutex_unlock(&lock);
}

void gf_mem_fork_child(void)
{
    pthread_mutex_init(&lock, NULL);
    for (unsigned i = 0; i < BUCKETS; i++)
        blocks[i] = NULL; /* the parent's memory */
    used = 0;
}
