/* sim_library.c: libraries and kernels, which belong to no context. */
#include "kernels.h"
#include "tap.h"

#include <string.h>

#define N 256

static CUdevice dev;
static float x[N], sum[N];

/* Adds a vector to itself by a handle that is a kernel's or a function's. */
static bool adds(CUfunction f, CUstream s)
{
    CUdeviceptr dx, dsum;
    int n = N;
    MUST(cuMemAlloc(&dx, sizeof x));
    MUST(cuMemAlloc(&dsum, sizeof sum));
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    memset(sum, 0, sizeof sum);
    MUST(cuMemcpyHtoD(dx, x, sizeof x));
    void *args[] = {&dx, &dx, &dsum, &n};
    GIVES(CUDA_SUCCESS, cuLaunchKernel(f, 1, 1, 1, N, 1, 1, 0, s, args, NULL));
    MUST(cuStreamSynchronize(s));
    MUST(cuMemcpyDtoH(sum, dsum, sizeof sum));
    MUST(cuMemFree(dx));
    MUST(cuMemFree(dsum));
    bool right = true;
    for (int i = 0; i < N; i++)
        right &= sum[i] == 2 * x[i];
    return right;
}

static void without_a_context(void)
{
    CUlibrary lib, of;
    CUkernel k;
    CUfunction f;
    unsigned n = 0;
    size_t offset, size;
    const char *name = "";
    GIVES(CUDA_SUCCESS, cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    GIVES(CUDA_SUCCESS, cuLibraryGetKernelCount(&n, lib));
    CHECK(n == 6);
    GIVES(CUDA_SUCCESS, cuLibraryGetKernel(&k, lib, "mixed"));
    GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&k, lib, "none"));
    GIVES(CUDA_SUCCESS, cuKernelGetName(&name, k));
    CHECK(!strcmp(name, "mixed"));
    GIVES(CUDA_SUCCESS, cuKernelGetLibrary(&of, k));
    CHECK(of == lib);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuKernelGetFunction(&f, k));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuKernelGetParamInfo(k, 3, &offset, &size));
    GIVES(CUDA_SUCCESS, cuLibraryUnload(lib));
}

static void launched(void)
{
    CUlibrary lib;
    CUkernel k, all[16];
    CUfunction f;
    CUmodule m;
    CUdeviceptr p, q;
    size_t size;
    unsigned n;
    MUST(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&k, lib, "vadd"));
    CHECK(adds((CUfunction)k, NULL));
    GIVES(CUDA_SUCCESS, cuKernelGetFunction(&f, k));
    CHECK(adds(f, NULL));
    GIVES(CUDA_SUCCESS, cuLibraryGetModule(&m, lib));
    GIVES(CUDA_SUCCESS, cuModuleGetGlobal(&p, &size, m, "table"));
    GIVES(CUDA_SUCCESS, cuLibraryGetGlobal(&q, &size, lib, "table"));
    CHECK(p == q && size == 24);
    GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&q, &size, lib, "table"));
    CUkernel mixed;
    size_t offset;
    MUST(cuLibraryGetKernel(&mixed, lib, "mixed"));
    GIVES(CUDA_SUCCESS, cuKernelGetParamInfo(mixed, 3, &offset, &size));
    CHECK(offset == 24 && size == 8);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuKernelGetParamInfo(mixed, 4, &offset, &size));
    MUST(cuLibraryGetKernelCount(&n, lib));
    GIVES(CUDA_SUCCESS, cuLibraryEnumerateKernels(all, 16, lib));
    bool there = false;
    for (unsigned i = 0; i < n; i++)
        there |= all[i] == k;
    CHECK(there);
    GIVES(CUDA_SUCCESS, cuLibraryUnload(lib));
}

/* What is set of a kernel is so of its function, loaded before or after. */
static void attributes(void)
{
    CUlibrary lib;
    CUkernel k;
    CUfunction f;
    int value = 0;
    MUST(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&k, lib, "tick"));
    GIVES(CUDA_SUCCESS, cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536, k, dev));
    GIVES(CUDA_SUCCESS, cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, k, dev));
    CHECK(value == 65536);
    MUST(cuKernelGetFunction(&f, k));
    MUST(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
    CHECK(value == 65536);
    GIVES(CUDA_SUCCESS, cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 81920, k, dev));
    MUST(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
    CHECK(value == 81920);
    GIVES(CUDA_SUCCESS, cuKernelSetCacheConfig(k, CU_FUNC_CACHE_PREFER_L1, dev));
    GIVES(CUDA_SUCCESS, cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 81920, NULL, NULL, NULL));
    GIVES(CUDA_SUCCESS, cuLibraryUnload(lib)); /* when its work is done */
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
}

/* A node of a graph has a kernel in place of a function, or in its own field. */
static void in_graphs(void)
{
    CUlibrary lib;
    CUkernel k;
    CUgraph g;
    CUgraphExec e;
    CUgraphNode node;
    MUST(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&k, lib, "tick"));
    MUST(cuGraphCreate(&g, 0));
    CUDA_KERNEL_NODE_PARAMS p = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    p.kern = k;
    GIVES(CUDA_SUCCESS, cuGraphAddKernelNode(&node, g, NULL, 0, &p));
    MUST(cuGraphInstantiate(&e, g, 0));
    GIVES(CUDA_SUCCESS, cuGraphLaunch(e, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuGraphExecDestroy(e));
    MUST(cuGraphDestroy(g));
    MUST(cuLibraryUnload(lib));
}

/* In each context it is loaded anew. */
static void in_two_contexts(void)
{
    CUcontext other, popped;
    CUlibrary lib;
    CUkernel k;
    CUdeviceptr p, q;
    size_t size;
    MUST(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&k, lib, "vadd"));
    MUST(cuLibraryGetGlobal(&p, &size, lib, "counter"));
    CHECK(adds((CUfunction)k, NULL));
    MUST(cuCtxCreate(&other, 0, dev));
    MUST(cuLibraryGetGlobal(&q, &size, lib, "counter"));
    CHECK(p != q);
    CHECK(adds((CUfunction)k, NULL));
    MUST(cuCtxPopCurrent(&popped));
    MUST(cuCtxDestroy(other));
    CHECK(adds((CUfunction)k, NULL));
    MUST(cuLibraryUnload(lib));
}

/* What only the simulator promises: a driver need not look at what it is given. */
static void refused(void)
{
    CUlibrary lib, old;
    CUkernel k;
    CUmodule m;
    GIVES(CUDA_ERROR_INVALID_PTX, cuLibraryLoadData(&lib, ".version 7.0\n.visible .entry (", NULL, NULL, 0, NULL, NULL, 0));
    GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuLibraryLoadFromFile(&lib, "/nonexistent.ptx", NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&k, lib, "tick"));
    MUST(cuLibraryGetModule(&m, lib));
    GIVES(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(m));
    old = lib;
    MUST(cuLibraryUnload(lib));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(old));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

int main(void)
{
    CUcontext ctx;
    dev = first_device();
    PART(without_a_context());
    MUST(cuCtxCreate(&ctx, 0, dev));
    PART(launched());
    PART(attributes());
    PART(in_graphs());
    PART(in_two_contexts());
    if (simulated(dev))
        PART(refused());
    GIVES(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
