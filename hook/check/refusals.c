/* refusals: sends COUNT pieces of work that the driver refuses, then prints "done" and ends with
 * its input.
 *
 *   refusals KIND COUNT [ACCEPTED]
 *
 * KIND is a name from the list below. First it launches ACCEPTED kernels (default 0) of 10 us each. */
#include "check.h"

#include <stdbool.h>

#pragma weak cuLaunchKernel_ptsz
#pragma weak cuMemcpyHtoDAsync_v2_ptsz
#pragma weak cuLaunchCooperativeKernelMultiDevice

static CUstream stream, destroyed_stream;
static CUfunction function;
static CUgraphExec exec;
static char host[64];
static const CUdeviceptr unmapped = 4096; /* an address without memory */
static void *params[] = {NULL};
static CUlaunchConfig config = {0, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};

/* The launches have a grid without blocks, or no function, or a destroyed stream. */
static CUresult empty_grid(void) { return cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, stream, NULL, NULL); }
static CUresult legacy_stream(void) { return cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }
static CUresult per_thread_stream(void) { return cuLaunchKernel_ptsz(function, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }
static CUresult no_function(void) { return cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL); }
static CUresult on_destroyed_stream(void)
{
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, destroyed_stream, NULL, NULL);
}
static CUresult kernel_ex(void)
{
    config.hStream = stream;
    return cuLaunchKernelEx(&config, function, NULL, NULL);
}
static CUresult cooperative(void) { return cuLaunchCooperativeKernel(function, 0, 1, 1, 1, 1, 1, 0, stream, params); }
static CUresult grid(void) { return cuLaunchGrid(function, 0, 0); }
static CUresult grid_async(void) { return cuLaunchGridAsync(function, 0, 0, stream); }
static CUresult several(void)
{
    CUDA_LAUNCH_PARAMS p = {.function = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
                            .blockDimZ = 1, .hStream = stream};
    return cuLaunchCooperativeKernelMultiDevice(&p, 1, 0);
}
static CUresult graph(void) { return cuGraphLaunch(exec, stream); }
static CUresult no_graph(void) { return cuGraphLaunch(NULL, stream); }
static CUresult upload(void) { return cuGraphUpload(exec, stream); }
static CUresult copy(void) { return cuMemcpyHtoD(unmapped, host, sizeof host); }
static CUresult copy_back(void) { return cuMemcpyDtoH(host, unmapped, sizeof host); }
static CUresult copy_inside(void) { return cuMemcpyDtoD(unmapped, unmapped + 64, 64); }
static CUresult copy_async(void) { return cuMemcpyHtoDAsync(unmapped, host, sizeof host, stream); }
static CUresult copy_per_thread_stream(void) { return cuMemcpyHtoDAsync_v2_ptsz(unmapped, host, sizeof host, NULL); }
static CUresult copy_box(void)
{
    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = unmapped,
                         .dstDevice = unmapped, .WidthInBytes = 64, .Height = 1, .Depth = 1};
    return cuMemcpy3DAsync(&box, stream);
}
static CUresult set(void) { return cuMemsetD8(unmapped, 1, 64); }
static CUresult set_async(void) { return cuMemsetD32Async(unmapped, 1, 16, stream); }
static CUresult prefetch(void) { return cuMemPrefetchAsync(unmapped, 64, 0, stream); }
static CUresult function_on_host(void) { return cuLaunchHostFunc(stream, NULL, NULL); }
static CUresult allocation(void)
{
    CUdeviceptr p;
    return cuMemAllocAsync(&p, (size_t)1 << 50, stream);
}

/* Each launch is the first work of its stream under the lease. */
static CUresult new_streams(void)
{
    CUstream s = new_stream();
    CUresult result = cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, s, NULL, NULL);
    ASSERT_SUCCESS(cuStreamDestroy(s));
    return result;
}

static const struct { const char *name; CUresult (*send)(void); } kinds[] = {
    {"kernel", empty_grid}, {"legacy-stream", legacy_stream}, {"own-stream", per_thread_stream}, {"no-function", no_function},
    {"closed-stream", on_destroyed_stream}, {"new-streams", new_streams}, {"kernel-ex", kernel_ex}, {"cooperative", cooperative},
    {"grid", grid}, {"grid-async", grid_async}, {"multi-device", several}, {"graph", graph}, {"no-graph", no_graph},
    {"upload", upload}, {"copy", copy}, {"copy-back", copy_back}, {"copy-inside", copy_inside}, {"copy-async", copy_async},
    {"copy-own", copy_per_thread_stream}, {"copy-box", copy_box}, {"set", set}, {"set-async", set_async}, {"prefetch", prefetch},
    {"host-function", function_on_host}, {"allocation", allocation},
};

int main(int argc, char **argv)
{
    ASSERT(argc >= 3);
    own_context();
    function = timed_kernel(10);
    stream = new_stream();
    destroyed_stream = new_stream();
    ASSERT_SUCCESS(cuStreamDestroy(destroyed_stream));
    exec = kernel_graph(function);
    ASSERT_SUCCESS(cuGraphExecDestroy(exec)); /* launches of it have an invalid handle */
    for (int i = 0; argc > 3 && i < atoi(argv[3]); i++)
        launch_block(function, stream);
    ASSERT_SUCCESS(cuCtxSynchronize());
    bool known = false;
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int i = 0; !strcmp(argv[1], kinds[k].name) && i < atoi(argv[2]); i++) {
            known = true;
            ASSERT(kinds[k].send() != CUDA_SUCCESS);
        }
    ASSERT(known);
    say_line("done");
    getchar();
    return 0;
}
