/* sim_ipc.c: memory handed to another process by handle. */
#include "objects.h"

#include <sys/wait.h>
#include <unistd.h>

#define N 4096

static int importer(int in, int out)
{
    CUipcMemHandle h;
    CUdeviceptr p, q;
    unsigned char b[N];
    bool same = true;
    CUdevice dev = first_device();
    CUcontext ctx = new_context(dev);
    if (read(in, &h, sizeof h) != sizeof h)
        return 1;
    ASSERT_SUCCESS(cuIpcOpenMemHandle(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    ASSERT_SUCCESS(cuIpcOpenMemHandle(&q, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    ASSERT_SUCCESS(cuMemcpyDtoH(b, p, N));
    for (int i = 0; i < N; i++)
        same &= b[i] == 0x5a;
    ASSERT_SUCCESS(cuMemsetD8(p + 100, 0x77, 10));
    ASSERT_SUCCESS(cuCtxSynchronize());
    if (p != q || !same || cuMemFree(p) == CUDA_SUCCESS)
        return 1;
    ASSERT_SUCCESS(cuIpcCloseMemHandle(p));
    ASSERT_SUCCESS(cuIpcCloseMemHandle(p));
    if (cuIpcCloseMemHandle(p) != CUDA_ERROR_INVALID_VALUE)
        return 1;
    ASSERT_SUCCESS(cuCtxDestroy(ctx));
    return write(out, "k", 1) != 1;
}

int main(int argc, char **argv)
{
    CUipcMemHandle h;
    CUdeviceptr p, q;
    unsigned char b[N];
    char ok = 0;
    int down[2], up[2], status = -1;
    if (argc > 2)
        return importer(atoi(argv[1]), atoi(argv[2]));
    if (pipe(down) || pipe(up))
        return 1;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        char a[16], c[16];
        snprintf(a, sizeof a, "%d", down[0]);
        snprintf(c, sizeof c, "%d", up[1]);
        execl(argv[0], argv[0], a, c, (char *)NULL);
        _exit(127);
    }
    CUdevice dev = first_device();
    CUcontext ctx = new_context(dev);
    ASSERT_SUCCESS(cuMemAlloc(&p, N));
    ASSERT_SUCCESS(cuMemsetD8(p, 0x5a, N));
    ASSERT_SUCCESS(cuCtxSynchronize());
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(NULL, p));
    CHECK_RESULT(CUDA_SUCCESS, cuIpcGetMemHandle(&h, p));
    CHECK(cuIpcOpenMemHandle(&q, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
    CHECK(write(down[1], &h, sizeof h) == sizeof h);
    close(up[1]);
    CHECK(read(up[0], &ok, 1) == 1 && ok == 'k');
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ASSERT_SUCCESS(cuMemcpyDtoH(b, p, N));
    CHECK(b[99] == 0x5a && b[100] == 0x77 && b[109] == 0x77 && b[110] == 0x5a);
    memset(&h, 0x13, sizeof h);
    CHECK(cuIpcOpenMemHandle(&q, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
    DESTROY(p, ctx);
    return tap_end();
}
