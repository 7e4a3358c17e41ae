/* swap: under oversubscription, works on MIB of memory ROUNDS times, and waits after each round
 * until the library has moved the memory to the host. With "back", it then waits until the memory is
 * on the GPU again.
 *
 *   swap MIB ROUNDS [back]
 *
 * It prints a line per round. Exit status 77: the driver has no managed memory. */
#include "kinds.h"

#include <unistd.h>

enum { THREADS = 128 };

static CUdeviceptr vector[3]; /* c = a + b */
static unsigned n;
static size_t bytes;

/* Returns where the whole vector was last moved to. */
static int place(CUdeviceptr at)
{
    int where = -3;
    CUresult (*get)(void *, size_t, CUmem_range_attribute, CUdeviceptr, size_t) = NULL;
    *(void **)&get = driver_find("cuMemRangeGetAttribute");
    ASSERT_SUCCESS(get(&where, sizeof where, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, bytes));
    return where;
}

/* Does the work of one round: stores `with` + i % 1000 in element i of the second vector, adds the first
 * vector, whose elements are 1, on the GPU, and checks the sums. `host` has room for one vector. */
static void work(CUfunction add, float *host, float with)
{
    void *params[] = {&vector[0], &vector[1], &vector[2], &n};
    for (unsigned i = 0; i < n; i++)
        host[i] = with + (float)(i % 1000);
    ASSERT_SUCCESS(cuMemcpyHtoD(vector[1], host, bytes));
    /* The memory must have been on the GPU for the kernel. If this process gets no processor for long
     * after the kernel, the library may already have moved the idle memory to the host again before the
     * check. Then the kernel is launched again. */
    for (int tries = 1;; tries++) {
        ASSERT_SUCCESS(cuLaunchKernel(add, (n + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
        ASSERT_SUCCESS(cuCtxSynchronize());
        if (place(vector[0]) != CU_DEVICE_CPU)
            break;
        ASSERT(tries < 100);
    }
    memset(host, 0, bytes);
    ASSERT_SUCCESS(cuMemcpyDtoH(host, vector[2], bytes));
    for (unsigned i = 0; i < n; i++)
        ASSERT(host[i] == 1 + with + (float)(i % 1000));
}

/* Checks that the memory is managed, limited like other memory, and not shareable with other
 * processes. */
static void look(void)
{
    /* left() is the free memory that the program sees, the_limit the total. */
    unsigned managed = 0;
    CUdeviceptr more;
    size_t pitch;
    CUipcMemHandle handle;
    ASSERT_SUCCESS(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, vector[0]));
    ASSERT(managed);
    ASSERT_SUCCESS(cuMemAllocPitch(&more, &pitch, 1000, 10, 4));
    managed = 0;
    ASSERT_SUCCESS(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, more));
    ASSERT(managed && pitch >= 1000 && left() == the_limit - 3 * bytes - pitch * 10);
    ASSERT(cuMemAllocPitch(&more, &pitch, 1000, 10, 3) == CUDA_ERROR_INVALID_VALUE);
    ASSERT_SUCCESS(cuMemFree(more));
    ASSERT(cuMemAlloc(&more, the_limit) == CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT(cuIpcGetMemHandle(&handle, vector[0]) != CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
    const double patience = 60;
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
    look();
    CUfunction add = kernel(check_ptx, "add");
    for (unsigned i = 0; i < n; i++)
        host[i] = 1;
    ASSERT_SUCCESS(cuMemcpyHtoD(vector[0], host, bytes));
    for (int round = 0; round < atoi(argv[2]); round++) {
        work(add, host, (float)round);
        for (double end = now_s() + patience; place(vector[0]) != CU_DEVICE_CPU || place(vector[2]) != CU_DEVICE_CPU; usleep(10000))
            ASSERT(now_s() < end);
        printf("round %d: out and in\n", round);
        fflush(stdout);
        for (double end = now_s() + patience; argc == 4 && place(vector[0]) == CU_DEVICE_CPU; usleep(1000))
            ASSERT(now_s() < end);
    }
    for (int i = 0; i < 3; i++)
        ASSERT_SUCCESS(cuMemFree(vector[i]));
    LEFT_IS(the_limit);
    return 0;
}
