/* tap.h: the conformance programs print a line for each thing they check and
 * exit 1 when one was not so. They are ordinary programs of the CUDA driver
 * interface and run on the simulated driver and on a real one; what only the
 * simulator promises is checked only there. */
#ifndef GFAAS_TAP_H
#define GFAAS_TAP_H

#include <cuda.h>

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int tap_count, tap_failed;

/* ---- checks that crash ---- */

/* A driver may crash where another one refuses. The program then starts anew
 * without the checks that did, so that one run tells all; the last pass counts,
 * which begins behind the last line "# again". A program that is stopped because it
 * hangs says where. */
static struct {
    char skip[128]; /* "TAP_SKIP=" and their numbers, each with a comma */
    char self[4096];
    const char *doing;
    bool may_skip;
    pid_t pid;
} tap_run = {.skip = "TAP_SKIP="};

static inline void tap_print(const char *a, const char *b, const char *c)
{
    const char *parts[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        if (write(STDOUT_FILENO, parts[i], strlen(parts[i])) < 0)
            return;
}

static inline void tap_signal(int sig)
{
    char number[16], *at = number + sizeof number, *end = tap_run.skip + strlen(tap_run.skip);
    if (getpid() != tap_run.pid) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    if (sig == SIGTERM)
        tap_print("not ok - stopped in ", tap_run.doing, "\n");
    *--at = 0;
    *--at = ',';
    for (int n = tap_count + 1; n > 0; n /= 10)
        *--at = (char)('0' + n % 10);
    if (sig == SIGTERM || !tap_run.may_skip || end + strlen(at) >= tap_run.skip + sizeof tap_run.skip) {
        if (sig != SIGTERM)
            tap_print("not ok - crashed in ", tap_run.doing, "\n");
        _exit(128 + sig);
    }
    strcpy(end, at);
    tap_print("# again without ", tap_run.doing, "\n");
    execv(tap_run.self, (char *[]){tap_run.self, NULL});
    _exit(128 + sig);
}

static inline void tap_begin(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTERM};
    const char *skip = getenv("TAP_SKIP");
    if (skip)
        snprintf(tap_run.skip, sizeof tap_run.skip, "TAP_SKIP=%s", skip);
    putenv(tap_run.skip);
    tap_run.pid = getpid();
    if (readlink("/proc/self/exe", tap_run.self, sizeof tap_run.self - 1) < 0)
        return;
    struct sigaction action = {.sa_handler = tap_signal, .sa_flags = SA_NODEFER}; /* in the new program it must not be blocked */
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
}

/* Whether to make a call: not if it crashes. */
static inline bool tap_do(const char *what, bool may_skip)
{
    if (!tap_run.pid)
        tap_begin();
    tap_run.doing = what;
    tap_run.may_skip = may_skip;
    for (const char *at = tap_run.skip + sizeof "TAP_SKIP=" - 1; may_skip && *at; at = strchr(at, ',') + 1)
        if (atoi(at) == tap_count + 1)
            return false;
    return true;
}

/* ---- checks ---- */

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
        fflush(stdout);
    }
    return got == want;
}

static inline bool tap_crash(const char *what, const char *file, int line)
{
    tap(false, what, file, line);
    printf("# it crashes\n");
    fflush(stdout);
    return false;
}

/* CHECK: a condition. GIVES: a call and the result it should have. MUST: a call
 * without which the rest makes no sense. */
#define CHECK(condition)                                                                \
    (tap_do(#condition, true) ? tap((condition), #condition, __FILE__, __LINE__)        \
                              : tap_crash(#condition, __FILE__, __LINE__))
#define GIVES(want, call)                                                               \
    (tap_do(#call, true) ? tap_result((call), (want), #call " gives " #want, __FILE__, __LINE__) \
                         : tap_crash(#call, __FILE__, __LINE__))
#define MUST(call)                                                  \
    do {                                                            \
        tap_do(#call, false);                                       \
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
