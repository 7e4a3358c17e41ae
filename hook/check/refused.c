/* refused: requests twice the memory limit in one way, or a context, and prints the driver's
 * result.
 *
 *   refused KIND      memory of that kind, as in kinds.h
 *   refused context   a context
 *   refused primary   the primary context */
#include "kinds.h"

static CUresult request(const char *what)
{
    CUcontext context;
    ASSERT_SUCCESS(cuInit(0));
    ASSERT_SUCCESS(cuDeviceGet(&the_device, 0));
    if (!strcmp(what, "context"))
        return cuCtxCreate(&context, 0, the_device);
    if (!strcmp(what, "primary"))
        return cuDevicePrimaryCtxRetain(&context, the_device);
    use_device();
    for (unsigned i = 0; i < KINDS; i++)
        if (!strcmp(what, all_kinds[i].name))
            return all_kinds[i].get(&(struct held){.bytes = 2 * the_limit});
    return CUDA_ERROR_INVALID_VALUE;
}

int main(int argc, char **argv)
{
    ASSERT(argc == 2);
    printf("%d\n", request(argv[1]));
    return 0;
}
