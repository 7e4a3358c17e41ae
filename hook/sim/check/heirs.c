/* heirs.c: shared memory whose maker is killed counts once, until no process has it mapped or has a
 * descriptor of it. Only the simulator promises this much. */
#include "objects.h"
#include "peer.h"

#include <signal.h>

#define SIZE ((size_t)8 << 20)

static int maker(int sock)
{
    CUdevice dev = first_device();
    new_context(dev);
    CUmemGenericAllocationHandle h = new_allocation(dev, SIZE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    int fd;
    ASSERT_SUCCESS(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    if (!send_message(sock, "g", 1, fd))
        return 1;
    receive_go(sock); /* the test kills this process meanwhile */
    return 2;
}

/* Checks that the shared memory exists and counts exactly once. */
static void counts(size_t total)
{
    CUdeviceptr rest, more;
    CHECK(free_memory() == total - SIZE);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAlloc(&rest, total - SIZE));
    CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&more, 1));
    CHECK_RESULT(CUDA_SUCCESS, cuMemFree(rest));
}

static int heir(int sock)
{
    CUdeviceptr more;
    size_t total;
    unsigned char b = 0;
    char c;
    int fd;
    CUdevice dev = first_device();
    CUcontext ctx = new_context(dev);
    ASSERT_SUCCESS(cuDeviceTotalMem(&total, dev));
    if (!receive_message(sock, &c, 1, &fd))
        return 1;
    CUmemGenericAllocationHandle h = new_import(fd);
    CUdeviceptr p = new_mapping(dev, h, SIZE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ASSERT_SUCCESS(cuMemRelease(h));
    counts(total); /* once, although two processes have it */
    if (!send_go(sock) || !receive_go(sock))
        return 1;
    counts(total); /* the maker is dead */
    ASSERT_SUCCESS(cuMemsetD8(p, 77, SIZE));
    ASSERT_SUCCESS(cuMemUnmap(p, SIZE));
    counts(total); /* only the descriptor is left */
    h = new_import(fd);
    ASSERT_SUCCESS(cuMemMap(p, SIZE, 0, h, 0));
    allow(dev, p, SIZE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    counts(total);
    ASSERT_SUCCESS(cuMemcpyDtoH(&b, p + SIZE - 1, 1));
    CHECK(b == 77);
    ASSERT_SUCCESS(cuMemUnmap(p, SIZE));
    ASSERT_SUCCESS(cuMemRelease(h));
    /* the import succeeds on a full device, because the memory already counts */
    ASSERT_SUCCESS(cuMemAlloc(&p, total - SIZE));
    ASSERT_SUCCESS(cuMemRelease(new_import(fd)));
    CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&more, 1));
    ASSERT_SUCCESS(cuMemFree(p));
    close(fd);
    CHECK(free_memory() == total);
    ASSERT_SUCCESS(cuCtxDestroy(ctx));
    return tap_end();
}

/* A process that opens the device while no other process uses it. */
static int latecomer(int sock)
{
    size_t total;
    CUdevice dev = first_device();
    ASSERT_SUCCESS(cuDeviceTotalMem(&total, dev));
    if (!receive_go(sock))
        return 1;
    CUcontext ctx = new_context(dev);
    counts(total); /* the descriptor is in a process that does not use the device */
    if (!send_go(sock) || !receive_go(sock))
        return 1;
    CHECK(free_memory() == total); /* that process has closed the descriptor */
    ASSERT_SUCCESS(cuCtxDestroy(ctx));
    return tap_failed != 0;
}

/* Starts a maker and kills it as soon as it has passed on the descriptor. */
static bool made(const char *self, char *c, int *fd)
{
    struct peer maker = peer_start(self, "maker");
    if (!receive_message(maker.sock, c, 1, fd))
        return false;
    kill(maker.pid, SIGKILL);
    return peer_wait(maker) == 128;
}

int main(int argc, char **argv)
{
    char c;
    int fd;
    if (argc > 2)
        return !strcmp(argv[1], "maker")  ? maker(atoi(argv[2]))
               : !strcmp(argv[1], "heir") ? heir(atoi(argv[2]))
                                          : latecomer(atoi(argv[2]));
    struct peer a = peer_start(argv[0], "maker"), b = peer_start(argv[0], "heir");
    if (!receive_message(a.sock, &c, 1, &fd) || !send_message(b.sock, &c, 1, fd) || !receive_go(b.sock))
        return 1;
    close(fd);
    kill(a.pid, SIGKILL);
    if (peer_wait(a) != 128 || !send_go(b.sock) || peer_wait(b))
        return 1;
    b = peer_start(argv[0], "latecomer");
    if (!made(argv[0], &c, &fd) || !send_go(b.sock) || !receive_go(b.sock))
        return 1;
    close(fd);
    return !send_go(b.sock) || peer_wait(b);
}
