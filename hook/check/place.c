/* place: a process that needs a place among those of its instance. Prints what it gets
 * for a MiB of memory and for a launch:
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
