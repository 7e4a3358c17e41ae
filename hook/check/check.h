/* check.h: helpers for the programs in this folder. The programs use the CUDA driver API as any other
 * program does. They run on the simulated driver and on a real one, with and without the preload library. */
#pragma once

#include "cuda.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

/* Exits with status 1 if a driver call fails. */
#define ASSERT_SUCCESS(call) \
    do { \
        CUresult result_ = (call); \
        if (result_ != CUDA_SUCCESS) { \
            fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, (int)result_); \
            exit(1); \
        } \
    } while (0)

/* Exits with status 1 if a condition is false. */
#define ASSERT(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* Exits with status 1 if element i of a vector does not have the expected value. */
#define ASSERT_ELEMENT(vector, i, expected) \
    do { \
        double got_ = (double)(vector)[i], want_ = (double)(expected); \
        if (got_ != want_) { \
            fprintf(stderr, "%s:%d: element %ld of %s: got %.9g, want %.9g\n", __FILE__, __LINE__, (long)(i), #vector, got_, want_); \
            exit(1); \
        } \
    } while (0)

/* Two kernels. add(a, b, c, n) sets c[i] = a[i] + b[i] for i < n. nop() does nothing. The simulated driver
 * does not run PTX: a comment "gfaas-sim:" gives the operation of a kernel and the time of a block in
 * microseconds. */
static const char check_ptx[] __attribute__((unused)) =
    "// gfaas-sim: add op=vadd_f32 block_us=10\n"
    "// gfaas-sim: nop block_us=1\n"
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
    "{\n"
    " .reg .pred %p<2>;\n .reg .f32 %f<4>;\n .reg .b32 %r<6>;\n .reg .b64 %rd<11>;\n"
    " ld.param.u64 %rd1, [a];\n ld.param.u64 %rd2, [b];\n ld.param.u64 %rd3, [c];\n ld.param.u32 %r2, [n];\n"
    " mov.u32 %r3, %ctaid.x;\n mov.u32 %r4, %ntid.x;\n mov.u32 %r5, %tid.x;\n"
    " mad.lo.s32 %r1, %r3, %r4, %r5;\n setp.ge.u32 %p1, %r1, %r2;\n @%p1 bra DONE;\n"
    " cvta.to.global.u64 %rd4, %rd1;\n cvta.to.global.u64 %rd5, %rd2;\n cvta.to.global.u64 %rd6, %rd3;\n"
    " mul.wide.u32 %rd7, %r1, 4;\n add.s64 %rd8, %rd4, %rd7;\n add.s64 %rd9, %rd5, %rd7;\n add.s64 %rd10, %rd6, %rd7;\n"
    " ld.global.f32 %f1, [%rd8];\n ld.global.f32 %f2, [%rd9];\n add.f32 %f3, %f1, %f2;\n st.global.f32 [%rd10], %f3;\n"
    "DONE:\n ret;\n}\n"
    ".visible .entry nop()\n{\n ret;\n}\n";

/* Returns the address of the driver function with exactly this name, or NULL if the driver lacks it. */
static inline void *driver_find(const char *name)
{
    static void *handle;
    if (!handle)
        handle = dlopen("libcuda.so.1", RTLD_NOW);
    ASSERT(handle);
    return dlsym(handle, name);
}

static inline pthread_t start_thread(void *(*run)(void *), void *arg)
{
    pthread_t thread;
    ASSERT(pthread_create(&thread, NULL, run, arg) == 0);
    return thread;
}

/* Waits for the end of a child process, which must succeed. */
static inline void ends_well(pid_t child)
{
    int status;
    ASSERT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* Creates a context on the first device, makes it current and returns it. */
static inline CUcontext own_context(void)
{
    CUdevice device;
    CUcontext context;
    ASSERT_SUCCESS(cuInit(0));
    ASSERT_SUCCESS(cuDeviceGet(&device, 0));
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    return context;
}

/* Makes the primary context of a device current and returns it. */
static inline CUcontext primary_of(CUdevice device)
{
    CUcontext context;
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context, device));
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    return context;
}

/* Makes the primary context of the first device current and returns it. */
static inline CUcontext primary_context(void)
{
    CUdevice device;
    ASSERT_SUCCESS(cuInit(0));
    ASSERT_SUCCESS(cuDeviceGet(&device, 0));
    return primary_of(device);
}

/* Loads a module from PTX and returns its kernel of that name. */
static inline CUfunction kernel(const char *ptx, const char *name)
{
    CUmodule module;
    CUfunction function;
    ASSERT_SUCCESS(cuModuleLoadData(&module, ptx));
    ASSERT_SUCCESS(cuModuleGetFunction(&function, module, name));
    return function;
}

/* Returns a kernel that does nothing. On the simulated GPU, each of its blocks takes block_us microseconds. */
static inline CUfunction timed_kernel(int block_us)
{
    char ptx[256];
    snprintf(ptx, sizeof ptx, "// gfaas-sim: timed block_us=%d\n.version 7.0\n.target sm_70\n.address_size 64\n"
                              ".visible .entry timed()\n{\n ret;\n}\n", block_us);
    return kernel(ptx, "timed");
}

static inline CUdeviceptr new_memory(size_t bytes)
{
    CUdeviceptr memory;
    ASSERT_SUCCESS(cuMemAlloc_v2(&memory, bytes));
    return memory;
}

static inline CUstream new_stream(void)
{
    CUstream stream;
    ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Launches a kernel without parameters as one block of one thread. */
static inline void launch_block(CUfunction function, CUstream stream)
{
    ASSERT_SUCCESS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

/* Returns the parameters of a graph node that launches what launch_block launches. */
static inline CUDA_KERNEL_NODE_PARAMS_v2 kernel_node(CUfunction function)
{
    return (CUDA_KERNEL_NODE_PARAMS_v2){.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                        .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
}

/* Returns an instantiated graph whose only node is the launch_block of a kernel. */
static inline CUgraphExec kernel_graph(CUfunction function)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_KERNEL_NODE_PARAMS_v2 p = kernel_node(function);
    ASSERT_SUCCESS(cuGraphCreate(&graph, 0));
    ASSERT_SUCCESS(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &p));
    ASSERT_SUCCESS(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

/* Prints a line and flushes standard output, because a test may wait for the line. */
static inline void say_line(const char *line)
{
    puts(line);
    fflush(stdout);
}

/* Waits for the end of standard input. A test closes it when it no longer needs the program. */
static inline void await_end(void)
{
    while (getchar() != EOF)
        ;
}

static inline double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
