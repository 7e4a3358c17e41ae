/* graph.h: CUDA graphs. A graph consists of nodes and edges as the program made them (graph.c,
 * graph_work.c). Instantiation turns it into a plan, an array of steps in an order in which they could
 * run (graph_exec.c). A launch is one run of a plan (graph_run.c). A plan that a run uses is never
 * changed: a change is made to a copy, so that earlier launches are not affected.
 */
#pragma once

#include "launch.h"

#define SIM_KERNEL_ATTRS (CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT + 1)

/* The parameters of a kernel, owned by nodes. Shared and immutable. */
struct args {
    unsigned refs;
    size_t size;     /* of bytes */
    void **params;   /* into bytes; NULL: they were passed as one buffer, */
    void *extra[5];  /* described here */
    unsigned char bytes[];
};

/* The launch attributes of a kernel node. Shared and immutable. */
struct attrs {
    unsigned refs;
    CUlaunchAttributeValue value[SIM_KERNEL_ATTRS];
};

/* The work of a node. */
struct work {
    CUgraphNodeType type;
    struct ctx *ctx; /* NULL if irrelevant */
    const struct ctx *owner[2]; /* of the memory that it reads and writes, if any */
    union {
        struct {
            struct func *f;        /* may be freed, */
            struct module *module; /* with its module; */
            unsigned op;           /* the copies below stay valid */
            unsigned grid[3], block[3], shared;
            uint64_t ns;
            struct args *args;
            struct attrs *attrs; /* NULL: none set */
        } kernel;
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS set;
        CUDA_HOST_NODE_PARAMS host;
        struct event *event;
        struct graph *child;
        struct mem *mem;
    } u;
};
void work_copy(struct work *to, const struct work *from); /* does not copy a child graph */
void work_clear(struct work *w);
bool work_is_mem(const struct work *w);
int work_priority(const struct work *w);
bool work_prioritise(struct work *w, int priority);

struct edge {
    struct node *node;
    CUgraphEdgeData data;
};
struct edges {
    struct edge *v;
    size_t n, cap;
};

struct node {
    struct graph *graph;
    uint64_t id, origin; /* origin: the id of the node it was cloned from */
    size_t at;           /* its index in the graph's list */
    size_t mark;         /* its index in the order of graph_order */
    struct edges in, out;
    struct work work;
};

/* References to user objects that a graph or an executable graph holds. */
struct held {
    struct held *next;
    struct object *object;
    uint64_t count;
};
bool held_copy(struct held **list, const struct held *from);
void held_clear(struct held **list);

struct graph {
    uint64_t id, origin;
    struct node **nodes; /* in the order in which they were added, unless some were removed */
    size_t n, cap;
    size_t mems;         /* nodes that allocate or free */
    struct node *parent; /* the node whose child graph this is */
    struct capture *capture; /* the capture that adds to it */
    struct held *objects;
};
struct graph *graph_new(void);
void graph_free(struct graph *g);
struct graph *graph_clone(const struct graph *g);
/* Writes the nodes in an order in which each follows those it depends on. If there is a cycle, *bad is one
 * of its nodes. The order depends only on the edges and on the order in which sinks and edges were added;
 * so the nodes of a graph can be matched with those of an instance made from another graph. */
CUresult graph_order(struct graph *g, struct node **out, struct node **bad);

struct node *node_new(struct graph *g, struct work *w); /* owns w, also if it fails */
bool edge_add(struct node *from, struct node *to, const CUgraphEdgeData *data);
/* Reports whether a new node of g can depend on these nodes. */
bool edges_valid(const struct graph *g, const CUgraphNode *deps, size_t n);
CUresult node_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *data, size_t n,
                  struct work *w); /* owns w */

/* Defines a call that adds a node whose work `make` puts into w. The further arguments are the call's own
 * parameters, after those of all such calls. */
#define GRAPH_ADD(name, make, ...)                                                                           \
    CUresult sim_cuGraphAdd##name(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, \
                                  size_t numDependencies, ##__VA_ARGS__)                                     \
    {                                                                                                        \
        struct work w;                                                                                       \
        TRY(make);                                                                                           \
        return node_add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &w);                       \
    }

/* These convert a call's parameters to work, and return the error if the parameters are invalid. */
CUresult work_kernel(struct work *w, const CUDA_KERNEL_NODE_PARAMS_v2 *p);
CUresult work_launch(struct work *w, const struct launch *l);
/* Converts a kernel's parameters from before CUDA 12; NULL if they are NULL. *wide is 0 before. */
const CUDA_KERNEL_NODE_PARAMS_v2 *work_widen(const CUDA_KERNEL_NODE_PARAMS_v1 *p, CUDA_KERNEL_NODE_PARAMS_v2 *wide);
#define WIDE(p) work_widen(p, &(CUDA_KERNEL_NODE_PARAMS_v2){0})
CUresult work_memcpy(struct work *w, const CUDA_MEMCPY3D *p, struct ctx *c);
CUresult work_memset(struct work *w, const CUDA_MEMSET_NODE_PARAMS *p, struct ctx *c);
CUresult work_host(struct work *w, const CUDA_HOST_NODE_PARAMS *p);
CUresult work_event(struct work *w, CUgraphNodeType type, CUevent e);
CUresult work_child(struct work *w, CUgraph child);
CUresult work_params(struct work *w, const CUgraphNodeParams *p);
CUresult work_alloc(struct work *w, CUDA_MEM_ALLOC_NODE_PARAMS *p, const struct graph *g);
CUresult work_free(struct work *w, CUdeviceptr p, const struct graph *g);
/* Reports whether a node of an executable graph may be changed from one to the other. */
CUresult work_fits(const struct work *old, const struct work *new);
bool work_flat(const struct work *w); /* is one row of bytes */
/* Sets *c to the current location of the bytes of a copy or a set. */
CUresult work_locate(const struct work *w, struct copy *c);

/* ---- executable graphs ---- */

struct step {
    struct work work;
    uint64_t node; /* the id of its node; 0: the end of a child graph */
    bool enabled;
};

struct plan {
    unsigned refs;
    size_t n, edges;
    struct step *steps;
    uint32_t *in, *nin;     /* the steps on which step i depends, in one array, and their number */
    uint32_t *out, *nout;   /* the steps that depend on it */
    size_t *out_at;         /* the index at which those begin */
    struct device *dev;     /* NULL: any */
    struct ctx *ctxs[4];    /* contexts that must exist */
    unsigned nctx;
    uint64_t ns;            /* device time of its kernels */
    size_t events;          /* steps that record events or wait for them */
    size_t prompt;          /* steps that a thread of the driver must handle in time */
    bool copies, calls, memory;
};
void plan_unref(struct plan *p);
bool step_prompt(const struct step *s);

struct exec {
    struct exec *next, **prev;
    unsigned refs; /* one for the handle and one for each run */
    uint64_t flags;
    CUresult broken; /* the error if an object that it needs is gone */
    struct plan *plan;
    struct run *last; /* its latest launch, until that finishes */
    struct held *objects;
};
void exec_unref(struct exec *e);
void exec_forget(struct module *m); /* before a module is unloaded; then exec_drain */
void exec_drain(void);

/* One launch of an executable graph. */
struct run {
    struct run *next, **prev; /* in the device's list, from begin to end */
    unsigned refs;
    bool done;
    uint64_t done_at;
    struct exec *exec;
    struct plan *plan;
    struct item *item;  /* its item in a stream */
    struct item *ready, *last; /* kernels that can run, oldest first */
    struct item *waits; /* waits for events */
    struct run *after;  /* the launch before this one, in another stream */
    uint64_t ns;        /* device time of its kernels that have not begun */
    size_t left, prompt; /* unfinished steps, and how many of them are prompt */
    uint32_t *todo;
    struct {
        struct record *record; /* to make or to wait for */
        uint64_t since;        /* when the last step that it depends on finished */
        uint32_t waiting;      /* number of unfinished steps that it depends on */
    } step[];
};
struct run *run_new(struct exec *e, struct stream *s);
void run_unref(struct run *r);
/* For engine.c: run_begin starts the run in its stream; run_remove removes a step from the ready ones,
 * because it begins or has nothing to do; run_step_done finishes a step. */
void run_begin(struct run *r, uint64_t since);
void run_remove(struct item *it);
bool run_by_priority(const struct run *r); /* beyond the first ready kernel */
void run_step_done(struct item *it, uint64_t at);

/* ---- memory of graphs (graph_memory.c) ---- */

void mem_ref(struct mem *m);
void mem_unref(struct mem *m);
void mem_freed_by(struct mem *m, const struct graph *g);
bool mem_at(CUdeviceptr p); /* reports whether the address is of a node's memory, allocated or not */
bool mem_can_free(const struct range *r);
void mem_free_now(struct range *r);
CUresult mem_free(struct range *r, struct stream *s);
CUresult mem_claim(const struct plan *p);
void mem_unclaim(const struct plan *p);
CUresult mem_launch(const struct plan *p, bool auto_free);
void mem_finished(const struct plan *p);
CUresult mem_upload(const struct plan *p);
void mem_reset(struct device *d);
