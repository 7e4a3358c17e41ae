/* tap.h: the checks of the conformance programs. These are ordinary programs of the CUDA driver API
 * that run on the simulated driver and on a real one. They print a line for each check, in the Test
 * Anything Protocol, and exit with status 1 if a check failed.
 *
 *   CHECK(condition)              fails if the condition is false
 *   CHECK_RESULT(want, call)      fails if the call returns another result
 *   SIM_CHECK(condition)          for behaviour that no documentation promises: fails on the simulated
 *   SIM_CHECK_RESULT(want, call)  driver; on another driver, a difference is only reported
 *   ASSERT_SUCCESS(call)          for a call that the following checks need: if it fails, the PART ends
 *   PART(call)                    a group of checks: if it ends early, the next part runs nevertheless */
#pragma once

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

/* A driver may crash where another one refuses a call. The program then restarts itself without the
 * checks that crashed, so that one run reports everything. Only the last pass counts; it begins
 * after the last line "# again". The program also restarts itself, without the current PART, if an
 * ASSERT_SUCCESS fails or if the part runs for more than TAP_PATIENCE seconds. When SIGTERM ends a
 * program that hangs, it prints which call it was in. */
static struct {
    char skip[128];   /* "TAP_SKIP=" and the numbers of checks, each with a comma */
    char leave[4096]; /* "TAP_LEAVE=" and the parts, each as "NUMBER reason" and a newline */
    char self[4096];
    const char *current_call, *part_name;
    int part, in_part; /* the current part, and how many checks of it have run */
    bool may_skip; /* the current call can be left out, because the rest does not need it */
    pid_t pid;
} tap_run = {.skip = "TAP_SKIP=", .leave = "TAP_LEAVE="};

enum { TAP_PART = 1000 }; /* the number of a check is its part's number times this, plus its own */

static inline void tap_print(const char *a, const char *b, const char *c)
{
    const char *parts[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        if (write(STDOUT_FILENO, parts[i], strlen(parts[i])) < 0)
            return;
}

/* Appends a number and two strings to a list. Returns false if there is no room. */
static inline bool tap_append(char *list, size_t room, int number, const char *a, const char *b)
{
    char digits[16], *at = digits + sizeof digits - 1;
    *at = 0;
    for (int n = number; n > 0; n /= 10)
        *--at = (char)('0' + n % 10);
    if (strlen(list) + strlen(at) + strlen(a) + strlen(b) >= room)
        return false;
    strcat(strcat(strcat(list, at), a), b);
    return true;
}

/* Restarts the program. `without` names what the next pass leaves out. */
static inline void tap_restart(const char *without)
{
    tap_print("# again without ", without, "\n");
    execv(tap_run.self, (char *[]){tap_run.self, NULL});
}

/* Restarts the program without the current part. Returns if it cannot. */
static inline void tap_skip_part(const char *why)
{
    char reason[512] = " ";
    if (getpid() != tap_run.pid || !tap_run.part)
        return;
    strncat(strncat(reason, why, 200), tap_run.current_call, 250);
    if (tap_append(tap_run.leave, sizeof tap_run.leave, tap_run.part, reason, "\n"))
        tap_restart(tap_run.part_name);
}

static inline void tap_signal(int sig)
{
    if (getpid() != tap_run.pid) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    if (sig == SIGTERM) {
        tap_print("not ok - stopped in ", tap_run.current_call, "\n");
        _exit(128 + sig);
    }
    if (sig != SIGALRM && tap_run.may_skip &&
        tap_append(tap_run.skip, sizeof tap_run.skip, tap_run.part * TAP_PART + tap_run.in_part + 1, ",", ""))
        tap_restart(tap_run.current_call);
    tap_skip_part(sig == SIGALRM ? "it hangs in " : "it crashes in ");
    tap_print("not ok - crashed in ", tap_run.current_call, "\n");
    _exit(128 + sig);
}

static inline void tap_begin(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTERM, SIGALRM};
    const char *skip = getenv("TAP_SKIP"), *leave = getenv("TAP_LEAVE");
    if (skip)
        snprintf(tap_run.skip, sizeof tap_run.skip, "TAP_SKIP=%s", skip);
    if (leave)
        snprintf(tap_run.leave, sizeof tap_run.leave, "TAP_LEAVE=%s", leave);
    putenv(tap_run.skip);
    putenv(tap_run.leave);
    setlinebuf(stdout); /* so that no line is lost or printed twice if a call crashes or forks */
    tap_run.pid = getpid();
    if (readlink("/proc/self/exe", tap_run.self, sizeof tap_run.self - 1) < 0)
        return;
    struct sigaction action = {.sa_handler = tap_signal, .sa_flags = SA_NODEFER}; /* SA_NODEFER: the signal must not be blocked in the restarted program */
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
}

/* Records a call before it is made, so that a message can name it if it crashes or hangs. */
static inline void tap_enter(const char *call)
{
    if (!tap_run.pid)
        tap_begin();
    tap_run.current_call = call;
    tap_run.may_skip = false;
}

/* Does the same for the call of a check, which the next pass can skip. Returns false if the call has
 * to be skipped, because it crashed in an earlier pass. */
static inline bool tap_enter_check(const char *call)
{
    tap_enter(call);
    tap_run.may_skip = true;
    for (const char *at = tap_run.skip + sizeof "TAP_SKIP=" - 1; *at; at = strchr(at, ',') + 1)
        if (atoi(at) == tap_run.part * TAP_PART + tap_run.in_part + 1)
            return false;
    return true;
}

/* ---- checks ---- */

static inline bool tap(bool ok, const char *what, const char *file, int line)
{
    tap_run.in_part++;
    printf("%sok %d - %s\n", ok ? "" : "not ", ++tap_count, what);
    if (!ok) {
        printf("# %s:%d\n", file, line);
        tap_failed++;
    }
    return ok;
}

static inline const char *tap_name(CUresult result)
{
    const char *name = NULL;
    cuGetErrorName(result, &name);
    return name ? name : "unknown";
}

static inline bool tap_result(CUresult got, CUresult want, const char *what, const char *file, int line)
{
    if (!tap(got == want, what, file, line))
        printf("# got %d (%s), expected %d\n", (int)got, tap_name(got), (int)want);
    return got == want;
}

static inline bool simulated(CUdevice dev);

/* Performs a check of behaviour that no documentation promises. It must hold on the simulated
 * driver; a difference on another driver is reported, but is no failure. */
static inline bool tap_sim(bool ok, CUresult got, const char *what, const char *file, int line)
{
    CUdevice dev;
    if (ok || cuInit(0) || cuDeviceGet(&dev, 0) || simulated(dev))
        return tap(ok, what, file, line);
    tap(true, what, file, line);
    if (got == CUDA_SUCCESS)
        printf("# differs: not so: %s\n", what);
    else
        printf("# differs: %s: %d (%s)\n", what, (int)got, tap_name(got));
    return false;
}

static inline bool tap_crash(const char *what, const char *file, int line)
{
    tap(false, what, file, line);
    printf("# it crashes\n");
    return false;
}

#define CHECK(condition)                                                                             \
    (tap_enter_check(#condition) ? tap((condition), #condition, __FILE__, __LINE__)                  \
                                 : tap_crash(#condition, __FILE__, __LINE__))
#define CHECK_RESULT(want, call)                                                                     \
    (tap_enter_check(#call) ? tap_result((call), (want), #call " gives " #want, __FILE__, __LINE__)  \
                            : tap_crash(#call, __FILE__, __LINE__))
#define SIM_CHECK(condition)                                                                         \
    (tap_enter_check(#condition)                                                                     \
         ? tap_sim((condition), CUDA_SUCCESS, #condition, __FILE__, __LINE__)                        \
         : tap_sim(false, CUDA_SUCCESS, #condition " (it crashes)", __FILE__, __LINE__))
#define SIM_CHECK_RESULT(want, call)                                                                 \
    ({                                                                                               \
        bool made_ = tap_enter_check(#call);                                                         \
        CUresult got_ = made_ ? (call) : CUDA_SUCCESS;                                               \
        tap_sim(made_ && got_ == (want), got_, made_ ? #call " gives " #want : #call " (it crashes)", \
                __FILE__, __LINE__);                                                                 \
    })
#define ASSERT_SUCCESS(call)                                              \
    do {                                                                  \
        tap_enter(#call);                                                 \
        CUresult got_ = (call);                                           \
        if (got_ != CUDA_SUCCESS) {                                       \
            tap_result(got_, CUDA_SUCCESS, #call, __FILE__, __LINE__);    \
            tap_skip_part(tap_error(got_));                               \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

/* Returns the beginning of the reason for skipping a part, which ends with the call. */
static inline const char *tap_error(CUresult result)
{
    static char text[128];
    snprintf(text, sizeof text, "error %d (%s) of ", (int)result, tap_name(result));
    return text;
}

#define PART(call) \
    do {           \
        if (tap_part(#call)) \
            call;  \
    } while (0)

static inline bool tap_part(const char *name)
{
    const char *patience = getenv("TAP_PATIENCE");
    tap_enter(name);
    tap_run.part++;
    tap_run.in_part = 0;
    tap_run.part_name = name;
    for (const char *at = tap_run.leave + sizeof "TAP_LEAVE=" - 1; *at; at = strchr(at, '\n') + 1)
        if (atoi(at) == tap_run.part) {
            const char *why = strchr(at, ' ') + 1;
            tap_failed++;
            printf("not ok %d - %s: %.*s\n", ++tap_count, name, (int)strcspn(why, "\n"), why);
            return false;
        }
    alarm(patience ? (unsigned)atoi(patience) : 0);
    return true;
}

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
    ASSERT_SUCCESS(cuDeviceGetName(name, sizeof name, dev));
    return !strcmp(name, "gfaas simulated GPU");
}

static inline CUdevice first_device(void)
{
    CUdevice dev;
    ASSERT_SUCCESS(cuInit(0));
    ASSERT_SUCCESS(cuDeviceGet(&dev, 0));
    return dev;
}
