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

/* Returns a copy of a binary at an address that suits the structures in it, or NULL. */
static void *aligned(const void *code, size_t size)
{
    void *copy = malloc(size);
    return copy ? memcpy(copy, code, size) : NULL;
}

/* Compiles PTX, or loads a cubin or fatbin; `log` gets the driver's messages. */
CUresult module_load(uint32_t number, const char *code, size_t size, char *log, size_t len)
{
    static const char elf[] = "\177ELF", fatbin[] = "\x50\xed\x55\xba";
    if (number >= MODULES || modules[number].module)
        return CUDA_ERROR_INVALID_VALUE;
    CUjit_option option[] = {ERROR_LOG, ERROR_LOG_SIZE};
    void *value[] = {log, (void *)(uintptr_t)len};
    log[0] = 0;
    void *copy = NULL;
    if (size > 4 && (!memcmp(code, elf, 4) || !memcmp(code, fatbin, 4)) && !(copy = aligned(code, size)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = p_cuModuleLoadDataEx(&modules[number].module, copy ? copy : code, 2, option, value);
    free(copy);
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
