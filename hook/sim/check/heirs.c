/* heirs.c: memory that was handed on and whose maker is killed: it counts once,
 * as long as somebody has it. Only the simulator promises so much. */
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
    CHECK(free_now() == total); /* nobody has it but who holds the descriptor */
    MUST(cuMemImportFromShareableHandle(&again, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    MUST(cuMemMap(p, SIZE, 0, again, 0));
    MUST(cuMemSetAccess(p, SIZE, &d, 1));
    counts(total);
    MUST(cuMemcpyDtoH(&b, p + SIZE - 1, 1));
    CHECK(b == 77);
    MUST(cuMemUnmap(p, SIZE));
    MUST(cuMemRelease(again));
    MUST(cuMemAlloc(&p, total)); /* a full device takes nothing in */
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemImportFromShareableHandle(&again, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    MUST(cuMemFree(p));
    CHECK(free_now() == total);
    MUST(cuCtxDestroy(ctx));
    return tap_end();
}

int main(int argc, char **argv)
{
    char c;
    int fd;
    if (argc > 2)
        return !strcmp(argv[1], "maker") ? maker(atoi(argv[2])) : heir(atoi(argv[2]));
    struct peer a = peer_start(argv[0], "maker"), b = peer_start(argv[0], "heir");
    if (!hear(a.sock, &c, 1, &fd) || !say(b.sock, &c, 1, fd) || !hear_go(b.sock))
        return 1;
    kill(a.pid, SIGKILL);
    if (peer_end(a) != 128 || !say_go(b.sock))
        return 1;
    return peer_end(b);
}
