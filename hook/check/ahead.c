/* ahead: launches a kernel or a graph COUNT times without waiting, and prints three numbers of
 * launches in flight: the maximum, and the maximum and the median in the last quarter of the
 * launches.
 *
 *   ahead graph|kernel|switch|turns US COUNT [KERNELS]
 *
 * The kernel takes US microseconds. "graph" launches a graph of one such kernel. "switch" pushes
 * the context before each launch and pops it afterwards. "turns" spreads the launches over nine
 * streams. Before them, it launches KERNELS kernels of 1 us (default 0). */
#include "check.h"

#include <stdbool.h>

enum { MOST = 4096 }; /* larger numbers in flight count as MOST - 1 */

static int done;
static int often[MOST]; /* launches in the last quarter, by the number in flight */

static void CUDA_CB one_done(void *unused)
{
    (void)unused;
    __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    enum { MANY = 9 };
    CUcontext context = primary_context(), popped;
    CUfunction nop = kernel(check_ptx, "nop"), timed = timed_kernel(atoi(argv[2]));
    CUstream stream = new_stream(), many[MANY] = {stream};
    for (int i = 1; i < MANY; i++)
        many[i] = new_stream();
    CUgraphExec instance = kernel_graph(timed);
    for (int i = argc > 4 ? atoi(argv[4]) : 0; i > 0; i--)
        launch_block(nop, stream);
    bool graphs = !strcmp(argv[1], "graph"), switches = !strcmp(argv[1], "switch"), turns = !strcmp(argv[1], "turns");
    int most = 0, late = 0, count = atoi(argv[3]);
    for (int i = 1; i <= count; i++) {
        if (turns)
            stream = many[i % MANY];
        if (switches)
            ASSERT_SUCCESS(cuCtxPushCurrent(context));
        if (graphs)
            ASSERT_SUCCESS(cuGraphLaunch(instance, stream));
        else
            launch_block(timed, stream);
        ASSERT_SUCCESS(cuLaunchHostFunc(stream, one_done, NULL));
        if (switches)
            ASSERT_SUCCESS(cuCtxPopCurrent(&popped));
        int ahead = i - __atomic_load_n(&done, __ATOMIC_RELAXED);
        most = ahead > most ? ahead : most;
        late = i > count - count / 4 && ahead > late ? ahead : late;
        if (i > count - count / 4)
            often[ahead < MOST ? ahead : MOST - 1]++;
    }
    ASSERT_SUCCESS(cuCtxSynchronize());
    int middle = 0;
    for (int seen = often[0]; seen < count / 8; seen += often[++middle])
        ;
    printf("%d %d %d\n", most, late, middle);
    return 0;
}
