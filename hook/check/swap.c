/* swap: under oversubscription, works on MIB of memory ROUNDS times, and between
 * them waits until its memory was moved to the host.
 *
 *   swap MIB ROUNDS
 *
 * Prints a line a round. Exit 77: this driver has no managed memory. */
#include "kinds.h"

#include <unistd.h>

enum { THREADS = 128 };

static CUdeviceptr vector[3]; /* c = a + b */
static unsigned n;
static size_t bytes;

/* Where the vector was last moved to as a whole. */
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
    MUST(cuLaunchKernel(add, (n + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
    MUST(cuCtxSynchronize());
    ENSURE(place(vector[0]) != CU_DEVICE_CPU);
    memset(host, 0, bytes);
    MUST(cuMemcpyDtoH(host, vector[2], bytes));
    for (unsigned i = 0; i < n; i++)
        ENSURE(host[i] == 1 + with + (float)(i % 1000));
}

/* It is managed, and for that no less limited; and not to be handed on. */
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
