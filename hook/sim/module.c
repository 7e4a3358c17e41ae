/* module.c: modules, their functions and variables. */
#include "capture.h"
#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JIT_INFO_LOG = 3, JIT_INFO_LOG_SIZE = 4, JIT_ERROR_LOG = 5, JIT_ERROR_LOG_SIZE = 6 };

static void free_funcs(struct module *m)
{
    while (m->funcs) {
        struct func *f = m->funcs;
        m->funcs = f->next;
        handle_del(f);
        free(f->params);
        free(f->name);
        free(f);
    }
}

static void free_globals(struct module *m)
{
    while (m->globals) {
        struct global *g = m->globals;
        struct range *r = g->ptr ? range_find(g->ptr) : NULL;
        m->globals = g->next;
        if (r)
            memory_release(r);
        for (struct address *a = g->addresses, *next; a; a = next) {
            next = a->next;
            free(a->symbol);
            free(a);
        }
        free(g->init);
        free(g->name);
        free(g);
    }
}

void module_drop(struct module *m)
{
    handle_del(m);
    free_funcs(m);
    free_globals(m);
    free(m);
}

/* Removes a module from its context and frees it; its work must have finished. */
void module_free(struct module *m)
{
    LIST_UNLINK(&m->ctx->modules, m, next);
    module_drop(m);
}

/* Stores addresses in the initial value of a variable g: for each entry of g->addresses, the address of the
 * variable `symbol`, plus an offset, at `at` bytes from the start of the value. All variables must have memory. */
static void store_addresses(const struct module *m, struct global *g)
{
    for (struct address *a = g->addresses; a; a = a->next)
        for (const struct global *of = m->globals; of; of = of->next)
            if (!strcmp(of->name, a->symbol)) {
                uint64_t value = of->ptr + a->plus;
                memcpy(g->init + a->at, &value, sizeof value);
            }
}

/* Allocates a module's variables and stores their initial values. */
static CUresult place_globals(struct module *m)
{
    for (struct global *g = m->globals; g; g = g->next)
        TRY(memory_alloc(m->ctx, &g->ptr, g->size));
    for (struct global *g = m->globals; g; g = g->next) {
        store_addresses(m, g);
        void *at = range_translate(m->ctx->dev, g->ptr, g->size, true);
        if (g->init)
            memcpy(at, g->init, g->size);
        else if (g_config.poison) /* otherwise new memory is zero */
            memset(at, 0, g->size);
    }
    return CUDA_SUCCESS;
}

struct func *module_add_func(struct module *m, const char *name)
{
    const uint64_t usual_block_ns = 10000;
    struct func *f = calloc(1, sizeof *f);
    if (!f || !(f->name = strdup(name))) {
        free(f);
        return NULL;
    }
    f->module = m;
    f->block_ns = usual_block_ns;
    f->set.max_dynamic = 49152;
    f->set.carveout = -1;
    f->next = m->funcs;
    m->funcs = f;
    return f;
}

CUresult module_parse(struct module **out, const char *text, char *msg, size_t len)
{
    struct module *m = calloc(1, sizeof *m);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = binary_is(text) ? binary_parse(m, text, msg, len) : ptx_parse(m, text, msg, len);
    if (r == CUDA_SUCCESS)
        *out = m;
    else
        module_drop(m);
    return r;
}

/* Loads PTX text or a binary; on failure, msg has the reason. */
CUresult module_load(struct ctx *c, CUmodule *out, const char *text, char *msg, size_t len)
{
    struct module *m;
    TRY(module_parse(&m, text, msg, len));
    m->ctx = c;
    CUresult r = place_globals(m);
    bool known = handle_add(m, H_MODULE);
    for (struct func *f = m->funcs; f; f = f->next)
        known &= handle_add(f, H_FUNC);
    if (r == CUDA_SUCCESS && !known)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS) {
        module_free(m);
        return r;
    }
    m->next = c->modules;
    c->modules = m;
    *out = (CUmodule)m;
    return CUDA_SUCCESS;
}

/* Writes a message to a buffer of the program's, among the n options and their values. `buffer` and `size` are
 * the JIT_... codes of the options that have the buffer's address and its size. Stores the number of bytes
 * written as the value of the size. */
static void write_log(unsigned n, const CUjit_option *options, void **values, int buffer, int size, const char *msg)
{
    char *out = NULL;
    void **room = NULL;
    for (unsigned i = 0; i < n; i++) {
        if (options[i] == buffer)
            out = values[i];
        if (options[i] == size)
            room = &values[i];
    }
    if (!room)
        return;
    size_t cap = (size_t)(unsigned)(uintptr_t)*room, len = strlen(msg);
    if (len + 1 > cap)
        len = cap ? cap - 1 : 0;
    if (out && cap) {
        memcpy(out, msg, len);
        out[len] = 0;
    }
    *room = (void *)(uintptr_t)(out && cap && *msg ? len + 1 : 0);
}

void module_log(unsigned n, const CUjit_option *options, void **values, const char *msg)
{
    write_log(n, options, values, JIT_ERROR_LOG, JIT_ERROR_LOG_SIZE, msg);
    write_log(n, options, values, JIT_INFO_LOG, JIT_INFO_LOG_SIZE, "");
}

CUresult sim_cuModuleLoadDataEx(struct ctx *c, CUmodule *module, const void *image, unsigned int numOptions,
                                CUjit_option *options, void **optionValues)
{
    char msg[512] = "";
    if (!module || !image || (numOptions && (!options || !optionValues)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = module_load(c, module, image, msg, sizeof msg);
    module_log(numOptions, options, optionValues, msg);
    return r;
}

char *module_read(const char *name, size_t *size, CUresult *r)
{
    FILE *f = fopen(name, "rbe");
    *r = f ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_FILE_NOT_FOUND;
    if (!f)
        return NULL;
    size_t n = 0, cap = 65536, got;
    char *text = malloc(cap + 1), *more;
    while (text && (got = fread(text + n, 1, cap - n, f)) > 0) {
        n += got;
        if (n == cap) {
            more = realloc(text, 2 * cap + 1);
            if (!more)
                free(text);
            text = more;
            cap *= 2;
        }
    }
    fclose(f);
    if (text)
        text[*size = n] = 0;
    if (text && binary_is(text) && (n < 64 || !binary_size(text, n))) { /* 64: the header of a cubin */
        free(text);
        text = NULL;
        *r = CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return text;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    CUresult r;
    size_t n;
    if (!module || !fname)
        return CUDA_ERROR_INVALID_VALUE;
    char *text = module_read(fname, &n, &r);
    if (!text)
        return r;
    r = cuModuleLoadDataEx(module, text, 0, NULL, NULL);
    free(text);
    return r;
}

CUresult sim_cuModuleUnload(CUmodule hmod)
{
    struct module *m = handle_of(hmod, H_MODULE);
    TRY(ctx_release()); /* the context's error, or an error if a capture forbids unloading */
    if (!m)
        return CUDA_ERROR_INVALID_HANDLE;
    if (m->library)
        return CUDA_ERROR_NOT_PERMITTED;
    wait_context(m->ctx, false);
    exec_forget(m); /* executable graphs with kernels of the module cannot be launched any more */
    exec_drain();   /* waits for their launches */
    if (!handle_is(m, H_MODULE)) /* unloaded by another thread: the waits release g_lock */
        return CUDA_ERROR_INVALID_HANDLE;
    module_free(m);
    return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetFunction(struct module *m, CUfunction *hfunc, CUmodule hmod, const char *name)
{
    if (!hfunc || !name)
        return CUDA_ERROR_INVALID_VALUE;
    struct func *f = module_func(m, name);
    if (f)
        *hfunc = (CUfunction)f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult sim_cuModuleGetFunctionCount(struct module *m, unsigned int *count, CUmodule mod)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = 0;
    for (struct func *f = m->funcs; f; f = f->next)
        ++*count;
    return CUDA_SUCCESS;
}

CUresult sim_cuModuleEnumerateFunctions(struct module *m, CUfunction *functions, unsigned int numFunctions,
                                        CUmodule mod)
{
    if (!functions || !numFunctions)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned i = 0;
    for (struct func *f = m->funcs; f && i < numFunctions; f = f->next)
        functions[i++] = (CUfunction)f;
    return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetGlobal_v2(struct module *m, CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct global *g = m->globals; g; g = g->next)
        if (!strcmp(g->name, name)) {
            if (dptr)
                *dptr = g->ptr;
            if (bytes)
                *bytes = g->size;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- linking of texts ---- */

/* Kinds of input. The result of a link is text here, but is added to another link as INPUT_CUBIN. */
enum { INPUT_CUBIN, INPUT_PTX, INPUT_KINDS = 6 };

struct link {
    char *text; /* all text added so far */
    size_t n;
    unsigned options;     /* number of options */
    CUjit_option *option; /* the options, in the program's memory, which must stay valid until it destroys the link */
    void **value;         /* their values, likewise */
};

CUresult sim_cuLinkCreate_v2(struct ctx *c, unsigned int numOptions, CUjit_option *options, void **optionValues,
                             CUlinkState *stateOut)
{
    if (!stateOut || (numOptions && (!options || !optionValues)))
        return CUDA_ERROR_INVALID_VALUE;
    struct link *l = calloc(1, sizeof *l);
    if (l)
        l->text = calloc(1, 1);
    if (!l || !l->text || !handle_add(l, H_LINK)) {
        if (l)
            free(l->text);
        free(l);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    l->options = numOptions;
    l->option = options;
    l->value = optionValues;
    *stateOut = (CUlinkState)l;
    return CUDA_SUCCESS;
}

/* Adds n bytes of PTX; zero bytes at the end are ignored. */
static CUresult add_text(struct link *l, const char *data, size_t n)
{
    char msg[512] = "";
    if (binary_is(data)) {
        write_log(l->options, l->option, l->value, JIT_ERROR_LOG, JIT_ERROR_LOG_SIZE, "the simulated GPU links only PTX");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    n = strnlen(data, n);
    char *text = realloc(l->text, l->n + n + 2);
    if (!text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    l->text = text;
    memcpy(text + l->n, data, n);
    memcpy(text + l->n + n, "\n", 2);
    struct module *parsed;
    CUresult r = module_parse(&parsed, text + l->n, msg, sizeof msg);
    if (r == CUDA_SUCCESS) {
        module_drop(parsed);
        l->n += n + 1;
    }
    text[l->n] = 0;
    write_log(l->options, l->option, l->value, JIT_ERROR_LOG, JIT_ERROR_LOG_SIZE, msg);
    return r;
}

CUresult sim_cuLinkAddData_v2(struct ctx *c, CUlinkState state, CUjitInputType type, void *data, size_t size,
                              const char *name, unsigned int numOptions, CUjit_option *options, void **optionValues)
{
    struct link *l = handle_of(state, H_LINK);
    if (!l)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!data || !size || type < 0 || type >= INPUT_KINDS || (numOptions && (!options || !optionValues)))
        return CUDA_ERROR_INVALID_VALUE;
    return type > INPUT_PTX ? CUDA_ERROR_NO_BINARY_FOR_GPU : add_text(l, data, size);
}

CUresult sim_cuLinkAddFile_v2(struct ctx *c, CUlinkState state, CUjitInputType type, const char *path,
                              unsigned int numOptions, CUjit_option *options, void **optionValues)
{
    size_t n = 0;
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    char *text = path ? module_read(path, &n, &r) : NULL;
    if (text)
        r = sim_cuLinkAddData_v2(c, state, type, text, n, path, numOptions, options, optionValues);
    free(text);
    return r;
}

/* The result exists until the link is destroyed. */
CUresult sim_cuLinkComplete(struct link *l, CUlinkState state, void **cubinOut, size_t *sizeOut)
{
    if (!cubinOut || !l->n)
        return CUDA_ERROR_INVALID_VALUE;
    *cubinOut = l->text;
    if (sizeOut)
        *sizeOut = l->n + 1;
    return CUDA_SUCCESS;
}

CUresult sim_cuLinkDestroy(struct link *l, CUlinkState state)
{
    handle_del(l);
    free(l->text);
    free(l);
    return CUDA_SUCCESS;
}
