/* graph_exec.c: instances: making them, launching them, their end. */
#include "capture.h"
#include "ipcevent.h"

#include <stdlib.h>

#define EXEC_FLAGS                                                                                     \
    (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |     \
     CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

static struct exec *execs;

bool exec_is(const void *e)
{
    return handle_is(e, H_EXEC);
}

void exec_unref(struct exec *e)
{
    if (--e->refs)
        return;
    *e->prev = e->next;
    if (e->next)
        e->next->prev = e->prev;
    held_clear(&e->objects);
    plan_unref(e->plan);
    free(e);
}

/* Whoever launches a graph whose kernels are gone learns it then. */
void exec_forget(struct module *m)
{
    for (struct exec *e = execs; e; e = e->next) {
        bool uses = false;
        for (size_t i = 0; !uses && i < e->plan->n; i++) {
            const struct work *w = &e->plan->steps[i].work;
            uses = w->type == CU_GRAPH_NODE_TYPE_KERNEL && w->u.kernel.module == m;
        }
        if (uses)
            e->broken = CUDA_ERROR_INVALID_HANDLE;
    }
}

/* Until nothing runs any more that cannot be launched again. */
void exec_drain(void)
{
    struct exec *e = execs;
    while (e) {
        if (e->broken && e->last) {
            struct stream *s = e->last->item->stream;
            wait_stream(s, s->enq);
            e = execs; /* the list may be another by now */
        } else {
            e = e->next;
        }
    }
}

static struct exec *exec_new(struct graph *g, uint64_t flags, struct node **bad, CUresult *r,
                             CUgraphInstantiateResult *why)
{
    struct plan *p = plan_new(g, bad, r, why);
    struct exec *e = p ? calloc(1, sizeof *e) : NULL;
    if (!p)
        return NULL;
    *r = e ? mem_claim(p) : CUDA_ERROR_OUT_OF_MEMORY;
    if (*r == CUDA_SUCCESS && (!held_copy(&e->objects, g->objects) || !handle_add(e, H_EXEC))) {
        *r = CUDA_ERROR_OUT_OF_MEMORY;
        mem_unclaim(p);
        held_clear(&e->objects);
    }
    if (*r != CUDA_SUCCESS) {
        free(e);
        plan_unref(p);
        *why = CUDA_GRAPH_INSTANTIATE_ERROR;
        return NULL;
    }
    e->refs = 1;
    e->flags = flags;
    e->plan = p;
    e->prev = &execs;
    e->next = execs;
    if (e->next)
        e->next->prev = &e->next;
    execs = e;
    return e;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, uint64_t flags, struct node **bad,
                            CUgraphInstantiateResult *why)
{
    CUresult r = CUDA_SUCCESS;
    *bad = NULL;
    *why = CUDA_GRAPH_INSTANTIATE_ERROR;
    if (!out || !graph_is(graph) || (flags & ~(uint64_t)EXEC_FLAGS))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) /* no kernel here launches anything */
        return flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH ? CUDA_ERROR_INVALID_VALUE
                                                                        : CUDA_ERROR_NOT_SUPPORTED;
    struct exec *e = exec_new((struct graph *)graph, flags, bad, &r, why);
    if (e)
        *out = (CUgraphExec)e;
    return r;
}

CUresult sim_cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    struct node *bad;
    CUgraphInstantiateResult why;
    return instantiate(phGraphExec, hGraph, flags, &bad, &why);
}

CUresult sim_cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                                   size_t bufferSize)
{
    struct node *bad;
    CUgraphInstantiateResult why;
    CUresult r = instantiate(phGraphExec, hGraph, 0, &bad, &why);
    if (phErrorNode)
        *phErrorNode = (CUgraphNode)bad;
    if (logBuffer && bufferSize)
        *logBuffer = 0;
    return r;
}

CUresult sim_cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                                size_t bufferSize)
{
    return sim_cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult sim_cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    struct node *bad;
    struct ctx *c;
    CUresult r = CUDA_SUCCESS;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    p->hErrNode_out = NULL;
    p->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    if ((p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) &&
        ((r = ctx_usable(&c)) != CUDA_SUCCESS || !stream_get(c, p->hUploadStream, &r)))
        return r;
    r = instantiate(phGraphExec, hGraph, p->flags & ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, &bad,
                    &p->result_out);
    p->hErrNode_out = (CUgraphNode)bad;
    return r;
}

CUresult sim_cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    if (!exec_is(hGraphExec) || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = ((const struct exec *)hGraphExec)->flags;
    return CUDA_SUCCESS;
}

/* The handle is gone at once, the instance when it has run for the last time. */
CUresult sim_cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    if (!exec_is(hGraphExec))
        return CUDA_ERROR_INVALID_VALUE;
    struct exec *e = (struct exec *)hGraphExec;
    handle_del(e);
    mem_unclaim(e->plan);
    exec_unref(e);
    return CUDA_SUCCESS;
}

/* Whether a launch would find what it needs. */
static CUresult check(const struct exec *e, const struct stream *s)
{
    const struct plan *p = e->plan;
    if (e->broken)
        return e->broken;
    if (p->dev && p->dev != s->ctx->dev)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (unsigned i = 0; i < p->nctx; i++)
        if (p->ctxs[i]->destroyed)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return CUDA_SUCCESS;
}

/* From now on the events that the graph records stand for this launch. */
static void set_events(const struct run *r)
{
    const struct plan *p = r->plan;
    for (size_t i = 0; p->events && i < p->n; i++) {
        struct record *rec = r->step[i].record;
        struct event *e = p->steps[i].work.u.event;
        if (!rec || p->steps[i].work.type != CU_GRAPH_NODE_TYPE_EVENT_RECORD)
            continue;
        if (e->shared)
            event_recorded(e, rec);
        record_unref(e->last);
        e->last = rec;
        rec->refs++;
        captured_free(e->captured);
        e->captured = NULL;
    }
}

static CUresult launch(struct exec *e, struct stream *s)
{
    struct item *it = item_new(I_GRAPH);
    struct run *r = it ? run_new(e, s) : NULL;
    if (!r) {
        if (it) {
            it->kind = I_KERNEL; /* nothing in it to be freed */
            item_free(it);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    it->u.graph = r;
    r->item = it;
    CUresult res = r->plan->memory
                       ? mem_launch(r->plan, e->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
                       : CUDA_SUCCESS;
    if (res != CUDA_SUCCESS) {
        item_free(it); /* and with it r */
        return res;
    }
    r->refs++;
    if (e->last && e->last->item->stream != s) {
        r->after = e->last;
        r->after->refs++;
    }
    res = engine_push(s, it);
    if (res == CUDA_SUCCESS)
        set_events(r);
    if (res != CUDA_SUCCESS || r->done) {
        run_unref(r);
        return res;
    }
    if (e->last)
        run_unref(e->last);
    e->last = r;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphLaunch(struct stream *s, CUgraphExec hGraphExec, CUstream hStream)
{
    struct exec *e = handle_of(hGraphExec, H_EXEC);
    if (!e)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture)
        return capture_graph(s, e);
    e->refs++; /* others may destroy it while this one waits */
    wait_room(s);
    CUresult r = check(e, s);
    if (r == CUDA_SUCCESS)
        r = launch(e, s);
    exec_unref(e);
    return r;
}

/* There is nothing to be uploaded, but the call must be one that could. */
CUresult sim_cuGraphUpload(struct stream *s, CUgraphExec hGraphExec, CUstream hStream)
{
    struct exec *e = handle_of(hGraphExec, H_EXEC);
    if (!e)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = s->capture ? capture_refuse(s) : check(e, s);
    return r == CUDA_SUCCESS ? mem_upload(e->plan) : r;
}
