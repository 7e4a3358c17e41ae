/* library.c: libraries and kernels, which belong to no context. A library is a text or a binary. In each context that uses
 * it, it is a module that is loaded at the first use. The attributes of a kernel are set for a device, and so
 * for the modules on it. */
#include "capture.h"
#include "func.h"
#include "module.h"

#include <stdlib.h>
#include <string.h>

static void library_free(struct library *l)
{
    for (unsigned i = 0; i < l->n; i++)
        handle_del(&l->kernels[i]);
    handle_del(l);
    if (l->parsed)
        module_drop(l->parsed);
    free(l->kernels);
    free(l->text);
    free(l);
}

/* Creates the kernels of the parsed text. */
static bool list_kernels(struct library *l)
{
    for (struct func *f = l->parsed->funcs; f; f = f->next)
        l->n++;
    l->kernels = calloc(l->n + 1, sizeof *l->kernels);
    if (!l->kernels)
        return false;
    bool known = handle_add(l, H_LIBRARY);
    struct kernel *k = l->kernels;
    for (struct func *f = l->parsed->funcs; f; f = f->next, k++) {
        k->library = l;
        k->f = f;
        for (int i = 0; i < SIM_MAX_DEVICES; i++)
            k->set[i] = f->set;
        known &= handle_add(k, H_KERNEL);
    }
    return known;
}

CUresult sim_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                               unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions)
{
    char msg[512] = "";
    if (!library || !code || (numJitOptions && (!jitOptions || !jitOptionsValues)) ||
        (numLibraryOptions && (!libraryOptions || !libraryOptionValues)))
        return CUDA_ERROR_INVALID_VALUE;
    struct library *l = calloc(1, sizeof *l);
    if (!l)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = module_parse(&l->parsed, code, msg, sizeof msg);
    module_log(numJitOptions, jitOptions, jitOptionsValues, msg);
    if (r == CUDA_SUCCESS) {
        size_t size = binary_is(code) ? binary_size(code, MAX_IMAGE) : strlen(code) + 1;
        l->text = malloc(size);
        if (l->text)
            memcpy(l->text, code, size);
        if (!l->text || !list_kernels(l))
            r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r == CUDA_SUCCESS)
        *library = (CUlibrary)l;
    else
        library_free(l);
    return r;
}

CUresult sim_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                   void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                                   void **libraryOptionValues, unsigned int numLibraryOptions)
{
    CUresult r;
    size_t n;
    char *text = fileName ? module_read(fileName, &n, &r) : NULL;
    if (!fileName)
        return CUDA_ERROR_INVALID_VALUE;
    if (!text)
        return r;
    r = sim_cuLibraryLoadData(library, text, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                              libraryOptionValues, numLibraryOptions);
    free(text);
    return r;
}

/* Returns a module of the library in any context, or NULL. */
static struct module *module_of(const struct library *l)
{
    for (struct ctx *c = g_contexts; c; c = c->next)
        for (struct module *m = c->modules; m; m = m->next)
            if (m->library == l)
                return m;
    return NULL;
}

/* Earlier work may still use the library, and is waited for. The wait releases the lock, so the modules are
 * looked up again after it. */
CUresult sim_cuLibraryUnload(struct library *l, CUlibrary library)
{
    handle_del(l);
    for (unsigned i = 0; i < l->n; i++)
        handle_del(&l->kernels[i]);
    for (struct module *m; (m = module_of(l));) {
        wait_context(m->ctx, false);
        if (module_of(l) != m)
            continue;
        exec_forget(m);
        exec_drain();
        if (module_of(l) == m)
            module_free(m);
    }
    library_free(l);
    return CUDA_SUCCESS;
}

CUresult sim_cuLibraryGetKernel(struct library *l, CUkernel *pKernel, CUlibrary library, const char *name)
{
    if (!pKernel || !name)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < l->n; i++)
        if (!strcmp(l->kernels[i].f->name, name)) {
            *pKernel = (CUkernel)&l->kernels[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult sim_cuLibraryEnumerateKernels(struct library *l, CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    if (!kernels || !numKernels)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < l->n && i < numKernels; i++)
        kernels[i] = (CUkernel)&l->kernels[i];
    return CUDA_SUCCESS;
}

/* Returns the library as a module of a context, loading it if needed. */
static struct module *module_in(struct library *l, struct ctx *c, CUresult *r)
{
    CUmodule loaded;
    char msg[512];
    for (struct module *m = c->modules; m; m = m->next)
        if (m->library == l)
            return m;
    *r = module_load(c, &loaded, l->text, msg, sizeof msg);
    if (*r != CUDA_SUCCESS)
        return NULL;
    struct module *m = (struct module *)loaded;
    m->library = l;
    for (struct kernel *k = l->kernels; k < l->kernels + l->n; k++)
        module_func(m, k->f->name)->set = k->set[c->dev->index];
    return m;
}

struct func *func_in(struct ctx *c, const void *handle, CUresult *r)
{
    struct func *f = handle_of(handle, H_FUNC);
    struct kernel *k = f ? NULL : handle_of(handle, H_KERNEL);
    *r = CUDA_ERROR_INVALID_HANDLE;
    struct module *m = k ? module_in(k->library, c, r) : NULL;
    return m ? module_func(m, k->f->name) : f;
}

CUresult sim_cuLibraryGetModule(struct ctx *c, CUmodule *pMod, CUlibrary library)
{
    CUresult r;
    struct library *l = handle_of(library, H_LIBRARY);
    if (!l)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pMod)
        return CUDA_ERROR_INVALID_VALUE;
    struct module *m = module_in(l, c, &r);
    if (m)
        *pMod = (CUmodule)m;
    return m ? CUDA_SUCCESS : r;
}

CUresult sim_cuLibraryGetGlobal(struct ctx *c, CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    CUmodule m = NULL;
    TRY(sim_cuLibraryGetModule(c, &m, library));
    return sim_cuModuleGetGlobal_v2((struct module *)m, dptr, bytes, m, name);
}

/* A text has no managed variables. */
CUresult sim_cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    if (!handle_is(library, H_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    return name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

/* UNIFIED_FUNCTION_POINTERS is 0. */
CUresult sim_cuLibraryGetUnifiedFunction(void **fptr, CUlibrary library, const char *symbol)
{
    if (!handle_is(library, H_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    return fptr && symbol ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuKernelGetFunction(struct ctx *c, CUfunction *pFunc, CUkernel kernel)
{
    CUresult r;
    if (!handle_is(kernel, H_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pFunc)
        return CUDA_ERROR_INVALID_VALUE;
    struct func *f = func_in(c, kernel, &r);
    if (f)
        *pFunc = (CUfunction)f;
    return f ? CUDA_SUCCESS : r;
}

CUresult sim_cuKernelGetParamInfo(struct ctx *c, CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                  size_t *paramSize)
{
    struct kernel *k = handle_of(kernel, H_KERNEL);
    return k ? sim_cuFuncGetParamInfo(k->f, NULL, paramIndex, paramOffset, paramSize) : CUDA_ERROR_INVALID_HANDLE;
}

/* Changes the settings of a kernel on a device, also in loaded modules. */
static void change(struct kernel *k, struct device *d, const struct func_settings *set)
{
    k->set[d->index] = *set;
    for (struct ctx *c = g_contexts; c; c = c->next)
        for (struct module *m = c->dev == d ? c->modules : NULL; m; m = m->next)
            if (m->library == k->library)
                module_func(m, k->f->name)->set = *set;
}

CUresult sim_cuKernelGetAttribute(struct kernel *k, int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    struct device *d = device_of(dev);
    return d ? func_get_attribute(&k->set[d->index], pi, attrib) : CUDA_ERROR_INVALID_DEVICE;
}

/* Defines a call that changes the settings of a kernel on a device; `action` changes `set`. */
#define SET(name, action, ...)                                                  \
    CUresult sim_cuKernelSet##name(struct kernel *k, __VA_ARGS__, CUdevice dev) \
    {                                                                           \
        struct device *d = device_of(dev);                                      \
        if (!d)                                                                 \
            return CUDA_ERROR_INVALID_DEVICE;                                   \
        struct func_settings set = k->set[d->index];                            \
        TRY(action);                                                            \
        change(k, d, &set);                                                     \
        return CUDA_SUCCESS;                                                    \
    }
SET(Attribute, func_set_attribute(&set, attrib, val), CUfunction_attribute attrib, int val, CUkernel kernel)
SET(CacheConfig, func_set_cache(&set, config), CUkernel kernel, CUfunc_cache config)
