/* sim_module.c: modules, their kernels and variables, and every way to launch. */
#define _GNU_SOURCE
#include <stddef.h>
#include "kernels.h"
#include "objects.h"

#include <dlfcn.h>
#include <math.h>
#include <stdint.h>

#define N 1000
static float x[N], y[N], z[N];
static CUdeviceptr dx, dy, dz;

static void loading(void)
{
    CUmodule m;
    char log[256] = "";
    CUjit_option options[] = {5, 6}; /* error log buffer, its size */
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    CHECK(cuModuleLoadDataEx(&m, ".version 7.0\n.target sm_70\n.visible .entry (", 2, options, values) != CUDA_SUCCESS);
    CHECK(log[0] != 0);
    CHECK_RESULT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&m, "/nonexistent.ptx"));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(NULL, kernels_ptx));
    char path[] = "/tmp/gfaas-check-XXXXXX.ptx";
    int fd = mkstemps(path, 4);
    FILE *f = fdopen(fd, "w");
    fputs(kernels_ptx, f);
    fclose(f);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleLoad(&m, path));
    remove(path);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(m));
}

/* PTX that only the simulator refuses. */
static void refused(void)
{
    static const char *const bad[] = {
        ".version 7.0\n.target sm_70\n// gfaas-sim: nobody block_us=1\n",
        ".version 7.0\n.visible .entry k() { ret; }\n// gfaas-sim: k block_us=soon\n",
        ".version 7.0\n.visible .entry k() { ret; }\n// gfaas-sim: k op=divide\n",
        ".version 7.0\n.visible .entry k() { ret; }\n// gfaas-sim: k op=vadd_f32\n",
        ".version 7.0\n.visible .entry k() { ret; }\n// gfaas-sim: k color=red\n",
        ".version 7.0\n.visible .entry k(.param .u64 a { ret; }\n",
        ".version 7.0\n.visible .entry k() { ret;\n",
        ".version 7.0\n.visible .entry",
        ".version 7.0\n.visible .entry k() { ret; } // 2 \u00d7 2\n",
    };
    CUmodule m;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_RESULT(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&m, bad[i]));
    CHECK_RESULT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, "hello, world"));
    CHECK_RESULT(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&m, "\177ELF\2\1\1"));
    CHECK_RESULT(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadFatBinary(&m, "\x50\xed\x55\xba"));
}

static void contents(CUmodule m)
{
    CUfunction f, g;
    CUdeviceptr p = 0;
    CUmodule back;
    size_t bytes = 0, offset = 0, size = 0;
    unsigned value = 0, zero[6];
    int v = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&f, m, "mixed"));
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&g, m, "missing"));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(&g, m, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuFuncGetParamInfo(f, 1, &offset, &size));
    CHECK(offset == 8 && size == 12);
    CHECK_RESULT(CUDA_SUCCESS, cuFuncGetParamInfo(f, 2, &offset, &size));
    CHECK(offset == 20 && size == 2);
    CHECK_RESULT(CUDA_SUCCESS, cuFuncGetParamInfo(f, 3, &offset, NULL));
    CHECK(offset == 24);
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(f, 4, &offset, &size));
    CUresult (*get_count)(CUfunction, size_t *); /* from CUDA 13.2 on */
    *(void **)&get_count = dlsym(RTLD_DEFAULT, "cuFuncGetParamCount");
    if (get_count) {
        CHECK_RESULT(CUDA_SUCCESS, get_count(f, &size));
        CHECK(size == 4);
        CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, get_count(f, NULL));
    }
    CHECK_RESULT(CUDA_SUCCESS, cuFuncGetModule(&back, f));
    CHECK(back == m);
    CHECK_RESULT(CUDA_SUCCESS, cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
    CHECK(v >= 32 && v <= 1024);
    CHECK_RESULT(CUDA_SUCCESS, cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 256, 0));
    CHECK(v >= 1);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(&p, &bytes, m, "counter"));
    CHECK(bytes == 4);
    ASSERT_SUCCESS(cuMemcpyDtoH(&value, p, 4));
    CHECK(value == 7);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetGlobal(&p, &bytes, m, "table"));
    CHECK(bytes == 24);
    ASSERT_SUCCESS(cuMemcpyDtoH(zero, p, 24));
    CHECK(!zero[0] && !zero[5]);
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&p, &bytes, m, "missing"));
}

static bool result_is(float k)
{
    ASSERT_SUCCESS(cuMemcpyDtoH(z, dz, sizeof z));
    for (int i = 0; i < N; i++)
        if (z[i] != x[i] + k * y[i])
            return false;
    return true;
}

static void launches(CUmodule m)
{
    int n = N;
    float k = 2;
    CUfunction vadd = function_of(m, "vadd"), saxpy = function_of(m, "saxpy");
    CUfunction sgemm = function_of(m, "sgemm");
    void *add[] = {&dx, &dy, &dz, &n}, *axpy[] = {&k, &dy, &dz, &n};
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(vadd, 4, 1, 1, 256, 1, 1, 0, NULL, add, NULL));
    CHECK(result_is(1));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, NULL, axpy, NULL));
    CHECK(result_is(3));
    struct {
        CUdeviceptr a, b, c;
        int n;
    } packed = {dx, dy, dz, N};
    size_t size = offsetof(__typeof__(packed), n) + sizeof n; /* without the padding */
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    ASSERT_SUCCESS(cuMemsetD8(dz, 0, sizeof z));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(vadd, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, extra));
    CHECK(result_is(1));
    size_t padded = sizeof packed;
    void *longer[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &padded, CU_LAUNCH_PARAM_END};
    CHECK_RESULT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, cuLaunchKernel(vadd, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, longer));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(vadd, 4, 1, 1, 256, 1, 1, 0, NULL, add, extra));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(vadd, 0, 1, 1, 256, 1, 1, 0, NULL, add, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(vadd, 1, 1, 1, 2048, 1, 1, 0, NULL, add, NULL));
    CUlaunchConfig config = {4, 1, 1, 256, 1, 1, 0, NULL, NULL, 0};
    ASSERT_SUCCESS(cuMemsetD8(dz, 0, sizeof z));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernelEx(&config, vadd, add, NULL));
    CHECK(result_is(1));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchCooperativeKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, NULL, axpy));
    CHECK(result_is(3));
    CHECK_RESULT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                 cuLaunchCooperativeKernel(saxpy, 1 << 20, 1, 1, 256, 1, 1, 0, NULL, axpy));
    float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {7, 8, 9, 10, 11, 12}, c[4];
    int rows = 2, cols = 2, inner = 3;
    void *gemm[] = {&dx, &dy, &dz, &rows, &cols, &inner};
    ASSERT_SUCCESS(cuMemcpyHtoD(dx, a, sizeof a));
    ASSERT_SUCCESS(cuMemcpyHtoD(dy, b, sizeof b));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(sgemm, 1, 1, 1, 32, 1, 1, 0, NULL, gemm, NULL));
    ASSERT_SUCCESS(cuMemcpyDtoH(c, dz, sizeof c));
    CHECK(c[0] == 58 && c[1] == 64 && c[2] == 139 && c[3] == 154);
    ASSERT_SUCCESS(cuMemcpyHtoD(dx, x, sizeof x));
    ASSERT_SUCCESS(cuMemcpyHtoD(dy, y, sizeof y));
}

/* The interface of CUDA 2, which drivers still support. */
static void legacy(CUmodule m)
{
    CUfunction f = function_of(m, "vadd");
    ASSERT_SUCCESS(cuMemsetD8(dz, 0, sizeof z));
    CHECK_RESULT(CUDA_SUCCESS, cuFuncSetBlockShape(f, 256, 1, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuParamSetSize(f, 28));
    CHECK_RESULT(CUDA_SUCCESS, cuParamSetv(f, 0, &dx, 8));
    CHECK_RESULT(CUDA_SUCCESS, cuParamSetv(f, 8, &dy, 8));
    CHECK_RESULT(CUDA_SUCCESS, cuParamSetv(f, 16, &dz, 8));
    CHECK_RESULT(CUDA_SUCCESS, cuParamSeti(f, 24, N));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchGrid(f, 4, 1));
    CHECK(result_is(1));
    CHECK_RESULT(CUDA_SUCCESS, cuFuncSetBlockShape(f, 1024, 1, 1));
    ASSERT_SUCCESS(cuMemsetD8(dz, 0, sizeof z));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunch(f));
    CHECK(result_is(1));
}

/* After a kernel reads from an unmapped address, the process lives on but cannot use CUDA. */
static void stray(CUdevice dev)
{
    CUcontext ctx, old, another;
    CUdeviceptr nowhere = 4096, p;
    int n = N;
    ASSERT_SUCCESS(cuCtxCreate(&old, 0, dev));
    ASSERT_SUCCESS(cuCtxCreate(&ctx, 0, dev));
    CUmodule m = new_module(kernels_ptx);
    CUfunction f = function_of(m, "vadd");
    void *args[] = {&nowhere, &nowhere, &nowhere, &n};
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(f, 4, 1, 1, 256, 1, 1, 0, NULL, args, NULL));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&p, 16));
    CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuLaunchKernel(f, 4, 1, 1, 256, 1, 1, 0, NULL, args, NULL));
    cuCtxDestroy(ctx);
    SIM_CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS,
                     cuCtxSetCurrent(old) ? CUDA_ERROR_ILLEGAL_ADDRESS : cuCtxSynchronize());
    cuCtxDestroy(old);
    SIM_CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxCreate(&another, 0, dev));
    cuDevicePrimaryCtxReset(dev);
    SIM_CHECK_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuDevicePrimaryCtxRetain(&another, dev));
}

/* Variables that hold addresses of other variables. */
static void addresses(void)
{
    static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                              ".visible .global .align 4 .b8 text[8] = {1, 2, 3, 4, 5, 6, 7, 8};\n"
                              ".visible .global .align 8 .u64 before = generic(text);\n"
                              ".visible .global .align 8 .u64 list[4] = {generic(text)+4, 7, generic(before), 9};\n"
                              ".visible .entry tick()\n{\n ret;\n}\n";
    CUdeviceptr before, text, list;
    uint64_t v[4];
    CUmodule m = new_module(ptx);
    ASSERT_SUCCESS(cuModuleGetGlobal(&before, NULL, m, "before"));
    ASSERT_SUCCESS(cuModuleGetGlobal(&text, NULL, m, "text"));
    ASSERT_SUCCESS(cuModuleGetGlobal(&list, NULL, m, "list"));
    ASSERT_SUCCESS(cuMemcpyDtoH(v, before, 8));
    CHECK(v[0] == text);
    ASSERT_SUCCESS(cuMemcpyDtoH(v, list, sizeof v));
    CHECK(v[0] == text + 4 && v[1] == 7 && v[2] == before && v[3] == 9);
    ASSERT_SUCCESS(cuMemcpyDtoH(v, text, 8));
    CHECK(v[0] == 0x0807060504030201);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(m));
    CHECK_RESULT(CUDA_ERROR_INVALID_PTX,
                 cuModuleLoadData(&m, ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 8 .u64 a = generic(;\n"));
}

/* Links two texts into one module (on a GPU, into code). */
static void joined(void)
{
    static char one[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry one()\n{\n ret;\n}\n";
    static char two[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry two()\n{\n ret;\n}\n";
    CUlinkState l;
    CUmodule m;
    CUfunction f;
    void *code = NULL;
    size_t n = 0;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuLinkCreate(0, NULL, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkCreate(0, NULL, NULL, &l));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkAddData(l, 1, one, sizeof one, "one", 0, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkAddData(l, 1, two, sizeof two, "two", 0, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkComplete(l, &code, &n));
    CHECK(code && n);
    CHECK_RESULT(CUDA_SUCCESS, cuModuleLoadData(&m, code));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkDestroy(l));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&f, m, "one"));
    CHECK_RESULT(CUDA_SUCCESS, cuModuleGetFunction(&f, m, "two"));
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(m));
    ASSERT_SUCCESS(cuLinkCreate(0, NULL, NULL, &l));
    CHECK_RESULT(CUDA_ERROR_INVALID_IMAGE, cuLinkAddData(l, 1, "no PTX", 7, "three", 0, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_FILE_NOT_FOUND, cuLinkAddFile(l, 1, "/nowhere/x.ptx", 0, NULL, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuLinkDestroy(l));
}

/* Resources of a context can be freed while no context is current. */
static void without_context(void)
{
    CUcontext mine, none;
    void *h;
    CUmodule m = new_module(kernels_ptx);
    CUdeviceptr p = new_memory(4096);
    ASSERT_SUCCESS(cuMemAllocHost(&h, 4096));
    ASSERT_SUCCESS(cuCtxPopCurrent(&mine));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxGetCurrent(&none));
    CHECK(!none);
    SIM_CHECK_RESULT(CUDA_SUCCESS, cuMemFree(p));
    SIM_CHECK_RESULT(CUDA_SUCCESS, cuMemFreeHost(h));
    SIM_CHECK_RESULT(CUDA_SUCCESS, cuModuleUnload(m));
    ASSERT_SUCCESS(cuCtxPushCurrent(mine));
}

static void handles(CUmodule m)
{
    char junk[512] = {0};
    CUfunction f = function_of(m, "tick");
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel((CUfunction)junk, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, (CUstream)junk, NULL, NULL));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload((CUmodule)junk));
    CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&f, (CUmodule)junk, "x"));
}

int main(void)
{
    CUdevice dev = first_device();
    CUcontext ctx = new_context(dev);
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
        y[i] = (float)(3 * i);
    }
    ASSERT_SUCCESS(cuMemAlloc(&dx, sizeof x));
    ASSERT_SUCCESS(cuMemAlloc(&dy, sizeof y));
    ASSERT_SUCCESS(cuMemAlloc(&dz, sizeof z));
    ASSERT_SUCCESS(cuMemcpyHtoD(dx, x, sizeof x));
    ASSERT_SUCCESS(cuMemcpyHtoD(dy, y, sizeof y));
    CUmodule m = new_module(kernels_ptx);
    PART(loading());
    PART(contents(m));
    PART(launches(m));
    PART(legacy(m));
    PART(addresses());
    PART(joined());
    PART(without_context());
    if (simulated(dev)) { /* a real driver dereferences such pointers */
        PART(refused());
        PART(handles(m));
    }
    ASSERT_SUCCESS(cuModuleUnload(m));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    PART(stray(dev)); /* last, because on a GPU the process cannot use CUDA afterwards */
    return tap_end();
}
