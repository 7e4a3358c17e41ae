/* entry.c: the functions that the driver exports, made from the list of symbols.
 *
 * What nearly all of them do before and after their work is here, and told by the
 * list's column `sim`: take the lock, find the context and the stream that are
 * meant, refuse, let go of the lock. The work itself is sim_NAME, somewhere in the
 * other files. What is not simulated is refused here.
 */
#include "capture.h"

/* Begins a call that a capture cannot see. */
static CUresult begin_unsafe(struct ctx **c)
{
    CUresult r = sim_begin(c);
    if (r != CUDA_SUCCESS || !g_captures)
        return r;
    r = capture_unsafe();
    return r == CUDA_SUCCESS ? r : sim_end(r);
}

/* Begins a call on the stream that a handle means in the current context. */
static CUresult begin_stream(CUstream h, struct ctx **c, struct stream **s)
{
    CUresult r = sim_begin(c);
    if (r != CUDA_SUCCESS)
        return r;
    *s = stream_get(*c, h, &r);
    return *s ? r : sim_end(r);
}

#define ENTRY_OWN(name, stream, params, args)
#define ENTRY_STUB(name, stream, params, args) \
    CUresult name params                       \
    {                                          \
        return CUDA_ERROR_NOT_SUPPORTED;       \
    }
#define ENTRY_ALIAS(name, stream, params, args) \
    CUresult name params                        \
    {                                           \
        return name##_v2 args;                  \
    }
#define ENTRY_LOCKED(name, stream, params, args)                             \
    CUresult name params                                                     \
    {                                                                        \
        CUresult begun = sim_begin(NULL);                                    \
        return begun == CUDA_SUCCESS ? sim_end(sim_##name args) : begun;     \
    }
/* first: what the body has as its first parameter, set by begin */
#define ENTRY_WITH(begin, first, name, params, args)                                        \
    CUresult name params                                                                    \
    {                                                                                       \
        struct ctx *current;                                                                \
        struct stream *target;                                                              \
        (void)target;                                                                       \
        CUresult begun = begin;                                                             \
        return begun == CUDA_SUCCESS ? sim_end(sim_##name(first, SIM_LIST args)) : begun;   \
    }
#define ENTRY_CONTEXT(name, stream, params, args) ENTRY_WITH(sim_begin(&current), current, name, params, args)
#define ENTRY_UNSAFE(name, stream, params, args) ENTRY_WITH(begin_unsafe(&current), current, name, params, args)
#define ENTRY_STREAM(name, stream, params, args) \
    ENTRY_WITH(begin_stream(stream, &current, &target), target, name, params, args)
#define CU(name, since, variant, hook, sim, stream, params, args) ENTRY_##sim(name, stream, params, args)
#define CU_NAME(name)                    \
    CUDA_EXPORT CUresult name(void);     \
    CUresult name(void)                  \
    {                                    \
        return CUDA_ERROR_NOT_SUPPORTED; \
    }
#include "../symbols.def"

/* A twin is the same call with stream 0 meaning the thread's own stream. */
#define TWIN(twin, name, params, args) \
    CUresult twin params               \
    {                                  \
        bool outer = tls_per_thread;   \
        tls_per_thread = true;         \
        CUresult r = name args;        \
        tls_per_thread = outer;        \
        return r;                      \
    }
#define TWIN_NONE(name, params, args)
#define TWIN_PTSZ(name, params, args) TWIN(name##_ptsz, name, params, args)
#define TWIN_PTDS(name, params, args) TWIN(name##_ptds, name, params, args)
#define CU(name, since, variant, hook, sim, stream, params, args) TWIN_##variant(name, params, args)
#include "../symbols.def"
