/* graph_update.c: changing an instance. What was launched already goes on with the
 * plan it began with. */
#include "graph.h"

/* The plan, for changing. */
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

/* The step of a node of the graph that the instance was made from, or of one of its
 * child graphs; SIZE_MAX when there is none. */
static size_t step_of(const struct exec *e, CUgraphNode h)
{
    const struct node *n = (const struct node *)h;
    if (!node_is(n))
        return SIZE_MAX;
    for (size_t i = 0; i < e->plan->n; i++)
        if (e->plan->steps[i].node == n->id)
            return i;
    return SIZE_MAX;
}

/* Finds the step of an instance that a node became; with a type (-1: any), only one
 * of that type. */
static bool find_step(CUgraphExec h, CUgraphNode node, int type, struct exec **e, size_t *i)
{
    *e = handle_of(h, H_EXEC);
    if (!*e || (*i = step_of(*e, node)) == SIZE_MAX)
        return false;
    return type < 0 || (*e)->plan->steps[*i].work.type == (CUgraphNodeType)type;
}

static void keep_attrs(struct work *to, struct work *from)
{
    if (to->type != CU_GRAPH_NODE_TYPE_KERNEL || to->u.kernel.attrs)
        return;
    to->u.kernel.attrs = from->u.kernel.attrs;
    from->u.kernel.attrs = NULL;
}

/* Gives a step other work. Takes w over if r is success. */
static CUresult replace(struct exec *e, size_t i, struct work *w, CUresult r)
{
    if (r != CUDA_SUCCESS)
        return r;
    struct plan *p = own_plan(e);
    if (!p) {
        work_clear(w);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct work *old = &p->steps[i].work;
    keep_attrs(w, old);
    r = work_flat(old) && work_flat(w) ? work_fits(old, w) : CUDA_ERROR_INVALID_VALUE;
    if (r != CUDA_SUCCESS) {
        keep_attrs(old, w);
        work_clear(w);
        return r;
    }
    work_clear(old);
    *old = *w;
    plan_sum(p);
    return CUDA_SUCCESS;
}

/* Gives a step of that type other work, which `make` puts into w. */
#define CHANGE(type, make)                                                       \
    do {                                                                         \
        struct exec *e;                                                          \
        struct work w;                                                           \
        size_t i;                                                                \
        bool found = find_step(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_##type, &e, &i); \
        return found ? replace(e, i, &w, make) : CUDA_ERROR_INVALID_VALUE;       \
    } while (0)

CUresult sim_cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams)
{
    CHANGE(KERNEL, work_kernel(&w, nodeParams));
}

CUresult sim_cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    CUDA_KERNEL_NODE_PARAMS_v2 q = {0};
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    __builtin_memcpy(&q, p, sizeof *p);
    return sim_cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &q);
}

CUresult sim_cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D *copyParams,
                                            CUcontext ctx)
{
    CHANGE(MEMCPY, work_memcpy(&w, copyParams, (struct ctx *)ctx));
}

CUresult sim_cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    CHANGE(MEMSET, work_memset(&w, memsetParams, (struct ctx *)ctx));
}

CUresult sim_cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    CHANGE(HOST, work_host(&w, nodeParams));
}

CUresult sim_cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
    CHANGE(EVENT_RECORD, work_event(&w, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
}

CUresult sim_cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
    CHANGE(WAIT_EVENT, work_event(&w, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
}

/* ---- whole graphs ---- */

static CUgraphExecUpdateResult differs(const struct work *old, const struct work *new, uint64_t flags)
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

static struct node *find(struct graph *g, uint64_t id)
{
    for (size_t i = 0; i < g->n; i++) {
        struct node *n = g->nodes[i];
        if (n->id == id)
            return n;
        if (n->work.type == CU_GRAPH_NODE_TYPE_GRAPH && (n = find(n->work.u.child, id)))
            return n;
    }
    return NULL;
}

/* Compares the plan of a graph with steps [from, from+q->n) of an instance's, whose
 * first edge is number edge. */
static void compare(const struct exec *x, size_t from, size_t edge, const struct plan *q, struct graph *g,
                    CUgraphExecUpdateResultInfo *info)
{
    const struct plan *p = x->plan;
    size_t e = 0;
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < q->n; i++) {
        /* The first steps of a child graph depend on its beginning, those of a graph
         * on nothing: nin says what it says without it. */
        bool root = from && !q->nin[i];
        uint32_t nin = p->nin[from + i] - root;
        info->errorNode = (CUgraphNode)find(g, q->steps[i].node);
        if (nin != q->nin[i] || (root && p->in[edge] != from - 1))
            return;
        edge += root;
        for (uint32_t k = 0; k < nin; k++, e++, edge++)
            if (p->in[edge] - from != q->in[e]) {
                info->errorFromNode = (CUgraphNode)find(g, q->steps[q->in[e]].node);
                return;
            }
    }
    info->errorNode = NULL;
    info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    for (size_t i = 0; i < q->n && info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS; i++) {
        info->result = differs(&p->steps[from + i].work, &q->steps[i].work, x->flags);
        if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            info->errorNode = (CUgraphNode)find(g, q->steps[i].node);
    }
}

/* Whether the instance, one that was broken, has all it needs again. */
static bool mended(const struct plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct work *w = &p->steps[i].work;
        if (w->type == CU_GRAPH_NODE_TYPE_KERNEL && !handle_is(w->u.kernel.f, H_FUNC))
            return false;
    }
    return true;
}

/* Takes over what the steps of q do; the instance's nodes stay those it has. */
static CUresult adopt(struct exec *e, size_t from, struct plan *q)
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
    if (e->broken && mended(p))
        e->broken = CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED};
    CUgraphInstantiateResult why;
    struct node *bad;
    struct exec *e = (struct exec *)hGraphExec;
    if (!exec_is(e) || !graph_is(hGraph) || !resultInfo)
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
    r = info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? adopt(e, 0, q) : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
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

/* How many steps the child graph that begins at step i has. */
static size_t inside(const struct plan *p, size_t i)
{
    size_t depth = 1, k = i + 1;
    for (; k < p->n; k++) {
        depth += p->steps[k].work.type == CU_GRAPH_NODE_TYPE_GRAPH;
        if (!p->steps[k].node && --depth == 0)
            break;
    }
    return k - i - 1;
}

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
    if (q->n == inside(e->plan, i))
        compare(e, i + 1, edge, q, g, &info);
    r = info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? adopt(e, i + 1, q) : CUDA_ERROR_INVALID_VALUE;
    plan_unref(q);
    return r;
}

CUresult sim_cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph)
{
    struct exec *e;
    size_t i;
    if (!find_step(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_GRAPH, &e, &i))
        return CUDA_ERROR_INVALID_VALUE;
    return graph_is(childGraph) ? set_child(e, i, (struct graph *)childGraph) : CUDA_ERROR_INVALID_VALUE;
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
    return replace(e, i, &w, work_params(&w, nodeParams));
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
