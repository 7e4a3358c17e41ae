/* sticky: runs a kernel that ends with an error, and prints the first result of a call that is
 * neither CUDA_SUCCESS nor CUDA_ERROR_NOT_READY.
 *
 *   sticky CODE CALL [wait]
 *
 * CODE is the error. CALL is a name from the list below; "none" makes no call. With "wait", and for
 * "none", it ends with its input; otherwise it ends at once, with status 1. */
#include "check.h"

#include <unistd.h>

#pragma weak cuStreamSynchronize_ptsz
#pragma weak cuCtxSynchronize_v2

static CUcontext context;
static CUstream stream;
static CUfunction nop;
static CUevent event;
static CUdeviceptr memory;
static CUgraphExec exec;
static char host[64];

static CUresult launch(void) { return cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL); }
static CUresult graph(void) { return cuGraphLaunch(exec, stream); }
static CUresult copy(void) { return cuMemcpyDtoH(host, memory, sizeof host); }
static CUresult copy_async(void) { return cuMemcpyHtoDAsync(memory, host, sizeof host, stream); }
static CUresult set(void) { return cuMemsetD8Async(memory, 1, sizeof host, stream); }
static CUresult sync_context(void) { return cuCtxSynchronize(); }
static CUresult sync_context_2(void) { return cuCtxSynchronize_v2(context); }
static CUresult sync_stream(void) { return cuStreamSynchronize(stream); }
static CUresult sync_own(void) { return cuStreamSynchronize_ptsz(stream); }
static CUresult sync_event(void) { return cuEventSynchronize(event); }
static CUresult query_stream(void) { return cuStreamQuery(stream); }
static CUresult query_event(void) { return cuEventQuery(event); }

static const struct { const char *name; CUresult (*go)(void); } calls[] = {
    {"cuLaunchKernel", launch}, {"cuGraphLaunch", graph}, {"cuMemcpyDtoH", copy}, {"cuMemcpyHtoDAsync", copy_async},
    {"cuMemsetD8Async", set}, {"cuCtxSynchronize", sync_context}, {"cuCtxSynchronize_v2", sync_context_2},
    {"cuStreamSynchronize", sync_stream}, {"cuStreamSynchronize_ptsz", sync_own}, {"cuEventSynchronize", sync_event},
    {"cuStreamQuery", query_stream}, {"cuEventQuery", query_event},
};

int main(int argc, char **argv)
{
    ASSERT(argc >= 3);
    unsigned code = (unsigned)atoi(argv[1]);
    void *params[] = {&code};
    CUresult result = CUDA_SUCCESS;
    context = own_context();
    stream = new_stream();
    nop = timed_kernel(1);
    exec = kernel_graph(nop);
    ASSERT_SUCCESS(cuEventCreate(&event, 0));
    ASSERT_SUCCESS(cuMemAlloc(&memory, sizeof host));
    CUfunction fault = kernel("// gfaas-sim: fault op=fault block_us=1000\n.version 7.0\n.target sm_70\n.address_size 64\n"
                              ".visible .entry fault(.param .u32 code)\n{\n trap;\n}\n", "fault");
    ASSERT_SUCCESS(cuLaunchKernel(fault, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    (void)cuEventRecord(event, stream); /* the kernel may already have ended */
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        while (!strcmp(argv[2], calls[i].name) && (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY))
            result = calls[i].go();
    printf("%d\n", result);
    fflush(stdout);
    if (argc > 3 || !result)
        getchar();
    else
        _exit(1);
    return 0;
}
