/* procaddr.c: cuGetProcAddress in both forms. */
#include "sim.h"

#include <string.h>

struct symbol {
    const char *name;
    int since;
    void *fn, *twin;
};

#define FN(f) ((void *)(uintptr_t)(f))
#define TWIN_NONE(name) NULL
#define TWIN_PTSZ(name) FN(name##_ptsz)
#define TWIN_PTDS(name) FN(name##_ptds)
#define ROW(name, since, twin) {#name, since, FN(name), twin},
#define CU(name, since, variant, hook, sim, stream, params, args)
#define CU_NAME(name, since) CUresult name(void);
#include "../symbols.def"
#define CU(name, since, variant, hook, sim, stream, params, args) ROW(name, since, TWIN_##variant(name))
#define CU_NAME(name, since) ROW(name, since, NULL)
static const struct symbol symbols[] = {
#include "../symbols.def"
};

/* Reports whether base is the symbol's name without its _vN ending. */
static bool is_base(const char *base, const char *name)
{
    size_t n = strlen(base);
    if (strncmp(base, name, n))
        return false;
    return !name[n] || (name[n] == '_' && name[n + 1] == 'v' && name[n + 2] && !name[n + 3]);
}

/* Returns the base name that a name has in a version. */
static const char *renamed(const char *base, int version)
{
    if (!strcmp(base, "cuGraphInstantiate") && version >= 12000)
        return "cuGraphInstantiateWithFlags";
    return base;
}

/* Sets *out to the newest symbol of that name that is not newer than the version. */
static CUdriverProcAddressQueryResult resolve(const char *base, int version, bool per_thread, void **out)
{
    const struct symbol *best = NULL;
    bool known = false;
    base = renamed(base, version);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        const struct symbol *s = &symbols[i];
        if (!is_base(base, s->name))
            continue;
        known = true;
        if (s->since <= version && (!best || s->since > best->since))
            best = s;
    }
    *out = NULL;
    if (!best)
        return known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *out = per_thread && best->twin && version >= 7000 ? best->twin : best->fn;
    return CU_GET_PROC_ADDRESS_SUCCESS;
}

/* Reports whether the arguments are invalid in every version. */
static bool invalid_arguments(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    return !symbol || !pfn || version < 2000 || version > SIM_DRIVER_VERSION || flags > 2;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    if (invalid_arguments(symbol, pfn, cudaVersion, flags))
        return CUDA_ERROR_INVALID_VALUE;
    bool per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    return resolve(symbol, cudaVersion, per_thread, pfn) == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS
                                                                                    : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    if (invalid_arguments(symbol, pfn, cudaVersion, flags))
        return CUDA_ERROR_INVALID_VALUE;
    bool per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    CUdriverProcAddressQueryResult status = resolve(symbol, cudaVersion, per_thread, pfn);
    if (symbolStatus)
        *symbolStatus = status;
    return CUDA_SUCCESS; /* for an unknown name, the status and NULL are the error */
}
