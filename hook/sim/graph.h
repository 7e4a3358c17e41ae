/* graph.h: CUDA graphs. A graph is nodes and edges as the program made them
 * (graph.c, graph_work.c). Instantiating it writes them down as a plan, an array of
 * steps in an order in which they could run (graph_exec.c); a launch is one run
 * through a plan (graph_run.c). A plan is never changed while a run uses it: who
 * changes it takes a copy first, so that launches already made are not affected.
 */
#ifndef GFAAS_SIM_GRAPH_H
#define GFAAS_SIM_GRAPH_H

#include "launch.h"

#define SIM_KERNEL_ATTRS (CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT + 1)

/* The parameters of a kernel, as the node owns them. Shared, and never changed. */
struct args {
    unsigned refs;
    size_t size;     /* of bytes */
    void **params;   /* into bytes, or NULL when they came as one buffer, */
    void *extra[5];  /* described here */
    unsigned char bytes[];
};

/* What a kernel node was told beyond that. Shared, and never changed. */
struct attrs {
    unsigned refs;
    CUlaunchAttributeValue value[SIM_KERNEL_ATTRS];
};

/* What a node does. */
struct work {
    CUgraphNodeType type;
    struct ctx *ctx; /* NULL where it does not matter */
    const struct ctx *owner[2]; /* of the memory that it reads and writes, if any */
    union {
        struct {
            struct func *f;        /* which may be gone, */
            struct module *module; /* with its module; */
            enum op op;            /* what it did is kept */
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
void work_copy(struct work *to, const struct work *from); /* a child graph is not copied */
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
    size_t at;           /* its place in the graph's list */
    size_t mark;         /* its place in the order of graph_order */
    struct edges in, out;
    struct work work;
};

/* References to user objects that a graph or an instance holds. */
struct held {
    struct held *next;
    struct object *object;
    uint64_t count;
};
bool held_copy(struct held **list, const struct held *from);
void held_clear(struct held **list);

struct graph {
    uint64_t id, origin;
    struct node **nodes; /* in the order in which they were added, unless some were taken out */
    size_t n, cap;
    size_t mems;         /* nodes that allocate or free */
    struct node *parent; /* the node whose child graph this is */
    struct capture *capture; /* that is adding to it */
    struct held *objects;
};
struct graph *graph_new(void);
void graph_free(struct graph *g);
struct graph *graph_clone(const struct graph *g);
/* Puts the nodes into an order in which each comes after those it depends on. On a
 * cycle *bad is one of its nodes. The order depends only on the edges and the order
 * in which sinks and edges were added: that is how the nodes of a graph are paired
 * with those of an instance made from another. */
CUresult graph_order(struct graph *g, struct node **out, struct node **bad);

struct node *node_new(struct graph *g, struct work *w); /* takes w over, also when it fails */
bool edge_add(struct node *from, struct node *to, const CUgraphEdgeData *data);
/* Whether these can be what a new node of g depends on. */
bool edges_valid(const struct graph *g, const CUgraphNode *deps, size_t n);
CUresult node_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *data, size_t n,
                  struct work *w); /* takes w over */

/* From a call's parameters to work: all that is wrong with them is found here. */
CUresult work_kernel(struct work *w, const CUDA_KERNEL_NODE_PARAMS_v2 *p);
CUresult work_launch(struct work *w, const struct launch *l);
CUresult work_memcpy(struct work *w, const CUDA_MEMCPY3D *p, struct ctx *c);
CUresult work_memset(struct work *w, const CUDA_MEMSET_NODE_PARAMS *p, struct ctx *c);
CUresult work_host(struct work *w, const CUDA_HOST_NODE_PARAMS *p);
CUresult work_event(struct work *w, CUgraphNodeType type, CUevent e);
CUresult work_child(struct work *w, CUgraph child);
CUresult work_params(struct work *w, const CUgraphNodeParams *p);
CUresult work_alloc(struct work *w, CUDA_MEM_ALLOC_NODE_PARAMS *p, const struct graph *g);
CUresult work_free(struct work *w, CUdeviceptr p, const struct graph *g);
/* Whether an instance's node may be changed from one to the other. */
CUresult work_fits(const struct work *old, const struct work *new);
bool work_flat(const struct work *w); /* one row of bytes */
/* Where the bytes of a copy or a set are now. */
CUresult work_locate(const struct work *w, struct copy *c);

/* ---- instances ---- */

struct step {
    struct work work;
    uint64_t node; /* the id of the node it is of; 0: the end of a child graph */
    bool enabled;
};

struct plan {
    unsigned refs;
    size_t n, edges;
    struct step *steps;
    uint32_t *in, *nin;     /* what step i depends on, one after the other, and how many they are */
    uint32_t *out, *nout;   /* and what depends on it */
    size_t *out_at;         /* where that begins */
    struct device *dev;     /* NULL: any */
    struct ctx *ctxs[4];    /* that must live */
    unsigned nctx;
    uint64_t ns;            /* device time of its kernels */
    size_t events;          /* steps that record events or wait for them */
    size_t prompt;          /* steps that a thread of ours must act on in time */
    bool copies, calls, memory;
};
void plan_unref(struct plan *p);
bool step_prompt(const struct step *s);

struct exec {
    struct exec *next, **prev;
    unsigned refs; /* the handle's, and one for each run */
    uint64_t flags;
    CUresult broken; /* what it needs is gone */
    struct plan *plan;
    struct run *last; /* its latest launch, while it is not over */
    struct held *objects;
};
void exec_unref(struct exec *e);
void exec_forget(struct module *m); /* before a module goes; then exec_drain */
void exec_drain(void);

/* One launch of an instance. */
struct run {
    struct run *next, **prev; /* of the device, from begin to end */
    unsigned refs;
    bool done;
    uint64_t done_at;
    struct exec *exec;
    struct plan *plan;
    struct item *item;  /* its place in a stream */
    struct item *ready, *last; /* kernels whose turn it is, the first of them since longest */
    struct item *waits; /* and waits for events */
    struct run *after;  /* the launch before this one, in another stream */
    uint64_t ns;        /* device time of its kernels that have not begun */
    size_t left, prompt; /* steps that are not over, and those of them to be prompt with */
    uint32_t *todo;
    struct {
        struct record *record; /* to make or to wait for */
        uint64_t since;        /* when the last of what it depends on was over */
        uint32_t waiting;      /* how many of those are not */
    } step[];
};
struct run *run_new(struct exec *e, struct stream *s);
void run_unref(struct run *r);
/* For engine.c: the run's turn in its stream has come; a step goes from the ready
 * ones, because it begins or there is nothing to do; a step is over. */
void run_begin(struct run *r, uint64_t since);
void run_take(struct item *it);
bool run_look_further(const struct run *r); /* than at the first of the ready kernels */
void run_step_done(struct item *it, uint64_t at);

/* ---- memory of graphs (graph_memory.c) ---- */

void mem_ref(struct mem *m);
void mem_unref(struct mem *m);
void mem_freed_by(struct mem *m, const struct graph *g);
bool mem_at(CUdeviceptr p); /* whether the address is of such memory, there or not */
bool mem_can_free(const struct range *r);
void mem_free_now(struct range *r);
CUresult mem_free(struct range *r, struct stream *s);
CUresult mem_claim(const struct plan *p);
void mem_unclaim(const struct plan *p);
CUresult mem_launch(const struct plan *p, bool auto_free);
void mem_over(const struct plan *p);
CUresult mem_upload(const struct plan *p);
void mem_reset(struct device *d);

#endif
