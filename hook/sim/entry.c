/* entry.c: the functions that the driver exports, generated from the list of symbols.
 *
 * They contain what nearly all calls do before and after their work, by the list's
 * column `sim`: acquire the lock, find the context, the stream, the device or the object
 * of a handle, check for errors, release the lock. The work itself is in sim_NAME, in the
 * other files. Functions that are not simulated return an error here.
 */
#include "array.h"
#include "capture.h"
#include "graph.h"
#include "module.h"

/* Begins a call that cannot be captured. */
static CUresult begin_unsafe(struct ctx **c)
{
    CUresult r = sim_begin(c);
    if (r != CUDA_SUCCESS || !g_captures)
        return r;
    r = capture_on_unsafe_call();
    return r == CUDA_SUCCESS ? r : sim_end(r);
}

/* Begins a call on a stream of the current context; `use`: that uses it, and does not only query it. */
static CUresult begin_stream(CUstream h, bool use, struct stream **s)
{
    struct ctx *c;
    CUresult r = sim_begin(&c);
    if (r != CUDA_SUCCESS)
        return r;
    *s = use ? stream_get(c, h, &r) : stream_find(c, h, &r);
    return *s ? r : sim_end(r);
}

static CUresult begin_device(CUdevice dev, struct device **d)
{
    TRY(sim_begin(NULL));
    *d = device_of(dev);
    return *d ? CUDA_SUCCESS : sim_end(CUDA_ERROR_INVALID_DEVICE);
}

/* Begins a call on the object of a handle. */
static CUresult begin_handle(uintptr_t h, enum handle_kind kind, bool in_context, CUresult error, void **object)
{
    struct ctx *c;
    TRY(sim_begin(in_context ? &c : NULL));
    *object = handle_of((void *)h, kind);
    return *object ? CUDA_SUCCESS : sim_end(error);
}

#define ENTRY_OWN(name, ...)
#define ENTRY_STUB(name, stream, params, ...) \
    CUresult name params                      \
    {                                         \
        return CUDA_ERROR_NOT_SUPPORTED;      \
    }
#define ENTRY_AS(name, stream, params, args, result, ...) \
    CUresult name params                                  \
    {                                                     \
        return result;                                    \
    }
#define ENTRY_ALIAS(name, stream, params, args, ...) ENTRY_AS(name, stream, params, args, name##_v2 args, )
/* type: of the object that begin stores in `it` */
#define ENTRY_WITH(type, begin, name, params, action)                  \
    CUresult name params                                               \
    {                                                                  \
        type *it __attribute__((unused));                              \
        CUresult begun = begin;                                        \
        return begun == CUDA_SUCCESS ? sim_end(action) : begun;        \
    }
#define WITH_LOCKED(name, stream, params, action, ...) ENTRY_WITH(void, sim_begin(NULL), name, params, action)
#define WITH_CONTEXT(name, stream, params, action, ...) ENTRY_WITH(struct ctx, sim_begin(&it), name, params, action)
#define WITH_STREAM(name, handle, params, action, ...) \
    ENTRY_WITH(struct stream, begin_stream(handle, true, &it), name, params, action)
#define WITH_DEVICE(name, stream, params, action, dev, ...) \
    ENTRY_WITH(struct device, begin_device(dev, &it), name, params, action)
#define WITH_HANDLE(name, stream, params, action, kind, h, type, in_context, error, ...) \
    ENTRY_WITH(struct type, ({                                                                             \
        void *object = NULL;                                                                               \
        CUresult r = begin_handle((uintptr_t)(h), kind, in_context, error, &object);                       \
        it = object;                                                                                       \
        r;                                                                                                 \
    }), name, params, action)

#define BODY(name, args) sim_##name(it, SIM_LIST args)
#define ENTRY_LOCKED(name, stream, params, args, ...) WITH_LOCKED(name, stream, params, sim_##name args, )
#define ENTRY_CONTEXT(name, stream, params, args, ...) WITH_CONTEXT(name, stream, params, BODY(name, args), __VA_ARGS__)
#define ENTRY_STREAM(name, stream, params, args, ...) WITH_STREAM(name, stream, params, BODY(name, args), __VA_ARGS__)
#define ENTRY_DEVICE(name, stream, params, args, ...) WITH_DEVICE(name, stream, params, BODY(name, args), __VA_ARGS__)
#define ENTRY_HANDLE(name, stream, params, args, ...) WITH_HANDLE(name, stream, params, BODY(name, args), __VA_ARGS__)
#define ENTRY_UNSAFE(name, stream, params, args, ...) \
    ENTRY_WITH(struct ctx, begin_unsafe(&it), name, params, BODY(name, args))
#define ENTRY_QUERY(name, handle, params, args, ...) \
    ENTRY_WITH(struct stream, begin_stream(handle, false, &it), name, params, BODY(name, args))
#define ENTRY_GET(name, stream, params, args, out, value, word, ...) \
    WITH_##word(name, stream, params, STORE(out, value), __VA_ARGS__)

#define CU(name, since, variant, hook, sim, stream, params, args) SIM_ROW(ENTRY_, name, stream, params, args, SIM_##sim)
#define CU_NAME(name, since)                    \
    CUDA_EXPORT CUresult name(void);     \
    CUresult name(void)                  \
    {                                    \
        return CUDA_ERROR_NOT_SUPPORTED; \
    }
#include "../symbols.def"

/* A twin is the same call, in which stream 0 means the thread's own stream. */
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
