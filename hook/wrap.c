/* wrap.c: the wrappers of the same form, generated from symbols.def. */
#include "fault.h"
#include "gate.h"
#include "memory.h"
#include "real.h"
#include "wait.h"

/* Stream 0 means the legacy stream in an ordinary function, and the calling thread's own stream in a
 * _ptsz or _ptds twin. */
static inline CUstream ordinary(CUstream stream)
{
    return stream ? stream : CU_STREAM_LEGACY;
}

static inline CUstream per_thread(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

/* The blocks of each kind of launch. */
#define GF_GRID ((uint64_t)gridDimX * gridDimY * gridDimZ)
#define GF_AREA ((uint64_t)grid_width * (uint64_t)grid_height)
#define GF_BLOCKS_cuLaunchKernel GF_GRID
#define GF_BLOCKS_cuLaunchCooperativeKernel GF_GRID
#define GF_BLOCKS_cuLaunchKernelEx \
    (config ? (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ : 0)
#define GF_BLOCKS_cuLaunch 1
#define GF_BLOCKS_cuLaunchGrid GF_AREA
#define GF_BLOCKS_cuLaunchGridAsync GF_AREA

/* The slow path is a separate function that is called in place of the driver's, so the fast path saves
 * only one register. There must be a single call: with two, the compiler would load the arguments before
 * it is known which call follows. */
#define GF_WORK(symbol, real, flavour, stream, params, args, kernels, blocks) \
    GF_COLD static CUresult symbol##_slow params \
    { \
        struct gf_line *entered = gf_enter_slow(flavour(stream), blocks); \
        if (!entered) \
            return GF_NOT_SENT; \
        CUresult result = gf_real.real args; \
        gf_leave(entered, kernels, result, #symbol); \
        return result; \
    } \
    CUresult symbol params \
    { \
        struct gf_line *entered = gf_enter_fast(flavour(stream)); \
        CUresult(*target) params = gf_likely(entered) ? gf_real.real : symbol##_slow; \
        __asm__("" : "+r"(entered), "+r"(target)); \
        CUresult result = target args; \
        if (gf_likely(entered)) \
            gf_leave(entered, kernels, result, #symbol); \
        return result; \
    }

/* Work that has finished when the call returns. */
#define GF_BRIEF(symbol, params, args) \
    CUresult symbol params \
    { \
        struct gf_line *entered = gf_enter_sync(); \
        if (gf_unlikely(!entered)) \
            return GF_NOT_SENT; \
        CUresult result = gf_real.symbol args; \
        gf_left_sync(entered, result, #symbol); \
        return result; \
    }

/* Changes the current context. */
#define GF_TURN(symbol, params, args) \
    CUresult symbol params \
    { \
        CUresult result = gf_real.symbol args; \
        gf_forget_thread(); \
        gf_saw(result, #symbol); \
        return gf_unlikely(result == CUDA_ERROR_OUT_OF_MEMORY) ? gf_mem_answer_on(0, result) : result; \
    }

/* Waits for work or queries it. */
#define GF_WATCH(symbol, real, flavour, params, args) \
    CUresult symbol params \
    { \
        CUresult result = gf_real.real args; \
        gf_saw(result, #symbol); \
        return result; \
    }

/* Makes a stream wait for something outside the GPU. */
#define GF_STAND(symbol, real, flavour, stream, params, args) \
    CUresult symbol params \
    { \
        struct gf_waiting waiting = gf_enter_wait(flavour(stream), false); \
        CUresult result = gf_real.real args; \
        gf_wait_end(waiting, result); \
        gf_saw(result, #symbol); \
        return result; \
    }

/* A function and its per-thread twin, if it has one. */
#define GF_BOTH_NONE(make, name, ...) make(name, name, ordinary, __VA_ARGS__)
#define GF_BOTH_PTSZ(make, name, ...) \
    make(name, name, ordinary, __VA_ARGS__) make(name##_ptsz, name##_ptsz, per_thread, __VA_ARGS__)
#define GF_BOTH_PTDS(make, name, ...) \
    make(name, name, ordinary, __VA_ARGS__) make(name##_ptds, name##_ptds, per_thread, __VA_ARGS__)

#define GF_SYNC_TWIN(symbol, real, flavour, params, args) GF_BRIEF(symbol, params, args)

#define GF_WRAP_LAUNCH(name, variant, stream, params, args) \
    GF_BOTH_##variant(GF_WORK, name, stream, params, args, 1, GF_BLOCKS_##name)
#define GF_WRAP_COPY(name, variant, stream, params, args) \
    GF_BOTH_##variant(GF_WORK, name, stream, params, args, 0, 0)
#define GF_WRAP_SYNC(name, variant, stream, params, args) GF_BOTH_##variant(GF_SYNC_TWIN, name, params, args)
#define GF_WRAP_WATCH(name, variant, stream, params, args) GF_BOTH_##variant(GF_WATCH, name, params, args)
#define GF_WRAP_WAIT(name, variant, stream, params, args) GF_BOTH_##variant(GF_STAND, name, stream, params, args)
#define GF_WRAP_SWITCH(name, variant, stream, params, args) GF_TURN(name, params, args)
#define GF_WRAP_HAND(name, variant, stream, params, args)
#define GF_WRAP_PASS(name, variant, stream, params, args)

#define CU(name, since, variant, hook, sim, stream, params, args) \
    GF_WRAP_##hook(name, variant, stream, params, args)
#include "symbols.def"
