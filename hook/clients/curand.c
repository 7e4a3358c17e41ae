/* curand.c: stubs of the functions of NVIDIA's cuRAND, which is not free software, for linking PyCUDA.
 * Each function fails (curandStatus 102, allocation failed). Only PyCUDA's random numbers use them. */
enum { FAILED = 102 };

int curandGetVersion(int *version)
{
    *version = 0;
    return FAILED;
}

int curandGetDirectionVectors32(void *vectors, int set)
{
    (void)vectors, (void)set;
    return FAILED;
}

int curandGetDirectionVectors64(void *vectors, int set)
{
    (void)vectors, (void)set;
    return FAILED;
}

int curandGetScrambleConstants32(unsigned **constants)
{
    (void)constants;
    return FAILED;
}

int curandGetScrambleConstants64(unsigned long long **constants)
{
    (void)constants;
    return FAILED;
}
