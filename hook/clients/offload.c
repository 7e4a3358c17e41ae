/* offload: sends OpenMP regions to a GPU, as compiled by GCC, for SECONDS.
 *
 *   offload SECONDS
 *
 * It prints how many regions it has sent. It does not check their results, because the simulated
 * GPU takes the time of a kernel but does not run it. */
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
