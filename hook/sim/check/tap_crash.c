/* tap_crash: a program for the test of tap.h. Its calls crash, hang and fail, as those of a bad driver
 * would; a comment says which. */
#include "tap.h"

static volatile int *volatile nowhere;

static void refuses(void)
{
    CHECK_RESULT(CUDA_SUCCESS, cuInit(0));
    ASSERT_SUCCESS(cuInit(1)); /* fails, which ends the part */
    CHECK(nowhere != NULL);
}

static void hangs(void)
{
    CHECK(nowhere == NULL);
    tap_enter("a loop without end");
    for (;;)
        pause();
}

/* Fails on the simulated driver. On another driver, these differences are only reported. */
static void differs(void)
{
    SIM_CHECK_RESULT(CUDA_SUCCESS, cuInit(1));
    SIM_CHECK(nowhere != NULL);
    SIM_CHECK(*nowhere == 0); /* crashes */
}

int main(void)
{
    CHECK(nowhere == NULL);
    CHECK(*nowhere == 0); /* crashes */
    CHECK_RESULT(CUDA_SUCCESS, cuInit(0));
    CHECK_RESULT(CUDA_SUCCESS, cuDeviceGetCount((int *)(uintptr_t)nowhere[1])); /* crashes */
    CHECK(nowhere == NULL);
    PART(refuses());
    PART(hangs()); /* until TAP_PATIENCE has passed */
    PART(differs());
    return tap_end();
}
