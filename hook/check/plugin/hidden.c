/* hidden: a driver whose cuGetProcAddress returns functions that it does not export, as real
 * drivers may. It passes all calls to the library that HIDDEN_DRIVER names, and must itself be
 * named libcuda.so.1. Other variables:
 *
 *   HIDDEN_PAUSE_US             it pauses after each query whether a stream is captured
 *   HIDDEN_EVENTS               it aborts if there are more events than this
 *   HIDDEN_NEW                  its version is 99.0, and it has a function of this name
 *   HIDDEN_CALL, HIDDEN_RESULT  the function of that name fails with that error */
#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "compat.h"
#include "cuda.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* These are written by hand below; the generated ones get other names. */
#define PASSED "passed_" /* prefix of the names of those three */
#define cuGetProcAddress passed_cuGetProcAddress
#define cuGetProcAddress_v2 passed_cuGetProcAddress_v2
#define cuDriverGetVersion passed_cuDriverGetVersion

static struct {
#define CU_SYMBOL(symbol, since, hook, params, args) CUresult(*symbol) params;
#define CU_NAME(name, since) CUresult(*name)(void);
#include "symbols.def"
} real;

static useconds_t pause_us;
static long most_events = -1, events;

static const char *failing;
static CUresult failure;

static CUresult after(const char *symbol, CUresult result)
{
    if (failing && strcmp(symbol, failing) == 0)
        return failure;
    if (pause_us && strcmp(symbol, "cuStreamIsCapturing") == 0)
        usleep(pause_us);
    if (most_events >= 0 && result == CUDA_SUCCESS) {
        if (strcmp(symbol, "cuEventCreate") == 0 && __atomic_add_fetch(&events, 1, __ATOMIC_RELAXED) > most_events)
            abort();
        if (strcmp(symbol, "cuEventDestroy_v2") == 0)
            __atomic_sub_fetch(&events, 1, __ATOMIC_RELAXED);
    }
    return result;
}

/* Defines each function twice: as exported, and as returned by cuGetProcAddress. */
#define BOTH(symbol, params, args) \
    CUresult symbol params; \
    CUresult symbol params { return after(#symbol, real.symbol args); } \
    static CUresult hidden_##symbol params { return real.symbol args; }
#define CU_SYMBOL(symbol, since, hook, params, args) BOTH(symbol, params, args)
#define CU_NAME(name, since) BOTH(name, (void), ())
#include "symbols.def"

#define ENTRY(symbol) {#symbol, (void **)&real.symbol, (void *)hidden_##symbol, NULL},
static struct { const char *name; void **real; void *hidden, *address; } all[] = {
#define CU_SYMBOL(symbol, since, hook, params, args) ENTRY(symbol)
#define CU_NAME(name, since) ENTRY(name)
#include "symbols.def"
};
enum { COUNT = sizeof all / sizeof *all };

#undef cuGetProcAddress
#undef cuGetProcAddress_v2
#undef cuDriverGetVersion

static CUresult lacks(void) { return CUDA_ERROR_NOT_SUPPORTED; }

/* Opens the real driver and finds its functions with the C library's dlsym, because a preloaded one
 * would return this driver's functions. */
__attribute__((constructor)) static void open_driver(void)
{
    void *(*find)(void *, const char *) = NULL;
    *(void **)&find = dlvsym(RTLD_DEFAULT, "dlsym", GF_OLD);
    const char *path = getenv("HIDDEN_DRIVER"), *pause = getenv("HIDDEN_PAUSE_US"),
               *most = getenv("HIDDEN_EVENTS"), *result = getenv("HIDDEN_RESULT");
    void *handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!find || !handle)
        abort();
    pause_us = pause ? (useconds_t)atoi(pause) : 0;
    failing = getenv("HIDDEN_CALL");
    failure = result ? (CUresult)atoi(result) : CUDA_SUCCESS;
    most_events = most ? atol(most) : -1;
    for (int i = 0; i < COUNT; i++) {
        if (strncmp(all[i].name, PASSED, sizeof PASSED - 1) == 0)
            all[i].name += sizeof PASSED - 1;
        all[i].address = find(handle, all[i].name);
        *all[i].real = all[i].address ? all[i].address : (void *)lacks;
    }
}

static void hide(void **pfn)
{
    for (int i = 0; pfn && *pfn && i < COUNT; i++)
        if (all[i].address == *pfn) {
            *pfn = all[i].hidden;
            return;
        }
}

/* Answers a lookup of the function HIDDEN_NEW. */
static bool is_new(const char *symbol, void **pfn)
{
    const char *name = getenv("HIDDEN_NEW");
    bool is = name && pfn && strcmp(symbol, name) == 0;
    if (is)
        *pfn = (void *)lacks;
    return is;
}

CUresult cuDriverGetVersion(int *version)
{
    CUresult result = real.passed_cuDriverGetVersion(version);
    if (result == CUDA_SUCCESS && getenv("HIDDEN_NEW"))
        *version = 99000;
    return result;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    if (is_new(symbol, pfn))
        return CUDA_SUCCESS;
    CUresult result = real.passed_cuGetProcAddress(symbol, pfn, version, flags);
    if (result == CUDA_SUCCESS)
        hide(pfn);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    if (is_new(symbol, pfn))
        return CUDA_SUCCESS;
    CUresult result = real.passed_cuGetProcAddress_v2(symbol, pfn, version, flags, status);
    if (result == CUDA_SUCCESS)
        hide(pfn);
    return result;
}
