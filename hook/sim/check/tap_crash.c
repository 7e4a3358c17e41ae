/* tap_crash: a driver that crashes, for tap.h: two of the five checks do. */
#include "tap.h"

static volatile int *volatile nowhere;

int main(void)
{
    CHECK(nowhere == NULL);
    CHECK(*nowhere == 0);
    GIVES(CUDA_SUCCESS, cuInit(0));
    GIVES(CUDA_SUCCESS, cuDeviceGetCount((int *)(uintptr_t)nowhere[1]));
    CHECK(nowhere == NULL);
    return tap_end();
}
