/* init.c: cuInit, versions, error names, and the entry and exit of every call. */
#include "capture.h"
#include "shared.h"

#include <stdlib.h>
#include <time.h>

const char sim_library[] = "libcuda";

enum { NOT_YET, READY, GONE, FORKED };

pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
struct device g_device[SIM_MAX_DEVICES];
__thread bool tls_in_callback;
__thread bool tls_per_thread;

static _Atomic int state = NOT_YET;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static bool hooked_fork, hooked_exit;

static struct gate nowhere; /* while the process is on no device, and no other process can lock it */
static struct gate *gate = &nowhere;

/* A forked child has the parent's memory, but none of its threads, contexts or locks on the device. As
 * with the real driver, it cannot use any of them. */
static void in_child(void)
{
    if (state != NOT_YET)
        state = FORKED;
}

/* Leaves the devices at exit. If a signal handler called exit inside a call of the driver, the lock is
 * never released, and the next process on the device cleans up instead. */
static void at_exit(void)
{
    struct timespec ts;
    if (state != READY)
        return;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += 1;
    if (pthread_mutex_timedlock(&g_lock, &ts))
        return;
    state = GONE;
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        shared_leave(&g_device[i]);
        if (g_device[i].worker_started)
            shared_bell_ring(&g_device[i]);
    }
    pthread_mutex_unlock(&g_lock);
}

CUresult cuInit(unsigned int Flags)
{
    if (Flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (state == FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (state == GONE)
        return CUDA_ERROR_DEINITIALIZED;
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&init_lock);
    if (state == NOT_YET) {
        if (!config_load())
            r = CUDA_ERROR_INVALID_VALUE;
        else if (!g_config.visible)
            r = CUDA_ERROR_NO_DEVICE;
        else if (!wait_init())
            r = CUDA_ERROR_OUT_OF_MEMORY;
        if (r == CUDA_SUCCESS && !hooked_fork)
            hooked_fork = pthread_atfork(NULL, NULL, in_child) == 0;
        if (r == CUDA_SUCCESS) {
            for (int i = 0; i < SIM_MAX_DEVICES; i++) {
                g_device[i].index = i;
                g_device[i].ordinal = -1;
            }
            for (unsigned i = 0; i < g_config.visible; i++)
                g_device[g_config.visible_index[i]].ordinal = (int)i;
            /* Registered now, not at the first use, so that exit functions that the program registers
             * later run before the driver's. */
            if (!hooked_exit)
                hooked_exit = atexit(at_exit) == 0;
            sim_say_simulated();
            state = READY;
        }
    }
    pthread_mutex_unlock(&init_lock);
    return r;
}

/* Returns the error for a process that is not ready. */
static CUresult refused(void)
{
    return state == GONE ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult ctx_usable(struct ctx **c)
{
    *c = ctx_current();
    return !*c               ? CUDA_ERROR_INVALID_CONTEXT
           : (*c)->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                             : (*c)->error;
}

CUresult ctx_release(void)
{
    struct ctx *c = ctx_current();
    CUresult r = c ? ctx_usable(&c) : CUDA_SUCCESS;
    return r == CUDA_SUCCESS && g_captures ? capture_on_unsafe_call() : r;
}

CUresult sim_ready(void)
{
    return state != READY ? refused() : tls_in_callback ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

void gate_move(struct gate *to)
{
    if (!to)
        to = &nowhere;
    atomic_store(&to->inside, atomic_load(&gate->inside));
    gate = to;
}

/* Counts the calls in progress. Only the holder of g_lock writes the count, so the increment need not be
 * atomic. The release store makes a call's effects visible to a process that sees its end. */
static inline void count_call(uint32_t one)
{
    uint32_t n = atomic_load_explicit(&gate->inside, memory_order_relaxed);
    atomic_store_explicit(&gate->inside, n + one, memory_order_release);
}

/* Waits, with g_lock released, until another process unlocks this one. The caller then checks the gate
 * again. The wait is limited, because nothing wakes a process whose state file was truncated. */
static CUresult wait_unlocked(void)
{
    struct gate *g = gate;
    uint32_t seen = atomic_load(&g->state);
    pthread_mutex_unlock(&g_lock);
    if (seen != SIM_RUNNING)
        gate_sleep(g, seen);
    pthread_mutex_lock(&g_lock);
    return state == READY ? CUDA_SUCCESS : refused();
}

/* Passes the gate. The call is counted before the state is read; a process that locks this one writes the
 * state before it reads the count. So one of the two sees the other, if the processors do not reorder
 * these accesses. The locking process executes the barrier for both (checkpoint.c), because a barrier
 * here would cost more than the whole function. */
static inline CUresult pass_gate(void)
{
    for (;;) {
        count_call(1);
        atomic_signal_fence(memory_order_seq_cst);
        if (__builtin_expect(atomic_load_explicit(&gate->state, memory_order_acquire) == SIM_RUNNING, 1))
            return CUDA_SUCCESS;
        count_call(-1u);
        CUresult r = wait_unlocked();
        if (r != CUDA_SUCCESS)
            return r;
    }
}

/* Begins a call: takes the lock and, if c is not NULL, finds the context. */
CUresult sim_begin(struct ctx **c)
{
    TRY(sim_ready());
    pthread_mutex_lock(&g_lock);
    CUresult r = pass_gate();
    if (r != CUDA_SUCCESS) {
        pthread_mutex_unlock(&g_lock);
        return r;
    }
    r = atomic_load_explicit(&g_lost, memory_order_relaxed) ? lost_notice() : c ? ctx_usable(c) : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS) {
        count_call(-1u);
        pthread_mutex_unlock(&g_lock);
    }
    return r;
}

CUresult sim_end(CUresult r)
{
    if (atomic_load_explicit(&g_lost, memory_order_relaxed))
        r = lost_notice(); /* lost during this call */
    count_call(-1u);
    pthread_mutex_unlock(&g_lock);
    return r;
}

static const struct result {
    CUresult code;
    const char *name, *text;
} results[] = {
#define RESULT(name, code, text) {name, #name, text},
    CU_RESULTS(RESULT)
};

/* Returns the strings of a result; NULL if it is unknown. */
static struct result strings_of(CUresult error)
{
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].code == error)
            return results[i];
    return (struct result){0};
}

/* Stores a string of a result. */
static CUresult store_string(const char **out, const char *string)
{
    CUresult r = STORE(out, string);
    return string ? r : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    return store_string(pStr, strings_of(error).name);
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    return store_string(pStr, strings_of(error).text);
}

CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    if (!ppExportTable || !pExportTableId)
        return CUDA_ERROR_INVALID_VALUE;
    *ppExportTable = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
