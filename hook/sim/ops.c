/* ops.c: the operations that kernels can compute. Addresses outside of allocations are errors of the kernel,
 * and never crash the process. */
#include "sim.h"

#include <string.h>

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

struct complex {
    float re, im;
};

/* Defines an operation C (m x n) = A (m x k) * B (k x n) on row-major matrices. `add` adds the product of two elements to
 * a third; `unit` is the type that a GPU loads at once. */
#define GEMM(name, type, unit, add)                                                                                     \
    static CUresult name(const struct args *args)                                                                       \
    {                                                                                                                   \
        int32_t m = integer(args, 3), n = integer(args, 4), k = integer(args, 5);                                       \
        CUresult r = CUDA_SUCCESS;                                                                                      \
        if (m <= 0 || n <= 0)                                                                                           \
            return r;                                                                                                   \
        if (k < 0)                                                                                                      \
            k = 0;                                                                                                      \
        const type *a = k ? elements(args, 0, (uint64_t)m * (uint64_t)k, sizeof *a, sizeof(unit), READ, &r) : NULL;     \
        const type *b = k ? elements(args, 1, (uint64_t)k * (uint64_t)n, sizeof *b, sizeof(unit), READ, &r) : NULL;     \
        type *c = elements(args, 2, (uint64_t)m * (uint64_t)n, sizeof *c, sizeof(unit), WRITE, &r);                     \
        for (int64_t i = 0; r == CUDA_SUCCESS && i < m; i++) {                                                          \
            type *row = c + i * n;                                                                                      \
            memset(row, 0, (size_t)n * sizeof *row);                                                                    \
            for (int64_t l = 0; l < k; l++) {                                                                           \
                const type x = a[i * k + l], *y = b + l * n;                                                            \
                for (int64_t j = 0; j < n; j++)                                                                         \
                    add(row[j], x, y[j]);                                                                               \
            }                                                                                                           \
        }                                                                                                               \
        return r;                                                                                                       \
    }
#define ADD_REAL(sum, x, y) (sum) += (x) * (y)
#define ADD_COMPLEX(sum, x, y) \
    ((sum).re += (x).re * (y).re - (x).im * (y).im, (sum).im += (x).re * (y).im + (x).im * (y).re)
GEMM(sgemm, float, float, ADD_REAL)
GEMM(dgemm, double, double, ADD_REAL)
GEMM(cgemm, struct complex, float, ADD_COMPLEX)

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

/* Fails with the error in its parameter. */
static CUresult fault(const struct args *args) { return (CUresult)integer(args, 0); }

enum { MOST_PARAMS = 6 };

/* The operations by their names in comments, and the sizes of their parameters. */
static const struct {
    const char *name;
    CUresult (*run)(const struct args *args);
    unsigned char size[MOST_PARAMS];
} ops[] = {
    [OP_NONE] = {.name = ""},
    {"vadd_f32", vadd, {8, 8, 8, 4}},
    {"saxpy_f32", saxpy, {4, 8, 8, 4}},
    {"sgemm_f32", sgemm, {8, 8, 8, 4, 4, 4}},
    {"dgemm_f64", dgemm, {8, 8, 8, 4, 4, 4}},
    {"cgemm_c64", cgemm, {8, 8, 8, 4, 4, 4}},
    {"jacobi_f32", jacobi, {8, 8, 8, 8, 4}},
    {"distances_f32", distances, {8, 8, 8, 4, 4, 4}},
    {"nearest_f32", nearest, {8, 8, 4, 4}},
    {"relu_f32", relu, {8, 8, 4}},
    {"fault", fault, {4}},
};

unsigned ops_find(const char *name)
{
    unsigned op = sizeof ops / sizeof *ops - 1;
    while (op != OP_NONE && strcmp(ops[op].name, name))
        op--;
    return op;
}

/* Reports whether the kernel's parameters are those of the operation. */
bool ops_fits(unsigned op, const struct func *f)
{
    unsigned n = 0;
    for (; n < MOST_PARAMS && ops[op].size[n]; n++)
        if (n >= f->nparams || f->size[n] != ops[op].size[n])
            return false;
    return f->offset[n - 1] + 4u <= SIM_OP_BYTES;
}

CUresult ops_run(unsigned op, const unsigned char *params, const struct func *layout)
{
    return ops[op].run(&(struct args){params, layout});
}
