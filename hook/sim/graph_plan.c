/* graph_plan.c: from a graph to the steps of its instances. A child graph is
 * unfolded between two steps that do nothing, its node and its end. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct build {
    struct step *steps;
    uint32_t *nin, *in;
    size_t n, cap, edges, edges_cap;
    struct node *bad;
    CUgraphInstantiateResult why;
};

static bool grow(void *array, size_t *cap, size_t need, size_t size)
{
    void **p = array, *v;
    if (need <= *cap)
        return true;
    size_t n = 2 * need + 16;
    if (!(v = realloc(*p, n * size)))
        return false;
    *p = v;
    *cap = n;
    return true;
}

/* Adds a step; what it depends on is added to it next. */
static bool add_step(struct build *b, const struct node *node)
{
    size_t cap = b->cap;
    if (!grow(&b->nin, &cap, b->n + 1, sizeof *b->nin) || !grow(&b->steps, &b->cap, b->n + 1, sizeof *b->steps))
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

static bool depend(struct build *b, uint32_t on)
{
    if (on == NONE)
        return true;
    if (!grow(&b->in, &b->edges_cap, b->edges + 1, sizeof *b->in))
        return false;
    b->in[b->edges++] = on;
    b->nin[b->n - 1]++;
    return true;
}

/* Whether what the node needs is there still. */
static bool alive(const struct work *w)
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

/* Adds what a node is, and says which step is its end. */
static CUresult add_node(struct build *b, struct node *n, const uint32_t *ends, uint32_t entry, uint32_t *end)
{
    bool ok = add_step(b, n) && (n->in.n || depend(b, entry));
    for (size_t i = 0; ok && i < n->in.n; i++)
        ok = depend(b, ends[n->in.v[i].node->mark]);
    if (!ok || b->n >= NONE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *end = (uint32_t)(b->n - 1);
    if (!alive(&n->work)) {
        b->bad = n;
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return n->work.type == CU_GRAPH_NODE_TYPE_GRAPH ? add_graph(b, n->work.u.child, *end, end) : CUDA_SUCCESS;
}

/* Adds a graph that begins after a step (NONE: at once). A child graph ends in a
 * step that all of its sinks lead to. */
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
            ok = depend(b, ends[i]);
    if (ok && r == CUDA_SUCCESS && entry != NONE) {
        ok = g->n || depend(b, entry);
        *last = (uint32_t)(b->n - 1);
    }
    free(order);
    free(ends);
    return ok ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The edges the other way round. */
static bool turn_round(struct plan *p)
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

/* Notes a context that has to live; false when there are more devices than one. */
static bool use(struct plan *p, struct ctx *c)
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

/* As for items in streams. */
bool step_prompt(const struct step *s)
{
    const CUgraphNodeType t = s->work.type;
    return s->enabled && (t == CU_GRAPH_NODE_TYPE_KERNEL ? s->work.u.kernel.op != OP_NONE
                                                         : t == CU_GRAPH_NODE_TYPE_MEMCPY ||
                                                               t == CU_GRAPH_NODE_TYPE_MEMSET ||
                                                               t == CU_GRAPH_NODE_TYPE_HOST);
}

void plan_sum(struct plan *p)
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

static struct plan *finish(struct build *b)
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
        if (!use(p, p->steps[i].work.ctx)) {
            plan_unref(p);
            b->why = CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED;
            return NULL;
        }
    if (!turn_round(p)) {
        plan_unref(p);
        return NULL;
    }
    plan_sum(p);
    return p;
}

struct plan *plan_new(struct graph *g, struct node **bad, CUresult *r, CUgraphInstantiateResult *why)
{
    struct build b = {.why = CUDA_GRAPH_INSTANTIATE_ERROR};
    struct plan *p = NULL;
    *r = add_graph(&b, g, NONE, NULL);
    if (*r == CUDA_SUCCESS && !(p = finish(&b)))
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

struct plan *plan_copy(const struct plan *p)
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
