/* tap.h: the conformance programs print a line for each thing they check and
 * exit 1 when one was not so. They are ordinary programs of the CUDA driver
 * interface and run on the simulated driver and on a real one; what only the
 * simulator promises is checked only there. */
#ifndef GFAAS_TAP_H
#define GFAAS_TAP_H

#include <cuda.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int tap_count, tap_failed;

static inline bool tap(bool ok, const char *what, const char *file, int line)
{
    printf("%sok %d - %s\n", ok ? "" : "not ", ++tap_count, what);
    if (!ok) {
        printf("# %s:%d\n", file, line);
        tap_failed++;
    }
    fflush(stdout);
    return ok;
}

static inline bool tap_result(CUresult got, CUresult want, const char *what, const char *file, int line)
{
    const char *name = "?";
    if (!tap(got == want, what, file, line)) {
        cuGetErrorName(got, &name);
        printf("# got %d (%s), expected %d\n", (int)got, name ? name : "unknown", (int)want);
    }
    return got == want;
}

/* CHECK: a condition. GIVES: a call and the result it should have. MUST: a call
 * without which the rest makes no sense. */
#define CHECK(condition) tap((condition), #condition, __FILE__, __LINE__)
#define GIVES(want, call) tap_result((call), (want), #call " gives " #want, __FILE__, __LINE__)
#define MUST(call)                                                  \
    do {                                                            \
        CUresult must_ = (call);                                    \
        if (must_ != CUDA_SUCCESS) {                                \
            tap_result(must_, CUDA_SUCCESS, #call, __FILE__, __LINE__); \
            exit(1);                                                \
        }                                                           \
    } while (0)

static inline int tap_end(void)
{
    printf("1..%d\n", tap_count);
    return tap_failed != 0;
}

static inline double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline bool simulated(CUdevice dev)
{
    char name[128];
    MUST(cuDeviceGetName(name, sizeof name, dev));
    return !strcmp(name, "gfaas simulated GPU");
}

static inline CUdevice first_device(void)
{
    CUdevice dev;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&dev, 0));
    return dev;
}

#endif
