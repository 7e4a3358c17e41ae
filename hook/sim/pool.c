/* pool.c: memory that is allocated and freed in stream order.
 *
 * A pool reserves device memory in chunks of 32 MiB (smaller ones if the device has no more) and splits them into
 * blocks. The table of ranges has every block of a chunk: an allocated one is R_POOL, a free one R_HIDDEN. A freed
 * block has the record of the free. Until the stream has reached it, only that stream can reuse the block; after
 * that, any stream can, or, if the pool does not allow opportunistic reuse, after the next synchronization. A stream
 * that waits for another one's event cannot reuse that stream's blocks any earlier, unlike with the real driver. */
#include "pool.h"

#include <stdlib.h>

static uint64_t last_id;

struct pool *pool_new(struct device *d)
{
    struct pool *p = handle_new(sizeof *p, H_POOL);
    if (!p)
        return NULL;
    p->dev = d;
    p->id = ++last_id;
    p->reuse[CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = 1;
    p->reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC] = 1;
    p->reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES] = 1;
    p->next = d->pools;
    d->pools = p;
    return p;
}

struct pool *pool_default(struct device *d)
{
    if (!d->default_pool && (d->default_pool = pool_new(d)))
        d->default_pool->fixed = true;
    return d->default_pool;
}

/* Returns the index of a chunk's first block in the table of ranges. */
static size_t first_block(const struct chunk *c)
{
    return range_after(c->base) - 1;
}

/* Returns range number i if it is in the chunk, else NULL. */
static struct range *block(const struct chunk *c, size_t i)
{
    struct range *r = i < range_count() ? range_at(i) : NULL;
    return r && r->chunk == c ? r : NULL;
}

/* Makes a freed block free now. */
static void clear_freed(struct range *r)
{
    record_unref(r->freed);
    r->freed = NULL;
}

/* Reports whether two blocks are free in the same way: now, or after the same stream's work. */
static bool same_state(const struct range *a, const struct range *b)
{
    if (!a->freed || !b->freed)
        return a->freed == b->freed;
    return !a->freed->done && !b->freed->done && a->freed->stream && a->freed->stream == b->freed->stream;
}

/* Joins neighbouring blocks in the same state. Of two that one stream frees, the later free counts. */
static void join_blocks(const struct chunk *c)
{
    struct range *r, *next;
    for (size_t i = first_block(c); (r = block(c, i)); i++)
        while (r->kind == R_HIDDEN && (next = block(c, i + 1)) && next->kind == R_HIDDEN && same_state(r, next)) {
            if (r->freed && next->freed->index > r->freed->index) {
                struct record *later = next->freed;
                next->freed = r->freed;
                r->freed = later;
            }
            r->span += next->span;
            record_unref(next->freed);
            range_del(next);
        }
}

/* Updates which freed blocks are free now. `synced` is true if the program has synchronized. */
static void update_blocks(struct pool *p, bool synced)
{
    struct range *r;
    for (struct chunk *c = p->chunks; c; c = c->next) {
        for (size_t i = first_block(c); (r = block(c, i)); i++)
            if (r->freed && r->freed->done && (synced || p->reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC]))
                clear_freed(r);
        join_blocks(c);
    }
}

/* Reserves a chunk of exactly that size. */
static struct range *add_chunk_of(struct pool *p, size_t size)
{
    struct chunk *c = calloc(1, sizeof *c);
    struct range r = {.kind = R_HIDDEN, .chunk = c}, *own;
    if (!c || (p->max && size > p->max - p->reserved) || memory_place(p->dev, size, &r, &own) != CUDA_SUCCESS) {
        free(c);
        return NULL;
    }
    *c = (struct chunk){p->chunks, p, own->base, size};
    p->chunks = c;
    p->reserved += size;
    if (p->reserved > p->reserved_high)
        p->reserved_high = p->reserved;
    return own;
}

/* Reserves a chunk for an allocation. */
static struct range *add_chunk(struct pool *p, size_t span)
{
    struct range *r = add_chunk_of(p, (span + POOL_CHUNK - 1) & ~(size_t)(POOL_CHUNK - 1));
    return r ? r : add_chunk_of(p, (span + POOL_PAGE - 1) & ~(size_t)(POOL_PAGE - 1));
}

/* Reports whether a stream has yet to free the block. */
static bool is_pending(const struct range *r)
{
    return r->freed && !r->freed->done && r->freed->stream;
}

/* Returns the first block that is large enough and that s may reuse now, or after it has waited for `after`. */
static struct range *find_block(struct pool *p, const struct stream *s, size_t span, const struct record *after)
{
    struct range *r;
    for (struct chunk *c = p->chunks; c; c = c->next)
        for (size_t i = first_block(c); (r = block(c, i)); i++)
            if (r->kind == R_HIDDEN && r->span >= span &&
                (!r->freed || r->freed == after || (is_pending(r) && r->freed->stream == s)))
                return r;
    return NULL;
}

/* Makes s wait until another stream has freed a block that is large enough, and returns the block. */
static struct range *find_block_and_wait(struct pool *p, struct stream *s, size_t span)
{
    struct range *r = NULL;
    for (struct chunk *c = p->chunks; c && !r; c = c->next)
        for (size_t i = first_block(c); (r = block(c, i)); i++)
            if (r->kind == R_HIDDEN && r->span >= span && is_pending(r) && r->freed->stream->ctx->dev == s->ctx->dev)
                break;
    struct item *it = r ? item_new(I_WAIT) : NULL;
    if (!it)
        return NULL;
    struct record *freed = it->u.record = r->freed;
    freed->refs += 2; /* of the item and of this function */
    bool pushed = engine_push(s, it) == CUDA_SUCCESS; /* may release the lock */
    r = pushed && handle_is(p, H_POOL) ? find_block(p, s, span, freed) : NULL;
    record_unref(freed);
    return r;
}

/* Allocates the beginning of a block. */
static bool split_block(struct range *r, size_t size, size_t span)
{
    if (r->span > span) {
        struct range rest = *r;
        rest.base += span;
        rest.span -= span;
        rest.offset += span;
        rest.view += span;
        if (!range_add(&rest))
            return false;
        if (rest.freed)
            rest.freed->refs++;
    }
    clear_freed(r);
    r->kind = R_POOL;
    r->span = span;
    r->size = size;
    r->id = range_new_id();
    return true;
}

CUresult pool_alloc(struct pool *p, struct stream *s, size_t size, CUdeviceptr *out)
{
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > g_config.mem)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t span = (size + POOL_GRAIN - 1) & ~(size_t)(POOL_GRAIN - 1);
    engine_advance(s->ctx->dev, now_ns());
    update_blocks(p, false);
    struct range *r = find_block(p, s, span, NULL);
    if (!r)
        r = add_chunk(p, span);
    if (!r && p->reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES])
        r = find_block_and_wait(p, s, span);
    if (!r || !split_block(r, size, span))
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->used += span;
    if (p->used > p->used_high)
        p->used_high = p->used;
    *out = r->base;
    return CUDA_SUCCESS;
}

/* Makes an allocation a free block. */
static void free_block(struct range *r)
{
    r->chunk->pool->used -= r->span;
    r->kind = R_HIDDEN;
    r->size = 0;
}

/* Returns the memory of a destroyed pool, or else joins the blocks of the chunk. May remove the pool. */
static void after_free(const struct chunk *c)
{
    if (c->pool->destroyed)
        pool_trim(c->pool, 0);
    else
        join_blocks(c);
}

CUresult pool_free(struct range *r, struct stream *s)
{
    struct item *it = item_new(I_RECORD);
    struct record *rec = record_new();
    if (!it || !rec) {
        free(rec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    size_t size = r->size;
    struct chunk *c = r->chunk;
    it->u.record = rec;
    rec->refs++;
    r->freed = rec;
    free_block(r); /* before the lock may be released, so that no other thread frees it */
    CUresult result = engine_push(s, it);
    if (result != CUDA_SUCCESS) {
        clear_freed(r);
        r->kind = R_POOL;
        r->size = size;
        c->pool->used += r->span;
        return result;
    }
    after_free(c);
    return CUDA_SUCCESS;
}

void pool_free_now(struct range *r)
{
    struct chunk *c = r->chunk;
    free_block(r);
    after_free(c);
}

/* ---- returning memory ---- */

/* Reports whether a chunk has no allocated block, and none that has yet to be freed. */
static bool unused(const struct chunk *c)
{
    const struct range *r = range_raw(c->base);
    return r->kind == R_HIDDEN && !r->freed && r->span == c->size; /* neighbouring blocks are joined */
}

/* Removes an empty pool. */
static void pool_drop(struct pool *p)
{
    struct device *d = p->dev;
    LIST_UNLINK(&d->pools, p, next);
    if (p->exported)
        shared_fixed(d, -1);
    free(p);
}

/* Returns unused memory to the device, but keeps `keep` bytes reserved. Removes a destroyed pool that is empty. */
static void trim(struct pool *p, uint64_t keep, bool synced)
{
    update_blocks(p, synced);
    for (struct chunk **at = &p->chunks, *c; (c = *at);) {
        if (!unused(c) || p->reserved - c->size < keep) {
            at = &c->next;
            continue;
        }
        memory_release(range_raw(c->base));
        p->reserved -= c->size;
        *at = c->next;
        free(c);
    }
    if (p->destroyed && !p->chunks)
        pool_drop(p);
}

void pool_trim(struct pool *p, uint64_t keep)
{
    trim(p, keep, true);
}

void pool_destroy(struct pool *p)
{
    struct device *d = p->dev;
    handle_del(p);
    if (d->current_pool == p)
        d->current_pool = NULL;
    p->destroyed = true;
    trim(p, 0, false);
}

void pool_synced(struct device *d)
{
    for (struct pool *p = d->pools, *next; p; p = next) {
        next = p->next;
        trim(p, p->destroyed ? 0 : p->threshold, true);
    }
}

void pool_release_unused(struct device *d)
{
    for (struct pool *p = d->pools, *next; p; p = next) {
        next = p->next;
        trim(p, 0, false);
    }
}

/* Drops all allocations. */
static void free_allocations(struct pool *p)
{
    struct range *r;
    for (struct chunk *c = p->chunks; c; c = c->next)
        for (size_t i = first_block(c); (r = block(c, i)); i++) {
            clear_freed(r);
            r->kind = R_HIDDEN;
            r->size = 0;
        }
    p->used = 0;
}

void pool_reset(struct device *d)
{
    for (struct pool *p = d->pools, *next; p; p = next) {
        next = p->next;
        free_allocations(p);
        trim(p, 0, true);
    }
}
