/* graph_exec.c: executable graphs.
 *
 * Instantiation converts a graph to a plan: an array of steps in an order in which they could run. A child graph
 * is unfolded between two empty steps, its node and its end. A launch is a run of the plan (graph_run.c). A
 * change of an executable graph changes its plan, or a copy of it if an earlier launch still uses the plan. */
#include "capture.h"
#include "graph.h"
#include "ipcevent.h"

#include <stdlib.h>
#include <string.h>

/* ---- from a graph to a plan ---- */

#define NONE UINT32_MAX

struct build {
    struct step *steps;
    uint32_t *nin, *in;
    size_t n, cap, edges, edges_cap;
    struct node *bad;
    CUgraphInstantiateResult why;
};

/* Adds a step; its dependencies are added next. */
static bool add_step(struct build *b, const struct node *node)
{
    size_t cap = b->cap;
    if (!enlarge(&b->nin, &cap, b->n + 1, sizeof *b->nin) ||
        !enlarge(&b->steps, &b->cap, b->n + 1, sizeof *b->steps))
        return false;
    struct step *s = &b->steps[b->n];
    *s = (struct step){.enabled = true};
    if (node)
        work_copy(&s->work, &node->work);
    else
        s->work.type = CU_GRAPH_NODE_TYPE_EMPTY;
    s->node = node ? node->id : 0;
    b->nin[b->n++] = 0;
    return true;
}

/* Makes the last step depend on another one. */
static bool add_dependency(struct build *b, uint32_t on)
{
    if (on == NONE)
        return true;
    if (!enlarge(&b->in, &b->edges_cap, b->edges + 1, sizeof *b->in))
        return false;
    b->in[b->edges++] = on;
    b->nin[b->n - 1]++;
    return true;
}

/* Reports whether the objects that the node needs still exist. */
static bool objects_exist(const struct work *w)
{
    switch ((int)w->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return handle_is(w->u.kernel.f, H_FUNC) && w->u.kernel.f->module->ctx == w->ctx &&
               w->u.kernel.args->size == w->u.kernel.f->bytes;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return handle_is(w->u.event, H_EVENT);
    default:
        return !w->ctx || !w->ctx->destroyed;
    }
}

static CUresult add_graph(struct build *b, struct graph *g, uint32_t entry, uint32_t *last);

/* Adds a node's steps, and sets *end to its last one. */
static CUresult add_node(struct build *b, struct node *n, const uint32_t *ends, uint32_t entry, uint32_t *end)
{
    bool ok = add_step(b, n) && (n->in.n || add_dependency(b, entry));
    for (size_t i = 0; ok && i < n->in.n; i++)
        ok = add_dependency(b, ends[n->in.v[i].node->mark]);
    if (!ok || b->n >= NONE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *end = (uint32_t)(b->n - 1);
    if (!objects_exist(&n->work)) {
        b->bad = n;
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return n->work.type == CU_GRAPH_NODE_TYPE_GRAPH ? add_graph(b, n->work.u.child, *end, end) : CUDA_SUCCESS;
}

/* Adds a graph that begins after a step (NONE: at once). A child graph ends in a step to which all of its
 * sinks lead. */
static CUresult add_graph(struct build *b, struct graph *g, uint32_t entry, uint32_t *last)
{
    struct node **order = malloc((g->n + 1) * sizeof *order);
    uint32_t *ends = malloc((g->n + 1) * sizeof *ends);
    CUresult r = order && ends ? graph_order(g, order, &b->bad) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_ERROR_INVALID_VALUE)
        b->why = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
    for (size_t i = 0; r == CUDA_SUCCESS && i < g->n; i++)
        r = add_node(b, order[i], ends, entry, &ends[i]);
    bool ok = r != CUDA_SUCCESS || entry == NONE || add_step(b, NULL);
    for (size_t i = 0; ok && entry != NONE && r == CUDA_SUCCESS && i < g->n; i++)
        if (!order[i]->out.n)
            ok = add_dependency(b, ends[i]);
    if (ok && r == CUDA_SUCCESS && entry != NONE) {
        ok = g->n || add_dependency(b, entry);
        *last = (uint32_t)(b->n - 1);
    }
    free(order);
    free(ends);
    return ok ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Computes the edges in the opposite direction. */
static bool reverse_edges(struct plan *p)
{
    p->out = malloc((p->edges + 1) * sizeof *p->out);
    p->nout = calloc(p->n + 1, sizeof *p->nout);
    p->out_at = calloc(p->n + 1, sizeof *p->out_at);
    if (!p->out || !p->nout || !p->out_at)
        return false;
    for (size_t e = 0; e < p->edges; e++)
        p->nout[p->in[e]]++;
    for (size_t i = 1; i < p->n; i++)
        p->out_at[i] = p->out_at[i - 1] + p->nout[i - 1];
    memset(p->nout, 0, p->n * sizeof *p->nout);
    size_t e = 0;
    for (size_t i = 0; i < p->n; i++)
        for (uint32_t k = 0; k < p->nin[i]; k++, e++) {
            uint32_t from = p->in[e];
            p->out[p->out_at[from] + p->nout[from]++] = (uint32_t)i;
        }
    return true;
}

/* Notes a context that must exist. Returns false if there is more than one device. */
static bool add_context(struct plan *p, struct ctx *c)
{
    if (!c)
        return true;
    if (p->dev && p->dev != c->dev)
        return false;
    p->dev = c->dev;
    for (unsigned i = 0; i < p->nctx; i++)
        if (p->ctxs[i] == c)
            return true;
    if (p->nctx < sizeof p->ctxs / sizeof *p->ctxs)
        p->ctxs[p->nctx++] = c;
    return true;
}

/* Like `prompt` in engine.c, for a step. */
bool step_prompt(const struct step *s)
{
    const CUgraphNodeType t = s->work.type;
    return s->enabled && (t == CU_GRAPH_NODE_TYPE_KERNEL ? s->work.u.kernel.op != OP_NONE
                                                         : t == CU_GRAPH_NODE_TYPE_MEMCPY ||
                                                               t == CU_GRAPH_NODE_TYPE_MEMSET ||
                                                               t == CU_GRAPH_NODE_TYPE_HOST);
}

/* Computes the sums again, after a change of a step. */
static void plan_sum(struct plan *p)
{
    p->ns = 0;
    p->events = 0;
    p->prompt = 0;
    p->copies = p->calls = p->memory = false;
    for (size_t i = 0; i < p->n; i++) {
        const struct step *s = &p->steps[i];
        const struct work *w = &s->work;
        const CUgraphNodeType t = w->type;
        p->events += t == CU_GRAPH_NODE_TYPE_EVENT_RECORD || t == CU_GRAPH_NODE_TYPE_WAIT_EVENT;
        p->memory |= work_is_mem(w);
        p->prompt += step_prompt(s);
        if (!s->enabled)
            continue;
        if (t == CU_GRAPH_NODE_TYPE_KERNEL) {
            p->ns += w->u.kernel.ns;
            p->copies |= w->u.kernel.op != OP_NONE;
        }
        p->copies |= t == CU_GRAPH_NODE_TYPE_MEMCPY || t == CU_GRAPH_NODE_TYPE_MEMSET;
        p->calls |= t == CU_GRAPH_NODE_TYPE_HOST;
    }
}

/* Creates the plan from the collected steps; NULL with b->why if it cannot run. */
static struct plan *plan_of(struct build *b)
{
    struct plan *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->refs = 1;
    p->n = b->n;
    p->edges = b->edges;
    p->steps = b->steps;
    p->nin = b->nin;
    p->in = b->in;
    memset(b, 0, sizeof *b);
    for (size_t i = 0; i < p->n; i++)
        if (!add_context(p, p->steps[i].work.ctx)) {
            plan_unref(p);
            b->why = CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED;
            return NULL;
        }
    if (!reverse_edges(p)) {
        plan_unref(p);
        return NULL;
    }
    plan_sum(p);
    return p;
}

/* Returns the plan of a graph; NULL with the reason and the node that causes it. */
static struct plan *plan_new(struct graph *g, struct node **bad, CUresult *r, CUgraphInstantiateResult *why)
{
    struct build b = {.why = CUDA_GRAPH_INSTANTIATE_ERROR};
    struct plan *p = NULL;
    *r = add_graph(&b, g, NONE, NULL);
    if (*r == CUDA_SUCCESS && !(p = plan_of(&b)))
        *r = b.why == CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED ? CUDA_ERROR_NOT_SUPPORTED
                                                                     : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < b.n; i++)
        work_clear(&b.steps[i].work);
    free(b.steps);
    free(b.nin);
    free(b.in);
    *bad = b.bad;
    *why = p ? CUDA_GRAPH_INSTANTIATE_SUCCESS : b.why;
    return p;
}

static void *dup_array(const void *p, size_t bytes)
{
    void *q = malloc(bytes + 1);
    if (q && bytes)
        memcpy(q, p, bytes);
    return q;
}

/* Returns a copy of the plan, for a change while a launch uses the old one. */
static struct plan *plan_copy(const struct plan *p)
{
    struct plan *q = malloc(sizeof *q);
    if (!q)
        return NULL;
    *q = *p;
    q->refs = 1;
    q->steps = dup_array(p->steps, p->n * sizeof *p->steps);
    q->in = dup_array(p->in, p->edges * sizeof *p->in);
    q->nin = dup_array(p->nin, p->n * sizeof *p->nin);
    q->out = dup_array(p->out, p->edges * sizeof *p->out);
    q->nout = dup_array(p->nout, p->n * sizeof *p->nout);
    q->out_at = dup_array(p->out_at, p->n * sizeof *p->out_at);
    bool ok = q->steps && q->in && q->nin && q->out && q->nout && q->out_at;
    if (!ok)
        q->n = 0;
    for (size_t i = 0; i < q->n; i++)
        work_copy(&q->steps[i].work, &p->steps[i].work);
    if (ok)
        return q;
    plan_unref(q);
    return NULL;
}

void plan_unref(struct plan *p)
{
    if (--p->refs)
        return;
    for (size_t i = 0; i < p->n; i++)
        work_clear(&p->steps[i].work);
    free(p->steps);
    free(p->in);
    free(p->nin);
    free(p->out);
    free(p->nout);
    free(p->out_at);
    free(p);
}

/* ---- executable graphs: instantiation, launch, destruction ---- */

#define EXEC_FLAGS                                                                                     \
    (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |     \
     CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

static struct exec *execs;

void exec_unref(struct exec *e)
{
    if (--e->refs)
        return;
    LIST_REMOVE(e, next, prev);
    held_clear(&e->objects);
    plan_unref(e->plan);
    free(e);
}

/* Marks the executable graphs that have kernels of the module, so that their launch is refused. */
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

/* Waits for the launches of the marked graphs. */
void exec_drain(void)
{
    struct exec *e = execs;
    while (e) {
        if (e->broken && e->last) {
            struct stream *s = e->last->item->stream;
            wait_stream(s, s->enq);
            e = execs; /* the list may have changed */
        } else {
            e = e->next;
        }
    }
}

/* Instantiates a graph. */
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
    LIST_ADD(&execs, e, next, prev);
    return e;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, uint64_t flags, struct node **bad,
                            CUgraphInstantiateResult *why)
{
    CUresult r = CUDA_SUCCESS;
    *bad = NULL;
    *why = CUDA_GRAPH_INSTANTIATE_ERROR;
    if (!out || !handle_is(graph, H_GRAPH) || (flags & ~(uint64_t)EXEC_FLAGS))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) /* no simulated kernel launches graphs */
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

/* The handle becomes invalid at once; the object is freed after its last run. */
CUresult sim_cuGraphExecDestroy(struct exec *e, CUgraphExec hGraphExec)
{
    handle_del(e);
    mem_unclaim(e->plan);
    exec_unref(e);
    return CUDA_SUCCESS;
}

/* Returns an error if an object that a launch needs is gone. */
static CUresult can_launch(const struct exec *e, const struct stream *s)
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

/* Makes the events that the graph records refer to this launch. */
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
        captured_event_free(e->captured);
        e->captured = NULL;
    }
}

/* Adds a run to a stream, after the graph's previous launch. */
static CUresult launch(struct exec *e, struct stream *s)
{
    struct item *it = item_new(I_GRAPH);
    struct run *r = it ? run_new(e, s) : NULL;
    if (!r) {
        if (it) {
            it->kind = I_KERNEL; /* it has nothing that item_free would free */
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
        item_free(it); /* also frees r */
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
        return capture_refuse(s); /* only child graphs become nodes */
    e->refs++; /* another thread may destroy it during the wait */
    wait_room(s);
    CUresult r = can_launch(e, s);
    if (r == CUDA_SUCCESS)
        r = launch(e, s);
    exec_unref(e);
    return r;
}

/* There is nothing to upload; only the arguments are checked. */
CUresult sim_cuGraphUpload(struct stream *s, CUgraphExec hGraphExec, CUstream hStream)
{
    struct exec *e = handle_of(hGraphExec, H_EXEC);
    if (!e)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(s->capture ? capture_refuse(s) : can_launch(e, s));
    return mem_upload(e->plan);
}

/* ---- changes of an executable graph ---- */

/* Returns the plan for changes, copying it if a launch uses it. */
static struct plan *own_plan(struct exec *e)
{
    if (e->plan->refs == 1)
        return e->plan;
    struct plan *p = plan_copy(e->plan);
    if (!p)
        return NULL;
    plan_unref(e->plan);
    return e->plan = p;
}

/* Returns the step of a node of the original graph, or of one of its child graphs; SIZE_MAX if there is
 * none. */
static size_t step_of(const struct exec *e, CUgraphNode h)
{
    const struct node *n = handle_of(h, H_NODE);
    if (!n)
        return SIZE_MAX;
    for (size_t i = 0; i < e->plan->n; i++)
        if (e->plan->steps[i].node == n->id)
            return i;
    return SIZE_MAX;
}

/* Finds the step of a node, which must have that type (-1: any). */
static bool find_step(CUgraphExec h, CUgraphNode node, int type, struct exec **e, size_t *i)
{
    *e = handle_of(h, H_EXEC);
    if (!*e || (*i = step_of(*e, node)) == SIZE_MAX)
        return false;
    return type < 0 || (*e)->plan->steps[*i].work.type == (CUgraphNodeType)type;
}

/* Keeps a kernel's attributes if it got no others. */
static void move_attrs(struct work *to, struct work *from)
{
    if (to->type != CU_GRAPH_NODE_TYPE_KERNEL || to->u.kernel.attrs)
        return;
    to->u.kernel.attrs = from->u.kernel.attrs;
    from->u.kernel.attrs = NULL;
}

/* Replaces the work of a step. It owns w if r is success. */
static CUresult replace_step(struct exec *e, size_t i, struct work *w, CUresult r)
{
    TRY(r);
    struct plan *p = own_plan(e);
    if (!p) {
        work_clear(w);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct work *old = &p->steps[i].work;
    move_attrs(w, old);
    r = work_flat(old) && work_flat(w) ? work_fits(old, w) : CUDA_ERROR_INVALID_VALUE;
    if (r != CUDA_SUCCESS) {
        move_attrs(old, w);
        work_clear(w);
        return r;
    }
    work_clear(old);
    *old = *w;
    plan_sum(p);
    return CUDA_SUCCESS;
}

/* Defines a call that gives a step of that type other work, which `make` puts into w. */
#define SET(name, type, make, ...)                                                           \
    CUresult sim_cuGraphExec##name(CUgraphExec hGraphExec, CUgraphNode hNode, __VA_ARGS__)   \
    {                                                                                        \
        struct exec *e;                                                                      \
        struct work w;                                                                       \
        size_t i;                                                                            \
        bool found = find_step(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_##type, &e, &i);        \
        return found ? replace_step(e, i, &w, make) : CUDA_ERROR_INVALID_VALUE;              \
    }

SET(KernelNodeSetParams_v2, KERNEL, work_kernel(&w, p), const CUDA_KERNEL_NODE_PARAMS_v2 *p)
SET(MemcpyNodeSetParams, MEMCPY, work_memcpy(&w, p, (struct ctx *)ctx), const CUDA_MEMCPY3D *p, CUcontext ctx)
SET(MemsetNodeSetParams, MEMSET, work_memset(&w, p, (struct ctx *)ctx), const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx)
SET(HostNodeSetParams, HOST, work_host(&w, p), const CUDA_HOST_NODE_PARAMS *p)
SET(EventRecordNodeSetEvent, EVENT_RECORD, work_event(&w, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event), CUevent event)
SET(EventWaitNodeSetEvent, WAIT_EVENT, work_event(&w, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event), CUevent event)

/* ---- whole graphs ---- */

/* Returns the difference between two nodes that an update cannot change. */
static CUgraphExecUpdateResult difference(const struct work *old, const struct work *new, uint64_t flags)
{
    if (old->type != new->type)
        return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) && work_priority(old) != work_priority(new))
        return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
    if (work_fits(old, new) == CUDA_SUCCESS)
        return CU_GRAPH_EXEC_UPDATE_SUCCESS;
    if (old->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    return old->ctx != new->ctx ? CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE
                                : CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
}

/* Returns the node with that id in a graph or its child graphs. */
static struct node *find_node(struct graph *g, uint64_t id)
{
    for (size_t i = 0; i < g->n; i++) {
        struct node *n = g->nodes[i];
        if (n->id == id)
            return n;
        if (n->work.type == CU_GRAPH_NODE_TYPE_GRAPH && (n = find_node(n->work.u.child, id)))
            return n;
    }
    return NULL;
}

/* Compares the plan of a graph with the steps [from, from+q->n) of an executable graph, whose first edge is
 * number `edge`. */
static void compare(const struct exec *x, size_t from, size_t edge, const struct plan *q, struct graph *g,
                    CUgraphExecUpdateResultInfo *info)
{
    const struct plan *p = x->plan;
    size_t e = 0;
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < q->n; i++) {
        /* The first steps of a child graph depend on the step that begins it, those of a graph on none;
         * nin is the number without that edge. */
        bool root = from && !q->nin[i];
        uint32_t nin = p->nin[from + i] - root;
        info->errorNode = (CUgraphNode)find_node(g, q->steps[i].node);
        if (nin != q->nin[i] || (root && p->in[edge] != from - 1))
            return;
        edge += root;
        for (uint32_t k = 0; k < nin; k++, e++, edge++)
            if (p->in[edge] - from != q->in[e]) {
                info->errorFromNode = (CUgraphNode)find_node(g, q->steps[q->in[e]].node);
                return;
            }
    }
    info->errorNode = NULL;
    info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    for (size_t i = 0; i < q->n && info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS; i++) {
        info->result = difference(&p->steps[from + i].work, &q->steps[i].work, x->flags);
        if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            info->errorNode = (CUgraphNode)find_node(g, q->steps[i].node);
    }
}

/* Reports whether all objects that a broken graph needs exist again. */
static bool objects_exist_again(const struct plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct work *w = &p->steps[i].work;
        if (w->type == CU_GRAPH_NODE_TYPE_KERNEL && !handle_is(w->u.kernel.f, H_FUNC))
            return false;
    }
    return true;
}

/* Takes over the work of the steps of q; the nodes stay the same. */
static CUresult replace_steps(struct exec *e, size_t from, struct plan *q)
{
    struct plan *p = own_plan(e);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < q->n; i++) {
        struct work *w = &p->steps[from + i].work;
        work_clear(w);
        work_copy(w, &q->steps[i].work);
    }
    plan_sum(p);
    if (e->broken && objects_exist_again(p))
        e->broken = CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED};
    CUgraphInstantiateResult why;
    struct node *bad;
    struct exec *e = handle_of(hGraphExec, H_EXEC);
    if (!e || !handle_is(hGraph, H_GRAPH) || !resultInfo)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    struct plan *q = plan_new((struct graph *)hGraph, &bad, &r, &why);
    if (!q) {
        resultInfo->result = CU_GRAPH_EXEC_UPDATE_ERROR;
        resultInfo->errorNode = (CUgraphNode)bad;
        resultInfo->errorFromNode = NULL;
        return r;
    }
    if (q->memory || e->plan->memory)
        info.result = CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    else if (q->n == e->plan->n && q->edges == e->plan->edges)
        compare(e, 0, 0, q, (struct graph *)hGraph, &info);
    *resultInfo = info;
    r = info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? replace_steps(e, 0, q) : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    plan_unref(q);
    return r;
}

CUresult sim_cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                               CUgraphExecUpdateResult *updateResult_out)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    if (!updateResult_out)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = sim_cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
    *updateResult_out = info.result;
    if (hErrorNode_out)
        *hErrorNode_out = info.errorNode;
    return r;
}

/* Returns the number of steps of the child graph that begins at step i. */
static size_t child_steps(const struct plan *p, size_t i)
{
    size_t depth = 1, k = i + 1;
    for (; k < p->n; k++) {
        depth += p->steps[k].work.type == CU_GRAPH_NODE_TYPE_GRAPH;
        if (!p->steps[k].node && --depth == 0)
            break;
    }
    return k - i - 1;
}

/* Replaces the work of a child graph's steps by that of another graph's nodes. */
static CUresult set_child(struct exec *e, size_t i, struct graph *g)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED};
    CUgraphInstantiateResult why;
    struct node *bad;
    CUresult r = CUDA_SUCCESS;
    size_t edge = 0;
    struct plan *q = plan_new(g, &bad, &r, &why);
    if (!q)
        return r;
    for (size_t k = 0; k <= i; k++)
        edge += e->plan->nin[k];
    if (q->n == child_steps(e->plan, i))
        compare(e, i + 1, edge, q, g, &info);
    r = info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? replace_steps(e, i + 1, q) : CUDA_ERROR_INVALID_VALUE;
    plan_unref(q);
    return r;
}

CUresult sim_cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph)
{
    struct exec *e;
    size_t i;
    if (!find_step(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_GRAPH, &e, &i))
        return CUDA_ERROR_INVALID_VALUE;
    return handle_is(childGraph, H_GRAPH) ? set_child(e, i, (struct graph *)childGraph) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    struct exec *e;
    struct work w;
    size_t i;
    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    if (nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return sim_cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, nodeParams->graph.graph);
    if (!find_step(hGraphExec, hNode, (int)nodeParams->type, &e, &i))
        return CUDA_ERROR_INVALID_VALUE;
    if (work_is_mem(&e->plan->steps[i].work))
        return CUDA_ERROR_NOT_SUPPORTED;
    return replace_step(e, i, &w, work_params(&w, nodeParams));
}

/* ---- disabling ---- */

static bool can_disable(const struct step *s)
{
    return s->work.type == CU_GRAPH_NODE_TYPE_KERNEL || s->work.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
           s->work.type == CU_GRAPH_NODE_TYPE_MEMSET;
}

CUresult sim_cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
    struct exec *e;
    size_t i;
    if (!find_step(hGraphExec, hNode, -1, &e, &i))
        return CUDA_ERROR_INVALID_VALUE;
    if (!can_disable(&e->plan->steps[i]))
        return CUDA_ERROR_INVALID_VALUE;
    struct plan *p = own_plan(e);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->steps[i].enabled = isEnabled != 0;
    plan_sum(p);
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
    struct exec *e;
    size_t i;
    if (!find_step(hGraphExec, hNode, -1, &e, &i))
        return CUDA_ERROR_INVALID_VALUE;
    if (!isEnabled || !can_disable(&e->plan->steps[i]))
        return CUDA_ERROR_INVALID_VALUE;
    *isEnabled = e->plan->steps[i].enabled;
    return CUDA_SUCCESS;
}
