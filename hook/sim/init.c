/* init.c: cuInit, versions, error names, and the door every call goes through. */
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

static struct gate nowhere; /* while the process is on no device: nobody knows of it, nor can lock it */
static struct gate *gate = &nowhere;

/* A forked child has the parent's memory but none of its threads, contexts or
 * locks on the device: as with the real driver it can use nothing of them. */
static void in_child(void)
{
    if (state != NOT_YET)
        state = FORKED;
}

/* At exit the process gives its place on the devices back. Should a signal
 * handler have called exit inside one of our calls, the lock never comes free
 * and the next process on the device clears up instead. */
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
            /* Now, and not when it is first needed: what the program registers
             * from here on ends before the driver does. */
            if (!hooked_exit)
                hooked_exit = atexit(at_exit) == 0;
            sim_say_simulated();
            state = READY;
        }
    }
    pthread_mutex_unlock(&init_lock);
    return r;
}

/* Why a process that is not ready is refused. */
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
    return r == CUDA_SUCCESS && g_captures ? capture_unsafe() : r;
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

/* Counts the calls that have begun. Only who has g_lock writes, so this need not be one
 * atomic operation; what a call has done is seen by who sees that it is over. */
static inline void count_call(uint32_t one)
{
    uint32_t n = atomic_load_explicit(&gate->inside, memory_order_relaxed);
    atomic_store_explicit(&gate->inside, n + one, memory_order_release);
}

/* Waits, without g_lock meanwhile, until another process unlocks this one; then it is to
 * be asked anew. Now and then it is asked so anyway: of a state file that is cut short
 * nobody tells. */
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

/* Passes the gate. The call is counted before the state is read, and who locks the
 * process writes the state before reading the count, so that one of the two sees the
 * other, if no processor holds back what it writes. The locker sees to that for both
 * (checkpoint.c): a barrier here would cost more than all of this. */
static inline CUresult enter(void)
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

/* Begins a call: takes the lock and, where c is given, finds the context. */
CUresult sim_begin(struct ctx **c)
{
    CUresult r = sim_ready();
    if (r != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&g_lock);
    r = enter();
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
        r = lost_notice(); /* since the call began */
    count_call(-1u);
    pthread_mutex_unlock(&g_lock);
    return r;
}

CUresult cuDriverGetVersion(int *driverVersion)
{
    if (!driverVersion)
        return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = SIM_DRIVER_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    switch (error) {
#define NAME_OF(name, code, text) \
    case name:                    \
        *pStr = #name;            \
        return CUDA_SUCCESS;
        CU_RESULTS(NAME_OF)
    default:
        *pStr = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    switch (error) {
#define TEXT_OF(name, code, text) \
    case name:                    \
        *pStr = text;             \
        return CUDA_SUCCESS;
        CU_RESULTS(TEXT_OF)
    default:
        *pStr = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuProfilerStart(void)
{
    return CUDA_SUCCESS;
}

CUresult cuProfilerStop(void)
{
    return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    if (!ppExportTable || !pExportTableId)
        return CUDA_ERROR_INVALID_VALUE;
    *ppExportTable = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
