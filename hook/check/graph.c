/* graph: changes graphs and their instances. It launches each instance, prints the size of the
 * launch (STEP KERNELS BLOCKS), and waits for a line on its input. */
#include "check.h"

static CUfunction nop;
static CUstream stream;
static CUgraphExec instance;

static CUDA_KERNEL_NODE_PARAMS nop_node(unsigned blocks)
{
    CUDA_KERNEL_NODE_PARAMS p = kernel_node(nop);
    p.gridDimX = blocks;
    return p;
}

static CUgraphNode add(CUgraph graph, unsigned blocks)
{
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS p = nop_node(blocks);
    ASSERT_SUCCESS(cuGraphAddKernelNode(&node, graph, NULL, 0, &p));
    return node;
}

/* Makes a graph of two kernels, with `one` and `two` blocks. */
static CUgraph pair(unsigned one, unsigned two)
{
    CUgraph graph;
    ASSERT_SUCCESS(cuGraphCreate(&graph, 0));
    add(graph, one);
    add(graph, two);
    return graph;
}

static void launched(const char *step, int kernels, int blocks)
{
    ASSERT_SUCCESS(cuGraphLaunch(instance, stream));
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    printf("%s %d %d\n", step, kernels, blocks);
    fflush(stdout);
    ASSERT(getchar() == '\n');
}

static void instantiate(CUgraph graph)
{
    if (instance)
        ASSERT_SUCCESS(cuGraphExecDestroy(instance));
    ASSERT_SUCCESS(cuGraphInstantiate(&instance, graph, 0));
}

static void nodes(void)
{
    CUgraph graph;
    CUgraphExecUpdateResultInfo info;
    CUDA_KERNEL_NODE_PARAMS p = nop_node(7);
    ASSERT_SUCCESS(cuGraphCreate(&graph, 0));
    CUgraphNode one = add(graph, 3), two = add(graph, 5);
    instantiate(graph);
    launched("made", 2, 8);
    launched("again", 2, 8);
    ASSERT_SUCCESS(cuGraphExecKernelNodeSetParams(instance, one, &p));
    launched("parameters", 2, 12);
    ASSERT_SUCCESS(cuGraphNodeSetEnabled(instance, two, 0));
    launched("off", 1, 7);
    ASSERT_SUCCESS(cuGraphNodeSetEnabled(instance, two, 1));
    launched("on", 2, 12);
    ASSERT_SUCCESS(cuGraphExecUpdate(instance, pair(2, 4), &info));
    launched("updated", 2, 6);
    ASSERT_SUCCESS(cuGraphExecKernelNodeSetParams(instance, two, &p));
    launched("and-parameters", 2, 9);
    CUgraphNodeParams generic = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = nop_node(100)};
    ASSERT_SUCCESS(cuGraphExecNodeSetParams(instance, one, &generic));
    launched("generic", 2, 107);
    CUgraph longer = pair(1, 1);
    add(longer, 1);
    ASSERT(cuGraphExecUpdate(instance, longer, &info) != CUDA_SUCCESS);
    launched("failed-update", 2, 107);
    ASSERT_SUCCESS(cuGraphKernelNodeSetParams(one, &p)); /* changes the graph, not the instance */
    launched("template", 2, 107);
    instantiate(graph);
    launched("anew", 2, 12);
}

static void children(void)
{
    CUgraph graph;
    CUgraphNode child, inner;
    ASSERT_SUCCESS(cuGraphCreate(&graph, 0));
    add(graph, 1);
    ASSERT_SUCCESS(cuGraphAddChildGraphNode(&child, graph, NULL, 0, pair(3, 5)));
    add(graph, 20);
    instantiate(graph);
    launched("child", 4, 29);
    ASSERT_SUCCESS(cuGraphExecChildGraphNodeSetParams(instance, child, pair(10, 20)));
    launched("other-child", 4, 51);
    ASSERT_SUCCESS(cuGraphCreate(&graph, 0));
    ASSERT_SUCCESS(cuGraphAddChildGraphNode(&inner, graph, NULL, 0, pair(1, 1)));
    CUgraph outer;
    ASSERT_SUCCESS(cuGraphCreate(&outer, 0));
    ASSERT_SUCCESS(cuGraphAddChildGraphNode(&child, outer, NULL, 0, graph));
    ASSERT_SUCCESS(cuGraphAddChildGraphNode(&child, outer, NULL, 0, pair(2, 2)));
    instantiate(outer);
    launched("grandchild", 4, 6);
}

/* Launches a graph into a capture, which fails, and a graph without kernels. */
static void others(void)
{
    CUgraph graph;
    CUgraphNode node;
    CUcontext context;
    instantiate(pair(6, 6));
    ASSERT_SUCCESS(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ASSERT(cuGraphLaunch(instance, stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ASSERT(cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS);
    launched("not-captured", 2, 12);
    CUdeviceptr memory = new_memory(64);
    ASSERT_SUCCESS(cuCtxGetCurrent(&context));
    CUDA_MEMSET_NODE_PARAMS set = {.dst = memory, .elementSize = 1, .width = 64, .height = 1};
    ASSERT_SUCCESS(cuGraphCreate(&graph, 0));
    ASSERT_SUCCESS(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, context));
    instantiate(graph);
    launched("no-kernel", 0, 0);
}

int main(void)
{
    primary_context();
    nop = kernel(check_ptx, "nop");
    stream = new_stream();
    nodes();
    children();
    others();
    printf("done\n");
    return 0;
}
