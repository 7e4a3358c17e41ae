/* steady: prints how evenly a program progresses, as one JSON object.
 *
 *   steady SECONDS BLOCK_US [EVERY_MS]
 *
 * It keeps a few kernels of BLOCK_US in flight and notes when each one ends. With EVERY_MS, it
 * instead requests a kernel every EVERY_MS milliseconds (plus or minus 10%) and waits for it. The
 * first second does not count.
 *
 *   kernels   number of kernels that ended after the first second
 *   seconds   time that they took
 *   stall_ms  the longest time from the end of a kernel to the end of the next, minus
 *             BLOCK_US; 0 with EVERY_MS
 *   p50_ms, p95_ms  time from the request of a kernel to its end; only with EVERY_MS */
#include "check.h"

#include <time.h>

enum { AHEAD = 32, MOST = 1 << 16 };

static double took[MOST];

static int in_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sleep_until(double at)
{
    struct timespec t = {(time_t)at, (long)((at - (double)(time_t)at) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
        ;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    double seconds = atof(argv[1]), every = argc > 3 ? atof(argv[3]) / 1e3 : 0;
    double block = atof(argv[2]) / 1e6;
    own_context();
    CUfunction timed = timed_kernel(atoi(argv[2]));
    CUstream stream = new_stream();
    CUevent over[AHEAD];
    for (int i = 0; i < AHEAD; i++)
        ASSERT_SUCCESS(cuEventCreate(&over[i], CU_EVENT_DISABLE_TIMING));
    double begin = now_s(), last = begin, stall = 0, counted = begin + 1;
    long kernels = 0;
    unsigned random = 12345;
    for (long i = 0; last < begin + 1 + seconds; i++) {
        double asked = now_s();
        if (every > 0) {
            random = random * 1103515245 + 12345;
            asked += every * (0.9 + 0.2 * (double)(random >> 16 & 0x7fff) / 0x8000);
            sleep_until(asked);
        }
        launch_block(timed, stream);
        ASSERT_SUCCESS(cuEventRecord(over[i % AHEAD], stream));
        if (every == 0 && i < AHEAD - 1)
            continue;
        ASSERT_SUCCESS(cuEventSynchronize(over[every > 0 ? i % AHEAD : (i + 1) % AHEAD]));
        double now = now_s();
        if (now > counted) {
            if (every > 0 && kernels < MOST)
                took[kernels] = now - asked;
            if (kernels++ && every == 0 && now - last - block > stall)
                stall = now - last - block;
        }
        last = now;
    }
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    long n = every == 0 ? 0 : kernels < MOST ? kernels : MOST;
    qsort(took, (size_t)n, sizeof *took, in_order);
    printf("{\"kernels\":%ld,\"seconds\":%.6f,\"stall_ms\":%.3f,\"p50_ms\":%.3f,\"p95_ms\":%.3f}\n", kernels, last - counted,
           stall * 1e3, n ? took[n / 2] * 1e3 : 0, n ? took[n * 95 / 100] * 1e3 : 0);
    return 0;
}
