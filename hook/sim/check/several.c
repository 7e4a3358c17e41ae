/* several.c: a program to run in several processes at once. It prints its observations line by line
 * on standard output, and ends with its standard input.
 *
 *   several burn          keeps the device busy; a line for each 20 ms of its own
 *                         work: how long that took by events, and the free memory
 *   several graphs        the same, each time as one graph of parallel branches
 *   several hold BYTES    allocates, prints "held" or "oom", and keeps the memory
 *   several long          launches a kernel of a minute, prints "long", and waits */
#include "objects.h"

#include <poll.h>
#include <unistd.h>

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                          "// gfaas-sim: tick block_us=1000\n"
                          ".visible .entry tick()\n{\n ret;\n}\n";

#define BATCH 20 /* kernels of 1 ms */
#define RING 4

static bool input_ended(void)
{
    struct pollfd p = {.fd = 0, .events = POLLIN};
    char c;
    return poll(&p, 1, 0) > 0 && read(0, &c, 1) <= 0;
}

static void wait_for_end(void)
{
    char c;
    while (read(0, &c, 1) > 0)
        ;
}

/* Makes a batch as a graph: a first kernel, branches, and a last kernel that joins them. */
static CUgraphExec batch_graph(CUfunction tick)
{
    CUgraphNode n[BATCH];
    CUDA_KERNEL_NODE_PARAMS p = {.func = tick, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1};
    p.blockDimY = p.blockDimZ = 1;
    CUgraph g = new_graph();
    for (size_t i = 0; i < BATCH; i++) {
        bool last = i == BATCH - 1;
        ASSERT_SUCCESS(cuGraphAddKernelNode(&n[i], g, i ? n + last : NULL, last ? BATCH - 2 : i != 0, &p));
    }
    CUgraphExec e = new_instance(g);
    ASSERT_SUCCESS(cuGraphDestroy(g));
    return e;
}

static void burn(CUfunction tick, CUgraphExec graph)
{
    CUevent e[RING];
    size_t free_bytes, total;
    for (int i = 0; i < RING; i++)
        ASSERT_SUCCESS(cuEventCreate(&e[i], 0));
    ASSERT_SUCCESS(cuLaunchKernel(tick, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    ASSERT_SUCCESS(cuEventRecord(e[0], NULL));
    for (unsigned n = 1; !input_ended(); n++) {
        if (graph)
            ASSERT_SUCCESS(cuGraphLaunch(graph, NULL));
        for (int i = 0; i < BATCH && !graph; i++)
            ASSERT_SUCCESS(cuLaunchKernel(tick, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        ASSERT_SUCCESS(cuEventRecord(e[n % RING], NULL));
        if (n < RING - 1)
            continue;
        float ms;
        ASSERT_SUCCESS(cuEventSynchronize(e[(n + 2) % RING])); /* of batch n - 2 */
        ASSERT_SUCCESS(cuEventElapsedTime(&ms, e[(n + 1) % RING], e[(n + 2) % RING]));
        ASSERT_SUCCESS(cuMemGetInfo(&free_bytes, &total));
        printf("batch %.4f %zu\n", ms, free_bytes);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    CUdeviceptr p;
    if (argc < 2)
        return 2;
    CUdevice dev = first_device();
    new_context(dev);
    CUmodule m = new_module(ptx);
    CUfunction tick = function_of(m, "tick");
    if (!strcmp(argv[1], "burn")) {
        burn(tick, NULL);
    } else if (!strcmp(argv[1], "graphs")) {
        burn(tick, batch_graph(tick));
    } else if (!strcmp(argv[1], "hold") && argc > 2) {
        CUresult r = cuMemAlloc(&p, strtoull(argv[2], NULL, 10));
        puts(r == CUDA_SUCCESS ? "held" : r == CUDA_ERROR_OUT_OF_MEMORY ? "oom" : "error");
        fflush(stdout);
        wait_for_end();
    } else if (!strcmp(argv[1], "long")) {
        ASSERT_SUCCESS(cuMemAlloc(&p, 1 << 20));
        ASSERT_SUCCESS(cuLaunchKernel(tick, 60000, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        puts("long");
        fflush(stdout);
        wait_for_end();
    } else {
        return 2;
    }
    return 0; /* without cleanup: that is the driver's task */
}
