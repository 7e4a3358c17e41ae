/* ops.c: the operations that kernels can compute. Addresses outside of allocations are errors of the kernel,
 * and never crash the process. */
#include "sim.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned nparams;
    unsigned char size[6];
} ops[] = {
    [OP_VADD_F32] = {"vadd_f32", 4, {8, 8, 8, 4}},
    [OP_SAXPY_F32] = {"saxpy_f32", 4, {4, 8, 8, 4}},
    [OP_SGEMM_F32] = {"sgemm_f32", 6, {8, 8, 8, 4, 4, 4}},
    [OP_FAULT] = {"fault", 1, {4}},
};

enum op ops_find(const char *name)
{
    for (unsigned i = 1; i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(ops[i].name, name))
            return (enum op)i;
    return OP_NONE;
}

/* Reports whether the kernel's parameters are those of the operation. */
bool ops_fits(enum op op, const struct func *f)
{
    if (f->nparams < ops[op].nparams)
        return false;
    for (unsigned i = 0; i < ops[op].nparams; i++)
        if (f->size[i] != ops[op].size[i])
            return false;
    return f->offset[ops[op].nparams - 1] + 4u <= SIM_OP_BYTES;
}

/* The parameters of one kernel. */
struct args {
    const unsigned char *bytes;
    const struct func *layout;
};

static CUdeviceptr pointer(const struct args *a, unsigned i)
{
    CUdeviceptr v;
    memcpy(&v, a->bytes + a->layout->offset[i], sizeof v);
    return v;
}

static int32_t integer(const struct args *a, unsigned i)
{
    int32_t v;
    memcpy(&v, a->bytes + a->layout->offset[i], sizeof v);
    return v;
}

static float real(const struct args *a, unsigned i)
{
    float v;
    memcpy(&v, a->bytes + a->layout->offset[i], sizeof v);
    return v;
}

enum access { READ, WRITE };

/* Returns the rows x cols floats at parameter i, or NULL with *r set if a GPU would fault. */
static float *matrix(const struct args *a, unsigned i, uint64_t rows, uint64_t cols, enum access how, CUresult *r)
{
    CUdeviceptr p = pointer(a, i);
    void *view = NULL;
    if (p % sizeof(float)) {
        *r = CUDA_ERROR_MISALIGNED_ADDRESS;
        return NULL;
    }
    pthread_mutex_lock(&g_lock);
    view = range_translate(a->layout->module->ctx->dev, p, rows * cols * sizeof(float), how == WRITE);
    pthread_mutex_unlock(&g_lock);
    if (!view)
        *r = CUDA_ERROR_ILLEGAL_ADDRESS;
    return view;
}

static CUresult vadd(const struct args *a)
{
    int32_t n = integer(a, 3);
    CUresult r = CUDA_SUCCESS;
    if (n <= 0)
        return r;
    const float *x = matrix(a, 0, 1, (uint64_t)n, READ, &r);
    const float *y = matrix(a, 1, 1, (uint64_t)n, READ, &r);
    float *z = matrix(a, 2, 1, (uint64_t)n, WRITE, &r);
    for (int32_t i = 0; r == CUDA_SUCCESS && i < n; i++)
        z[i] = x[i] + y[i];
    return r;
}

static CUresult saxpy(const struct args *a)
{
    int32_t n = integer(a, 3);
    float k = real(a, 0);
    CUresult r = CUDA_SUCCESS;
    if (n <= 0)
        return r;
    const float *x = matrix(a, 1, 1, (uint64_t)n, READ, &r);
    float *y = matrix(a, 2, 1, (uint64_t)n, WRITE, &r);
    for (int32_t i = 0; r == CUDA_SUCCESS && i < n; i++)
        y[i] = k * x[i] + y[i];
    return r;
}

/* C (m x n) = A (m x k) * B (k x n), row-major. */
static CUresult sgemm(const struct args *args)
{
    int32_t m = integer(args, 3), n = integer(args, 4), k = integer(args, 5);
    CUresult r = CUDA_SUCCESS;
    if (m <= 0 || n <= 0)
        return r;
    if (k < 0)
        k = 0;
    const float *a = k ? matrix(args, 0, (uint64_t)m, (uint64_t)k, READ, &r) : NULL;
    const float *b = k ? matrix(args, 1, (uint64_t)k, (uint64_t)n, READ, &r) : NULL;
    float *c = matrix(args, 2, (uint64_t)m, (uint64_t)n, WRITE, &r);
    for (int64_t i = 0; r == CUDA_SUCCESS && i < m; i++) {
        float *row = c + i * n;
        memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t l = 0; l < k; l++) {
            const float v = a[i * k + l], *from = b + l * n;
            for (int64_t j = 0; j < n; j++)
                row[j] += v * from[j];
        }
    }
    return r;
}

CUresult ops_run(enum op op, const unsigned char *params, const struct func *layout)
{
    struct args a = {params, layout};
    switch (op) {
    case OP_VADD_F32:
        return vadd(&a);
    case OP_SAXPY_F32:
        return saxpy(&a);
    case OP_SGEMM_F32:
        return sgemm(&a);
    case OP_FAULT:
        return (CUresult)integer(&a, 0);
    default:
        return CUDA_SUCCESS;
    }
}
