/* modules.c: linked code stays loaded until it is unloaded, and so do the functions that were looked up in it (KaaS,
 * section 4.1.3: the kernel cache). */
#include "executor.h"

#include <stdlib.h>
#include <string.h>

enum { MODULES = 4096, ERROR_LOG = 5, ERROR_LOG_SIZE = 6 };

struct function {
    struct function *next;
    CUfunction f;
    size_t len;
    char name[];
};

static struct {
    CUmodule module;
    struct function *functions;
} modules[MODULES];

/* Compiles PTX; `log` gets the compiler's messages. */
CUresult module_load(uint32_t number, const char *text, char *log, size_t len)
{
    if (number >= MODULES || modules[number].module)
        return CUDA_ERROR_INVALID_VALUE;
    CUjit_option option[] = {ERROR_LOG, ERROR_LOG_SIZE};
    void *value[] = {log, (void *)(uintptr_t)len};
    log[0] = 0;
    CUresult r = p_cuModuleLoadDataEx(&modules[number].module, text, 2, option, value);
    log[len - 1] = 0;
    if (r != CUDA_SUCCESS)
        modules[number].module = NULL;
    return r;
}

void module_unload(uint32_t number)
{
    if (number >= MODULES || !modules[number].module)
        return;
    p_cuModuleUnload(modules[number].module);
    modules[number].module = NULL;
    while (modules[number].functions) {
        struct function *f = modules[number].functions;
        modules[number].functions = f->next;
        free(f);
    }
}

CUresult module_function(uint32_t number, const char *name, size_t len, CUfunction *out)
{
    if (number >= MODULES || !modules[number].module)
        return CUDA_ERROR_INVALID_HANDLE;
    for (struct function *f = modules[number].functions; f; f = f->next)
        if (f->len == len && !memcmp(f->name, name, len)) {
            *out = f->f;
            return CUDA_SUCCESS;
        }
    struct function *f = malloc(sizeof *f + len + 1);
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(f->name, name, len);
    f->name[len] = 0;
    f->len = len;
    CUresult r = p_cuModuleGetFunction(&f->f, modules[number].module, f->name);
    if (r != CUDA_SUCCESS) {
        free(f);
        return r;
    }
    f->next = modules[number].functions;
    modules[number].functions = f;
    *out = f->f;
    return CUDA_SUCCESS;
}
