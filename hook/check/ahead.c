/* ahead: launches graphs far ahead and prints how many were ever in flight.
 *
 *   ahead US COUNT [KERNELS]
 *
 * Launches a graph of one kernel of US microseconds COUNT times without waiting,
 * after as many KERNELS of a microsecond. */
#include "check.h"

static int done;

static void CUDA_CB one_done(void *unused)
{
    (void)unused;
    __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
}

int main(int argc, char **argv)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction nop, kernel;
    CUstream stream;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec instance;
    char ptx[256];
    if (argc < 3)
        return 2;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, check_ptx));
    MUST(cuModuleGetFunction(&nop, module, "nop"));
    snprintf(ptx, sizeof ptx, "// gfaas-sim: timed block_us=%s\n.version 7.0\n.target sm_70\n.address_size 64\n"
                              ".visible .entry timed()\n{\n ret;\n}\n", argv[1]);
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&kernel, module, "timed"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA_KERNEL_NODE_PARAMS p = {.func = kernel, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddKernelNode(&node, graph, NULL, 0, &p));
    MUST(cuGraphInstantiate(&instance, graph, 0));
    for (int i = argc > 3 ? atoi(argv[3]) : 0; i > 0; i--)
        MUST(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    int most = 0, count = atoi(argv[2]);
    for (int i = 1; i <= count; i++) {
        MUST(cuGraphLaunch(instance, stream));
        MUST(cuLaunchHostFunc(stream, one_done, NULL));
        int ahead = i - __atomic_load_n(&done, __ATOMIC_RELAXED);
        most = ahead > most ? ahead : most;
    }
    MUST(cuStreamSynchronize(stream));
    printf("%d\n", most);
    return 0;
}
