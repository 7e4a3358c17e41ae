/* driver.c: finds the driver at run time, so that the program can be built and started without one. */
#include "executor.h"

#include <dlfcn.h>
#include <stdio.h>

/* A pointer p_NAME to each function of the driver. */
#define DEFINE(name) __typeof__(&name) p_##name;
DRIVER(DEFINE)

bool driver_open(char *why, size_t len)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(why, len, "%s", dlerror());
        return false;
    }
#define FIND(name)                                                              \
    if (!(p_##name = (__typeof__(&name))dlsym(handle, #name))) {                \
        snprintf(why, len, "the driver is too old: it has no function " #name); \
        return false;                                                           \
    }
    DRIVER(FIND)
    return true;
}

const char *driver_error_text(CUresult r)
{
    const char *text = NULL;
    if (!p_cuGetErrorString || p_cuGetErrorString(r, &text) != CUDA_SUCCESS || !text)
        text = "unknown error";
    return text;
}
