/* place: a process that needs a free place in its instance. It prints the results of allocating 1
 * MiB and of a launch:
 *
 *   memory ERROR
 *   launch ERROR */
#include "check.h"

#include <unistd.h>

int main(void)
{
    CUdeviceptr memory;
    own_context();
    CUfunction nop = timed_kernel(1);
    printf("memory %d\n", (int)cuMemAlloc(&memory, 1 << 20));
    printf("launch %d\n", (int)cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    fflush(stdout);
    _exit(0);
}
