/* heirs.c: memory that was handed on and whose maker is killed: it counts once,
 * as long as somebody has it, or a descriptor of it. Only the simulator promises so much. */
#include "tap.h"
#include "peer.h"

#include <signal.h>

#define SIZE ((size_t)8 << 20)

static size_t free_now(void)
{
    size_t free_bytes, total;
    MUST(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

static int maker(int sock)
{
    CUcontext ctx;
    CUmemGenericAllocationHandle h;
    CUdevice dev = first_device();
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}};
    int fd;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    MUST(cuCtxCreate(&ctx, 0, dev));
    MUST(cuMemCreate(&h, SIZE, &p, 0));
    MUST(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    if (!say(sock, "g", 1, fd))
        return 1;
    hear_go(sock); /* killed meanwhile */
    return 2;
}

/* The shared memory is there and counts, and to the last byte no more. */
static void counts(size_t total)
{
    CUdeviceptr rest, more;
    CHECK(free_now() == total - SIZE);
    GIVES(CUDA_SUCCESS, cuMemAlloc(&rest, total - SIZE));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&more, 1));
    GIVES(CUDA_SUCCESS, cuMemFree(rest));
}

static int heir(int sock)
{
    CUcontext ctx;
    CUmemGenericAllocationHandle h, again;
    CUdeviceptr p;
    size_t total;
    unsigned char b = 0;
    char c;
    int fd;
    CUdevice dev = first_device();
    CUmemAccessDesc d = {{CU_MEM_LOCATION_TYPE_DEVICE, dev}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuCtxCreate(&ctx, 0, dev));
    MUST(cuDeviceTotalMem(&total, dev));
    if (!hear(sock, &c, 1, &fd))
        return 1;
    MUST(cuMemImportFromShareableHandle(&h, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    MUST(cuMemAddressReserve(&p, SIZE, 0, 0, 0));
    MUST(cuMemMap(p, SIZE, 0, h, 0));
    MUST(cuMemSetAccess(p, SIZE, &d, 1));
    MUST(cuMemRelease(h));
    counts(total); /* once, though two have it */
    if (!say_go(sock) || !hear_go(sock))
        return 1;
    counts(total); /* the maker is dead */
    MUST(cuMemsetD8(p, 77, SIZE));
    MUST(cuMemUnmap(p, SIZE));
    counts(total); /* nobody has it but who holds the descriptor */
    MUST(cuMemImportFromShareableHandle(&again, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    MUST(cuMemMap(p, SIZE, 0, again, 0));
    MUST(cuMemSetAccess(p, SIZE, &d, 1));
    counts(total);
    MUST(cuMemcpyDtoH(&b, p + SIZE - 1, 1));
    CHECK(b == 77);
    MUST(cuMemUnmap(p, SIZE));
    MUST(cuMemRelease(again));
    MUST(cuMemAlloc(&p, total - SIZE)); /* a full device takes it in: it is there already */
    MUST(cuMemImportFromShareableHandle(&again, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    MUST(cuMemRelease(again));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&again, 1));
    MUST(cuMemFree(p));
    close(fd);
    CHECK(free_now() == total);
    MUST(cuCtxDestroy(ctx));
    return tap_end();
}

/* One who comes to the device when nobody is on it. */
static int latecomer(int sock)
{
    CUcontext ctx;
    size_t total;
    CUdevice dev = first_device();
    MUST(cuDeviceTotalMem(&total, dev));
    if (!hear_go(sock))
        return 1;
    MUST(cuCtxCreate(&ctx, 0, dev));
    counts(total); /* the descriptor is in a process that has no part in it */
    if (!say_go(sock) || !hear_go(sock))
        return 1;
    CHECK(free_now() == total); /* it is closed */
    MUST(cuCtxDestroy(ctx));
    return tap_failed != 0;
}

/* The maker is killed as soon as it has handed the memory on. */
static bool made(const char *self, char *c, int *fd)
{
    struct peer maker = peer_start(self, "maker");
    if (!hear(maker.sock, c, 1, fd))
        return false;
    kill(maker.pid, SIGKILL);
    return peer_end(maker) == 128;
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
    if (!hear(a.sock, &c, 1, &fd) || !say(b.sock, &c, 1, fd) || !hear_go(b.sock))
        return 1;
    close(fd);
    kill(a.pid, SIGKILL);
    if (peer_end(a) != 128 || !say_go(b.sock) || peer_end(b))
        return 1;
    b = peer_start(argv[0], "latecomer");
    if (!made(argv[0], &c, &fd) || !say_go(b.sock) || !hear_go(b.sock))
        return 1;
    close(fd);
    return !say_go(b.sock) || peer_end(b);
}
