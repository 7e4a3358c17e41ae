/* curand.c: stands for NVIDIA's cuRAND, which is not free, where PyCUDA is linked with
 * it: what makes random numbers fails (curandStatus 102, allocation failed), and
 * nothing else of PyCUDA asks. */
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
