/* graph_dot.c: graphs as text for Graphviz. */
#include "graph.h"

#include <stdio.h>

static const char *type_name(CUgraphNodeType t)
{
    static const char *const names[] = {"KERNEL",       "MEMCPY",           "MEMSET",         "HOST",      "GRAPH",
                                        "EMPTY",        "EVENT_WAIT",       "EVENT_RECORD",   "EXT_SIGNAL", "EXT_WAIT",
                                        "MEM_ALLOC",    "MEM_FREE",         "BATCH_MEM_OP",   "CONDITIONAL"};
    return (size_t)t < sizeof names / sizeof *names ? names[t] : "UNKNOWN";
}

static void label(FILE *f, const struct node *n, bool handles)
{
    const struct work *w = &n->work;
    fprintf(f, "%zu\\n%s", n->at, type_name(w->type));
    if (w->type == CU_GRAPH_NODE_TYPE_KERNEL && handle_is(w->u.kernel.f, H_FUNC)) {
        const unsigned *g = w->u.kernel.grid, *b = w->u.kernel.block;
        fprintf(f, "\\n%s<<<(%u,%u,%u),(%u,%u,%u),%u>>>", w->u.kernel.f->name, g[0], g[1], g[2], b[0], b[1], b[2],
                w->u.kernel.shared);
    }
    if (handles)
        fprintf(f, "\\nhandle: %p", (const void *)n);
}

/* Node names are ids, unique in the process, so that a child graph can stand beside
 * the graph it is in. */
static void print(FILE *f, const struct graph *g, bool handles)
{
    fprintf(f, "subgraph cluster_%llu {\nlabel=\"graph_%llu\"\n", (unsigned long long)g->id,
            (unsigned long long)g->id);
    for (size_t i = 0; i < g->n; i++) {
        const struct node *n = g->nodes[i];
        fprintf(f, "\"node_%llu\" [shape=\"record\" label=\"", (unsigned long long)n->id);
        label(f, n, handles);
        fprintf(f, "\"]\n");
        if (n->work.type == CU_GRAPH_NODE_TYPE_GRAPH)
            print(f, n->work.u.child, handles);
    }
    for (size_t i = 0; i < g->n; i++)
        for (size_t k = 0; k < g->nodes[i]->in.n; k++)
            fprintf(f, "\"node_%llu\" -> \"node_%llu\"\n", (unsigned long long)g->nodes[i]->in.v[k].node->id,
                    (unsigned long long)g->nodes[i]->id);
    fprintf(f, "}\n");
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
    CUresult r = sim_begin(NULL);
    if (r != CUDA_SUCCESS)
        return r;
    if (!graph_is(hGraph) || !path)
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    FILE *f = fopen(path, "we");
    if (!f)
        return sim_end(CUDA_ERROR_OPERATING_SYSTEM);
    fprintf(f, "digraph dot {\n");
    print(f, (const struct graph *)hGraph,
          flags & (CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES));
    fprintf(f, "}\n");
    bool ok = !ferror(f);
    return sim_end(fclose(f) == 0 && ok ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM);
}
