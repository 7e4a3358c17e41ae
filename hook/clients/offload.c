/* offload: OpenMP regions sent to a GPU by GCC, for so many seconds.
 *
 *   offload SECONDS
 *
 * Prints how many regions it has sent. What they compute is not looked at: the
 * simulated GPU takes the time of a kernel and does not run it. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    static float a[1024], b[1024];
    double seconds = argc > 1 ? atof(argv[1]) : 1, began = omp_get_wtime();
    long regions = 0;
    if (!omp_get_num_devices()) {
        fprintf(stderr, "offload: no device\n");
        return 1;
    }
    while (omp_get_wtime() - began < seconds) {
#pragma omp target teams distribute parallel for num_teams(256) map(to : a) map(from : b)
        for (int i = 0; i < 1024; i++)
            b[i] = 2 * a[i];
        regions++;
    }
    printf("%ld\n", regions);
    return 0;
}
