/* swap: under oversubscription, works on MIB of memory ROUNDS times, and waits after each round
 * until the library has moved the memory to the host.
 *
 *   swap MIB ROUNDS
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
    MUST(get(&where, sizeof where, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, bytes));
    return where;
}

static void work(CUfunction add, float *host, float with)
{
    void *params[] = {&vector[0], &vector[1], &vector[2], &n};
    for (unsigned i = 0; i < n; i++)
        host[i] = with + (float)(i % 1000);
    MUST(cuMemcpyHtoD(vector[1], host, bytes));
    /* On a busy host, the library may move the memory to the host again before this process gets a
     * processor after the kernel. */
    for (int tries = 1;; tries++) {
        MUST(cuLaunchKernel(add, (n + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
        MUST(cuCtxSynchronize());
        if (place(vector[0]) != CU_DEVICE_CPU)
            break;
        ENSURE(tries < 100);
    }
    memset(host, 0, bytes);
    MUST(cuMemcpyDtoH(host, vector[2], bytes));
    for (unsigned i = 0; i < n; i++)
        ENSURE(host[i] == 1 + with + (float)(i % 1000));
}

/* Checks that the memory is managed, limited like other memory, and not shareable with other
 * processes. */
static void look(void)
{
    unsigned managed = 0;
    CUdeviceptr more;
    size_t pitch;
    CUipcMemHandle handle;
    MUST(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, vector[0]));
    ENSURE(managed);
    MUST(cuMemAllocPitch(&more, &pitch, 1000, 10, 4));
    managed = 0;
    MUST(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, more));
    ENSURE(managed && pitch >= 1000 && left() == the_limit - 3 * bytes - pitch * 10);
    ENSURE(cuMemAllocPitch(&more, &pitch, 1000, 10, 3) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemFree(more));
    ENSURE(cuMemAlloc(&more, the_limit) == CUDA_ERROR_OUT_OF_MEMORY);
    ENSURE(cuIpcGetMemHandle(&handle, vector[0]) != CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
    const double patience = 60;
    if (argc != 3)
        return 2;
    if (!driver_find("cuMemAllocManaged"))
        return 77;
    use_device();
    n = (unsigned)(((size_t)atoi(argv[1]) << 20) / 3 / sizeof(float));
    bytes = n * sizeof(float);
    float *host = malloc(bytes);
    ENSURE(host);
    for (int i = 0; i < 3; i++)
        MUST(cuMemAlloc(&vector[i], bytes));
    look();
    CUfunction add = kernel(check_ptx, "add");
    for (unsigned i = 0; i < n; i++)
        host[i] = 1;
    MUST(cuMemcpyHtoD(vector[0], host, bytes));
    for (int round = 0; round < atoi(argv[2]); round++) {
        work(add, host, (float)round);
        for (double end = now_s() + patience; place(vector[0]) != CU_DEVICE_CPU || place(vector[2]) != CU_DEVICE_CPU; usleep(10000))
            ENSURE(now_s() < end);
        printf("round %d: out and in\n", round);
        fflush(stdout);
    }
    for (int i = 0; i < 3; i++)
        MUST(cuMemFree(vector[i]));
    LEFT_IS(the_limit);
    return 0;
}
