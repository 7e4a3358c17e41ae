/* tap_crash: crashes, hangs and fails, as a bad driver would, to test tap.h. Two of the first five
 * checks crash, and only the last of the three parts after them succeeds. */
#include "tap.h"

static volatile int *volatile nowhere;

static void refuses(void)
{
    GIVES(CUDA_SUCCESS, cuInit(0));
    MUST(cuInit(1));
    CHECK(nowhere != NULL);
}

static void hangs(void)
{
    CHECK(nowhere == NULL);
    for (tap_do("a loop without end", false);;)
        pause();
}

static void differs(void)
{
    USUALLY_GIVES(CUDA_SUCCESS, cuInit(1));
    USUALLY(nowhere != NULL);
    USUALLY(*nowhere == 0);
}

int main(void)
{
    CHECK(nowhere == NULL);
    CHECK(*nowhere == 0);
    GIVES(CUDA_SUCCESS, cuInit(0));
    GIVES(CUDA_SUCCESS, cuDeviceGetCount((int *)(uintptr_t)nowhere[1]));
    CHECK(nowhere == NULL);
    PART(refuses());
    PART(hangs());
    PART(differs());
    return tap_end();
}
