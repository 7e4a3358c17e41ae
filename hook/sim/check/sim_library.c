/* sim_library.c: libraries and kernels, which belong to no context. */
#include "kernels.h"
#include "objects.h"

#include <string.h>

#define N 256

static CUdevice dev;
static float x[N], sum[N];

/* Adds a vector to itself with a kernel's or a function's handle. */
static bool adds(CUfunction f, CUstream s)
{
    int n = N;
    CUdeviceptr dx = new_memory(sizeof x), dsum = new_memory(sizeof sum);
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    memset(sum, 0, sizeof sum);
    ASSERT_SUCCESS(cuMemcpyHtoD(dx, x, sizeof x));
    void *args[] = {&dx, &dx, &dsum, &n};
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(f, 1, 1, 1, N, 1, 1, 0, s, args, NULL));
    ASSERT_SUCCESS(cuStreamSynchronize(s));
    ASSERT_SUCCESS(cuMemcpyDtoH(sum, dsum, sizeof sum));
    DESTROY(dx, dsum);
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
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryGetKernelCount(&n, lib));
    CHECK(n == 6);
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryGetKernel(&k, lib, "mixed"));
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&k, lib, "none"));
    CHECK_RESULT(CUDA_SUCCESS, cuKernelGetName(&name, k));
    CHECK(!strcmp(name, "mixed"));
    CHECK_RESULT(CUDA_SUCCESS, cuKernelGetLibrary(&of, k));
    CHECK(of == lib);
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuKernelGetFunction(&f, k));
    CHECK_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuKernelGetParamInfo(k, 3, &offset, &size));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryUnload(lib));
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
    ASSERT_SUCCESS(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    ASSERT_SUCCESS(cuLibraryGetKernel(&k, lib, "vadd"));
    CHECK(adds((CUfunction)k, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuKernelGetFunction(&f, k));
    CHECK(adds(f, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryGetModule(&m, lib));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(&p, &size, m, "table"));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryGetGlobal(&q, &size, lib, "table"));
    CHECK(p == q && size == 24);
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&q, &size, lib, "table"));
    CUkernel mixed;
    size_t offset;
    ASSERT_SUCCESS(cuLibraryGetKernel(&mixed, lib, "mixed"));
    CHECK_RESULT(CUDA_SUCCESS, cuKernelGetParamInfo(mixed, 3, &offset, &size));
    CHECK(offset == 24 && size == 8);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuKernelGetParamInfo(mixed, 4, &offset, &size));
    ASSERT_SUCCESS(cuLibraryGetKernelCount(&n, lib));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryEnumerateKernels(all, 16, lib));
    bool there = false;
    for (unsigned i = 0; i < n; i++)
        there |= all[i] == k;
    CHECK(there);
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryUnload(lib));
}

/* An attribute of a kernel applies to its function, whether the function was loaded before or
 * after. */
static void attributes(void)
{
    CUlibrary lib;
    CUkernel k;
    CUfunction f;
    int value = 0;
    ASSERT_SUCCESS(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    ASSERT_SUCCESS(cuLibraryGetKernel(&k, lib, "tick"));
    CHECK_RESULT(CUDA_SUCCESS, cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536, k, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, k, dev));
    CHECK(value == 65536);
    ASSERT_SUCCESS(cuKernelGetFunction(&f, k));
    ASSERT_SUCCESS(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
    CHECK(value == 65536);
    CHECK_RESULT(CUDA_SUCCESS, cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 81920, k, dev));
    ASSERT_SUCCESS(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
    CHECK(value == 81920);
    CHECK_RESULT(CUDA_SUCCESS, cuKernelSetCacheConfig(k, CU_FUNC_CACHE_PREFER_L1, dev));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 81920, NULL, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLibraryUnload(lib)); /* the unloading waits for its work */
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
}

/* A graph node accepts a kernel in its own field, in place of a function. */
static void in_graphs(void)
{
    CUlibrary lib;
    CUkernel k;
    CUgraphNode node;
    ASSERT_SUCCESS(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    ASSERT_SUCCESS(cuLibraryGetKernel(&k, lib, "tick"));
    CUgraph g = new_graph();
    CUDA_KERNEL_NODE_PARAMS p = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    p.kern = k;
    CHECK_RESULT(CUDA_SUCCESS, cuGraphAddKernelNode(&node, g, NULL, 0, &p));
    CUgraphExec e = new_instance(g);
    CHECK_RESULT(CUDA_SUCCESS, cuGraphLaunch(e, NULL));
    ASSERT_SUCCESS(cuCtxSynchronize());
    DESTROY(e, g);
    ASSERT_SUCCESS(cuLibraryUnload(lib));
}

/* The library is loaded separately in each context. */
static void in_two_contexts(void)
{
    CUcontext other, popped;
    CUlibrary lib;
    CUkernel k;
    CUdeviceptr p, q;
    size_t size;
    ASSERT_SUCCESS(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    ASSERT_SUCCESS(cuLibraryGetKernel(&k, lib, "vadd"));
    ASSERT_SUCCESS(cuLibraryGetGlobal(&p, &size, lib, "counter"));
    CHECK(adds((CUfunction)k, NULL));
    ASSERT_SUCCESS(cuCtxCreate(&other, 0, dev));
    ASSERT_SUCCESS(cuLibraryGetGlobal(&q, &size, lib, "counter"));
    CHECK(p != q);
    CHECK(adds((CUfunction)k, NULL));
    ASSERT_SUCCESS(cuCtxPopCurrent(&popped));
    ASSERT_SUCCESS(cuCtxDestroy(other));
    CHECK(adds((CUfunction)k, NULL));
    ASSERT_SUCCESS(cuLibraryUnload(lib));
}

/* Only the simulator refuses these: a driver need not check its arguments. */
static void refused(void)
{
    CUlibrary lib, old;
    CUkernel k;
    CUmodule m;
    CHECK_RESULT(CUDA_ERROR_INVALID_PTX, cuLibraryLoadData(&lib, ".version 7.0\n.visible .entry (", NULL, NULL, 0,
                                                           NULL, NULL, 0));
    CHECK_RESULT(CUDA_ERROR_FILE_NOT_FOUND,
                 cuLibraryLoadFromFile(&lib, "/nonexistent.ptx", NULL, NULL, 0, NULL, NULL, 0));
    ASSERT_SUCCESS(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    ASSERT_SUCCESS(cuLibraryGetKernel(&k, lib, "tick"));
    ASSERT_SUCCESS(cuLibraryGetModule(&m, lib));
    CHECK_RESULT(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(m));
    old = lib;
    ASSERT_SUCCESS(cuLibraryUnload(lib));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(old));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

int main(void)
{
    dev = first_device();
    PART(without_a_context());
    CUcontext ctx = new_context(dev);
    PART(launched());
    PART(attributes());
    PART(in_graphs());
    PART(in_two_contexts());
    if (simulated(dev))
        PART(refused());
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
