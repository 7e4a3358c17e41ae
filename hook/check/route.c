/* route: launches COUNT kernels, having found the driver's function in one WAY
 * and launching by one CALL, and checks what they computed.
 *
 *   route WAY CALL COUNT
 *
 * WAY  link dlsym default next plugin-default plugin-next proc proc2
 *      proc-of-proc
 * CALL kernel kernel-thread ex ex-thread cooperative cooperative-thread grid
 *      grid-async launch extra
 *
 * Then it waits for the end of its standard input, so that one can look at it.
 * Exit 77: the driver does not have that function. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <unistd.h>

enum { N = 1000, THREADS = 128, BLOCKS = (N + THREADS - 1) / THREADS };

static CUdeviceptr a, b, c;
static CUfunction add;

static void *from_driver(const char *name)
{
    static void *handle;
    if (!handle)
        handle = dlopen("libcuda.so.1", RTLD_NOW);
    ENSURE(handle);
    return dlsym(handle, name);
}

/* The driver's own lookup, itself found by dlsym and asked for its newer self. */
static void *by_proc(const char *base, int version, cuuint64_t flags, int indirect)
{
    CUresult (*lookup)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = NULL;
    *(void **)&lookup = from_driver("cuGetProcAddress_v2");
    if (indirect) {
        CUdriverProcAddressQueryResult status;
        void *found = NULL;
        MUST(lookup("cuGetProcAddress", &found, 12000, 0, &status));
        *(void **)&lookup = found;
    }
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    if (lookup(base, &found, version, flags, &status) != CUDA_SUCCESS)
        return NULL;
    return found;
}

static void *linked(const char *name)
{
    static const struct { const char *name; void *address; } all[] = {
        {"cuLaunchKernel", (void *)cuLaunchKernel}, {"cuLaunchKernel_ptsz", (void *)cuLaunchKernel_ptsz},
        {"cuLaunchKernelEx", (void *)cuLaunchKernelEx}, {"cuLaunchKernelEx_ptsz", (void *)cuLaunchKernelEx_ptsz},
        {"cuLaunchCooperativeKernel", (void *)cuLaunchCooperativeKernel},
        {"cuLaunchCooperativeKernel_ptsz", (void *)cuLaunchCooperativeKernel_ptsz},
        {"cuLaunchGrid", (void *)cuLaunchGrid}, {"cuLaunchGridAsync", (void *)cuLaunchGridAsync}, {"cuLaunch", (void *)cuLaunch},
    };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].address;
    return NULL;
}

/* By a library opened only now, which stands behind all others. */
static void *by_plugin(const char *finder, const char *name)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 16);
    ENSURE(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/') + 1, "plugin/find.so");
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *(*find)(const char *) = NULL;
    ENSURE(plugin && (*(void **)&find = dlsym(plugin, finder)));
    dlerror();
    void *found = find(name);
    ENSURE(!found == !!dlerror()); /* an error exactly when it was not found */
    return found;
}

static void *find(const char *way, const char *base, int thread, int version)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", base, thread ? "_ptsz" : "");
    if (!strcmp(way, "link"))
        return linked(name);
    if (!strcmp(way, "dlsym"))
        return from_driver(name);
    if (!strcmp(way, "default"))
        return dlsym(RTLD_DEFAULT, name);
    if (!strcmp(way, "next"))
        return dlsym(RTLD_NEXT, name);
    if (!strcmp(way, "plugin-default"))
        return by_plugin("find_default", name);
    if (!strcmp(way, "plugin-next"))
        return by_plugin("find_next", name);
    if (!strcmp(way, "proc")) {
        CUresult (*lookup)(const char *, void **, int, cuuint64_t) = NULL;
        *(void **)&lookup = from_driver("cuGetProcAddress");
        void *found = NULL;
        return lookup(base, &found, version, thread ? 2 : 0) == CUDA_SUCCESS ? found : NULL;
    }
    if (!strcmp(way, "proc2"))
        return by_proc(base, version, thread ? 2 : 1, 0);
    if (!strcmp(way, "proc-of-proc"))
        return by_proc(base, version, thread ? 2 : 0, 1);
    fprintf(stderr, "route: unknown way %s\n", way);
    exit(2);
}

static void missing(void *f)
{
    if (!f) {
        fprintf(stderr, "route: this driver does not have it\n");
        exit(77);
    }
}

static void legacy(const char *way, const char *call)
{
    unsigned n = N;
    MUST(cuFuncSetBlockShape(add, THREADS, 1, 1));
    MUST(cuParamSetSize(add, 28));
    MUST(cuParamSetv(add, 0, &a, 8));
    MUST(cuParamSetv(add, 8, &b, 8));
    MUST(cuParamSetv(add, 16, &c, 8));
    MUST(cuParamSeti(add, 24, n));
    if (!strcmp(call, "launch")) {
        CUresult (*f)(CUfunction) = NULL;
        missing(*(void **)&f = find(way, "cuLaunch", 0, 2000));
        MUST(f(add));
    } else if (!strcmp(call, "grid")) {
        CUresult (*f)(CUfunction, int, int) = NULL;
        missing(*(void **)&f = find(way, "cuLaunchGrid", 0, 2000));
        MUST(f(add, BLOCKS, 1));
    } else {
        CUresult (*f)(CUfunction, int, int, CUstream) = NULL;
        missing(*(void **)&f = find(way, "cuLaunchGridAsync", 0, 2000));
        MUST(f(add, BLOCKS, 1, NULL));
    }
}

static void launch(const char *way, const char *call)
{
    int n = N;
    void *params[] = {&a, &b, &c, &n};
    int thread = strstr(call, "-thread") != NULL;
    if (!strncmp(call, "kernel", 6) || !strcmp(call, "extra")) {
        CUresult (*f)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **) = NULL;
        missing(*(void **)&f = find(way, "cuLaunchKernel", thread, thread ? 7000 : 4000));
        struct { CUdeviceptr a, b, c; int n; } packed = {a, b, c, n};
        size_t size = 28;
        void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
        int as_buffer = !strcmp(call, "extra");
        MUST(f(add, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, as_buffer ? NULL : params, as_buffer ? extra : NULL));
    } else if (!strncmp(call, "ex", 2)) {
        CUresult (*f)(const CUlaunchConfig *, CUfunction, void **, void **) = NULL;
        missing(*(void **)&f = find(way, "cuLaunchKernelEx", thread, 11060));
        CUlaunchConfig config = {.gridDimX = BLOCKS, .gridDimY = 1, .gridDimZ = 1, .blockDimX = THREADS, .blockDimY = 1, .blockDimZ = 1};
        MUST(f(&config, add, params, NULL));
    } else if (!strncmp(call, "cooperative", 11)) {
        CUresult (*f)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **) = NULL;
        missing(*(void **)&f = find(way, "cuLaunchCooperativeKernel", thread, 9000));
        MUST(f(add, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, params));
    } else {
        legacy(way, call);
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: route WAY CALL COUNT\n");
        return 2;
    }
    CUdevice device;
    CUcontext context;
    CUmodule module;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, check_ptx));
    MUST(cuModuleGetFunction(&add, module, "add"));
    static float x[N], y[N], z[N];
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
        y[i] = 2 * (float)i;
    }
    CUdeviceptr *all[] = {&a, &b, &c};
    for (int i = 0; i < 3; i++)
        MUST(cuMemAlloc(all[i], sizeof x));
    MUST(cuMemcpyHtoD(a, x, sizeof x));
    MUST(cuMemcpyHtoD(b, y, sizeof y));
    for (int i = atoi(argv[3]); i > 0; i--)
        launch(argv[1], argv[2]);
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(z, c, sizeof z));
    for (int i = 0; i < N; i++)
        ENSURE(z[i] == x[i] + y[i]);
    printf("ok %s %s %s\n", argv[1], argv[2], argv[3]);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
