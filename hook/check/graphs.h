/* graphs.h: for route.c, graphs made in every possible way. They add x and y and launch a kernel
 * that does nothing. */

static CUfunction nop;
static CUdeviceptr other;
static CUgraph graph;
static CUgraphExec instance;

#define FOUND(symbol) ((__typeof__(&symbol))found(#symbol))

static void *found(const char *name)
{
    void *function = find(name);
    ASSERT(function);
    return function;
}

/* Returns the parameters of a node with the usual grid. */
static CUDA_KERNEL_NODE_PARAMS_v2 grid_node(CUfunction function, void **arguments)
{
    CUDA_KERNEL_NODE_PARAMS_v2 p = kernel_node(function);
    p.gridDimX = BLOCKS;
    p.blockDimX = THREADS;
    p.kernelParams = arguments;
    return p;
}

static CUgraphNode add_kernel(CUgraph to_graph, CUfunction function, void **arguments)
{
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS_v2 p = grid_node(function, arguments);
    ASSERT_SUCCESS(FOUND(cuGraphAddKernelNode_v2)(&node, to_graph, NULL, 0, &p));
    return node;
}

/* Destroys the previous instance and its graph. */
static void discard(void)
{
    if (instance) {
        ASSERT_SUCCESS(FOUND(cuGraphExecDestroy)(instance));
        ASSERT_SUCCESS(cuGraphDestroy(graph));
        instance = NULL;
    }
}

static void begin(void)
{
    discard();
    ASSERT_SUCCESS(cuGraphCreate(&graph, 0));
}

static void instantiate(void)
{
    ASSERT_SUCCESS(FOUND(cuGraphInstantiateWithFlags)(&instance, graph, 0));
}

static void *elsewhere[] = {&a, &b, &other, &n}; /* writes the sum where it is not checked */

static void added(void)
{
    begin();
    add_kernel(graph, add, params);
    add_kernel(graph, nop, NULL);
    instantiate();
}

static void with_params(void)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS p = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, .hUploadStream = stream};
    begin();
    add_kernel(graph, add, params);
    add_kernel(graph, nop, NULL);
    ASSERT_SUCCESS(FOUND(cuGraphInstantiateWithParams)(&instance, graph, &p));
}

static void generic(void)
{
    CUgraphNode node;
    begin();
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = grid_node(add, params)};
    ASSERT_SUCCESS(FOUND(cuGraphAddNode)(&node, graph, NULL, 0, &p));
    add_kernel(graph, nop, NULL);
    instantiate();
}

static void cloned(void)
{
    CUgraph original;
    discard();
    ASSERT_SUCCESS(cuGraphCreate(&original, 0));
    add_kernel(original, add, params);
    add_kernel(original, nop, NULL);
    ASSERT_SUCCESS(cuGraphClone(&graph, original));
    ASSERT_SUCCESS(cuGraphDestroy(original));
    instantiate();
}

static void child(void)
{
    CUgraph inner;
    CUgraphNode node;
    begin();
    ASSERT_SUCCESS(cuGraphCreate(&inner, 0));
    add_kernel(inner, add, params);
    ASSERT_SUCCESS(cuGraphAddChildGraphNode(&node, graph, NULL, 0, inner));
    ASSERT_SUCCESS(cuGraphDestroy(inner));
    add_kernel(graph, nop, NULL);
    instantiate();
}

/* Instantiates a graph that writes elsewhere, and then updates the instance. */
static void updated(void)
{
    CUgraphExecUpdateResultInfo info;
    begin();
    add_kernel(graph, add, elsewhere);
    add_kernel(graph, nop, NULL);
    instantiate();
    ASSERT_SUCCESS(cuGraphDestroy(graph));
    ASSERT_SUCCESS(cuGraphCreate(&graph, 0));
    add_kernel(graph, add, params);
    add_kernel(graph, nop, NULL);
    ASSERT_SUCCESS(FOUND(cuGraphExecUpdate_v2)(instance, graph, &info));
}

static void reset(void)
{
    begin();
    CUgraphNode node = add_kernel(graph, add, elsewhere);
    add_kernel(graph, nop, NULL);
    instantiate();
    CUDA_KERNEL_NODE_PARAMS_v2 p = grid_node(add, params);
    ASSERT_SUCCESS(FOUND(cuGraphExecKernelNodeSetParams_v2)(instance, node, &p));
}

static void disabled(void)
{
    begin();
    add_kernel(graph, add, params);
    CUgraphNode node = add_kernel(graph, nop, NULL);
    instantiate();
    ASSERT_SUCCESS(FOUND(cuGraphNodeSetEnabled)(instance, node, 0));
}

/* Captures the work. Captured work must neither run nor count nor wait at a gate. */
static void capture(CUstreamCaptureMode mode, int thread)
{
    CUstream captured = thread ? CU_STREAM_PER_THREAD : stream;
    discard();
    ASSERT_SUCCESS(FOUND(cuStreamBeginCapture_v2)(captured, mode));
    ASSERT_SUCCESS(FOUND(cuLaunchKernel)(add, BLOCKS, 1, 1, THREADS, 1, 1, 0, captured, params, NULL));
    ASSERT_SUCCESS(FOUND(cuLaunchKernel)(nop, 1, 1, 1, 1, 1, 1, 0, captured, NULL, NULL));
    ASSERT_SUCCESS(FOUND(cuStreamEndCapture)(captured, &graph));
    instantiate();
}

static void captured_global(void) { capture(CU_STREAM_CAPTURE_MODE_GLOBAL, 0); }
static void captured_local(void) { capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 0); }
static void captured_relaxed(void) { capture(CU_STREAM_CAPTURE_MODE_RELAXED, 0); }
static void captured_thread(void) { capture(CU_STREAM_CAPTURE_MODE_GLOBAL, 1); }

/* A second stream, already in use, joins the capture through an event. */
static void captured_joined(void)
{
    CUstream second;
    CUevent fork, join;
    discard();
    ASSERT_SUCCESS(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    ASSERT_SUCCESS(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    ASSERT_SUCCESS(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    ASSERT_SUCCESS(cuMemsetD8Async(other, 0, SIZE, second));
    ASSERT_SUCCESS(FOUND(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ASSERT_SUCCESS(cuEventRecord(fork, stream));
    ASSERT_SUCCESS(FOUND(cuStreamWaitEvent)(second, fork, 0));
    ASSERT_SUCCESS(FOUND(cuLaunchKernel)(nop, 1, 1, 1, 1, 1, 1, 0, second, NULL, NULL));
    ASSERT_SUCCESS(FOUND(cuLaunchKernel)(add, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, params, NULL));
    ASSERT_SUCCESS(cuEventRecord(join, second));
    ASSERT_SUCCESS(FOUND(cuStreamWaitEvent)(stream, join, 0));
    ASSERT_SUCCESS(cuStreamEndCapture(stream, &graph));
    instantiate();
    ASSERT_SUCCESS(cuStreamDestroy_v2(second));
    ASSERT_SUCCESS(cuEventDestroy_v2(fork));
    ASSERT_SUCCESS(cuEventDestroy_v2(join));
}

static void captured_to_graph(void)
{
    CUgraph same;
    begin();
    add_kernel(graph, nop, NULL);
    ASSERT_SUCCESS(FOUND(cuStreamBeginCaptureToGraph)(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ASSERT_SUCCESS(FOUND(cuLaunchKernel)(add, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, params, NULL));
    ASSERT_SUCCESS(cuStreamEndCapture(stream, &same));
    instantiate();
}

static CUresult launch(void *address)
{
    __typeof__(&cuGraphLaunch) f;
    *(void **)&f = address;
    return f(instance, NULL);
}

#define GRAPH(how, launches) \
    {"cuGraphLaunch+" #how, launch, SUM, launches, how}, {"cuGraphLaunch_ptsz+" #how, launch, SUM, launches, how},
#define GRAPHS \
    GRAPH(added, 2) GRAPH(with_params, 2) GRAPH(generic, 2) GRAPH(cloned, 2) GRAPH(child, 2) GRAPH(updated, 2) GRAPH(reset, 2) \
    GRAPH(disabled, 1) GRAPH(captured_global, 2) GRAPH(captured_local, 2) GRAPH(captured_relaxed, 2) GRAPH(captured_thread, 2) \
    GRAPH(captured_joined, 2) GRAPH(captured_to_graph, 2) \
    {"cuGraphUpload", launch, ANY, 0, added}, {"cuGraphUpload_ptsz", launch, ANY, 0, added},
