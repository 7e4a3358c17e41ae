/* capture: captures streams while nothing may run and while other work does.
 *
 *   capture HOW
 *
 * HOW is global, local, relaxed, graph (into a graph that exists), thread (the
 * thread's own stream) or early (work was sent before the driver was
 * initialised, and refused). It says where it is and waits for a line of its input:
 *
 *   warm       all streams were used, by 302 kernels, and two of them captured
 *   capturing  work was sent to two streams that are captured; another thread is
 *              about to send a kernel to a third
 *   beside     that kernel is done; the capture goes on
 *   captured N into so many nodes; none of them ran
 *   launched   the graph did: three kernels, one of 400 ms */
#include "check.h"

#include <pthread.h>

static CUcontext context;
static CUfunction nop, slow;
static CUstream first, second, third;
static CUevent fork_event, join_event;
static CUdeviceptr memory;
static int passed;

static void say(const char *what)
{
    printf("%s\n", what);
    fflush(stdout);
    ENSURE(getchar() == '\n');
}

static void set_up(void)
{
    context = primary_context();
    nop = kernel(check_ptx, "nop");
    slow = timed_kernel(400000);
    first = new_stream();
    second = new_stream();
    third = new_stream();
    MUST(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAlloc(&memory, 4096));
}

static void launch(CUfunction function, CUstream stream)
{
    MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

/* Threads know these streams: under the lease that holds they were just used. */
static void capture_known(void)
{
    CUgraph graph;
    size_t nodes = 0;
    MUST(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(nop, first);
    launch(nop, second); /* not captured yet */
    MUST(cuEventRecord(fork_event, first));
    MUST(cuStreamWaitEvent(second, fork_event, 0));
    launch(nop, second);
    MUST(cuEventRecord(join_event, second));
    MUST(cuStreamWaitEvent(first, join_event, 0));
    MUST(cuStreamEndCapture(first, &graph));
    MUST(cuGraphGetNodes(graph, NULL, &nodes));
    ENSURE(nodes == 2);
}

static void CUDA_CB ran(void *flag) { __atomic_store_n((int *)flag, 1, __ATOMIC_RELEASE); }

/* Stands at the gate; knows nothing of its stream yet. */
static void *beside(void *unused)
{
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    launch(nop, third);
    MUST(cuLaunchHostFunc(third, ran, &passed));
    return NULL;
}

static void begin(const char *how, CUgraph *graph)
{
    if (!strcmp(how, "graph")) {
        MUST(cuGraphCreate(graph, 0));
        MUST(cuStreamBeginCaptureToGraph(first, *graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
        return;
    }
    MUST(cuStreamBeginCapture(first, !strcmp(how, "local") ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
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
        ENSURE(cuMemsetD8Async(4096, 0, 1, NULL) == CUDA_ERROR_NOT_INITIALIZED);
    set_up();
    if (!strcmp(argv[1], "thread"))
        first = CU_STREAM_PER_THREAD;
    launch(nop, third);
    for (int i = 0; i < 150; i++) {
        launch(nop, first);
        launch(nop, second);
    }
    capture_known();
    MUST(cuCtxSynchronize());
    say("warm");

    begin(argv[1], &graph);
    launch(slow, first);
    launch(nop, first);
    MUST(cuMemsetD8Async(memory, 1, 4096, first));
    MUST(cuEventRecord(fork_event, first));
    MUST(cuStreamWaitEvent(second, fork_event, 0));
    launch(nop, second);
    MUST(cuEventRecord(join_event, second));
    MUST(cuStreamWaitEvent(first, join_event, 0));
    ENSURE(pthread_create(&thread, NULL, beside, NULL) == 0);
    say("capturing");
    pthread_join(thread, NULL);
    while (!__atomic_load_n(&passed, __ATOMIC_ACQUIRE))
        ;
    say("beside");
    MUST(cuStreamEndCapture(first, &graph));
    MUST(cuGraphGetNodes(graph, NULL, &nodes));
    snprintf(line, sizeof line, "captured %zu", nodes);
    say(line);

    MUST(cuGraphInstantiate(&instance, graph, 0));
    MUST(cuGraphLaunch(instance, first));
    MUST(cuStreamSynchronize(first));
    say("launched");
    return 0;
}
