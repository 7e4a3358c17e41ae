/* chaos: makes CALLS random calls, valid and invalid, on streams, events, captures, graphs and
 * memory, and prints each result. With the same SEED, the output must be the same with the preload
 * library and without it.
 *
 *   chaos SEED CALLS */
#include "check.h"

#include <unistd.h>

enum { MANY = 5 }; /* objects of each kind */

static CUfunction nop;
static CUstream streams[MANY]; /* the first two are default streams */
static CUevent events[MANY];
static CUgraph graphs[MANY];
static CUgraphExec execs[MANY];
static CUdeviceptr memory[MANY], async[MANY];
static unsigned seed;

static unsigned below(unsigned n) { return (unsigned)rand_r(&seed) / 7 % n; }

/* Hides whether work has finished, because that depends on timing. */
static CUresult without_not_ready(CUresult result) { return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result; }

static CUresult stream_new(unsigned i)
{
    if (i < 2 || streams[i])
        return CUDA_SUCCESS;
    return cuStreamCreate(&streams[i], below(2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
}

static CUresult stream_end(unsigned i)
{
    CUstream old = streams[i];
    if (i < 2 || !old)
        return CUDA_SUCCESS;
    streams[i] = NULL;
    return cuStreamDestroy(old);
}

static CUresult begin(unsigned i) { return cuStreamBeginCapture(streams[i], (CUstreamCaptureMode)below(3)); }

static CUresult end(unsigned i)
{
    CUgraph graph = NULL;
    unsigned to = below(MANY);
    CUresult result = cuStreamEndCapture(streams[i], &graph);
    if (result != CUDA_SUCCESS || !graph)
        return result;
    if (graphs[to])
        ASSERT_SUCCESS(cuGraphDestroy(graphs[to]));
    graphs[to] = graph;
    return result;
}

static CUresult launch(unsigned i) { return cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, streams[i], NULL, NULL); }
static CUresult set(unsigned i) { return cuMemsetD8Async(memory[0], 1, 4096, streams[i]); }
static CUresult record(unsigned i) { return cuEventRecord(events[below(MANY)], streams[i]); }
static CUresult await_event(unsigned i) { return cuStreamWaitEvent(streams[i], events[below(MANY)], 0); }
static CUresult event_query(unsigned i) { return without_not_ready(cuEventQuery(events[i])); }
static CUresult stream_query(unsigned i) { return without_not_ready(cuStreamQuery(streams[i])); }
static CUresult stream_sync(unsigned i) { return cuStreamSynchronize(streams[i]); }
static CUresult sync_all(unsigned i) { return i ? CUDA_SUCCESS : cuCtxSynchronize(); }

static CUresult capturing(unsigned i)
{
    CUstreamCaptureStatus status = 0;
    CUresult result = cuStreamIsCapturing(streams[i], &status);
    printf("(%d) ", result == CUDA_SUCCESS ? (int)status : -1);
    return result;
}

static CUresult copy(unsigned i)
{
    char here[64] = {0};
    return i % 2 ? cuMemcpyHtoD(memory[0], here, sizeof here) : cuMemcpy(memory[0], memory[0] + 64, 64);
}

static CUresult alloc_or_free(unsigned i)
{
    if (!i)
        return CUDA_SUCCESS;
    CUdeviceptr old = memory[i];
    memory[i] = 0;
    return old ? cuMemFree(old) : cuMemAlloc(&memory[i], 1 << 16);
}

static CUresult alloc_or_free_async(unsigned i)
{
    CUdeviceptr old = async[i];
    async[i] = 0;
    CUstream stream = streams[below(MANY)];
    return old ? cuMemFreeAsync(old, stream) : cuMemAllocAsync(&async[i], 1 << 16, stream);
}

static CUresult mode(unsigned i)
{
    CUstreamCaptureMode next = (CUstreamCaptureMode)(i % 3);
    CUresult result = cuThreadExchangeStreamCaptureMode(&next);
    printf("(%d) ", (int)next);
    return result;
}

static CUresult instantiate(unsigned i)
{
    CUgraph graph = graphs[below(MANY)];
    if (!graph)
        return CUDA_SUCCESS;
    if (execs[i])
        ASSERT_SUCCESS(cuGraphExecDestroy(execs[i]));
    execs[i] = NULL;
    return cuGraphInstantiate(&execs[i], graph, 0);
}

static CUresult update(unsigned i)
{
    CUgraph graph = graphs[below(MANY)];
    CUgraphExecUpdateResultInfo info;
    return execs[i] && graph ? cuGraphExecUpdate(execs[i], graph, &info) : CUDA_SUCCESS;
}

static CUresult graph_launch(unsigned i)
{
    CUgraphExec exec = execs[below(MANY)];
    return exec ? cuGraphLaunch(exec, streams[i]) : CUDA_SUCCESS;
}

static CUresult rest(unsigned i)
{
    usleep(i * 500); /* meanwhile the library polls the work in flight and returns leases */
    return CUDA_SUCCESS;
}

static const struct { const char *name; CUresult (*call)(unsigned i); unsigned weight; } kinds[] = {
    {"stream-new", stream_new, 3}, {"stream-end", stream_end, 1}, {"begin", begin, 3}, {"end", end, 4},
    {"launch", launch, 8}, {"set", set, 3}, {"record", record, 6}, {"wait", await_event, 6},
    {"event-query", event_query, 1}, {"stream-query", stream_query, 1}, {"stream-sync", stream_sync, 1}, {"sync", sync_all, 1},
    {"capturing", capturing, 2}, {"copy", copy, 1}, {"memory", alloc_or_free, 1}, {"async", alloc_or_free_async, 2}, {"mode", mode, 1},
    {"instantiate", instantiate, 2}, {"update", update, 1}, {"graph-launch", graph_launch, 2}, {"rest", rest, 2},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* Makes a random call, by weight, on a random object. */
static void make_random_call(void)
{
    unsigned total = 0, at = 0;
    for (unsigned i = 0; i < N_KINDS; i++)
        total += kinds[i].weight;
    unsigned chosen = below(total), i = below(MANY);
    while (chosen >= kinds[at].weight)
        chosen -= kinds[at++].weight;
    printf("%s %u ", kinds[at].name, i);
    printf("%d\n", (int)kinds[at].call(i));
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    seed = (unsigned)atoi(argv[1]);
    own_context();
    nop = kernel(check_ptx, "nop");
    streams[0] = CU_STREAM_LEGACY;
    streams[1] = CU_STREAM_PER_THREAD;
    ASSERT_SUCCESS(cuMemAlloc(&memory[0], 4096));
    for (int i = 0; i < MANY; i++)
        ASSERT_SUCCESS(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    for (int i = atoi(argv[2]); i > 0; i--)
        make_random_call();
    return 0;
}
