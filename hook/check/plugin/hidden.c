/* hidden: a driver whose cuGetProcAddress answers with functions that it does
 * not export, as a driver may. It passes all calls to the library that
 * HIDDEN_DRIVER names, and must be called libcuda.so.1 where it is used. With
 * HIDDEN_PAUSE_US it takes so long after it has looked whether a stream is
 * captured; with HIDDEN_EVENTS it aborts where there are more events than that. With
 * HIDDEN_NEW it is of version 99.0 and has a function of that name. With
 * HIDDEN_CALL and HIDDEN_RESULT the function of that name fails with that error. */
#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "compat.h"
#include "cuda.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* These are written by hand, below; the generated ones get other names. */
#define cuGetProcAddress passed4
#define cuGetProcAddress_v2 passed5
#define cuDriverGetVersion passed_version

static struct {
#define FIELD_NONE(name, params)
#define FIELD_PTSZ(name, params) CUresult(*name##_ptsz) params;
#define FIELD_PTDS(name, params) CUresult(*name##_ptds) params;
#define CU(name, since, variant, hook, sim, stream, params, args) \
    CUresult(*name) params; \
    FIELD_##variant(name, params)
#define CU_NAME(name) CUresult(*name)(void);
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

/* Each function twice: as the driver shows it and as it hands it out. */
#define BOTH(symbol, params, args) \
    CUresult symbol params; \
    CUresult symbol params { return after(#symbol, real.symbol args); } \
    static CUresult hidden_##symbol params { return real.symbol args; }
#define TWIN_NONE(name, params, args)
#define TWIN_PTSZ(name, params, args) BOTH(name##_ptsz, params, args)
#define TWIN_PTDS(name, params, args) BOTH(name##_ptds, params, args)
#define CU(name, since, variant, hook, sim, stream, params, args) BOTH(name, params, args) TWIN_##variant(name, params, args)
#define CU_NAME(name) BOTH(name, (void), ())
#include "symbols.def"

#define ENTRY(symbol) (void **)&real.symbol, (void *)hidden_##symbol, NULL
static struct { const char *name; void **real; void *hidden, *address; } all[] = {
#define ENTRY_NONE(name)
#define ENTRY_PTSZ(name) {#name "_ptsz", ENTRY(name##_ptsz)},
#define ENTRY_PTDS(name) {#name "_ptds", ENTRY(name##_ptds)},
#define CU(name, since, variant, hook, sim, stream, params, args) {#name, ENTRY(name)}, ENTRY_##variant(name)
#define CU_NAME(name) {#name, ENTRY(name)},
#include "symbols.def"
};
enum { COUNT = sizeof all / sizeof *all };

#undef cuGetProcAddress
#undef cuGetProcAddress_v2
#undef cuDriverGetVersion

static CUresult lacks(void) { return CUDA_ERROR_NOT_SUPPORTED; }

/* The C library's dlsym: a preloaded one would send this driver to itself. */
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

/* Answers for the new function. */
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
    CUresult result = real.passed_version(version);
    if (result == CUDA_SUCCESS && getenv("HIDDEN_NEW"))
        *version = 99000;
    return result;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    if (is_new(symbol, pfn))
        return CUDA_SUCCESS;
    CUresult result = real.passed4(symbol, pfn, version, flags);
    if (result == CUDA_SUCCESS)
        hide(pfn);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    if (is_new(symbol, pfn))
        return CUDA_SUCCESS;
    CUresult result = real.passed5(symbol, pfn, version, flags, status);
    if (result == CUDA_SUCCESS)
        hide(pfn);
    return result;
}
