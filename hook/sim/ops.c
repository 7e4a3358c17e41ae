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
    [OP_DGEMM_F64] = {"dgemm_f64", 6, {8, 8, 8, 4, 4, 4}},
    [OP_CGEMM_C64] = {"cgemm_c64", 6, {8, 8, 8, 4, 4, 4}},
    [OP_JACOBI_F32] = {"jacobi_f32", 5, {8, 8, 8, 8, 4}},
    [OP_DISTANCES_F32] = {"distances_f32", 6, {8, 8, 8, 4, 4, 4}},
    [OP_NEAREST_F32] = {"nearest_f32", 4, {8, 8, 4, 4}},
    [OP_RELU_F32] = {"relu_f32", 3, {8, 8, 4}},
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

/* Returns the `count` elements of `size` bytes at parameter i, or NULL with *r set if a GPU would fault. The GPU loads
 * `align` bytes at once. */
static void *elements(const struct args *a, unsigned i, uint64_t count, size_t size, size_t align, enum access how,
                      CUresult *r)
{
    CUdeviceptr p = pointer(a, i);
    void *view = NULL;
    if (p % align) {
        *r = CUDA_ERROR_MISALIGNED_ADDRESS;
        return NULL;
    }
    pthread_mutex_lock(&g_lock);
    if (count <= UINT64_MAX / size)
        view = range_translate(a->layout->module->ctx->dev, p, count * size, how == WRITE);
    pthread_mutex_unlock(&g_lock);
    if (!view)
        *r = CUDA_ERROR_ILLEGAL_ADDRESS;
    return view;
}

/* Returns the rows x cols floats at parameter i, or NULL with *r set. */
static float *matrix(const struct args *a, unsigned i, uint64_t rows, uint64_t cols, enum access how, CUresult *r)
{
    return elements(a, i, rows * cols, sizeof(float), sizeof(float), how, r);
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

/* y = x, or 0 where x is negative. */
static CUresult relu(const struct args *a)
{
    int32_t n = integer(a, 2);
    CUresult r = CUDA_SUCCESS;
    if (n <= 0)
        return r;
    const float *x = matrix(a, 0, 1, (uint64_t)n, READ, &r);
    float *y = matrix(a, 1, 1, (uint64_t)n, WRITE, &r);
    for (int32_t i = 0; r == CUDA_SUCCESS && i < n; i++)
        y[i] = x[i] < 0 ? 0 : x[i];
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

/* Like sgemm, with doubles. */
static CUresult dgemm(const struct args *args)
{
    int32_t m = integer(args, 3), n = integer(args, 4), k = integer(args, 5);
    CUresult r = CUDA_SUCCESS;
    if (m <= 0 || n <= 0)
        return r;
    if (k < 0)
        k = 0;
    const double *a = k ? elements(args, 0, (uint64_t)m * (uint64_t)k, sizeof *a, sizeof *a, READ, &r) : NULL;
    const double *b = k ? elements(args, 1, (uint64_t)k * (uint64_t)n, sizeof *b, sizeof *b, READ, &r) : NULL;
    double *c = elements(args, 2, (uint64_t)m * (uint64_t)n, sizeof *c, sizeof *c, WRITE, &r);
    for (int64_t i = 0; r == CUDA_SUCCESS && i < m; i++) {
        double *row = c + i * n;
        memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < n; j++)
                row[j] += a[i * k + l] * b[l * n + j];
    }
    return r;
}

struct complex {
    float re, im;
};

/* Like sgemm, with complex numbers. */
static CUresult cgemm(const struct args *args)
{
    int32_t m = integer(args, 3), n = integer(args, 4), k = integer(args, 5);
    CUresult r = CUDA_SUCCESS;
    if (m <= 0 || n <= 0)
        return r;
    if (k < 0)
        k = 0;
    const struct complex *a = k ? elements(args, 0, (uint64_t)m * (uint64_t)k, sizeof *a, sizeof a->re, READ, &r) : NULL;
    const struct complex *b = k ? elements(args, 1, (uint64_t)k * (uint64_t)n, sizeof *b, sizeof b->re, READ, &r) : NULL;
    struct complex *c = elements(args, 2, (uint64_t)m * (uint64_t)n, sizeof *c, sizeof c->re, WRITE, &r);
    for (int64_t i = 0; r == CUDA_SUCCESS && i < m; i++) {
        struct complex *row = c + i * n;
        memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < n; j++) {
                struct complex x = a[i * k + l], y = b[l * n + j];
                row[j].re += x.re * y.re - x.im * y.im;
                row[j].im += x.re * y.im + x.im * y.re;
            }
    }
    return r;
}

/* One step of the Jacobi method: y[i] = (b[i] - sum of A[i][j] * x[j] over j != i) / A[i][i]. */
static CUresult jacobi(const struct args *args)
{
    int32_t n = integer(args, 4);
    CUresult r = CUDA_SUCCESS;
    if (n <= 0)
        return r;
    const float *a = matrix(args, 0, (uint64_t)n, (uint64_t)n, READ, &r);
    const float *b = matrix(args, 1, 1, (uint64_t)n, READ, &r);
    const float *x = matrix(args, 2, 1, (uint64_t)n, READ, &r);
    float *y = matrix(args, 3, 1, (uint64_t)n, WRITE, &r);
    for (int64_t i = 0; r == CUDA_SUCCESS && i < n; i++) {
        float rest = b[i];
        for (int64_t j = 0; j < n; j++)
            if (j != i)
                rest -= a[i * n + j] * x[j];
        y[i] = rest / a[i * n + i];
    }
    return r;
}

/* D[i][j] is the square of the distance between query i (of q) and point j (of n), in d dimensions. */
static CUresult distances(const struct args *args)
{
    int32_t q = integer(args, 3), n = integer(args, 4), d = integer(args, 5);
    CUresult r = CUDA_SUCCESS;
    if (q <= 0 || n <= 0)
        return r;
    if (d < 0)
        d = 0;
    const float *queries = d ? matrix(args, 0, (uint64_t)q, (uint64_t)d, READ, &r) : NULL;
    const float *points = d ? matrix(args, 1, (uint64_t)n, (uint64_t)d, READ, &r) : NULL;
    float *out = matrix(args, 2, (uint64_t)q, (uint64_t)n, WRITE, &r);
    for (int64_t i = 0; r == CUDA_SUCCESS && i < q; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t l = 0; l < d; l++) {
                float apart = queries[i * d + l] - points[j * d + l];
                sum += apart * apart;
            }
            out[i * n + j] = sum;
        }
    return r;
}

/* index[i] is the first place of the least of the n elements of row i of D. */
static CUresult nearest(const struct args *args)
{
    int32_t q = integer(args, 2), n = integer(args, 3);
    CUresult r = CUDA_SUCCESS;
    if (q <= 0)
        return r;
    if (n < 0)
        n = 0;
    const float *d = n ? matrix(args, 0, (uint64_t)q, (uint64_t)n, READ, &r) : NULL;
    uint32_t *index = elements(args, 1, (uint64_t)q, sizeof *index, sizeof *index, WRITE, &r);
    for (int64_t i = 0; r == CUDA_SUCCESS && i < q; i++) {
        const float *row = d + i * n;
        index[i] = 0;
        for (int64_t j = 1; j < n; j++)
            if (row[j] < row[index[i]])
                index[i] = (uint32_t)j;
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
    case OP_DGEMM_F64:
        return dgemm(&a);
    case OP_CGEMM_C64:
        return cgemm(&a);
    case OP_JACOBI_F32:
        return jacobi(&a);
    case OP_DISTANCES_F32:
        return distances(&a);
    case OP_NEAREST_F32:
        return nearest(&a);
    case OP_RELU_F32:
        return relu(&a);
    case OP_FAULT:
        return (CUresult)integer(&a, 0);
    default:
        return CUDA_SUCCESS;
    }
}
