/* graphs.h: for route.c, graphs made in each way there is. They add x and y
 * and launch a kernel that does nothing. */

static CUfunction nop;
static CUdeviceptr other;
static CUgraph graph;
static CUgraphExec instance;

#define FOUND(symbol) \
    __typeof__(&symbol) f_##symbol; \
    ENSURE(*(void **)&f_##symbol = find(#symbol))

static CUgraphNode add_kernel(CUgraph to_graph, CUfunction function, void **arguments)
{
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS_v2 p = {.func = function, .gridDimX = BLOCKS, .gridDimY = 1, .gridDimZ = 1,
                                    .blockDimX = THREADS, .blockDimY = 1, .blockDimZ = 1, .kernelParams = arguments};
    FOUND(cuGraphAddKernelNode_v2);
    MUST(f_cuGraphAddKernelNode_v2(&node, to_graph, NULL, 0, &p));
    return node;
}

static void begin(void)
{
    if (instance) {
        FOUND(cuGraphExecDestroy);
        MUST(f_cuGraphExecDestroy(instance));
        MUST(cuGraphDestroy(graph));
        instance = NULL;
    }
    MUST(cuGraphCreate(&graph, 0));
}

static void instantiate(void)
{
    FOUND(cuGraphInstantiateWithFlags);
    MUST(f_cuGraphInstantiateWithFlags(&instance, graph, 0));
}

static void *elsewhere[] = {&a, &b, &other, &n}; /* the sum is not where it is looked for */

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
    FOUND(cuGraphInstantiateWithParams);
    MUST(f_cuGraphInstantiateWithParams(&instance, graph, &p));
}

static void generic(void)
{
    CUgraphNode node;
    begin();
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    p.kernel.func = add;
    p.kernel.gridDimX = BLOCKS;
    p.kernel.blockDimX = THREADS;
    p.kernel.gridDimY = p.kernel.gridDimZ = p.kernel.blockDimY = p.kernel.blockDimZ = 1;
    p.kernel.kernelParams = params;
    FOUND(cuGraphAddNode);
    MUST(f_cuGraphAddNode(&node, graph, NULL, 0, &p));
    add_kernel(graph, nop, NULL);
    instantiate();
}

static void cloned(void)
{
    CUgraph original;
    begin();
    MUST(cuGraphDestroy(graph));
    MUST(cuGraphCreate(&original, 0));
    add_kernel(original, add, params);
    add_kernel(original, nop, NULL);
    MUST(cuGraphClone(&graph, original));
    MUST(cuGraphDestroy(original));
    instantiate();
}

static void child(void)
{
    CUgraph inner;
    CUgraphNode node;
    begin();
    MUST(cuGraphCreate(&inner, 0));
    add_kernel(inner, add, params);
    MUST(cuGraphAddChildGraphNode(&node, graph, NULL, 0, inner));
    MUST(cuGraphDestroy(inner));
    add_kernel(graph, nop, NULL);
    instantiate();
}

/* Instantiated to do something else, and then made to do the right thing. */
static void updated(void)
{
    CUgraphExecUpdateResultInfo info;
    begin();
    add_kernel(graph, add, elsewhere);
    add_kernel(graph, nop, NULL);
    instantiate();
    MUST(cuGraphDestroy(graph));
    MUST(cuGraphCreate(&graph, 0));
    add_kernel(graph, add, params);
    add_kernel(graph, nop, NULL);
    FOUND(cuGraphExecUpdate_v2);
    MUST(f_cuGraphExecUpdate_v2(instance, graph, &info));
}

static void reset(void)
{
    begin();
    CUgraphNode node = add_kernel(graph, add, elsewhere);
    add_kernel(graph, nop, NULL);
    instantiate();
    CUDA_KERNEL_NODE_PARAMS_v2 p = {.func = add, .gridDimX = BLOCKS, .gridDimY = 1, .gridDimZ = 1,
                                    .blockDimX = THREADS, .blockDimY = 1, .blockDimZ = 1, .kernelParams = params};
    FOUND(cuGraphExecKernelNodeSetParams_v2);
    MUST(f_cuGraphExecKernelNodeSetParams_v2(instance, node, &p));
}

static void disabled(void)
{
    begin();
    add_kernel(graph, add, params);
    CUgraphNode node = add_kernel(graph, nop, NULL);
    instantiate();
    FOUND(cuGraphNodeSetEnabled);
    MUST(f_cuGraphNodeSetEnabled(instance, node, 0));
}

/* What is captured must neither run nor count nor stand at a gate. */
static void capture(CUstreamCaptureMode mode, int thread)
{
    CUstream captured = thread ? CU_STREAM_PER_THREAD : stream;
    begin();
    MUST(cuGraphDestroy(graph));
    FOUND(cuStreamBeginCapture_v2);
    FOUND(cuStreamEndCapture);
    FOUND(cuLaunchKernel);
    MUST(f_cuStreamBeginCapture_v2(captured, mode));
    MUST(f_cuLaunchKernel(add, BLOCKS, 1, 1, THREADS, 1, 1, 0, captured, params, NULL));
    MUST(f_cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, captured, NULL, NULL));
    MUST(f_cuStreamEndCapture(captured, &graph));
    instantiate();
}

static void captured_global(void) { capture(CU_STREAM_CAPTURE_MODE_GLOBAL, 0); }
static void captured_local(void) { capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 0); }
static void captured_relaxed(void) { capture(CU_STREAM_CAPTURE_MODE_RELAXED, 0); }
static void captured_thread(void) { capture(CU_STREAM_CAPTURE_MODE_GLOBAL, 1); }

/* A second stream, in use before, joins the capture by an event. */
static void captured_joined(void)
{
    CUstream second;
    CUevent fork, join;
    begin();
    MUST(cuGraphDestroy(graph));
    FOUND(cuStreamBeginCapture_v2);
    FOUND(cuStreamWaitEvent);
    FOUND(cuLaunchKernel);
    MUST(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    MUST(cuMemsetD8Async(other, 0, SIZE, second));
    MUST(f_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(cuEventRecord(fork, stream));
    MUST(f_cuStreamWaitEvent(second, fork, 0));
    MUST(f_cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, second, NULL, NULL));
    MUST(f_cuLaunchKernel(add, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, params, NULL));
    MUST(cuEventRecord(join, second));
    MUST(f_cuStreamWaitEvent(stream, join, 0));
    MUST(cuStreamEndCapture(stream, &graph));
    instantiate();
    MUST(cuStreamDestroy_v2(second));
    MUST(cuEventDestroy_v2(fork));
    MUST(cuEventDestroy_v2(join));
}

static void captured_to_graph(void)
{
    CUgraph same;
    begin();
    add_kernel(graph, nop, NULL);
    FOUND(cuStreamBeginCaptureToGraph);
    FOUND(cuLaunchKernel);
    MUST(f_cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(f_cuLaunchKernel(add, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, params, NULL));
    MUST(cuStreamEndCapture(stream, &same));
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
