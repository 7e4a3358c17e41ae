/* pace: launches kernels of BLOCK_US one after the other until it is killed, and records its
 * progress in FILE, which other processes may read meanwhile.
 *
 *   pace FILE BLOCK_US
 *
 * FILE holds 64-bit words: the number of completed kernels, then the launch times of the newest
 * TIMES kernels, in ns. */
#include "check.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TIMES = 65536 };

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    alarm(120); /* in case the test does not kill it */
    int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    ASSERT(fd >= 0 && ftruncate(fd, (1 + TIMES) * 8) == 0);
    uint64_t *account = mmap(NULL, (1 + TIMES) * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT(account != MAP_FAILED);
    own_context();
    CUfunction timed = timed_kernel(atoi(argv[2]));
    CUstream stream = new_stream();
    for (uint64_t n = 0;; n++) {
        launch_block(timed, stream);
        account[1 + n % TIMES] = (uint64_t)(now_s() * 1e9);
        ASSERT_SUCCESS(cuStreamSynchronize(stream));
        __atomic_store_n(&account[0], n + 1, __ATOMIC_RELEASE);
    }
}
