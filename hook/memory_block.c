/* memory_block.c: the table of allocations. */
#include "memory_private.h"

#include <stdlib.h>

#define BUCKETS 4096

pthread_mutex_t gf_blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gf_block *blocks[BUCKETS];

static struct gf_block **bucket(enum gf_block_kind kind, uint64_t key)
{
    return &blocks[(key >> 6 ^ key >> 12 ^ key >> 21 ^ kind) % BUCKETS];
}

struct gf_block *gf_block_find(enum gf_block_kind kind, uint64_t key)
{
    struct gf_block *b = *bucket(kind, key);
    while (b && (b->kind != kind || b->key != key))
        b = b->next;
    return b;
}

struct gf_block *gf_block_around(enum gf_block_kind kind, uint64_t address)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct gf_block *b = blocks[i]; b; b = b->next)
            if (b->kind == kind && address >= b->key && address - b->key < b->size)
                return b;
    return NULL;
}

struct gf_block *gf_blocks_of(CUcontext context, struct gf_pool *pool)
{
    struct gf_block *found = NULL;
    pthread_mutex_lock(&gf_blocks_lock);
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct gf_block **at = &blocks[i], *b; (b = *at);) {
            if (b->context != context || b->pool != pool) {
                at = &b->next;
                continue;
            }
            *at = b->next;
            b->next = found;
            found = b;
        }
    pthread_mutex_unlock(&gf_blocks_lock);
    return found;
}

/* Reports whether a block of the kind crosses an end of the range. The caller holds the lock. */
static bool is_cut(enum gf_block_kind kind, uint64_t at, uint64_t size)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct gf_block *b = blocks[i]; b; b = b->next) {
            bool starts = b->key - at < size, before = at - b->key < b->size;
            if (b->kind == kind && (starts ? b->size > size - (b->key - at) : before))
                return true;
        }
    return false;
}

bool gf_blocks_within(enum gf_block_kind kind, uint64_t at, uint64_t size, struct gf_block **found)
{
    *found = NULL;
    pthread_mutex_lock(&gf_blocks_lock);
    struct gf_block *only = gf_block_find(kind, at);
    bool exact = only && only->size == size, whole = exact || !is_cut(kind, at, size);
    if (exact) {
        gf_block_unlink(only);
        only->next = NULL;
        *found = only;
    }
    for (unsigned i = 0; !exact && whole && i < BUCKETS; i++)
        for (struct gf_block **place = &blocks[i], *b; (b = *place);) {
            if (b->kind != kind || b->key - at >= size) {
                place = &b->next;
                continue;
            }
            *place = b->next;
            b->next = *found;
            *found = b;
        }
    pthread_mutex_unlock(&gf_blocks_lock);
    return whole;
}

unsigned gf_blocks_managed(struct gf_device *d, struct gf_range *into, unsigned room)
{
    unsigned count = 0;
    pthread_mutex_lock(&gf_blocks_lock);
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct gf_block *b = blocks[i]; b; b = b->next) {
            if (!b->managed || b->device != d)
                continue;
            if (count < room)
                into[count] = (struct gf_range){b->key, b->size};
            count++;
        }
    pthread_mutex_unlock(&gf_blocks_lock);
    return count;
}

bool gf_block_context(CUdeviceptr address, CUcontext *context)
{
    pthread_mutex_lock(&gf_blocks_lock);
    struct gf_block *b = gf_block_find(GF_PLAIN, address);
    if (b)
        *context = b->context;
    pthread_mutex_unlock(&gf_blocks_lock);
    return b;
}

void gf_block_link(struct gf_block *b)
{
    struct gf_block **at = bucket(b->kind, b->key);
    b->next = *at;
    *at = b;
}

void gf_block_unlink(struct gf_block *b)
{
    struct gf_block **at = bucket(b->kind, b->key);
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
}

struct gf_block *gf_block_new(enum gf_block_kind kind, uint64_t bytes)
{
    struct gf_block *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->kind = kind;
    b->size = bytes;
    return b;
}

struct gf_block *gf_block_reserve(enum gf_block_kind kind, struct gf_device *d, uint64_t bytes)
{
    struct gf_block *b = gf_block_new(kind, bytes);
    if (!b || !gf_mem_charge_or_trim(d, bytes)) {
        free(b);
        return NULL;
    }
    b->device = d;
    return b;
}

bool gf_block_resize(struct gf_block *b, uint64_t bytes)
{
    if (bytes > b->size && !gf_mem_charge_or_trim(b->device, bytes - b->size))
        return false;
    if (bytes < b->size)
        gf_mem_uncharge(b->device, b->size - bytes);
    b->size = bytes;
    return true;
}

void gf_block_put(struct gf_block *b, uint64_t key)
{
    b->key = key;
    pthread_mutex_lock(&gf_blocks_lock);
    struct gf_block *stale = gf_block_find(b->kind, key);
    if (stale)
        gf_block_unlink(stale);
    gf_block_link(b);
    pthread_mutex_unlock(&gf_blocks_lock);
    gf_block_drop(stale);
}

struct gf_block *gf_block_claim(enum gf_block_kind kind, uint64_t key)
{
    pthread_mutex_lock(&gf_blocks_lock);
    struct gf_block *b = gf_block_find(kind, key);
    if (b)
        gf_block_unlink(b);
    pthread_mutex_unlock(&gf_blocks_lock);
    return b;
}

struct gf_block *gf_block_claim_address(CUdeviceptr address)
{
    struct gf_block *b = gf_block_claim(GF_PLAIN, address);
    return b ? b : gf_block_claim(GF_POOLED, address);
}

void gf_block_drop(struct gf_block *b)
{
    if (b && b->device)
        gf_mem_uncharge(b->device, b->size);
    if (b && b->lent)
        gf_mem_import(b->lent, -(int64_t)b->size);
    if (b && b->pool)
        gf_pool_freed(b);
    if (b && b->of)
        gf_mapping_removed(b->of);
    free(b);
}

void gf_block_freed(struct gf_block *b, CUresult result)
{
    if (b && result != CUDA_SUCCESS)
        gf_block_put(b, b->key);
    else
        gf_block_drop(b);
}

void gf_blocks_fork_child(void)
{
    pthread_mutex_init(&gf_blocks_lock, NULL);
    for (unsigned i = 0; i < BUCKETS; i++)
        blocks[i] = NULL; /* these describe the parent's memory */
}
