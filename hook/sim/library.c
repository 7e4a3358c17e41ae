/* library.c: libraries and kernels, which belong to no context. A library is a text;
 * in each context that uses it, it is a module, loaded when it is first needed. What
 * is set of a kernel counts for a device, and so for the modules there. */
#include "capture.h"
#include "func.h"
#include "module.h"

#include <stdlib.h>
#include <string.h>

struct kernel {
    struct library *library;
    struct func *f; /* of the library's own parse: its name and parameters */
    struct {
        int max_dynamic, carveout, cache;
    } at[SIM_MAX_DEVICES]; /* what is set of it, by the process's devices */
};

struct library {
    char *text;
    struct module *parsed; /* of no context, and nowhere in memory */
    unsigned n;
    struct kernel *kernels;
};

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

/* Makes the kernels of what was parsed. */
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
        for (int i = 0; i < SIM_MAX_DEVICES; i++) {
            k->at[i].max_dynamic = f->max_dynamic;
            k->at[i].carveout = f->carveout;
            k->at[i].cache = f->cache;
        }
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
    if (r == CUDA_SUCCESS && (!(l->text = strdup(code)) || !list_kernels(l)))
        r = CUDA_ERROR_OUT_OF_MEMORY;
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

/* Some module of a library, in whatever context. */
static struct module *module_of(const struct library *l)
{
    for (struct ctx *c = g_contexts; c; c = c->next)
        for (struct module *m = c->modules; m; m = m->next)
            if (m->library == l)
                return m;
    return NULL;
}

/* Work that was sent before may still use it, and is waited for; that lets go of the
 * lock, so what is there is looked up each time anew. */
CUresult sim_cuLibraryUnload(CUlibrary library)
{
    struct library *l = handle_of(library, H_LIBRARY);
    if (!l)
        return CUDA_ERROR_INVALID_HANDLE;
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

CUresult sim_cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    struct library *l = handle_of(library, H_LIBRARY);
    if (!l)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pKernel || !name)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < l->n; i++)
        if (!strcmp(l->kernels[i].f->name, name)) {
            *pKernel = (CUkernel)&l->kernels[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult sim_cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
    struct library *l = handle_of(lib, H_LIBRARY);
    if (!l)
        return CUDA_ERROR_INVALID_HANDLE;
    if (count)
        *count = l->n;
    return count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    struct library *l = handle_of(lib, H_LIBRARY);
    if (!l)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!kernels || !numKernels)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < l->n && i < numKernels; i++)
        kernels[i] = (CUkernel)&l->kernels[i];
    return CUDA_SUCCESS;
}

/* Makes a function there what is set of its kernel. */
static void apply(const struct kernel *k, struct func *f)
{
    int at = f->module->ctx->dev->index;
    f->max_dynamic = k->at[at].max_dynamic;
    f->carveout = k->at[at].carveout;
    f->cache = k->at[at].cache;
}

/* The library as a module of a context. */
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
    for (struct func *f = m->funcs; f; f = f->next)
        for (unsigned i = 0; i < l->n; i++)
            if (!strcmp(l->kernels[i].f->name, f->name))
                apply(&l->kernels[i], f);
    return m;
}

struct func *func_in(struct ctx *c, const void *handle, CUresult *r)
{
    struct func *f = handle_of(handle, H_FUNC);
    struct kernel *k = f ? NULL : handle_of(handle, H_KERNEL);
    *r = CUDA_ERROR_INVALID_HANDLE;
    struct module *m = k ? module_in(k->library, c, r) : NULL;
    for (struct func *g = m ? m->funcs : NULL; g && !f; g = g->next)
        if (!strcmp(g->name, k->f->name))
            f = g;
    return f;
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
    CUresult r = sim_cuLibraryGetModule(c, &m, library);
    return r == CUDA_SUCCESS ? sim_cuModuleGetGlobal_v2(c, dptr, bytes, m, name) : r;
}

/* A text has no managed variables here. */
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

CUresult sim_cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    struct kernel *k = handle_of(kernel, H_KERNEL);
    if (!k)
        return CUDA_ERROR_INVALID_HANDLE;
    if (pLib)
        *pLib = (CUlibrary)k->library;
    return pLib ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuKernelGetName(const char **name, CUkernel hfunc)
{
    struct kernel *k = handle_of(hfunc, H_KERNEL);
    if (!k)
        return CUDA_ERROR_INVALID_HANDLE;
    if (name)
        *name = k->f->name;
    return name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuKernelGetParamInfo(struct ctx *c, CUkernel kernel, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
    struct kernel *k = handle_of(kernel, H_KERNEL);
    if (!k)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!paramOffset || paramIndex >= k->f->nparams)
        return CUDA_ERROR_INVALID_VALUE;
    *paramOffset = k->f->offset[paramIndex];
    if (paramSize)
        *paramSize = k->f->size[paramIndex];
    return CUDA_SUCCESS;
}

CUresult sim_cuKernelGetParamCount(CUkernel kernel, size_t *paramCount)
{
    struct kernel *k = handle_of(kernel, H_KERNEL);
    if (!k)
        return CUDA_ERROR_INVALID_HANDLE;
    if (paramCount)
        *paramCount = k->f->nparams;
    return paramCount ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The kernel as a function on that device would be. */
static CUresult as_function(CUkernel kernel, CUdevice dev, struct kernel **k, struct device **d, struct func *f)
{
    *k = handle_of(kernel, H_KERNEL);
    *d = device_of(dev);
    if (!*k)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!*d)
        return CUDA_ERROR_INVALID_DEVICE;
    *f = *(*k)->f;
    f->max_dynamic = (*k)->at[(*d)->index].max_dynamic;
    f->carveout = (*k)->at[(*d)->index].carveout;
    f->cache = (*k)->at[(*d)->index].cache;
    return CUDA_SUCCESS;
}

/* Sets it there, for the modules that are loaded too. */
static void set(struct kernel *k, struct device *d, const struct func *f)
{
    k->at[d->index].max_dynamic = f->max_dynamic;
    k->at[d->index].carveout = f->carveout;
    k->at[d->index].cache = f->cache;
    for (struct ctx *c = g_contexts; c; c = c->next)
        for (struct module *m = c->dev == d ? c->modules : NULL; m; m = m->next)
            for (struct func *g = m->library == k->library ? m->funcs : NULL; g; g = g->next)
                if (!strcmp(g->name, k->f->name))
                    apply(k, g);
}

CUresult sim_cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    struct kernel *k;
    struct device *d;
    struct func f;
    CUresult r = as_function(kernel, dev, &k, &d, &f);
    return r == CUDA_SUCCESS ? func_get_attribute(&f, pi, attrib) : r;
}

CUresult sim_cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
    struct kernel *k;
    struct device *d;
    struct func f;
    CUresult r = as_function(kernel, dev, &k, &d, &f);
    if (r == CUDA_SUCCESS)
        r = func_set_attribute(&f, attrib, val);
    if (r == CUDA_SUCCESS)
        set(k, d, &f);
    return r;
}

CUresult sim_cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    struct kernel *k;
    struct device *d;
    struct func f;
    CUresult r = as_function(kernel, dev, &k, &d, &f);
    if (r != CUDA_SUCCESS)
        return r;
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    f.cache = (int)config;
    set(k, d, &f);
    return CUDA_SUCCESS;
}
