/* cost: prints the nanoseconds one asynchronous launch takes the program, the
 * least of many short bursts: what the GPU does meanwhile does not count.
 *
 *   cost BURSTS */
#include "check.h"

int main(int argc, char **argv)
{
    enum { BURST = 100 };
    own_context();
    CUfunction nop = kernel(check_ptx, "nop");
    CUstream stream = new_stream();
    double least = 1;
    for (int i = argc > 1 ? atoi(argv[1]) : 1000; i > 0; i--) {
        MUST(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        double began = now_s();
        for (int j = 0; j < BURST; j++)
            cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        double each = (now_s() - began) / BURST;
        least = each < least ? each : least;
        MUST(cuStreamSynchronize(stream));
    }
    printf("%.1f\n", least * 1e9);
    return 0;
}
