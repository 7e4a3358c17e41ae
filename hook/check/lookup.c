/* lookup: prints where the driver's functions are found: for each function of the list and each of
 * its twins, the result of dlsym; and for each function, CUDA version and stream flavour, the
 * results of both forms of cuGetProcAddress:
 *
 *   dlsym NAME                    LIBRARY SYMBOL
 *   cuGetProcAddress BASE VERSION FLAGS     LIBRARY SYMBOL
 *   cuGetProcAddress_v2 BASE VERSION FLAGS  LIBRARY SYMBOL STATUS
 *
 * SYMBOL is the name that LIBRARY exports at that address, or "hidden". If a function is not found,
 * both are "none". It uses no GPU.
 *
 *   lookup [DRIVER | cuFUNCTION]
 *
 * With a function, which need not be in the list, it looks up only that one. With DRIVER, a path,
 * it first checks that the program finds no driver, and then opens that one. Exit status 77: it
 * found a driver. */
#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "check.h"
#include "names.h"

static const char *const rows[] = {
#define CU(name, since, variant, hook, sim, stream, params, args) #name,
#include "symbols.def"
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void print_place(void *address)
{
    Dl_info info;
    if (!address) {
        printf(" none none");
        return;
    }
    ASSERT(dladdr(address, &info));
    const char *slash = strrchr(info.dli_fname, '/');
    printf(" %s %s", slash ? slash + 1 : info.dli_fname, info.dli_saddr == address ? info.dli_sname : "hidden");
}

/* Removes _vN from the name of a function, as cuGetProcAddress expects. */
static void base_of(const char *name, char *base)
{
    strcpy(base, name);
    char *end = strrchr(base, '_');
    if (end && end[1] == 'v' && end[2] && !end[3])
        *end = 0;
}

static void ask(void *handle, const char *base, int version, cuuint64_t flags)
{
    CUresult (*four)(const char *, void **, int, cuuint64_t) = NULL;
    CUresult (*five)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = NULL;
    ASSERT(*(void **)&four = dlsym(handle, "cuGetProcAddress"));
    void *found = NULL;
    CUresult result = four(base, &found, version, flags);
    printf("cuGetProcAddress %s %d %d", base, version, (int)flags);
    print_place(result == CUDA_SUCCESS ? found : NULL);
    printf("\n");
    if (!(*(void **)&five = dlsym(handle, "cuGetProcAddress_v2")))
        return;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    found = NULL;
    result = five(base, &found, version, flags, &status);
    printf("cuGetProcAddress_v2 %s %d %d", base, version, (int)flags);
    print_place(result == CUDA_SUCCESS ? found : NULL);
    printf(" %d\n", (int)status);
}

/* Opens a driver that the program does not find by itself. */
static void *open_late(const char *path)
{
    CUresult (*init)(unsigned) = NULL;
    *(void **)&init = dlsym(RTLD_DEFAULT, "cuInit");
    if (init && init(0) == CUDA_SUCCESS)
        exit(77);
    return dlopen(path, RTLD_NOW);
}

int main(int argc, char **argv)
{
    static const int versions[] = {3020, 7000, 10000, 11040, 11060, 11070, 12000, 12020, 12030, 12050, 12080, 13000, 13020};
    if (argc > 1 && strncmp(argv[1], "cu", 2) == 0) {
        ask(dlopen("libcuda.so.1", RTLD_NOW), argv[1], 99000, 0);
        return 0;
    }
    void *handle = argc > 1 ? open_late(argv[1]) : dlopen("libcuda.so.1", RTLD_NOW);
    ASSERT(handle);
    for (unsigned i = 0; i < COUNT(names); i++) {
        printf("dlsym %s", names[i]);
        print_place(dlsym(handle, names[i]));
        printf("\n");
    }
    for (unsigned i = 0; i < COUNT(rows); i++) {
        char base[128];
        base_of(rows[i], base);
        for (unsigned v = 0; v < COUNT(versions); v++)
            for (cuuint64_t flags = 0; flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; flags++)
                ask(handle, base, versions[v], flags);
    }
    return 0;
}
