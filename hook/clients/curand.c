/* curand.c: stubs of the cuRAND functions to which PyCUDA is linked. They replace NVIDIA's cuRAND, which is
 * not free software. PyCUDA calls them only to generate random numbers, and pycuda_launch.py does not. Each
 * stub fails with CURAND_STATUS_ALLOCATION_FAILED. */
enum { ALLOCATION_FAILED = 102 };

int curandGetVersion(int *version)
{
    *version = 0;
    return ALLOCATION_FAILED;
}

int curandGetDirectionVectors32(void *vectors, int set)
{
    (void)vectors, (void)set;
    return ALLOCATION_FAILED;
}

int curandGetDirectionVectors64(void *vectors, int set)
{
    (void)vectors, (void)set;
    return ALLOCATION_FAILED;
}

int curandGetScrambleConstants32(unsigned **constants)
{
    (void)constants;
    return ALLOCATION_FAILED;
}

int curandGetScrambleConstants64(unsigned long long **constants)
{
    (void)constants;
    return ALLOCATION_FAILED;
}
