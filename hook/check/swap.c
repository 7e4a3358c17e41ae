/* swap: checks that the library parks the memory of an oversubscribed instance, and that the contents
 * survive the moves between the GPU and the host.
 *
 *   swap MIB ROUNDS [back]
 *
 * The program allocates MIB of memory. In each of ROUNDS rounds it runs a kernel on that memory, checks the
 * result, waits until the library has moved the memory to the host, and prints "round N: parked". With
 * "back", it then also waits until the memory is on the GPU again. Exit status 77: the driver has no
 * managed memory. */
#include "kinds.h"

#include <unistd.h>

enum { THREADS = 128 };

static CUdeviceptr vector[3]; /* the kernel computes vector[2] = vector[0] + vector[1] */
static unsigned n;            /* elements of a vector */
static size_t bytes;          /* size of a vector */

/* Returns the last prefetch location of the whole vector: a device, CU_DEVICE_CPU (the host), or
 * CU_DEVICE_INVALID if the vector was never moved as a whole. */
static int location(CUdeviceptr at)
{
    int where = -3;
    CUresult (*get)(void *, size_t, CUmem_range_attribute, CUdeviceptr, size_t) = NULL;
    *(void **)&get = driver_find("cuMemRangeGetAttribute");
    ASSERT_SUCCESS(get(&where, sizeof where, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, bytes));
    return where;
}

/* Does the work of one round. It sets element i of vector[1] to base + i % 1000, adds vector[0], whose
 * elements are 1, on the GPU, and checks the sums. `host` is a buffer for one vector. */
static void work(CUfunction add, float *host, float base)
{
    void *params[] = {&vector[0], &vector[1], &vector[2], &n};
    for (unsigned i = 0; i < n; i++)
        host[i] = base + (float)(i % 1000);
    ASSERT_SUCCESS(cuMemcpyHtoD(vector[1], host, bytes));
    /* The library must move the memory to the GPU before the kernel runs. But if the CPU scheduler pauses
     * this process after the kernel, the library may park the idle memory again before the check below. So
     * launch the kernel again while the check finds the memory on the host. */
    for (int attempts = 1;; attempts++) {
        ASSERT_SUCCESS(cuLaunchKernel(add, (n + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
        ASSERT_SUCCESS(cuCtxSynchronize());
        if (location(vector[0]) != CU_DEVICE_CPU)
            break;
        ASSERT(attempts < 100);
    }
    memset(host, 0, bytes);
    ASSERT_SUCCESS(cuMemcpyDtoH(host, vector[2], bytes));
    for (unsigned i = 0; i < n; i++)
        ASSERT_ELEMENT(host, i, 1 + base + (float)(i % 1000));
}

/* Checks that the memory is managed, that it counts toward the memory limit, and that it cannot be shared
 * with other processes. */
static void check_memory(void)
{
    unsigned managed = 0;
    CUdeviceptr more;
    size_t pitch;
    CUipcMemHandle handle;
    ASSERT_SUCCESS(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, vector[0]));
    ASSERT(managed);
    ASSERT_SUCCESS(cuMemAllocPitch(&more, &pitch, 1000, 10, 4));
    managed = 0;
    ASSERT_SUCCESS(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, more));
    ASSERT(managed && pitch >= 1000);
    ASSERT_FREE(the_limit - 3 * bytes - pitch * 10);
    ASSERT(cuMemAllocPitch(&more, &pitch, 1000, 10, 3) == CUDA_ERROR_INVALID_VALUE);
    ASSERT_SUCCESS(cuMemFree(more));
    ASSERT(cuMemAlloc(&more, the_limit) == CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT(cuIpcGetMemHandle(&handle, vector[0]) != CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
    const double timeout_s = 60; /* of each wait */
    if (argc != 3 && argc != 4)
        return 2;
    if (!driver_find("cuMemAllocManaged"))
        return 77;
    use_device();
    n = (unsigned)(((size_t)atoi(argv[1]) << 20) / 3 / sizeof(float));
    bytes = n * sizeof(float);
    float *host = malloc(bytes);
    ASSERT(host);
    for (int i = 0; i < 3; i++)
        ASSERT_SUCCESS(cuMemAlloc(&vector[i], bytes));
    check_memory();
    CUfunction add = kernel(check_ptx, "add");
    for (unsigned i = 0; i < n; i++)
        host[i] = 1;
    ASSERT_SUCCESS(cuMemcpyHtoD(vector[0], host, bytes));
    for (int round = 0; round < atoi(argv[2]); round++) {
        work(add, host, (float)round);
        double deadline = now_s() + timeout_s;
        for (; location(vector[0]) != CU_DEVICE_CPU || location(vector[2]) != CU_DEVICE_CPU; usleep(10000))
            ASSERT(now_s() < deadline && "the memory is on the host");
        printf("round %d: parked\n", round);
        fflush(stdout);
        deadline = now_s() + timeout_s;
        for (; argc == 4 && location(vector[0]) == CU_DEVICE_CPU; usleep(1000))
            ASSERT(now_s() < deadline && "the memory is on the GPU");
    }
    for (int i = 0; i < 3; i++)
        ASSERT_SUCCESS(cuMemFree(vector[i]));
    ASSERT_FREE(the_limit);
    return 0;
}
