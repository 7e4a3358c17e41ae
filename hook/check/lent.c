/* lent: maps memory of another process, which is held to no limit, to read it. Says
 * "mapped", waits for a line, lets go of it, says "gone" and waits for the end of
 * its input. What it may allocate itself stays the same.
 *
 *   lent SOCKET SIZE   is the other process: it makes SIZE MiB for who connects
 *   lent SOCKET        */
#include "check.h"
#include "../sim/check/peer.h"

#include <stdint.h>
#include <sys/un.h>

static CUmemAllocationProp property(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
}

static int keep(int listener, struct sockaddr_un at, size_t size)
{
    CUmemAllocationProp prop = property();
    CUmemGenericAllocationHandle handle;
    int fd;
    own_context();
    ENSURE(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    puts("listening");
    fflush(stdout);
    int sock = accept(listener, NULL, NULL);
    ENSURE(sock >= 0);
    MUST(cuMemCreate(&handle, size, &prop, 0));
    MUST(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    ENSURE(say(sock, &size, sizeof size, fd));
    hear_go(sock); /* until the other end is closed */
    return 0;
}

static size_t left(void)
{
    size_t unused, total;
    MUST(cuMemGetInfo(&unused, &total));
    return unused;
}

static struct sockaddr_un address(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    ENSURE(strlen(path) < sizeof a.sun_path);
    strcpy(a.sun_path, path);
    return a;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    struct sockaddr_un path = address(argv[1]);
    int fd, sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    ENSURE(sock >= 0);
    if (argc == 3)
        return keep(sock, path, (size_t)atoi(argv[2]) << 20);
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr at, own;
    own_context();
    size_t before = left(), size;
    ENSURE(connect(sock, (struct sockaddr *)&path, sizeof path) == 0 && hear(sock, &size, sizeof size, &fd));
    MUST(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    MUST(cuMemAddressReserve(&at, 2 * size, 0, 0, 0));
    MUST(cuMemMap(at, size, 0, handle, 0));
    MUST(cuMemMap(at + size, size, 0, handle, 0)); /* the same bytes */
    MUST(cuMemRelease(handle));
    MUST(cuMemSetAccess(at, 2 * size, &access, 1));
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
    ENSURE(left() == before);
    MUST(cuMemAlloc(&own, before)); /* all of it */
    MUST(cuMemFree(own));
    puts("mapped");
    fflush(stdout);
    ENSURE(getchar() != EOF);
    MUST(cuMemUnmap(at, size));
    MUST(cuMemUnmap(at + size, size));
    MUST(cuMemRelease(again));
    ENSURE(left() == before);
    puts("gone");
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    close(sock);
    return 0;
}
