/* sim_lookup.c: cuGetProcAddress in both its forms, and the symbols that names stand for. */
#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "tap.h"

#include <dlfcn.h>

typedef CUresult (*lookup5)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

/* Names that the runtime library looks up, and the symbols that they stand for. */
static const struct {
    const char *base;
    int version, flags;
    const char *symbol;
} wanted[] = {
    {"cuInit", 2000, 0, "cuInit"},
    {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"},
    {"cuMemAlloc", 12000, 2, "cuMemAlloc_v2"},
    {"cuCtxCreate", 3020, 0, "cuCtxCreate_v2"},
    {"cuCtxCreate", 11040, 0, "cuCtxCreate_v3"},
    {"cuCtxDestroy", 4000, 0, "cuCtxDestroy_v2"},
    {"cuLaunchKernel", 4000, 0, "cuLaunchKernel"},
    {"cuLaunchKernel", 7000, 2, "cuLaunchKernel_ptsz"},
    {"cuLaunchKernel", 7000, 1, "cuLaunchKernel"},
    {"cuLaunchKernelEx", 11060, 2, "cuLaunchKernelEx_ptsz"},
    {"cuMemcpyHtoD", 3020, 0, "cuMemcpyHtoD_v2"},
    {"cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"},
    {"cuMemcpyHtoDAsync", 7000, 2, "cuMemcpyHtoDAsync_v2_ptsz"},
    {"cuMemsetD8Async", 12000, 2, "cuMemsetD8Async_ptsz"},
    {"cuStreamSynchronize", 7000, 2, "cuStreamSynchronize_ptsz"},
    {"cuEventRecord", 2000, 0, "cuEventRecord"},
    {"cuGraphInstantiate", 11000, 0, "cuGraphInstantiate_v2"},
    {"cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags"},
    {"cuGraphLaunch", 10000, 0, "cuGraphLaunch"},
    {"cuGraphLaunch", 10000, 2, "cuGraphLaunch_ptsz"},
    {"cuStreamBeginCapture", 10010, 2, "cuStreamBeginCapture_v2_ptsz"},
    {"cuGetProcAddress", 11030, 0, "cuGetProcAddress"},
    {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
};

static void names(void *lib)
{
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)9;
        void *a = NULL, *b = NULL, *want = dlsym(lib, wanted[i].symbol);
        CUresult r4 = cuGetProcAddress(wanted[i].base, &a, wanted[i].version, (cuuint64_t)wanted[i].flags);
        CUresult r5 = cuGetProcAddress_v2(wanted[i].base, &b, wanted[i].version, (cuuint64_t)wanted[i].flags, &status);
        bool ok = r4 == CUDA_SUCCESS && r5 == CUDA_SUCCESS && want && a && a == b && status == CU_GET_PROC_ADDRESS_SUCCESS;
        if (tap(ok, wanted[i].symbol, __FILE__, __LINE__))
            /* or another address of the same function */
            tap_sim(a == want, CUDA_SUCCESS, wanted[i].symbol, __FILE__, __LINE__);
    }
}

static void absent(void)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *p = &p;
    CHECK_RESULT(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchThing", &p, 12000, 0));
    p = &p;
    CHECK_RESULT(CUDA_SUCCESS, cuGetProcAddress_v2("cuNoSuchThing", &p, 12000, 0, &status));
    CHECK(p == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK_RESULT(CUDA_SUCCESS, cuGetProcAddress_v2("cuLaunchKernelEx", &p, 11000, 0, &status));
    CHECK(p == NULL && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK_RESULT(CUDA_SUCCESS, cuGetProcAddress_v2("cuNoSuchThing", &p, 12000, 0, NULL));
    CUdevice dev = 0;
    if (!simulated(dev))
        return; /* driver 580 crashes on the following calls */
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2(NULL, &p, 12000, 0, &status));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuInit", NULL, 12000, 0, &status));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuInit", &p, 99000, 0, &status));
}

/* In a _ptsz function, stream 0 is the thread's own stream. In all others it is the legacy stream. */
static void twins(void)
{
    unsigned long long legacy = 0, own = 0, zero = 0;
    ASSERT_SUCCESS(cuStreamGetId(NULL, &legacy));
    ASSERT_SUCCESS(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
    ASSERT_SUCCESS(cuStreamGetId_ptsz(NULL, &zero));
    CHECK(own == zero && own != legacy);
    ASSERT_SUCCESS(cuStreamGetId_ptsz(CU_STREAM_LEGACY, &zero));
    CHECK(zero == legacy);
}

int main(void)
{
    CUcontext ctx;
    CUdevice dev = first_device();
    const void *table;
    CUuuid id = {{1}};
    void *lib = dlopen("libcuda.so.1", RTLD_NOW), *fn = NULL;
    CHECK(lib != NULL);
    names(lib);
    absent();
    /* as the static runtime library starts: dlsym of the form with five arguments */
    lookup5 lookup = (lookup5)(uintptr_t)dlsym(lib, "cuGetProcAddress_v2");
    CHECK_RESULT(CUDA_SUCCESS, lookup("cuDeviceGet", &fn, 2000, 0, NULL));
    CHECK(fn == dlsym(lib, "cuDeviceGet"));
    ASSERT_SUCCESS(cuCtxCreate_v2(&ctx, 0, dev));
    twins();
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuGetExportTable(NULL, &id));
    CHECK(cuGetExportTable(&table, &id) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy_v2(ctx));
    return tap_end();
}
