/* check.h: helpers for the programs in this folder. They link no driver, and look its functions up. */
#pragma once

#include <cuda.h>
#include <gfaas_model.h>

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Exits with status 1 if a condition is false. */
#define ASSERT(condition)                                                          \
    do {                                                                           \
        if (!(condition)) {                                                        \
            fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

/* The driver's function of that name. */
#define CUDA(name) ((__typeof__(name) *)driver(#name))

static inline void *driver(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *at = library ? dlsym(library, name) : NULL;
    ASSERT(at);
    return at;
}

/* Makes the primary context of the first device current, or undoes that. */
static inline void primary(bool enter)
{
    CUcontext c;
    CUdevice dev;
    ASSERT(!CUDA(cuInit)(0) && !CUDA(cuDeviceGet)(&dev, 0));
    if (enter)
        ASSERT(!CUDA(cuDevicePrimaryCtxRetain)(&c, dev) && !CUDA(cuCtxPushCurrent_v2)(c));
    else
        ASSERT(!CUDA(cuCtxPopCurrent_v2)(&c) && !CUDA(cuDevicePrimaryCtxRelease_v2)(dev));
}

/* Returns the number of open descriptors. */
static inline int descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    ASSERT(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}
