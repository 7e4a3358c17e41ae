/* launch.c: the calls that launch kernels. */
#include "capture.h"
#include "func.h"
#include "launch.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NS 10000000000000000ull /* 115 days: sums of a full queue stay in 64 bits */

static uint64_t blocks_of(const struct launch *l)
{
    unsigned __int128 n = (unsigned __int128)l->grid[0] * l->grid[1] * l->grid[2];
    return n > UINT64_MAX ? UINT64_MAX : (uint64_t)n;
}

/* Returns the device time of a launch: B blocks on S SMs take ceil(B/S) times the time of a block. */
uint64_t launch_ns(const struct launch *l)
{
    uint64_t b = blocks_of(l), s = g_config.granted;
    uint64_t waves = b / s + (b % s != 0);
    unsigned __int128 ns = (unsigned __int128)waves * l->f->block_ns;
    return ns > MAX_NS ? MAX_NS : (uint64_t)ns;
}

/* Checks the limits of grid, block and shared memory. Refuses machine code, and prints the reason once per process. */
CUresult launch_check(const struct launch *l)
{
    static bool said;
    if (l->f->module->machine_code) {
        if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
            sim_say("cannot launch %.200s: it is machine code (a cubin), and the simulated GPU runs only PTX", l->f->name);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    if (!blocks_of(l) || l->grid[0] > 2147483647u || l->grid[1] > 65535 || l->grid[2] > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (!threads || l->block[0] > 1024 || l->block[1] > 1024 || l->block[2] > 64 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (l->shared > (unsigned)l->f->set.max_dynamic)
        return CUDA_ERROR_INVALID_VALUE;
    if (l->params && l->extra)
        return CUDA_ERROR_INVALID_VALUE;
    if (l->cooperative &&
        blocks_of(l) > (uint64_t)g_config.granted * (unsigned)func_blocks_per_sm((int)threads, l->shared))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return CUDA_SUCCESS;
}

/* Returns the parameter buffer among the extra options. Sets *r if there is none, or if its size is not that of
 * the parameters: NVIDIA's driver also refuses a buffer that is too long. */
static const unsigned char *extra_buffer(const struct launch *l, CUresult *r)
{
    const unsigned char *buf = NULL;
    size_t size = 0;
    for (void **e = l->extra; *e != CU_LAUNCH_PARAM_END; e += 2) {
        if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buf = e[1];
        else if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE && e[1])
            size = *(const size_t *)e[1];
        else
            *r = CUDA_ERROR_INVALID_VALUE;
    }
    if (size < l->f->bytes || (!buf && size))
        *r = CUDA_ERROR_INVALID_VALUE;
    else if (size > l->f->bytes && *r == CUDA_SUCCESS)
        *r = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    return buf;
}

CUresult launch_params(const struct launch *l, unsigned char *out, size_t room)
{
    const struct func *f = l->f;
    CUresult r = CUDA_SUCCESS;
    if (l->extra) {
        const unsigned char *buf = extra_buffer(l, &r);
        if (r == CUDA_SUCCESS && room && buf)
            memcpy(out, buf, f->bytes < room ? f->bytes : room);
        return r;
    }
    if (!l->params)
        return f->nparams ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (unsigned i = 0; room && i < f->nparams; i++) {
        if (!l->params[i])
            return CUDA_ERROR_INVALID_VALUE;
        if ((size_t)f->offset[i] + f->size[i] <= room)
            memcpy(out + f->offset[i], l->params[i], f->size[i]);
    }
    return CUDA_SUCCESS;
}

/* Adds a kernel to a stream, or captures it. */
static CUresult launch(struct stream *s, struct launch *l, CUfunction fn)
{
    CUresult r;
    l->f = func_in(s->ctx, fn, &r);
    if (!l->f)
        return r;
    if (l->f->module->ctx != s->ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(launch_check(l));
    if (s->capture)
        return capture_kernel(s, l);
    struct item *it = item_new(I_KERNEL);
    if (!it)
        return CUDA_ERROR_OUT_OF_MEMORY;
    it->u.kernel.op = l->f->op;
    it->u.kernel.layout = l->f;
    it->ns = launch_ns(l);
    /* The caller may change its memory when the launch returns, so the parameters are copied. */
    r = launch_params(l, it->u.kernel.params, l->f->op == OP_NONE ? 0 : SIM_OP_BYTES);
    if (r != CUDA_SUCCESS) {
        item_free(it);
        return r;
    }
    return engine_push(s, it);
}

CUresult sim_cuLaunchKernel(struct stream *s, CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                            unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                            unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream, void **kernelParams,
                            void **extra)
{
    struct launch l = {.grid = {gridDimX, gridDimY, gridDimZ}, .block = {blockDimX, blockDimY, blockDimZ},
                       .shared = sharedMemBytes, .params = kernelParams, .extra = extra};
    return launch(s, &l, f);
}

CUresult sim_cuLaunchCooperativeKernel(struct stream *s, CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                       unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                       unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                       void **kernelParams)
{
    struct launch l = {.grid = {gridDimX, gridDimY, gridDimZ}, .block = {blockDimX, blockDimY, blockDimZ},
                       .shared = sharedMemBytes, .params = kernelParams, .cooperative = true};
    return launch(s, &l, f);
}

CUresult sim_cuLaunchKernelEx(struct stream *s, const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                              void **extra)
{
    if (!config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    struct launch l = {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                       .block = {config->blockDimX, config->blockDimY, config->blockDimZ}};
    l.shared = config->sharedMemBytes;
    l.params = kernelParams;
    l.extra = extra;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            l.cooperative = config->attrs[i].value.cooperative != 0;
    l.attrs = config->attrs;
    l.nattrs = config->numAttrs;
    return launch(s, &l, f);
}

/* ---- the interface of CUDA 2: the function has the parameters of the launch ---- */

CUresult sim_cuFuncSetBlockShape(struct func *f, CUfunction hfunc, int x, int y, int z)
{
    if (x <= 0 || y <= 0 || z <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    f->block[0] = x;
    f->block[1] = y;
    f->block[2] = z;
    return CUDA_SUCCESS;
}

CUresult sim_cuFuncSetSharedSize(struct func *f, CUfunction hfunc, unsigned int bytes)
{
    f->shared = bytes;
    return CUDA_SUCCESS;
}

CUresult sim_cuParamSetSize(struct func *f, CUfunction hfunc, unsigned int numbytes)
{
    if (numbytes > SIM_PARAM_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    f->param_size = numbytes;
    return CUDA_SUCCESS;
}

CUresult sim_cuParamSetv(struct func *f, CUfunction hfunc, int offset, void *ptr, unsigned int numbytes)
{
    if (!ptr || offset < 0 || numbytes > SIM_PARAM_BYTES || (unsigned)offset > SIM_PARAM_BYTES - numbytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!f->params && !(f->params = calloc(1, SIM_PARAM_BYTES)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(f->params + offset, ptr, numbytes);
    return CUDA_SUCCESS;
}

CUresult sim_cuLaunchGridAsync(struct stream *s, CUfunction fn, int grid_width, int grid_height, CUstream hStream)
{
    struct func *f = handle_of(fn, H_FUNC);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    size_t size = f->param_size > f->bytes ? f->bytes : f->param_size;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, f->params, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    struct launch l = {.grid = {(unsigned)grid_width, (unsigned)grid_height, 1}, .extra = extra};
    for (int i = 0; i < 3; i++)
        l.block[i] = (unsigned)f->block[i];
    l.shared = f->shared;
    if (grid_width <= 0 || grid_height <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(s, &l, fn);
}
