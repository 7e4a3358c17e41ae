/* wrapper: a library, or a part of a program, that wraps every function of the driver, as profilers
 * do: it counts each call and passes it on. At its end, it prints a line for each function that was
 * called, on standard error:
 *
 *   wrapped FILE NAME CALLS
 *
 * WRAPPER_FINDS selects how it finds the wrapped function: "next" by RTLD_NEXT, "driver" in
 * libcuda.so.1, "lookup" by cuGetProcAddress if that has the function. */
#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wrapped {
    const char *name;
    unsigned calls;
    void *next;
    int version;
    struct wrapped *before;
};
static struct wrapped *all;

static CUresult missing(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static void *in_driver(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? dlsym(driver, name) : NULL;
}

static void *find(const struct wrapped *w)
{
    const char *way = getenv("WRAPPER_FINDS");
    void *found = NULL;
    if (way && !strcmp(way, "driver"))
        found = in_driver(w->name);
    if (way && !strcmp(way, "lookup") && !strstr(w->name, "_pt") && strncmp(w->name, "cuGetProcAddress", 16) != 0) {
        char base[128];
        CUresult (*lookup)(const char *, void **, int, cuuint64_t) = in_driver("cuGetProcAddress");
        strcpy(base, w->name);
        base[strcspn(base, "_")] = 0;
        if (!lookup || lookup(base, &found, w->version, CU_GET_PROC_ADDRESS_DEFAULT) != CUDA_SUCCESS)
            found = NULL;
    }
    if (!found)
        found = dlsym(RTLD_NEXT, w->name);
    return found ? found : (void *)missing;
}

static void *called(struct wrapped *w)
{
    if (!w->next) {
        w->next = find(w);
        w->before = all;
        all = w;
    }
    w->calls++;
    return w->next;
}

#define CU_SYMBOL(symbol, since, hook, params, args) \
    CUresult symbol params \
    { \
        static struct wrapped w = {#symbol, 0, NULL, since, NULL}; \
        CUresult(*next) params = called(&w); \
        return next args; \
    }
#include "symbols.def"

__attribute__((destructor)) static void print(void)
{
    Dl_info here;
    const char *file = dladdr((void *)print, &here) ? strrchr(here.dli_fname, '/') : NULL;
    for (struct wrapped *w = all; w; w = w->before)
        fprintf(stderr, "wrapped %s %s %u\n", file ? file + 1 : "?", w->name, w->calls);
}
