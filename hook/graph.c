/* graph.c: executable graphs and their launches. A launch of a graph is work like a kernel: it passes the
 * gate of its stream, counts as the kernels in it, and is charged for their blocks if blocks are metered.
 * So a graph is read when it is instantiated, and the calls that change the instance are followed.
 * Building a graph is no work.
 *
 * Not tracked: decisions of the GPU itself. Bodies of conditional nodes count once, kernels that a kernel
 * changes count as before, and graphs that a kernel launches do not count. All of it is part of the launch
 * that the program made, whose GPU time is measured and charged to its end. */
#include "graph.h"

#include "gate.h"
#include "memory.h"
#include "meter.h"
#include "real.h"
#include "graph_stats.h"
#include "wait.h"

#include <stdlib.h>

#define BUCKETS 256

/* An executable graph. */
struct exec {
    CUgraphExec handle;
    uint64_t serial; /* identifies it, since handles are reused */
    struct gf_graph_stats stats;
    uint64_t kernels, blocks;
    float ms; /* GPU time of a launch; 0: unknown */
    struct exec *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct exec *execs[BUCKETS];
static uint64_t serials;

static struct exec **bucket(CUgraphExec handle)
{
    return &execs[(uintptr_t)handle * 0x9e3779b97f4a7c15u >> 56];
}

/* Returns the pointer that refers to the entry, or the end of its list. The caller holds the lock. */
static struct exec **place(CUgraphExec handle)
{
    struct exec **at = bucket(handle);
    while (*at && (*at)->handle != handle)
        at = &(*at)->next;
    return at;
}

static void sum(struct exec *e) { e->kernels = gf_graph_stats_kernels(&e->stats, &e->blocks); }

static void drop(struct exec *e)
{
    if (!e)
        return;
    gf_graph_memory_count(&e->stats.memory, true);
    gf_graph_stats_free(&e->stats);
    free(e);
}

static void forget(CUgraphExec handle)
{
    pthread_mutex_lock(&lock);
    struct exec **at = place(handle), *gone = *at;
    if (gone)
        *at = gone->next;
    pthread_mutex_unlock(&lock);
    drop(gone);
}

/* Returns a new entry for an instance of the graph, or NULL if out of memory. */
static struct exec *read_graph(CUgraph graph)
{
    struct exec *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    gf_graph_stats_read(&e->stats, graph);
    gf_graph_memory_count(&e->stats.memory, false);
    sum(e);
    return e;
}

/* Adds the entry under the handle of its instance. */
static void add(struct exec *e, CUgraphExec handle)
{
    forget(handle); /* a stale entry, whose instance was destroyed with its context */
    if (!e)
        return; /* launches count as one kernel of one block */
    e->handle = handle;
    pthread_mutex_lock(&lock);
    e->serial = ++serials;
    struct exec **at = bucket(handle);
    e->next = *at;
    *at = e;
    pthread_mutex_unlock(&lock);
}

/* ---- instantiation ---- */

GF_AFTER(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t size),
         (exec, graph, error, log, size), add(read_graph(graph), *exec))
GF_AFTER(cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t size),
         (exec, graph, error, log, size), add(read_graph(graph), *exec))
GF_AFTER(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
         (exec, graph, flags), add(read_graph(graph), *exec))

typedef CUresult instantiates(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params);

/* Instantiates a graph, and uploads it if the flags request that, which counts as a copy. */
static CUresult instantiate(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params, CUstream zero,
                            instantiates **real)
{
    if (!params || !(params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {
        CUresult result = (*real)(exec, graph, params);
        if (result == CUDA_SUCCESS)
            add(read_graph(graph), *exec);
        return result;
    }
    struct gf_line *entered = gf_enter(params->hUploadStream ? params->hUploadStream : zero, 0);
    if (!entered)
        return GF_NOT_SENT;
    struct exec *e = read_graph(graph);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!e || !e->stats.memory.any) {
        result = (*real)(exec, graph, params);
    } else if (gf_graph_memory_reserve(&e->stats.memory, 0)) {
        result = (*real)(exec, graph, params);
        gf_graph_memory_correct(&e->stats.memory, 0);
    }
    gf_leave(entered, 0, result, "cuGraphInstantiateWithParams");
    if (result == CUDA_SUCCESS)
        add(e, *exec);
    else
        drop(e);
    return result;
}

#define GF_INSTANTIATE_WITH(symbol, zero) \
    CUresult symbol(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) \
    { \
        return instantiate(exec, graph, params, zero, &gf_real.symbol); \
    }
GF_INSTANTIATE_WITH(cuGraphInstantiateWithParams, CU_STREAM_LEGACY)
GF_INSTANTIATE_WITH(cuGraphInstantiateWithParams_ptsz, CU_STREAM_PER_THREAD)

/* The entry goes first, since another instance may get the handle at once. */
GF_BEFORE(cuGraphExecDestroy, (CUgraphExec exec), (exec), forget(exec))

/* ---- changes ---- */

/* Notes a change of one node of an instance; NULL arguments are unchanged. */
static void changed(CUgraphExec exec, CUgraphNode node, const uint64_t *blocks, const bool *off, CUgraph child)
{
    pthread_mutex_lock(&lock);
    struct exec *e = *place(exec);
    struct gf_graph_stats_node *n = e ? gf_graph_stats_find(&e->stats, node) : NULL;
    if (n && blocks)
        n->blocks = *blocks;
    if (n && off)
        n->off = *off;
    if (n && child)
        gf_graph_stats_update_child(&e->stats, node, child);
    if (n)
        sum(e);
    pthread_mutex_unlock(&lock);
}

static void updated(CUgraphExec exec, CUgraph graph)
{
    pthread_mutex_lock(&lock);
    struct exec *e = *place(exec);
    if (e) {
        gf_graph_stats_update(&e->stats, graph);
        sum(e);
    }
    pthread_mutex_unlock(&lock);
}

#define GF_GRID(p) ((uint64_t)(p)->gridDimX * (p)->gridDimY * (p)->gridDimZ)

GF_AFTER(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p),
         (exec, node, p), changed(exec, node, &(uint64_t){GF_GRID(p)}, NULL, NULL))
GF_AFTER(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p),
         (exec, node, p), changed(exec, node, &(uint64_t){GF_GRID(p)}, NULL, NULL))
GF_AFTER(cuGraphExecChildGraphNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraph child), (exec, node, child),
         changed(exec, node, NULL, NULL, child))
GF_AFTER(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p), (exec, node, p),
         if (p->type == CU_GRAPH_NODE_TYPE_KERNEL) changed(exec, node, &(uint64_t){GF_GRID(&p->kernel)}, NULL, NULL);
         else if (p->type == CU_GRAPH_NODE_TYPE_GRAPH) changed(exec, node, NULL, NULL, p->graph.graph))
GF_AFTER(cuGraphNodeSetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned int enabled), (exec, node, enabled),
         changed(exec, node, NULL, &(bool){!enabled}, NULL))
GF_AFTER(cuGraphExecUpdate, (CUgraphExec exec, CUgraph graph, CUgraphNode *error, CUgraphExecUpdateResult *why),
         (exec, graph, error, why), updated(exec, graph))
GF_AFTER(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info), (exec, graph, info),
         updated(exec, graph))

/* ---- launches ---- */

/* The cost of a launch. */
struct cost {
    struct gf_graph_memory memory;
    uint64_t kernels, blocks;
    struct gf_timed graph;
    float ms;
    bool waits;
};

/* Stores the GPU time of a launch. */
static void took(const struct gf_timed *graph, float ms)
{
    pthread_mutex_lock(&lock);
    struct exec *e = *place(graph->exec);
    if (e && e->serial == graph->serial)
        e->ms = ms;
    pthread_mutex_unlock(&lock);
}

static struct cost cost_of(CUgraphExec exec)
{
    pthread_mutex_lock(&lock);
    struct exec *e = *place(exec);
    struct cost cost = {.kernels = 1, .blocks = 1, .graph = {.exec = exec, .took = took}};
    if (e) {
        cost.kernels = e->kernels;
        cost.blocks = e->blocks;
        cost.graph.serial = e->serial;
        cost.ms = e->ms;
        cost.waits = e->stats.waits;
        if (e->stats.memory.any)
            cost.memory = e->stats.memory;
    }
    pthread_mutex_unlock(&lock);
    return cost;
}

typedef CUresult sends(CUgraphExec exec, CUstream stream);

/* Launches or uploads a graph on a stream; `zero` is the stream that 0 stands for. */
static CUresult send(CUgraphExec exec, CUstream stream, CUstream zero, sends **real, bool launch)
{
    CUstream on = stream ? stream : zero;
    struct cost cost = cost_of(exec);
    bool heavy = launch && gf_meter_heavy(cost.ms);
    if (heavy)
        gf_mark_next(on);
    struct gf_line *entered = gf_enter(on, launch ? cost.blocks : 0);
    if (!entered)
        return GF_NOT_SENT;
    bool runs = entered != &gf_self.line[GF_UNTRACKED];
    struct gf_waiting waiting = {0};
    if (launch && runs && cost.waits)
        waiting = gf_enter_wait(on, true);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!runs || !cost.memory.any) {
        result = (*real)(exec, stream);
    } else if (gf_graph_memory_reserve(&cost.memory, cost.graph.serial)) {
        result = (*real)(exec, stream);
        gf_graph_memory_correct(&cost.memory, result == CUDA_SUCCESS ? cost.graph.serial : 0);
    }
    gf_wait_end(waiting, result);
    if (launch && runs && entered->entry && result == CUDA_SUCCESS)
        gf_weigh(entered, gf_meter_graph(entered->entry, cost.ms, heavy ? cost.graph : (struct gf_timed){0}));
    gf_leave(entered, launch ? cost.kernels : 0, result, launch ? "cuGraphLaunch" : "cuGraphUpload");
    return result;
}

#define GF_SEND(symbol, zero, launch) \
    CUresult symbol(CUgraphExec exec, CUstream stream) { return send(exec, stream, zero, &gf_real.symbol, launch); }
GF_SEND(cuGraphLaunch, CU_STREAM_LEGACY, true)
GF_SEND(cuGraphLaunch_ptsz, CU_STREAM_PER_THREAD, true)
GF_SEND(cuGraphUpload, CU_STREAM_LEGACY, false)
GF_SEND(cuGraphUpload_ptsz, CU_STREAM_PER_THREAD, false)

void gf_graph_fork_child(void)
{
    pthread_mutex_init(&lock, NULL);
    for (unsigned i = 0; i < BUCKETS; i++)
        execs[i] = NULL; /* these are the parent's */
}
