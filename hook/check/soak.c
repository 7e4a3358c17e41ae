/* soak: alternates randomly, until it is killed, between bursts of kernels, copies, memory, new
 * streams, pauses and child processes. It checks every result, and keeps the number of completed
 * kernels in FILE.
 *
 *   soak FILE SEED */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N = 256 };

static unsigned seed;
static uint64_t *done;
static CUfunction add, nop;
static CUstream stream;

static int chance(int of) { return rand_r(&seed) % of; }

static void burst(void)
{
    for (int n = 1 + chance(60); n > 0; n--) {
        launch_block(nop, stream);
        if (chance(8) == 0)
            ASSERT_SUCCESS(cuStreamSynchronize(stream));
        __atomic_add_fetch(done, 1, __ATOMIC_RELEASE);
    }
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
}

static void sum(void)
{
    float x[N], y[N], z[N];
    CUdeviceptr p = new_memory(sizeof x), q = new_memory(sizeof x), r = new_memory(sizeof x);
    int n = N;
    void *params[] = {&p, &q, &r, &n};
    for (int i = 0; i < N; i++) {
        x[i] = (float)chance(1000);
        y[i] = (float)i;
    }
    ASSERT_SUCCESS(cuMemcpyHtoDAsync(p, x, sizeof x, stream));
    ASSERT_SUCCESS(cuMemcpyHtoD(q, y, sizeof y));
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    ASSERT_SUCCESS(cuLaunchKernel(add, 2, 1, 1, N / 2, 1, 1, 0, stream, params, NULL));
    ASSERT_SUCCESS(cuMemcpyDtoHAsync(z, r, sizeof z, stream));
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    for (int i = 0; i < N; i++)
        ASSERT(z[i] == x[i] + y[i]);
    __atomic_add_fetch(done, 1, __ATOMIC_RELEASE);
    ASSERT_SUCCESS(cuMemFree(p));
    ASSERT_SUCCESS(cuMemFree(q));
    ASSERT_SUCCESS(cuMemFree(r));
}

static void another_stream(void)
{
    ASSERT_SUCCESS(cuStreamDestroy(stream));
    stream = new_stream();
}

static void child(void)
{
    pid_t pid = fork();
    ASSERT(pid >= 0);
    if (pid == 0)
        _exit(0);
    ASSERT(waitpid(pid, NULL, 0) == pid);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    seed = (unsigned)atoi(argv[2]);
    int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    ASSERT(fd >= 0 && ftruncate(fd, 8) == 0);
    done = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT(done != MAP_FAILED);
    own_context();
    nop = timed_kernel(200);
    add = kernel(check_ptx, "add");
    stream = new_stream();
    for (;;) {
        switch (chance(10)) {
        case 0: another_stream(); break;
        case 1: child(); break;
        case 2: case 3: sum(); break;
        case 4: case 5: usleep((useconds_t)chance(50000)); break;
        default: burst();
        }
    }
}
