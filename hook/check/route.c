/* route: finds functions that send work to the GPU in one WAY, calls them and checks the results.
 *
 *   route WAY CALL COUNT   one CALL, COUNT times; exit status 77: the driver lacks it
 *   route WAY all COUNT    each CALL that the driver has
 *   route WAY after:CALL COUNT   the same, starting after that CALL
 *   route WAY step COUNT   the same; waits for a line on its input before each CALL
 *   route calls            lists the CALLs
 *
 * WAY is link, dlsym, default, next, plugin-default, plugin-next, plugin-deep, proc, proc2 or
 * proc-of-proc; and namespace and plugin-namespace under the preload library, which uses only one
 * copy of the driver. CALL is the name of a function, with a '+' and a description for a variant.
 * With several, a line "call CALL" announces each. Finally it waits for the end of its standard
 * input, so that a test can inspect it. */
#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "check.h"

#include <unistd.h>

/* A program may be linked to functions that the installed driver lacks. */
#define PRAGMA(text) _Pragma(#text)
#define CU_SYMBOL(symbol, since, hook, params, args) PRAGMA(weak symbol)
#include "symbols.def"

static const struct symbol { const char *name; void *linked; int since; } symbols[] = {
#define CU_SYMBOL(symbol, since, hook, params, args) {#symbol, (void *)symbol, since},
#include "symbols.def"
};

static const char *way;

/* Finds a function with the older form of the driver's own lookup. */
static void *by_proc(const char *base, int version, cuuint64_t flags)
{
    CUresult (*lookup)(const char *, void **, int, cuuint64_t) = NULL;
    ASSERT(*(void **)&lookup = driver_find("cuGetProcAddress"));
    void *found = NULL;
    return lookup(base, &found, version, flags) == CUDA_SUCCESS ? found : NULL;
}

/* Finds a function with the newer form, whose address is `form`. */
static void *by_proc2(const char *base, int version, cuuint64_t flags, void *form)
{
    CUresult (*lookup)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = NULL;
    ASSERT(*(void **)&lookup = form);
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    return lookup(base, &found, version, flags, &status) == CUDA_SUCCESS ? found : NULL;
}

enum { NAMESPACE = -1 }; /* in place of a dlopen mode: open the plugin in a namespace of its own */

/* Finds a function from a library that is opened at run time, and so is last in the search order. */
static void *by_plugin(const char *finder, int mode, const char *name)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 16);
    ASSERT(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/') + 1, "plugin/find.so");
    static void *plugin;
    if (!plugin)
        plugin = mode == NAMESPACE ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW) : dlopen(path, RTLD_NOW | RTLD_LOCAL | mode);
    void *(*find)(const char *) = NULL;
    ASSERT(plugin && (*(void **)&find = dlsym(plugin, finder)));
    dlerror();
    void *found = find(name);
    ASSERT(!found == !!dlerror()); /* dlerror reports an error exactly if the function was not found */
    return found;
}

/* Finds a function in the requested way. Returns NULL if the driver lacks it. */
static void *find(const char *name)
{
    const struct symbol *s = symbols;
    while (strcmp(s->name, name) != 0)
        ASSERT(++s < symbols + sizeof symbols / sizeof *symbols);
    char base[128];
    strcpy(base, name);
    base[strcspn(base, "_")] = 0; /* _vN, _ptsz and _ptds */
    int thread = strstr(name, "_pt") != NULL, version = thread && s->since < 7000 ? 7000 : s->since;
    cuuint64_t flags = thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_DEFAULT;
    if (!driver_find(name))
        return NULL;
    if (!strcmp(way, "link"))
        return s->linked;
    if (!strcmp(way, "dlsym"))
        return driver_find(name);
    if (!strcmp(way, "default"))
        return dlsym(RTLD_DEFAULT, name);
    if (!strcmp(way, "next"))
        return dlsym(RTLD_NEXT, name);
    if (!strcmp(way, "plugin-default"))
        return by_plugin("find_default", 0, name);
    if (!strcmp(way, "plugin-next"))
        return by_plugin("find_next", 0, name);
    if (!strcmp(way, "plugin-deep"))
        return by_plugin("find_driver", RTLD_DEEPBIND, name);
    if (!strcmp(way, "plugin-namespace"))
        return by_plugin("find_driver", NAMESPACE, name);
    if (!strcmp(way, "namespace")) {
        static void *driver;
        if (!driver)
            driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
        ASSERT(driver);
        return dlsym(driver, name);
    }
    if (!strcmp(way, "proc"))
        return by_proc(base, version, flags);
    if (!strcmp(way, "proc2"))
        return by_proc2(base, version, thread ? flags : CU_GET_PROC_ADDRESS_LEGACY_STREAM, driver_find("cuGetProcAddress_v2"));
    if (!strcmp(way, "proc-of-proc"))
        return by_proc2(base, version, flags, by_proc("cuGetProcAddress", 12000, 0));
    fprintf(stderr, "route: unknown way %s\n", way);
    exit(2);
}

#include "calls.h"
#include "graphs.h"

static const struct call calls[] = {
    CALLS(ROW)
    {"cuLaunchKernel+extra", do_extra, SUM, 1, NULL},
    {"cuLaunchKernel_ptsz+extra", do_extra, SUM, 1, NULL},
    {"cuMemMapArrayAsync", do_map_nothing, ANY, 0, NULL},
    {"cuMemMapArrayAsync_ptsz", do_map_nothing, ANY, 0, NULL},
    GRAPHS
};
enum { COUNT = sizeof calls / sizeof *calls };

static void set_up(void)
{
    CUmodule module;
    context = primary_context();
    ASSERT_SUCCESS(cuModuleLoadData(&module, check_ptx));
    ASSERT_SUCCESS(cuModuleGetFunction(&add, module, "add"));
    ASSERT_SUCCESS(cuModuleGetFunction(&nop, module, "nop"));
    ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i + 1);
        y[i] = 2 * (float)i;
    }
    CUdeviceptr *blocks[] = {&a, &b, &c, &other};
    for (int i = 0; i < 4; i++)
        ASSERT_SUCCESS(cuMemAlloc_v2(blocks[i], SIZE));
    ASSERT_SUCCESS(cuMemcpyHtoD_v2(a, x, SIZE));
    ASSERT_SUCCESS(cuMemcpyHtoD_v2(b, y, SIZE));
    if (cuMemAllocManaged && cuMemAllocManaged(&m, SIZE, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS)
        memcpy((void *)m, x, SIZE);
    CUDA_ARRAY_DESCRIPTOR floats = {.Width = N, .Format = 0x20, .NumChannels = 1};
    if (cuArrayCreate_v2 && cuArrayCreate_v2(&from, &floats) == CUDA_SUCCESS && cuArrayCreate_v2(&to, &floats) == CUDA_SUCCESS)
        ASSERT_SUCCESS(cuMemcpyHtoA_v2(from, 0, x, SIZE));
    copy2 = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = a, .srcPitch = WIDTH, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                            .dstDevice = c, .dstPitch = WIDTH, .WidthInBytes = WIDTH, .Height = HEIGHT};
    copy3 = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = a, .srcPitch = WIDTH, .srcHeight = HEIGHT,
                            .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = c, .dstPitch = WIDTH, .dstHeight = HEIGHT,
                            .WidthInBytes = WIDTH, .Height = HEIGHT, .Depth = 1};
    peer3 = (CUDA_MEMCPY3D_PEER){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = a, .srcContext = context, .srcPitch = WIDTH,
                                 .srcHeight = HEIGHT, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = c, .dstContext = context,
                                 .dstPitch = WIDTH, .dstHeight = HEIGHT, .WidthInBytes = WIDTH, .Height = HEIGHT, .Depth = 1};
    box = (CUDA_MEMCPY3D_BATCH_OP){.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = {.ptr = a, .rowLength = WIDTH, .layerHeight = HEIGHT}},
                                   .dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = {.ptr = c, .rowLength = WIDTH, .layerHeight = HEIGHT}},
                                   .extent = {WIDTH, HEIGHT, 1}, .srcAccessOrder = 1};
    if (cuFuncSetBlockShape && cuFuncSetBlockShape(add, THREADS, 1, 1) == CUDA_SUCCESS) {
        ASSERT_SUCCESS(cuParamSetSize(add, 28));
        ASSERT_SUCCESS(cuParamSetv(add, 0, &a, 8));
        ASSERT_SUCCESS(cuParamSetv(add, 8, &b, 8));
        ASSERT_SUCCESS(cuParamSetv(add, 16, &c, 8));
        ASSERT_SUCCESS(cuParamSeti(add, 24, N));
    }
}

/* Clears the results of the previous call. */
static void wipe(void)
{
    memset(z, 0, sizeof z);
    ASSERT_SUCCESS(cuMemsetD8_v2(c, 0, SIZE));
    if (to)
        ASSERT_SUCCESS(cuMemcpyDtoA_v2(to, 0, c, SIZE));
    ASSERT_SUCCESS(cuCtxSynchronize());
    if (m) /* it may have been discarded */
        memcpy((void *)m, x, SIZE);
}

/* Reports whether the expected result is there. */
static int right(enum check check)
{
    ASSERT_SUCCESS(cuCtxSynchronize());
    if (check == ARRAY)
        ASSERT_SUCCESS(cuMemcpyAtoH_v2(z, to, 0, SIZE));
    else if (check == MANAGED)
        memcpy(z, (void *)m, SIZE);
    else if (check != HOST)
        ASSERT_SUCCESS(cuMemcpyDtoH_v2(z, c, SIZE));
    for (int i = 0; i < (check == PART ? THREADS : N); i++) {
        const unsigned fill = FILL;
        float want = check == SUM || check == PART ? x[i] + y[i] : x[i];
        if (check == FILLED)
            memcpy(&want, &fill, sizeof want);
        if (check != ANY && memcmp(&z[i], &want, sizeof want) != 0)
            return 0;
    }
    return 1;
}

/* Returns the function for a call, or NULL if the driver lacks it or the memory that it needs. */
static void *subject(const struct call *call)
{
    char name[128];
    strcpy(name, call->name);
    name[strcspn(name, "+")] = 0;
    int managed = call->check == MANAGED || strstr(name, "Discard");
    int arrays = strstr(name, "toA") || strstr(name, "Ato");
    return (managed && !m) || (arrays && !to) ? NULL : find(name);
}

static int failed;

/* Makes a call `count` times and prints whether its result is right. Returns 0 if the driver lacks
 * it. */
static int make(const struct call *call, int count, int step)
{
    void *address = subject(call);
    if (!address)
        return 0;
    wipe();
    if (call->build)
        call->build();
    if (step) {
        ASSERT_SUCCESS(cuCtxSynchronize());
        printf("ready %s\n", call->name);
        fflush(stdout);
        ASSERT(getchar() == '\n');
    }
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = call->run(address);
    int good = right(call->check) && result == CUDA_SUCCESS;
    if (good)
        printf("ok %s %d\n", call->name, call->launches * count);
    else /* continue with the other calls */
        printf("not ok %s: %s, error %d\n", call->name, result ? "refused" : "its result is wrong", (int)result);
    fflush(stdout);
    failed |= !good;
    return 1;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "calls")) {
        for (int i = 0; i < COUNT; i++)
            printf("%s\n", calls[i].name);
        return 0;
    }
    if (argc != 4) {
        fprintf(stderr, "usage: route WAY CALL COUNT\n");
        return 2;
    }
    way = argv[1];
    const char *after = strncmp(argv[2], "after:", 6) ? NULL : argv[2] + 6;
    int step = !strcmp(argv[2], "step"), all = step || after || !strcmp(argv[2], "all"), known = all && !after;
    set_up();
    for (int i = 0; i < COUNT; i++) {
        if (after) {
            known |= !strcmp(after, calls[i].name);
            after = known ? NULL : after;
            continue;
        }
        if (!all && strcmp(argv[2], calls[i].name) != 0)
            continue;
        known = 1;
        if (all && !step) {
            printf("call %s\n", calls[i].name);
            fflush(stdout);
        }
        if (make(&calls[i], atoi(argv[3]), step))
            continue;
        printf("absent %s\n", calls[i].name);
        if (!all)
            return 77;
    }
    if (!known)
        return 2;
    say_line("done");
    await_end();
    return failed;
}
