/* lent: maps memory of another process, which has no limit, to read it. It prints "mapped", waits
 * for a line, unmaps the memory, prints "gone" and waits for the end of its input. The memory that
 * it can allocate itself must not change.
 *
 *   lent SOCKET SIZE   acts as the other process: shares SIZE MiB with the process that connects
 *   lent SOCKET        connects */
#include "check.h"
#include "../sim/check/peer.h"

#include <stdint.h>
#include <sys/un.h>

static CUmemAllocationProp property(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
}

static int hold_memory(int listener, struct sockaddr_un at, size_t size)
{
    CUmemAllocationProp prop = property();
    CUmemGenericAllocationHandle handle;
    int fd;
    own_context();
    ASSERT(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    say_line("listening");
    int sock = accept(listener, NULL, NULL);
    ASSERT(sock >= 0);
    ASSERT_SUCCESS(cuMemCreate(&handle, size, &prop, 0));
    ASSERT_SUCCESS(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    ASSERT(send_message(sock, &size, sizeof size, fd));
    receive_go(sock); /* until the other process closes its end */
    return 0;
}

static size_t free_bytes(void)
{
    size_t unused, total;
    ASSERT_SUCCESS(cuMemGetInfo(&unused, &total));
    return unused;
}

static struct sockaddr_un address(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    ASSERT(strlen(path) < sizeof a.sun_path);
    strcpy(a.sun_path, path);
    return a;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    struct sockaddr_un path = address(argv[1]);
    int fd, sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    ASSERT(sock >= 0);
    if (argc == 3)
        return hold_memory(sock, path, (size_t)atoi(argv[2]) << 20);
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr at, own;
    own_context();
    size_t before = free_bytes(), size;
    ASSERT(connect(sock, (struct sockaddr *)&path, sizeof path) == 0 && receive_message(sock, &size, sizeof size, &fd));
    ASSERT_SUCCESS(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    ASSERT_SUCCESS(cuMemAddressReserve(&at, 2 * size, 0, 0, 0));
    ASSERT_SUCCESS(cuMemMap(at, size, 0, handle, 0));
    ASSERT_SUCCESS(cuMemMap(at + size, size, 0, handle, 0)); /* the same bytes */
    ASSERT_SUCCESS(cuMemRelease(handle));
    ASSERT_SUCCESS(cuMemSetAccess(at, 2 * size, &access, 1));
    ASSERT_SUCCESS(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
    ASSERT(free_bytes() == before);
    ASSERT_SUCCESS(cuMemAlloc(&own, before)); /* all of the free memory */
    ASSERT_SUCCESS(cuMemFree(own));
    say_line("mapped");
    ASSERT(getchar() != EOF);
    ASSERT_SUCCESS(cuMemUnmap(at, size));
    ASSERT_SUCCESS(cuMemUnmap(at + size, size));
    ASSERT_SUCCESS(cuMemRelease(again));
    ASSERT(free_bytes() == before);
    say_line("gone");
    await_end();
    close(sock);
    return 0;
}
