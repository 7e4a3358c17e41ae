/* graph_object.c: user objects, which exist as long as the program or a graph holds a reference. */
#include "graph.h"

#include <limits.h>
#include <stdlib.h>

struct object {
    uint64_t refs;
    struct item *end; /* the call of its destructor */
};

/* Drops references. The destructor runs later, on a thread of the driver. */
static void drop_references(struct object *o, uint64_t count)
{
    o->refs -= count;
    if (o->refs)
        return;
    handle_del(o);
    threads_send(o->end);
    free(o);
}

static struct held *find_held(struct held *l, const struct object *o)
{
    while (l && l->object != o)
        l = l->next;
    return l;
}

/* Adds references to an object to a list. */
static bool held_add(struct held **list, struct object *o, uint64_t count)
{
    struct held *h = find_held(*list, o);
    if (!h) {
        h = calloc(1, sizeof *h);
        if (!h)
            return false;
        h->object = o;
        h->next = *list;
        *list = h;
    }
    h->count += count;
    return true;
}

/* Adds all references of another list. */
bool held_copy(struct held **list, const struct held *from)
{
    for (; from; from = from->next) {
        if (!held_add(list, from->object, from->count))
            return false;
        from->object->refs += from->count;
    }
    return true;
}

/* Drops references of a list. */
static void held_drop(struct held **list, struct held *h, uint64_t count)
{
    drop_references(h->object, count);
    h->count -= count;
    if (h->count)
        return;
    LIST_UNLINK(list, h, next);
    free(h);
}

void held_clear(struct held **list)
{
    while (*list)
        held_drop(list, *list, (*list)->count);
}

CUresult sim_cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount,
                                unsigned int flags)
{
    if (!object_out || !destroy || !initialRefcount || initialRefcount > INT_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct object *o = calloc(1, sizeof *o);
    struct item *end = o ? item_new(I_DESTROY) : NULL;
    if (!end || !threads_start_for(end) || !handle_add(o, H_OBJECT)) {
        if (end)
            item_free(end);
        free(o);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    end->u.host.fn = destroy;
    end->u.host.data = ptr;
    o->end = end;
    o->refs = initialRefcount;
    *object_out = (CUuserObject)o;
    return CUDA_SUCCESS;
}

/* Returns the object of a call that counts references, or NULL if there is none or the count is invalid. */
static struct object *object_of(CUuserObject h, unsigned count)
{
    return count && count <= INT_MAX ? handle_of(h, H_OBJECT) : NULL;
}

CUresult sim_cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    struct object *o = object_of(object, count);
    if (!o)
        return CUDA_ERROR_INVALID_VALUE;
    o->refs += count;
    return CUDA_SUCCESS;
}

CUresult sim_cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    struct object *o = object_of(object, count);
    if (!o || count > o->refs)
        return CUDA_ERROR_INVALID_VALUE;
    drop_references(o, count);
    return CUDA_SUCCESS;
}

/* With the flag, the caller's references become the graph's. */
CUresult sim_cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    struct object *o = object_of(object, count);
    if (!o)
        return CUDA_ERROR_INVALID_VALUE;
    bool move = flags & CU_GRAPH_USER_OBJECT_MOVE;
    if (!handle_is(graph, H_GRAPH) || (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) || (move && count > o->refs))
        return CUDA_ERROR_INVALID_VALUE;
    if (!held_add(&((struct graph *)graph)->objects, o, count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!move)
        o->refs += count;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    struct object *o = object_of(object, count);
    if (!o)
        return CUDA_ERROR_INVALID_VALUE;
    struct held **list = handle_is(graph, H_GRAPH) ? &((struct graph *)graph)->objects : NULL;
    struct held *h = list ? find_held(*list, o) : NULL;
    if (!h || h->count < count)
        return CUDA_ERROR_INVALID_VALUE;
    held_drop(list, h, count);
    return CUDA_SUCCESS;
}
