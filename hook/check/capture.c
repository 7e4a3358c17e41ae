/* capture: captures streams, both while the program may not run work and while other work runs.
 *
 *   capture HOW
 *
 * HOW is a capture mode (global, local or relaxed), graph (a capture into an existing graph),
 * thread (a capture of the thread's own stream) or early (work was sent before the driver was
 * initialised, and refused). At each stage it prints a line and waits for a line on its input:
 *
 *   warm       302 kernels have used all streams, and two of the streams have been captured
 *   capturing  work was sent to two streams under capture; another thread is about to launch
 *              a kernel on a third
 *   beside     that kernel is done, and the capture continues
 *   captured N the graph has N nodes; no node has run
 *   launched   the graph has run: three kernels; the first takes 400 ms */
#include "check.h"

static CUcontext context;
static CUfunction nop, slow;
static CUstream first, second, third;
static CUevent fork_event, join_event;
static CUdeviceptr memory;
static int third_done;

static void say(const char *what)
{
    printf("%s\n", what);
    fflush(stdout);
    ASSERT(getchar() == '\n');
}

static void set_up(void)
{
    context = primary_context();
    nop = kernel(check_ptx, "nop");
    slow = timed_kernel(400000);
    first = new_stream();
    second = new_stream();
    third = new_stream();
    ASSERT_SUCCESS(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    ASSERT_SUCCESS(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
    ASSERT_SUCCESS(cuMemAlloc(&memory, 4096));
}

/* Captures streams that the thread knows, because it has just used them under the current lease. */
static void capture_known(void)
{
    CUgraph graph;
    size_t nodes = 0;
    ASSERT_SUCCESS(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch_block(nop, first);
    launch_block(nop, second); /* not captured yet */
    ASSERT_SUCCESS(cuEventRecord(fork_event, first));
    ASSERT_SUCCESS(cuStreamWaitEvent(second, fork_event, 0));
    launch_block(nop, second);
    ASSERT_SUCCESS(cuEventRecord(join_event, second));
    ASSERT_SUCCESS(cuStreamWaitEvent(first, join_event, 0));
    ASSERT_SUCCESS(cuStreamEndCapture(first, &graph));
    ASSERT_SUCCESS(cuGraphGetNodes(graph, NULL, &nodes));
    ASSERT(nodes == 2);
}

static void CUDA_CB set_flag(void *flag) { __atomic_store_n((int *)flag, 1, __ATOMIC_RELEASE); }

/* Launches on a stream that is new to this thread, and therefore waits at the gate. */
static void *beside(void *unused)
{
    (void)unused;
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    launch_block(nop, third);
    ASSERT_SUCCESS(cuLaunchHostFunc(third, set_flag, &third_done));
    return NULL;
}

static void begin(const char *how, CUgraph *graph)
{
    if (!strcmp(how, "graph")) {
        ASSERT_SUCCESS(cuGraphCreate(graph, 0));
        ASSERT_SUCCESS(cuStreamBeginCaptureToGraph(first, *graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
        return;
    }
    ASSERT_SUCCESS(cuStreamBeginCapture(first, !strcmp(how, "local") ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                     : !strcmp(how, "relaxed") ? CU_STREAM_CAPTURE_MODE_RELAXED
                                                               : CU_STREAM_CAPTURE_MODE_GLOBAL));
}

int main(int argc, char **argv)
{
    CUgraph graph;
    CUgraphExec instance;
    pthread_t thread;
    char line[32];
    size_t nodes = 0;
    if (argc != 2)
        return 2;
    if (!strcmp(argv[1], "early"))
        ASSERT(cuMemsetD8Async(4096, 0, 1, NULL) == CUDA_ERROR_NOT_INITIALIZED);
    set_up();
    if (!strcmp(argv[1], "thread"))
        first = CU_STREAM_PER_THREAD;
    launch_block(nop, third);
    for (int i = 0; i < 150; i++) {
        launch_block(nop, first);
        launch_block(nop, second);
    }
    capture_known();
    ASSERT_SUCCESS(cuCtxSynchronize());
    say("warm");

    begin(argv[1], &graph);
    launch_block(slow, first);
    launch_block(nop, first);
    ASSERT_SUCCESS(cuMemsetD8Async(memory, 1, 4096, first));
    ASSERT_SUCCESS(cuEventRecord(fork_event, first));
    ASSERT_SUCCESS(cuStreamWaitEvent(second, fork_event, 0));
    launch_block(nop, second);
    ASSERT_SUCCESS(cuEventRecord(join_event, second));
    ASSERT_SUCCESS(cuStreamWaitEvent(first, join_event, 0));
    thread = start_thread(beside, NULL);
    say("capturing");
    pthread_join(thread, NULL);
    while (!__atomic_load_n(&third_done, __ATOMIC_ACQUIRE))
        ;
    say("beside");
    ASSERT_SUCCESS(cuStreamEndCapture(first, &graph));
    ASSERT_SUCCESS(cuGraphGetNodes(graph, NULL, &nodes));
    snprintf(line, sizeof line, "captured %zu", nodes);
    say(line);

    ASSERT_SUCCESS(cuGraphInstantiate(&instance, graph, 0));
    ASSERT_SUCCESS(cuGraphLaunch(instance, first));
    ASSERT_SUCCESS(cuStreamSynchronize(first));
    say("launched");
    return 0;
}
