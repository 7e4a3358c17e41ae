/* ahead: launches far ahead and prints how many were in flight, at most ever,
 * and at most and in the middle in the last quarter.
 *
 *   ahead graph|kernel|switch|turns US COUNT [KERNELS]
 *
 * Launches a graph of one kernel of US microseconds, or such a kernel, COUNT
 * times without waiting, after as many KERNELS of a microsecond. Switch makes
 * the context current before each and turns back after it; turns has nine
 * streams take turns. */
#include "check.h"

#include <stdbool.h>

enum { MOST = 4096 }; /* what may be in flight */

static int done;
static int often[MOST]; /* how many were in flight how often, in the last quarter */

static void CUDA_CB one_done(void *unused)
{
    (void)unused;
    __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
}

int main(int argc, char **argv)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec instance;
    if (argc < 4)
        return 2;
    enum { MANY = 9 };
    CUcontext context = primary_context(), popped;
    CUfunction nop = kernel(check_ptx, "nop"), timed = timed_kernel(atoi(argv[2]));
    CUstream stream = new_stream(), many[MANY] = {stream};
    for (int i = 1; i < MANY; i++)
        many[i] = new_stream();
    CUDA_KERNEL_NODE_PARAMS p = {.func = timed, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddKernelNode(&node, graph, NULL, 0, &p));
    MUST(cuGraphInstantiate(&instance, graph, 0));
    for (int i = argc > 4 ? atoi(argv[4]) : 0; i > 0; i--)
        MUST(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    bool graphs = !strcmp(argv[1], "graph"), switches = !strcmp(argv[1], "switch"), turns = !strcmp(argv[1], "turns");
    int most = 0, late = 0, count = atoi(argv[3]);
    for (int i = 1; i <= count; i++) {
        if (turns)
            stream = many[i % MANY];
        if (switches)
            MUST(cuCtxPushCurrent(context));
        if (graphs)
            MUST(cuGraphLaunch(instance, stream));
        else
            MUST(cuLaunchKernel(timed, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        MUST(cuLaunchHostFunc(stream, one_done, NULL));
        if (switches)
            MUST(cuCtxPopCurrent(&popped));
        int ahead = i - __atomic_load_n(&done, __ATOMIC_RELAXED);
        most = ahead > most ? ahead : most;
        late = i > count - count / 4 && ahead > late ? ahead : late;
        if (i > count - count / 4)
            often[ahead < MOST ? ahead : MOST - 1]++;
    }
    MUST(cuCtxSynchronize());
    int middle = 0;
    for (int seen = often[0]; seen < count / 8; seen += often[++middle])
        ;
    printf("%d %d %d\n", most, late, middle);
    return 0;
}
