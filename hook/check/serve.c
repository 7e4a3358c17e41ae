/* serve: a server whose requests arrive in bursts. It serves one request after another: it launches
 * all kernels of the request and waits for them.
 *
 *   serve BURSTS REQUESTS EVERY_MS LULL_MS KERNELS BLOCK_US BLOCKS
 *
 * A burst is REQUESTS requests, one every EVERY_MS, even if earlier ones are not finished. LULL_MS
 * after the last is finished, the next burst begins. A request is KERNELS kernels of BLOCKS blocks,
 * which take BLOCK_US each on the simulated GPU.
 *
 * It prints the latency of each request, from its arrival to its end, in ms: one line per burst. */
#include "check.h"

#include <unistd.h>

static void sleep_until(double s)
{
    double left = s - now_s();
    if (left > 0)
        usleep((useconds_t)(left * 1e6));
}

int main(int argc, char **argv)
{
    if (argc != 8)
        return 2;
    alarm(120);
    int bursts = atoi(argv[1]), requests = atoi(argv[2]), kernels = atoi(argv[5]);
    double every = atof(argv[3]) / 1e3, lull = atof(argv[4]) / 1e3;
    unsigned blocks = (unsigned)atoi(argv[7]);
    own_context();
    CUfunction timed = timed_kernel(atoi(argv[6]));
    CUstream stream = new_stream();
    for (int b = 0; b < bursts; b++) {
        double began = now_s();
        for (int r = 0; r < requests; r++) {
            double came = began + r * every;
            sleep_until(came);
            for (int k = 0; k < kernels; k++)
                ASSERT_SUCCESS(cuLaunchKernel(timed, blocks, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
            ASSERT_SUCCESS(cuStreamSynchronize(stream));
            printf("%.2f ", (now_s() - came) * 1e3);
        }
        say_line("");
        usleep((useconds_t)(lull * 1e6));
    }
    return 0;
}
